//! The same objects in several places.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use silt_format::{Advice, Error, ErrorKind, Result};

use crate::{
    Block, ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode,
    Storage,
};

/// One of the places of a [`Replicated`] storage.
#[derive(Clone)]
pub struct Replica {
    /// The node whose store it holds, if it does not hold the repository.
    pub node: Option<String>,
    /// Its location, for messages.
    pub location: String,
    /// Whether it may lack objects that are older than itself.
    pub is_filling: bool,
    /// The storage, or the reason why it cannot be reached.
    pub storage: std::result::Result<Arc<dyn Storage>, String>,
}

/// Keeps every object in each of several places.
///
/// The first place decides whether an object can be created; the others then get the same object,
/// and nothing is ever replaced. A put or delete needs all places. A read needs one: if a place
/// fails, the next one is tried. What only places lack that are being filled may be in one that
/// cannot be reached: then reads and empty listings fail with `Unavailable`. Transient objects are
/// only in the first place. Listings show objects of any place, so an object whose deletion was
/// interrupted may reappear.
pub struct Replicated {
    replicas: Vec<Replica>,
    refusal: Option<String>,
}

impl Replicated {
    /// Returns a storage over at least one place.
    pub fn new(replicas: Vec<Replica>) -> Self {
        assert!(!replicas.is_empty(), "objects have to be somewhere");
        Self { replicas, refusal: None }
    }

    /// The same, read-only: changes fail with `Denied` and this reason.
    #[must_use]
    pub fn refusing(self, why: String) -> Self {
        Self { refusal: Some(why), ..self }
    }

    /// Fails with `Denied` if this storage is read-only.
    pub fn require_changeable(&self) -> Result<()> {
        let denied = |why: &String| Err(Error::new(ErrorKind::Denied, why.clone()));
        self.refusal.as_ref().map_or(Ok(()), denied)
    }

    /// The places in order.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn reachable(&self) -> impl Iterator<Item = &Arc<dyn Storage>> {
        self.replicas.iter().filter_map(|replica| replica.storage.as_ref().ok())
    }

    /// Fails if only places can be reached that are being filled: what they lack may be elsewhere.
    fn require_whole(&self) -> Result<()> {
        let mut whole = self.replicas.iter().filter(|replica| !replica.is_filling);
        if whole.clone().any(|replica| replica.storage.is_ok()) {
            return Ok(());
        }
        whole.try_for_each(|replica| reached(replica).map(drop))
    }

    /// All places, to change them.
    fn all(&self) -> Result<Vec<&Arc<dyn Storage>>> {
        self.require_changeable()?;
        self.replicas.iter().map(reached).collect()
    }

    /// Returns the first result that is not about a missing object or an unreachable place.
    fn first<T>(&self, ask: impl Fn(&Arc<dyn Storage>) -> Result<T>) -> Result<T> {
        let (mut failure, mut absent) = (None, None);
        for replica in &self.replicas {
            let Ok(storage) = &replica.storage else { continue };
            match ask(storage) {
                // An error of the caller is the same everywhere.
                Err(error) if error.kind() != ErrorKind::Invalid => {
                    let says_nothing = replica.is_filling && error.kind() == ErrorKind::NotFound;
                    if says_nothing { &mut absent } else { &mut failure }.get_or_insert(error);
                }
                other => return other,
            }
        }
        if failure.is_none() && absent.is_some() {
            self.require_whole()?;
        }
        Err(failure.or(absent).unwrap_or_else(|| {
            let places: Vec<_> = self.replicas.iter().filter_map(|r| reached(r).err()).collect();
            let why = places.iter().map(Error::to_string).collect::<Vec<_>>().join("; ");
            Error::new(ErrorKind::Unavailable, why)
        }))
    }
}

fn reached(replica: &Replica) -> Result<&Arc<dyn Storage>> {
    replica.storage.as_ref().map_err(|why| {
        let content = match &replica.node {
            Some(node) => format!("node '{node}'"),
            None => "the copy of the repository".to_owned(),
        };
        let message = format!("{content} in {} cannot be reached: {why}", replica.location);
        Error::new(ErrorKind::Unavailable, message).with_advice(Advice::ReachPlace)
    })
}

/// Creates an object in one of several places. An existing object must be the same: no name is used
/// twice, so different bytes belong to another writer, and stay.
fn put_too(replica: &Replica, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
    let storage = reached(replica)?;
    let error = match storage.put_bytes(key, body, mode) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => error,
        other => return other,
    };
    let mut there = Vec::new();
    storage.get(key, ByteRange::Full, &mut there)?;
    if there == body.concat() {
        return Ok(());
    }
    let message = format!(
        "{} holds a different object {key}: the list of copies was changed, or each copy was used \
         without the other",
        replica.location
    );
    Err(Error::new(ErrorKind::Conflict, message).with_source(error))
}

impl Storage for Replicated {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        let all = self.all()?;
        let Some((_, others)) = self.replicas.split_first() else { return Ok(()) };
        all[0].put_bytes(key, body, mode)?;
        if mode == PutMode::CreateTransient {
            // Objects that only running processes need are only in the place that decides.
            return Ok(());
        }
        others.iter().try_for_each(|replica| put_too(replica, key, body, mode))
    }

    fn settle(&self, key: &Key) -> Result<()> {
        let mut bytes = None;
        for (storage, replica) in self.all()?.into_iter().zip(&self.replicas) {
            match storage.head(key).and_then(|_| storage.settle(key)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if bytes.is_none() {
                        let mut there = Vec::new();
                        self.get(key, ByteRange::Full, &mut there)?;
                        bytes = Some(Bytes::from(there));
                    }
                    let body: Vec<Bytes> = bytes.iter().cloned().collect();
                    // Another process may have copied it meanwhile, or committed another object.
                    put_too(replica, key, &body, PutMode::Create)?;
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        match self.reachable().nth(copy) {
            Some(storage) => storage.list(prefix, after),
            None => self.list(prefix, after),
        }
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let buffer = RefCell::new(into);
        self.first(|storage| storage.get(key, range, &mut buffer.borrow_mut()))
    }

    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        // A try that fails takes the buffers with it.
        let (again, given) = (blocks.clone(), Cell::new(Some(blocks)));
        self.first(|storage| storage.get_blocks(key, given.take().unwrap_or_else(|| again.clone())))
    }

    fn copies(&self, _key: &Key) -> usize {
        self.reachable().count().max(1)
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        match self.reachable().nth(copy) {
            Some(storage) => storage.get(key, range, into),
            None => self.get(key, range, into),
        }
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.first(|storage| storage.head(key))
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.all()?.into_iter().try_for_each(|storage| storage.delete(keys))
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let pages = self.reachable().map(|storage| storage.list(prefix, after));
        let pages = pages.collect::<Result<Vec<_>>>()?;
        if pages.is_empty() {
            self.replicas.iter().try_for_each(|replica| reached(replica).map(drop))?;
        }
        let merged = merge_pages(pages);
        if merged.objects.is_empty() && after.is_none() {
            // Nothing yet, or nothing at all? What a half-filled place has can be read.
            self.require_whole()?;
        }
        Ok(merged)
    }

    fn forget(&self, key: &Key) -> bool {
        // Every place must drop it, not only the first one that has it.
        let had: Vec<bool> = self.reachable().map(|storage| storage.forget(key)).collect();
        had.contains(&true)
    }

    fn uploads(&self) -> usize {
        self.reachable().map(Storage::uploads).max().unwrap_or(1)
    }

    fn requests_at_once(&self) -> usize {
        self.reachable().map(Storage::requests_at_once).max().unwrap_or(1)
    }

    fn request_bytes(&self) -> u64 {
        self.reachable().map(Storage::request_bytes).max().unwrap_or(0)
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.reachable().filter_map(Storage::soonest_answer_ns).max()
    }

    fn guarantees(&self) -> Guarantees {
        self.reachable().map(Storage::guarantees).fold(Guarantees::ALL, both)
    }

    fn describe(&self) -> String {
        let places: Vec<&str> =
            self.replicas.iter().map(|replica| replica.location.as_str()).collect();
        places.join(" and ")
    }
}

/// The guarantees that both storages have.
pub(crate) fn both(a: Guarantees, b: Guarantees) -> Guarantees {
    Guarantees {
        conditional_create: a.conditional_create && b.conditional_create,
        read_after_write: a.read_after_write && b.read_after_write,
        list_after_write: a.list_after_write && b.list_after_write,
        durable_on_return: a.durable_on_return && b.durable_on_return,
    }
}

/// Merges pages of several storages for the same prefix and start.
pub(crate) fn merge_pages(pages: Vec<ListPage>) -> ListPage {
    let mut truncated = pages.iter().any(|page| page.truncated);
    // After the end of an incomplete page, that place's objects are unknown.
    let ends = pages.iter().filter(|page| page.truncated).filter_map(|page| page.objects.last());
    let end = ends.map(|(key, _)| key.clone()).min();
    let mut objects: BTreeMap<Key, u64> = BTreeMap::new();
    for (key, bytes) in pages.into_iter().flat_map(|page| page.objects) {
        objects.entry(key).or_insert(bytes);
    }
    let known = objects.into_iter().filter(|(key, _)| end.as_ref().is_none_or(|end| key <= end));
    let mut objects: Vec<(Key, u64)> = known.collect();
    if objects.len() > LIST_PAGE_OBJECTS_MAX {
        objects.truncate(LIST_PAGE_OBJECTS_MAX);
        truncated = true;
    }
    ListPage { objects, truncated }
}
