//! Have these bytes been seen in this file? A table from byte strings of the file to what they became.

use crate::names::Seeded;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// A table keyed by byte strings that it borrows.
pub(super) struct Memo<'a, V> {
    table: HashTable<(u64, &'a [u8], V)>,
    seeded: Seeded,
}

impl<'a, V: Copy> Memo<'a, V> {
    pub fn new() -> Self {
        Memo { table: HashTable::new(), seeded: Seeded::default() }
    }

    #[inline(always)]
    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut h = self.seeded.build_hasher();
        h.write(bytes);
        h.finish()
    }

    /// The value of `bytes`.
    #[inline]
    pub fn get(&self, bytes: &[u8]) -> Option<V> {
        let h = self.hash(bytes);
        self.table.find(h, |e| e.0 == h && e.1 == bytes).map(|e| e.2)
    }

    /// Sets the value of `bytes`, which has none yet.
    pub fn insert(&mut self, bytes: &'a [u8], value: V) {
        let h = self.hash(bytes);
        self.table.insert_unique(h, (h, bytes, value), |e| e.0);
    }

    /// The value of `bytes`, made on first use; `None` when it cannot be made.
    #[inline]
    pub fn find(&mut self, bytes: &'a [u8], make: impl FnOnce(&'a [u8]) -> Option<V>) -> Option<V> {
        let h = self.hash(bytes);
        if let Some(e) = self.table.find(h, |e| e.0 == h && e.1 == bytes) {
            return Some(e.2);
        }
        let value = make(bytes)?;
        self.table.insert_unique(h, (h, bytes, value), |e| e.0);
        Some(value)
    }
}
