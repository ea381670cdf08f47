//! Operations on a storage, as values.

use bytes::Bytes;

use crate::storage::body_bytes;
use crate::{ByteRange, Key};

/// A call of one of the [`Storage`](crate::Storage) methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creating an object.
    Put {
        /// Its name.
        key: Key,
        /// The size of its body.
        bytes: u64,
    },
    /// Reading an object.
    Get {
        /// Its name.
        key: Key,
        /// The range to read.
        range: ByteRange,
    },
    /// Looking at an object's size.
    Head {
        /// Its name.
        key: Key,
    },
    /// Deleting objects.
    Delete {
        /// Their names, in order.
        keys: Vec<Key>,
    },
    /// Listing one page of objects.
    List {
        /// The prefix of their names.
        prefix: String,
        /// The name after which the page starts.
        after: Option<Key>,
    },
}

/// The method that an [`Operation`] calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// [`Storage::put`](crate::Storage::put)
    Put,
    /// [`Storage::get`](crate::Storage::get)
    Get,
    /// [`Storage::head`](crate::Storage::head)
    Head,
    /// [`Storage::delete`](crate::Storage::delete)
    Delete,
    /// [`Storage::list`](crate::Storage::list)
    List,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Put, Self::Get, Self::Head, Self::Delete, Self::List];

    /// Whether it creates or deletes objects.
    pub fn is_mutation(self) -> bool {
        matches!(self, Self::Put | Self::Delete)
    }
}

impl Operation {
    /// The method it calls.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Put { .. } => OperationKind::Put,
            Self::Get { .. } => OperationKind::Get,
            Self::Head { .. } => OperationKind::Head,
            Self::Delete { .. } => OperationKind::Delete,
            Self::List { .. } => OperationKind::List,
        }
    }

    /// The objects that it names; none for a listing.
    pub fn keys(&self) -> &[Key] {
        match self {
            Self::Put { key, .. } | Self::Get { key, .. } | Self::Head { key } => {
                std::slice::from_ref(key)
            }
            Self::Delete { keys } => keys,
            Self::List { .. } => &[],
        }
    }

    pub(crate) fn put(key: &Key, body: &[Bytes]) -> Self {
        Self::Put { key: key.clone(), bytes: body_bytes(body) }
    }

    pub(crate) fn get(key: &Key, range: ByteRange) -> Self {
        Self::Get { key: key.clone(), range }
    }

    pub(crate) fn head(key: &Key) -> Self {
        Self::Head { key: key.clone() }
    }

    pub(crate) fn delete(keys: &[Key]) -> Self {
        Self::Delete { keys: keys.to_vec() }
    }

    pub(crate) fn list(prefix: &str, after: Option<&Key>) -> Self {
        Self::List { prefix: prefix.to_owned(), after: after.cloned() }
    }
}
