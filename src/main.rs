//! Where does the command-line tool start?

mod cli;

/// Rewriting a large program is bound by page faults: with the system's allocator a cold run took
/// more than three times as long (see `benches/pipeline.rs`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
