//! Does any file panic a checkpoint reader, make it ask for memory that the file cannot fill, or read differently
//! in blocks than whole? All formats: content decides which reader it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mastercast::ckpt::{Access, open_with};

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("mastercast-fuzz-{}.metadata", std::process::id()));
    std::fs::write(&path, bytes).expect("the temporary directory can be written");
    if let Ok(ckpt) = open_with(&path, Access::Read) {
        for (i, entry) in ckpt.entries().iter().enumerate().take(64) {
            assert!(entry.bytes <= 2 * bytes.len() as u64, "an entry is longer than its file");
            let Ok(whole) = ckpt.read(i) else { continue };
            let mut blocks = vec![0; whole.len()];
            for (k, block) in blocks.chunks_mut(13).enumerate() {
                ckpt.read_into(i, 13 * k as u64, block).expect("what can be read whole can be read in blocks");
            }
            assert!(blocks == *whole, "blocks differ");
        }
    }
});
