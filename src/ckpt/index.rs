//! Which entry has this name? A hash table of indices into the entries, so that no name is stored twice.

use super::TensorEntry;
use hashbrown::HashTable;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Names to indices. The hash is seeded at random: the names come from outside and must not be
/// able to collide on purpose. No order comes from this table.
pub(crate) struct NameIndex {
    table: HashTable<usize>,
    hasher: RandomState,
}

impl NameIndex {
    /// All entries with a name; the error is the second index of the first repeated name.
    pub(crate) fn unique(entries: &[TensorEntry]) -> Result<NameIndex, usize> {
        let (index, repeated) = NameIndex::build(entries);
        repeated.map_or(Ok(index), Err)
    }

    /// All entries with a name; of a repeated name, the first.
    pub(crate) fn first_of(entries: &[TensorEntry]) -> NameIndex {
        NameIndex::build(entries).0
    }

    fn build(entries: &[TensorEntry]) -> (NameIndex, Option<usize>) {
        let (hasher, mut table) = (RandomState::new(), HashTable::with_capacity(entries.len()));
        let mut repeated = None;
        for (i, entry) in entries.iter().enumerate().filter(|(_, e)| !e.name.is_empty()) {
            let hash = hasher.hash_one(&entry.name);
            match table.find(hash, |&j: &usize| entries[j].name == entry.name) {
                Some(_) => repeated = repeated.or(Some(i)),
                None => {
                    table.insert_unique(hash, i, |&j| hasher.hash_one(&entries[j].name));
                }
            }
        }
        (NameIndex { table, hasher }, repeated)
    }

    /// The index of `name` in the entries this was built from.
    pub(crate) fn find(&self, entries: &[TensorEntry], name: &str) -> Option<usize> {
        self.table.find(self.hasher.hash_one(name), |&i| entries[i].name == name).copied()
    }
}

impl fmt::Debug for NameIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameIndex({})", self.table.len())
    }
}
