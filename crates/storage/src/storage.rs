//! The seam between the engine and where objects are kept.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result};

use crate::{Key, ListPage, TagPage, Usage};

/// The most bytes one [`Storage::get`] returns; larger objects are read in ranges.
pub const READ_BYTES_MAX: u64 = 256 << 20;

/// What [`Storage::put`] does when the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PutMode {
    /// Create the object, or fail with `AlreadyExists` and leave what is there as it is.
    Create,
    /// The same without waiting for stable storage: a power failure may take the object away again,
    /// or leave a name with damaged contents. For what only the living need, such as leases.
    CreateTransient,
}

/// Which bytes of an object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteRange {
    /// All of it.
    Full,
    /// `length` bytes from `offset`; all of them must be there.
    Bounded {
        /// Bytes from the start of the object.
        offset: u64,
        /// Bytes; zero reads nothing, and still checks that `offset` lies within the object.
        length: u64,
    },
    /// The last bytes; all of the object when it is no longer than that.
    Tail(u64),
}

impl ByteRange {
    /// The bytes of an object of `size_bytes` that this range means.
    ///
    /// A bounded range that reaches past the end is an error of kind `Corrupt`: objects never
    /// change, so whoever named the range knew a longer object. More than [`READ_BYTES_MAX`] is
    /// refused with `Invalid`.
    pub fn resolve(self, key: &Key, size_bytes: u64) -> Result<Range<u64>> {
        let range = match self {
            Self::Full => 0..size_bytes,
            Self::Bounded { offset, length } => match offset.checked_add(length) {
                Some(end) if end <= size_bytes => offset..end,
                _ => {
                    return Err(Error::corrupt(format!(
                        "object {key} has {size_bytes} bytes, {length} bytes at offset {offset} \
                         were to be read: it was cut short, or what refers to it is damaged"
                    )));
                }
            },
            Self::Tail(length) => size_bytes.saturating_sub(length)..size_bytes,
        };
        if range.end - range.start > READ_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{} bytes of object {key} are too many for one read (at most {READ_BYTES_MAX}); \
                 read it in ranges",
                range.end - range.start
            )));
        }
        Ok(range)
    }
}

/// How much of an object's end readers ask for at first, to find its directory.
pub const TAIL_BYTES: u64 = 32 << 10;

/// The metadata of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Size in bytes.
    pub size: u64,
    /// When it was created, in milliseconds since 1970 by the storage's own clock, if it has one.
    pub modified_ms: Option<u64>,
}

/// The guarantees of a storage; callers check those that they rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent yes-or-no promises, not states")]
pub struct Guarantees {
    /// Of several who create one name at once, exactly one succeeds.
    pub conditional_create: bool,
    /// Once a put has returned, every reader finds the object; once a delete has, none does.
    pub read_after_write: bool,
    /// Once a put or delete has returned, every listing shows it.
    pub list_after_write: bool,
    /// What a put or delete did survives a power failure once it has returned.
    pub durable_on_return: bool,
}

impl Guarantees {
    /// Everything promised.
    pub const ALL: Self = Self {
        conditional_create: true,
        read_after_write: true,
        list_after_write: true,
        durable_on_return: true,
    };
}

/// Named immutable byte objects; knows nothing of what is in them. No blind overwrite exists.
///
/// After an error other than those named below, a put or delete may or may not have happened:
/// the answer can be lost on its way. Both can simply be repeated; a repeated put that answers
/// `AlreadyExists` then needs a look at what is there.
pub trait Storage: Send + Sync {
    /// Creates `key` with the concatenation of the pieces of `body`.
    ///
    /// All of the object appears at once, durable when the call returns unless `mode` says
    /// otherwise. `AlreadyExists` if there
    /// is an object of that name, which is durable then too; `Invalid` where the name lies under
    /// an object, or objects lie under it, and the storage can tell.
    ///
    /// What sends the bytes may hold them for a while after the call returns.
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()>;

    /// The same, and the new object's tag if the storage tells it: see [`tags`](Self::tags).
    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.put_bytes(key, body, mode).map(|()| None)
    }

    /// The same of borrowed bytes, which are copied.
    fn put(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        let body: Vec<Bytes> = body.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        self.put_bytes(key, &body, mode)
    }

    /// Replaces the contents of `into` with a range of the object.
    ///
    /// `into` is empty after an error. `NotFound` if there is no such object; see
    /// [`ByteRange::resolve`] for ranges that do not fit.
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()>;

    /// In how many places an object may be; each can be read for itself.
    fn copies(&self, _key: &Key) -> usize {
        1
    }

    /// The same as [`get`](Self::get), from place `copy` alone: for who has found another place's
    /// bytes damaged.
    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let _ = copy;
        self.get(key, range, into)
    }

    /// Makes sure that an object which somebody else may have left half-done is durable, and in
    /// every place that its storage keeps objects in: for who is about to rely on what an
    /// interrupted writer has created.
    ///
    /// The object must be there; the bytes are not verified.
    fn settle(&self, key: &Key) -> Result<()>;

    /// The same as [`list`](Self::list), of place `copy` alone.
    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let _ = copy;
        self.list(prefix, after)
    }

    /// The size and age of an object; `NotFound` if there is none.
    fn head(&self, key: &Key) -> Result<ObjectMeta>;

    /// Deletes the objects in the order given; absent ones are fine.
    ///
    /// Durable on return. It is not atomic: after an error some may be gone.
    fn delete(&self, keys: &[Key]) -> Result<()>;

    /// The first objects whose names begin with `prefix` and come after `after`, by name.
    ///
    /// `prefix` is a plain beginning of names, `""` for all, and need not end at a `/`. A page
    /// has at most [`LIST_PAGE_OBJECTS_MAX`](crate::LIST_PAGE_OBJECTS_MAX) objects;
    /// [`list_all`](crate::list_all) goes through all of them.
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage>;

    /// Tags of the first objects whose names begin with `prefix` and come after `after`: one that
    /// is told again means that the object is the same. `None` where a storage knows none.
    fn tags(&self, _prefix: &str, _after: Option<&Key>) -> Result<Option<TagPage>> {
        Ok(None)
    }

    /// Whether a copy of the object was kept nearby, which is not read again: for who finds that it
    /// does not belong to the rest.
    fn forget(&self, _key: &Key) -> bool {
        false
    }

    /// How many objects are best created at once.
    fn uploads(&self) -> usize {
        1
    }

    /// How many bytes are read in about the time that a request takes by itself, 0 where it takes
    /// next to none: so much between two parts that are wanted is better read with them than left
    /// out.
    fn request_bytes(&self) -> u64 {
        0
    }

    /// What was asked so far of a store whose requests are counted.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// What this storage promises.
    fn guarantees(&self) -> Guarantees;

    /// The place, for messages: a path or an address without secrets.
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
            fn tags(&self, prefix: &str, after: Option<&Key>) -> Result<Option<TagPage>> {
                (**self).tags(prefix, after)
            }
            fn forget(&self, key: &Key) -> bool {
                (**self).forget(key)
            }
            fn uploads(&self) -> usize {
                (**self).uploads()
            }
            fn request_bytes(&self) -> u64 {
                (**self).request_bytes()
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

/// The answer to a put whose name is taken.
pub(crate) fn already_exists(key: &Key, place: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("object {key} already exists in {place}"))
}

/// The answer when there is no object of that name.
pub(crate) fn not_found(key: &Key, place: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no object {key} in {place}"))
}

/// The answer to a put whose name is the beginning of others, or the reverse.
pub(crate) fn name_in_the_way(key: &Key, other: &str, place: &str) -> Error {
    Error::invalid(format!(
        "object {key} cannot be created in {place}: {other} is there, and a name is either an \
         object or the beginning of others"
    ))
}

/// The size of a body, in bytes.
pub(crate) fn body_bytes(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}
