//! File to file, with the allocator of the command-line tool: see `shared/files.rs`.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[path = "shared/files.rs"]
mod files;

fn main() {
    files::run();
}
