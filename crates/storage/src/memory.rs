//! Objects in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use silt_format::{Error, Result};

use crate::storage::{already_exists, name_in_the_way, not_found};
use crate::{
    ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode, Storage,
    TaggedPage,
};

const PLACE: &str = "memory";

type Objects = BTreeMap<Key, Arc<Vec<u8>>>;

/// Objects in memory, lost with the process. Share one through an [`Arc`].
///
/// It still claims durability: in simulated crashes it is the part that survives.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    objects: Mutex<Objects>,
    request_bytes: u64,
    soonest_answer_ns: Option<u64>,
    /// 0 for the default.
    requests_at_once: usize,
}

impl MemoryStorage {
    /// An empty storage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an independent storage with the current objects.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        // Bytes are shared until one side damages them; nothing else changes objects.
        let Self { request_bytes, soonest_answer_ns, requests_at_once, .. } = *self;
        let objects = Mutex::new(self.objects().clone());
        Self { objects, request_bytes, soonest_answer_ns, requests_at_once }
    }

    /// The same with another value of [`Storage::request_bytes`].
    #[must_use]
    pub fn far(self, request_bytes: u64) -> Self {
        Self { request_bytes, ..self }
    }

    /// The same with a value of [`Storage::soonest_answer_ns`].
    #[must_use]
    pub fn answering_in(self, soonest_ns: u64) -> Self {
        Self { soonest_answer_ns: Some(soonest_ns), ..self }
    }

    /// The same with another value of [`Storage::requests_at_once`].
    #[must_use]
    pub fn at_once(self, requests: usize) -> Self {
        Self { requests_at_once: requests, ..self }
    }

    /// Changes the bytes of an object in place, as a failing disk would. Fails with `NotFound` if
    /// it does not exist.
    ///
    /// Not part of [`Storage`]: it exists to test damaged repositories.
    pub fn damage(&self, key: &Key, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut objects = self.objects();
        let bytes = objects.get_mut(key).ok_or_else(|| not_found(key, PLACE))?;
        change(Arc::make_mut(bytes));
        Ok(())
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // No panic can leave the map half changed.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, key: &Key) -> Result<Arc<Vec<u8>>> {
        self.objects().get(key).cloned().ok_or_else(|| not_found(key, PLACE))
    }
}

impl Storage for MemoryStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        match mode {
            PutMode::Create | PutMode::CreateTransient => {}
        }
        let bytes = Arc::new(body.concat());
        let mut objects = self.objects();
        if objects.contains_key(key) {
            return Err(already_exists(key, PLACE));
        }
        // As strict as a folder, so that callers that work here also work there.
        if let Some(object) = key.ancestors().find(|name| objects.contains_key(*name)) {
            return Err(name_in_the_way(key, object, PLACE));
        }
        if let Some((object, _)) = from(&objects, &format!("{key}/"), None).next() {
            return Err(name_in_the_way(key, object.as_str(), PLACE));
        }
        objects.insert(key.clone(), bytes);
        Ok(())
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        let object = self.object(key)?;
        let range = range.resolve(key, object.len() as u64)?;
        let index = |offset: u64| {
            usize::try_from(offset).map_err(|_| Error::invalid(format!("offset {offset}")))
        };
        into.extend_from_slice(&object[index(range.start)?..index(range.end)?]);
        Ok(())
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.object(key).map(drop)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        Ok(ObjectMeta { size: self.object(key)?.len() as u64, modified_ms: None })
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        let mut objects = self.objects();
        for key in keys {
            objects.remove(key);
        }
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let objects = self.objects();
        let mut rest = from(&objects, prefix, after);
        let page: Vec<(Key, u64)> = rest
            .by_ref()
            .take(LIST_PAGE_OBJECTS_MAX)
            .map(|(key, bytes)| (key.clone(), bytes.len() as u64))
            .collect();
        Ok(ListPage { objects: page, truncated: rest.next().is_some() })
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.put_bytes(key, body, mode)?;
        Ok(Some(blake3::hash(&body.concat()).to_string()))
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        let objects = self.objects();
        let mut rest = from(&objects, prefix, after);
        let (mut page, mut tags) = (Vec::new(), Vec::new());
        for (key, bytes) in rest.by_ref().take(LIST_PAGE_OBJECTS_MAX) {
            page.push((key.clone(), bytes.len() as u64));
            tags.push((key.clone(), blake3::hash(bytes).to_string()));
        }
        let page = ListPage { objects: page, truncated: rest.next().is_some() };
        Ok(TaggedPage { page, tags: Some(tags) })
    }

    fn requests_at_once(&self) -> usize {
        self.requests_at_once.max(1)
    }

    fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.soonest_answer_ns
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        PLACE.to_owned()
    }
}

/// The objects whose names begin with `prefix` and sort after `after`, in name order.
fn from<'a>(
    objects: &'a Objects,
    prefix: &'a str,
    after: Option<&Key>,
) -> impl Iterator<Item = (&'a Key, &'a Arc<Vec<u8>>)> + use<'a> {
    let start = match after {
        Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
        _ => Bound::Included(prefix),
    };
    objects
        .range::<str, _>((start, Bound::Unbounded))
        .take_while(move |(key, _)| key.as_str().starts_with(prefix))
}
