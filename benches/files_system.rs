//! File to file, with the system's allocator: see `shared/files.rs`.

#[path = "shared/files.rs"]
mod files;

fn main() {
    files::run();
}
