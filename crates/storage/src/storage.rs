//! The interface between the engine and storage.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result};

use crate::{Block, Filling, Key, ListPage, TaggedPage, Usage};

/// Maximum number of bytes that one [`Storage::get`] returns; larger objects are read in ranges.
pub const READ_BYTES_MAX: u64 = 256 << 20;

/// How durable a new object is when [`Storage::put`] returns. Neither mode overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PutMode {
    /// Create the object durably, or fail with `AlreadyExists` and leave the existing one
    /// unchanged.
    Create,
    /// The same without waiting for stable storage: a power failure may remove the object or damage
    /// its contents. For objects that only running processes need, such as leases.
    CreateTransient,
}

/// The bytes of an object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteRange {
    /// All of it.
    Full,
    /// `length` bytes from `offset`; all of them must exist.
    Bounded {
        /// Bytes from the start of the object.
        offset: u64,
        /// Number of bytes; zero reads nothing, but still checks that `offset` is within the
        /// object.
        length: u64,
    },
    /// The last bytes; the whole object if it is not longer.
    Tail(u64),
}

impl ByteRange {
    /// Returns the bytes that this range selects in an object of `size_bytes`.
    ///
    /// Fails with `Corrupt` if a bounded range exceeds the object: objects never change, so the
    /// caller knew a longer object. Fails with `Invalid` for more than [`READ_BYTES_MAX`] bytes.
    pub fn resolve(self, key: &Key, size_bytes: u64) -> Result<Range<u64>> {
        let range = match self {
            Self::Full => 0..size_bytes,
            Self::Bounded { offset, length } => match offset.checked_add(length) {
                Some(end) if end <= size_bytes => offset..end,
                _ => {
                    return Err(Error::corrupt(format!(
                        "object {key} has {size_bytes} bytes, so {length} bytes at offset {offset} \
                         cannot be read: it was truncated, or the reference to it is damaged"
                    )));
                }
            },
            Self::Tail(length) => size_bytes.saturating_sub(length)..size_bytes,
        };
        if range.end - range.start > READ_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a read of {} bytes of object {key} exceeds the limit of {READ_BYTES_MAX}; read it \
                 in ranges",
                range.end - range.start
            )));
        }
        Ok(range)
    }
}

/// Number of bytes that readers first read from an object's end, to find its directory.
pub const TAIL_BYTES: u64 = 32 << 10;

/// The metadata of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Size in bytes.
    pub size: u64,
    /// Creation time in milliseconds since 1970, by the storage's own clock, if it has one.
    pub modified_ms: Option<u64>,
}

/// The guarantees of a storage. A repository with several writers needs all of them; the
/// [conformance suite](crate::conformance) tests visibility as far as a storage claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent yes-or-no promises, not states")]
pub struct Guarantees {
    /// Of several processes that create one name concurrently, exactly one succeeds.
    pub conditional_create: bool,
    /// After a put has returned, every reader finds the object; after a delete, none does.
    pub read_after_write: bool,
    /// After a put or delete has returned, every listing reflects it.
    pub list_after_write: bool,
    /// After a put or delete has returned, its effect survives a power failure.
    pub durable_on_return: bool,
}

impl Guarantees {
    /// All guarantees.
    pub const ALL: Self = Self {
        conditional_create: true,
        read_after_write: true,
        list_after_write: true,
        durable_on_return: true,
    };
}

/// Named immutable byte objects, whose contents it does not interpret. Nothing is ever overwritten.
///
/// After an error other than those named below, a put or delete may or may not have happened,
/// because the response can be lost. Both can be repeated; if a repeated put fails with
/// `AlreadyExists`, compare the existing object.
pub trait Storage: Send + Sync {
    /// Creates the object `key` from the concatenated pieces of `body`.
    ///
    /// The whole object appears at once. When the call returns, it is durable unless `mode` says
    /// otherwise. Fails with `AlreadyExists` if the object exists; the existing object is then
    /// durable, too. Fails with `Invalid` if the name is below another object, or if objects are
    /// below the name, and the storage detects it.
    ///
    /// The sender may keep references to the bytes for a while after the call returns.
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()>;

    /// The same as [`put_bytes`](Self::put_bytes); returns the new object's tag if the storage has
    /// one: see [`list_tagged`](Self::list_tagged).
    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.put_bytes(key, body, mode).map(|()| None)
    }

    /// The same as [`put_bytes`](Self::put_bytes) with borrowed bytes, which are copied.
    fn put(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        let body: Vec<Bytes> = body.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        self.put_bytes(key, &body, mode)
    }

    /// Replaces the contents of `into` with a range of the object.
    ///
    /// `into` is empty after an error. Fails with `NotFound` if there is no such object; see
    /// [`ByteRange::resolve`] for ranges that do not fit.
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()>;

    /// Reads blocks of one object, in ascending order, by one request for them and what lies
    /// between them.
    ///
    /// Fails with `Invalid` if blocks overlap, and else as [`get`](Self::get) does.
    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        let (mut filling, mut all) = (Filling::new(key, blocks)?, Vec::new());
        self.get(key, filling.range(), &mut all)?;
        filling.add(&all);
        filling.full(key)
    }

    /// Returns the number of places that may hold an object; each can be read separately.
    fn copies(&self, _key: &Key) -> usize {
        1
    }

    /// The same as [`get`](Self::get), but only from place `copy`, for callers that found another
    /// place's bytes damaged.
    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let _ = copy;
        self.get(key, range, into)
    }

    /// Makes an object durable and present in every place, for callers that rely on an object that
    /// an interrupted process may have left incomplete.
    ///
    /// The object must exist; its bytes are not verified.
    fn settle(&self, key: &Key) -> Result<()>;

    /// The same as [`list`](Self::list), but only of place `copy`.
    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let _ = copy;
        self.list(prefix, after)
    }

    /// Returns the size and age of an object. Fails with `NotFound` if it does not exist.
    fn head(&self, key: &Key) -> Result<ObjectMeta>;

    /// Deletes the objects in the given order; missing ones are ignored.
    ///
    /// Durable on return. Not atomic: after an error some may be deleted.
    fn delete(&self, keys: &[Key]) -> Result<()>;

    /// Lists the first objects whose names begin with `prefix` and sort after `after`, in name
    /// order.
    ///
    /// `prefix` is a plain string prefix, `""` for all, and need not end at a `/`. A page has at
    /// most [`LIST_PAGE_OBJECTS_MAX`](crate::LIST_PAGE_OBJECTS_MAX) objects;
    /// [`list_all`](crate::list_all) iterates over all pages.
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage>;

    /// The same as [`list`](Self::list), with the objects' tags if the storage tells them. An equal
    /// tag means that the object is the same.
    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        Ok(TaggedPage { page: self.list(prefix, after)?, tags: None })
    }

    /// Drops a cached copy of the object, for callers that find it inconsistent; returns whether
    /// there was one.
    fn forget(&self, _key: &Key) -> bool {
        false
    }

    /// Returns the best number of objects to create in parallel.
    fn uploads(&self) -> usize {
        1
    }

    /// Returns how many requests operations on many series may have under way at once: more than
    /// one where the time of a request is mostly waiting.
    fn requests_at_once(&self) -> usize {
        1
    }

    /// Returns the number of bytes that arrive in about the time of one request; 0 if that time is
    /// negligible. Readers read a gap of up to this size between two wanted ranges instead of
    /// skipping it.
    fn request_bytes(&self) -> u64 {
        0
    }

    /// Returns the shortest time in which an answer of the storage began so far, in nanoseconds, if
    /// the storage notes it; of several places, that of the farthest one. No answer can begin
    /// sooner than the way to the storage and back takes. So it tells how far away the storage is,
    /// however long most requests wait for processors.
    fn soonest_answer_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the requests so far, if the storage counts them.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns the guarantees of this storage.
    fn guarantees(&self) -> Guarantees;

    /// Returns the location for messages: a path or an address, without secrets.
    fn describe(&self) -> String;
}

/// A pointer to a storage is a storage.
macro_rules! storage_through_pointer {
    ($pointer:ty) => {
        impl<T: Storage + ?Sized> Storage for $pointer {
            fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
                (**self).put_bytes(key, body, mode)
            }
            fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
                (**self).get(key, range, into)
            }
            fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
                (**self).get_blocks(key, blocks)
            }
            fn copies(&self, key: &Key) -> usize {
                (**self).copies(key)
            }
            fn get_from(
                &self,
                copy: usize,
                key: &Key,
                range: ByteRange,
                into: &mut Vec<u8>,
            ) -> Result<()> {
                (**self).get_from(copy, key, range, into)
            }
            fn settle(&self, key: &Key) -> Result<()> {
                (**self).settle(key)
            }
            fn list_from(
                &self,
                copy: usize,
                prefix: &str,
                after: Option<&Key>,
            ) -> Result<ListPage> {
                (**self).list_from(copy, prefix, after)
            }
            fn head(&self, key: &Key) -> Result<ObjectMeta> {
                (**self).head(key)
            }
            fn delete(&self, keys: &[Key]) -> Result<()> {
                (**self).delete(keys)
            }
            fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
                (**self).list(prefix, after)
            }
            fn put_tagged(
                &self,
                key: &Key,
                body: &[Bytes],
                mode: PutMode,
            ) -> Result<Option<String>> {
                (**self).put_tagged(key, body, mode)
            }
            fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
                (**self).list_tagged(prefix, after)
            }
            fn forget(&self, key: &Key) -> bool {
                (**self).forget(key)
            }
            fn uploads(&self) -> usize {
                (**self).uploads()
            }
            fn requests_at_once(&self) -> usize {
                (**self).requests_at_once()
            }
            fn request_bytes(&self) -> u64 {
                (**self).request_bytes()
            }
            fn soonest_answer_ns(&self) -> Option<u64> {
                (**self).soonest_answer_ns()
            }
            fn usage(&self) -> Option<Usage> {
                (**self).usage()
            }
            fn guarantees(&self) -> Guarantees {
                (**self).guarantees()
            }
            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    };
}

storage_through_pointer!(&T);
storage_through_pointer!(Arc<T>);
storage_through_pointer!(Box<T>);

/// The error of a put whose name exists.
pub(crate) fn already_exists(key: &Key, place: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("object {key} already exists in {place}"))
}

/// The error for a missing object.
pub(crate) fn not_found(key: &Key, place: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{place} has no object {key}"))
}

/// The error of a put whose name is a prefix of others, or the reverse.
pub(crate) fn name_in_the_way(key: &Key, other: &str, place: &str) -> Error {
    Error::invalid(format!(
        "object {key} cannot be created in {place}: {other} exists, and a name is either an object \
         or a prefix of others"
    ))
}

/// The size of a body, in bytes.
pub(crate) fn body_bytes(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}
