//! How are rows of the IR named? By dense `u32` ids, one type per kind of row.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A dense row id: a `u32` with a type of its own.
pub trait EntityId: Copy + Eq + Ord + Hash + fmt::Debug {
    /// The id of row `index`. Panics when `index` does not fit in 32 bits.
    fn from_index(index: usize) -> Self;
    /// The row's index.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $crate::entity::EntityId for $name {
            #[inline]
            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).expect("more than 2^32 rows"))
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}
pub(crate) use entity;

/// A vector indexed by an entity id.
#[derive(Clone)]
pub struct IdVec<K, V> {
    rows: Vec<V>,
    key: PhantomData<fn(K) -> K>,
}

impl<K: EntityId, V> IdVec<K, V> {
    /// An empty vector.
    pub const fn new() -> Self {
        IdVec { rows: Vec::new(), key: PhantomData }
    }

    /// `len` copies of `value`.
    pub fn filled(value: V, len: usize) -> Self
    where
        V: Clone,
    {
        IdVec { rows: vec![value; len], key: PhantomData }
    }

    /// Appends a row and returns its id.
    pub fn push(&mut self, value: V) -> K {
        let id = K::from_index(self.rows.len());
        self.rows.push(value);
        id
    }

    /// The id that the next `push` will return.
    pub fn next_id(&self) -> K {
        K::from_index(self.rows.len())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row, or `None` when the id is out of range.
    pub fn get(&self, id: K) -> Option<&V> {
        self.rows.get(id.index())
    }

    /// All ids, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.rows.len()).map(K::from_index)
    }

    /// All rows with their ids, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.rows.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }

    /// All rows, in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.rows.iter()
    }

    /// Makes room for `more` rows.
    pub fn reserve(&mut self, more: usize) {
        self.rows.reserve(more);
    }
}

impl<K: EntityId, V> Default for IdVec<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: EntityId, V> Index<K> for IdVec<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        &self.rows[id.index()]
    }
}

impl<K: EntityId, V> IndexMut<K> for IdVec<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.rows[id.index()]
    }
}

impl<K: EntityId + fmt::Debug, V: fmt::Debug> fmt::Debug for IdVec<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
