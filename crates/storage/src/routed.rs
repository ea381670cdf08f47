//! Stores some objects in a storage of their own.

use std::sync::Arc;

use bytes::Bytes;
use silt_format::Result;

use crate::replicated::{both, merge_pages};
use crate::{Block, ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage};

/// One of the two storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The storage of all other objects.
    Main,
    /// The separate storage.
    Apart,
}

/// The name, or the prefix of names, whose place is looked up.
#[derive(Clone, Copy, Debug)]
pub enum Named<'a> {
    /// One object's whole name.
    Object(&'a Key),
    /// All names with this prefix.
    Prefix(&'a str),
}

/// Returns the place of an object or of all objects with a prefix; `None` if the latter are in both
/// places.
type PlaceOf = dyn Fn(Named<'_>) -> Option<Place> + Send + Sync;

/// Stores some objects in one storage, and all others in another.
pub struct Routed {
    main: Arc<dyn Storage>,
    apart: Arc<dyn Storage>,
    place_of: Box<PlaceOf>,
    /// Whether listings of what both may hold show the separate storage's objects.
    shows_apart: bool,
}

impl Routed {
    /// Stores each object in `apart` or `main`; `place_of` decides by its name.
    ///
    /// Every operation calls `place_of`, which must always return the same place for a name. For a
    /// prefix it returns the storage that holds all of its objects, or `None` if both may; then
    /// both are listed. An object for which it returns `None` is in `main`.
    pub fn new(
        main: Arc<dyn Storage>,
        apart: Arc<dyn Storage>,
        place_of: impl Fn(Named<'_>) -> Option<Place> + Send + Sync + 'static,
    ) -> Self {
        Self { main, apart, place_of: Box::new(place_of), shows_apart: true }
    }

    /// Lists the separate storage only for prefixes of which it has all objects, so that the others
    /// can be listed while it cannot be reached.
    #[must_use]
    pub fn listing_main(self) -> Self {
        Self { shows_apart: false, ..self }
    }

    fn place(&self, key: &Key) -> Place {
        (self.place_of)(Named::Object(key)).unwrap_or(Place::Main)
    }

    fn at(&self, place: Place) -> &Arc<dyn Storage> {
        match place {
            Place::Main => &self.main,
            Place::Apart => &self.apart,
        }
    }

    fn of(&self, key: &Key) -> &Arc<dyn Storage> {
        self.at(self.place(key))
    }

    /// The storage that holds all objects whose names begin so, if one does.
    fn below(&self, prefix: &str) -> Option<&Arc<dyn Storage>> {
        (self.place_of)(Named::Prefix(prefix)).map(|place| self.at(place))
    }
}

impl Storage for Routed {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.of(key).put_bytes(key, body, mode)
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.of(key).put_tagged(key, body, mode)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.of(key).get(key, range, into)
    }

    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        self.of(key).get_blocks(key, blocks)
    }

    fn copies(&self, key: &Key) -> usize {
        self.of(key).copies(key)
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.of(key).get_from(copy, key, range, into)
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.of(key).settle(key)
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.below(prefix).unwrap_or(&self.main).list_from(copy, prefix, after)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.of(key).head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        // In the order given, so that nobody finds an object whose successors are gone.
        for run in keys.chunk_by(|a, b| self.place(a) == self.place(b)) {
            self.of(&run[0]).delete(run)?;
        }
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        if let Some(storage) = self.below(prefix) {
            return storage.list(prefix, after);
        }
        if !self.shows_apart {
            return self.main.list(prefix, after);
        }
        let pages = [self.main.list(prefix, after)?, self.apart.list(prefix, after)?];
        Ok(merge_pages(pages.into()))
    }

    fn forget(&self, key: &Key) -> bool {
        self.of(key).forget(key)
    }

    fn uploads(&self) -> usize {
        self.main.uploads().max(self.apart.uploads())
    }

    fn requests_at_once(&self) -> usize {
        self.main.requests_at_once().max(self.apart.requests_at_once())
    }

    fn request_bytes(&self) -> u64 {
        self.main.request_bytes().max(self.apart.request_bytes())
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.main.soonest_answer_ns().max(self.apart.soonest_answer_ns())
    }

    fn guarantees(&self) -> Guarantees {
        both(self.main.guarantees(), self.apart.guarantees())
    }

    fn describe(&self) -> String {
        self.main.describe()
    }
}
