//! A storage that reads through to another one and keeps writes to itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use silt_format::number::to_u64;
use silt_format::{Error, ErrorKind, Result};

use crate::{ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage, Usage};

/// For dry runs: objects that are put exist only for this process. Of containers only the size is
/// kept, because nothing reads their chunks back.
pub struct DryRunStorage {
    inner: Arc<dyn Storage>,
    written: Mutex<BTreeMap<Key, Written>>,
}

struct Written {
    bytes: Vec<u8>,
    size: u64,
}

impl DryRunStorage {
    fn written(&self) -> MutexGuard<'_, BTreeMap<Key, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a dry run over `inner`.
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self { inner, written: Mutex::new(BTreeMap::new()) }
    }

    /// A dry run over `inner` in which the object `key` is `bytes`, whatever it is there.
    pub fn with(inner: Arc<dyn Storage>, key: &Key, bytes: Vec<u8>) -> Self {
        let object = Written { size: to_u64(bytes.len()), bytes };
        Self { inner, written: Mutex::new(BTreeMap::from([(key.clone(), object)])) }
    }

    /// A page of existing objects and those written by the dry run.
    fn merged(&self, mut page: ListPage, prefix: &str, after: Option<&Key>) -> ListPage {
        let end = page.objects.last().map(|(key, _)| key.clone()).filter(|_| page.truncated);
        let written = self.written();
        page.objects.retain(|(key, _)| !written.contains_key(key));
        for (key, object) in &*written {
            let in_page =
                after.is_none_or(|after| key > after) && end.as_ref().is_none_or(|end| key <= end);
            if key.as_str().starts_with(prefix) && in_page {
                page.objects.push((key.clone(), object.size));
            }
        }
        page.objects.sort();
        page
    }
}

impl Storage for DryRunStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], _mode: PutMode) -> Result<()> {
        if self.head(key).is_ok() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{key} already exists")));
        }
        let size = body.iter().map(|piece| to_u64(piece.len())).sum();
        let keep = !key.as_str().starts_with("containers/");
        let bytes = if keep { body.concat() } else { Vec::new() };
        self.written().insert(key.clone(), Written { bytes, size });
        Ok(())
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let written = self.written();
        let Some(object) = written.get(key) else {
            drop(written);
            return self.inner.get(key, range, into);
        };
        into.clear();
        let range = range.resolve(key, to_u64(object.bytes.len()))?;
        let at = |offset| silt_format::number::to_usize(offset);
        into.extend_from_slice(&object.bytes[at(range.start)..at(range.end)]);
        Ok(())
    }

    fn copies(&self, key: &Key) -> usize {
        self.inner.copies(key)
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        if self.written().contains_key(key) {
            return self.get(key, range, into);
        }
        self.inner.get_from(copy, key, range, into)
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.head(key).map(drop)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        if let Some(object) = self.written().get(key) {
            return Ok(ObjectMeta { size: object.size, modified_ms: None });
        }
        self.inner.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        // Only objects written by the dry run are deleted.
        let mut written = self.written();
        keys.iter().for_each(|key| drop(written.remove(key)));
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        Ok(self.merged(self.inner.list(prefix, after)?, prefix, after))
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        Ok(self.merged(self.inner.list_from(copy, prefix, after)?, prefix, after))
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }

    fn forget(&self, key: &Key) -> bool {
        self.inner.forget(key)
    }

    fn uploads(&self) -> usize {
        self.inner.uploads()
    }

    fn requests_at_once(&self) -> usize {
        self.inner.requests_at_once()
    }

    fn request_bytes(&self) -> u64 {
        self.inner.request_bytes()
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.inner.soonest_answer_ns()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { durable_on_return: false, ..self.inner.guarantees() }
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
