//! One store's objects elsewhere than all others.

use std::sync::Arc;

use bytes::Bytes;
use silt_format::Result;

use crate::replicated::{both, merge_pages};
use crate::{ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage, TagPage};

/// Keeps the objects of one store, whose names have its id as their second part, in a storage of
/// their own, and all others in another.
pub struct Routed {
    main: Arc<dyn Storage>,
    store: String,
    own: Arc<dyn Storage>,
}

impl Routed {
    /// Keeps what belongs to `store` in `own`, the rest in `main`.
    pub fn new(main: Arc<dyn Storage>, store: impl Into<String>, own: Arc<dyn Storage>) -> Self {
        Self { main, store: store.into(), own }
    }

    fn is_own(&self, name: &str) -> bool {
        name.split('/').nth(1) == Some(&self.store)
    }

    fn of(&self, key: &Key) -> &Arc<dyn Storage> {
        if self.is_own(key.as_str()) { &self.own } else { &self.main }
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
        match prefix.split('/').collect::<Vec<_>>().as_slice() {
            [_, store, _, ..] if *store == self.store => self.own.list_from(copy, prefix, after),
            _ => self.main.list_from(copy, prefix, after),
        }
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.of(key).head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        // In the order given, so that nobody finds an object whose successors are gone.
        for run in keys.chunk_by(|a, b| self.is_own(a.as_str()) == self.is_own(b.as_str())) {
            self.of(&run[0]).delete(run)?;
        }
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let parts: Vec<&str> = prefix.split('/').collect();
        match parts.as_slice() {
            [_, store, _, ..] if *store == self.store => self.own.list(prefix, after),
            [_, _, _, ..] => self.main.list(prefix, after),
            // The prefix does not say to whom its objects belong.
            _ => {
                let pages = [self.main.list(prefix, after)?, self.own.list(prefix, after)?];
                Ok(merge_pages(pages.into()))
            }
        }
    }

    fn tags(&self, prefix: &str, after: Option<&Key>) -> Result<Option<TagPage>> {
        // Where the prefix does not say to whom its objects belong, those of one place are not all.
        match prefix.split('/').collect::<Vec<_>>().as_slice() {
            [_, store, _, ..] if *store == self.store => self.own.tags(prefix, after),
            [_, _, _, ..] => self.main.tags(prefix, after),
            _ => Ok(None),
        }
    }

    fn forget(&self, key: &Key) -> bool {
        self.of(key).forget(key)
    }

    fn uploads(&self) -> usize {
        self.main.uploads().max(self.own.uploads())
    }

    fn request_bytes(&self) -> u64 {
        self.main.request_bytes().max(self.own.request_bytes())
    }

    fn guarantees(&self) -> Guarantees {
        both(self.main.guarantees(), self.own.guarantees())
    }

    fn describe(&self) -> String {
        self.main.describe()
    }
}
