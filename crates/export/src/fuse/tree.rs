//! The files and folders of a mounted repository.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use silt_format::{Error, ErrorKind, Id, Result, SeriesId, SnapshotEntry};

use super::inside::{Directory, Inside, Place, Trees};
use super::names::{self, BY_ID, LATEST};
use super::protocol::{Attributes, Time};
use crate::catalog::{Catalog, ListedSeries, OpenVolume, VolumeId, VolumeInfo, lock};

const FOLDER: u32 = 0o040_555;
const FILE: u32 = 0o100_444;
const LINK: u32 = 0o120_777;

/// Identifies a file or folder, independently of its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Root,
    ById,
    /// The link of a snapshot in `by-id`.
    IdLink(SeriesId, Id),
    Series(SeriesId),
    /// The link to a series' newest snapshot.
    Latest(SeriesId),
    Snapshot(SeriesId, Id),
    /// A disk.
    Volume(VolumeId),
    /// An entry of a file tree.
    Inside(Arc<VolumeId>, Place),
}

/// A file or folder.
#[derive(Clone, Debug)]
pub struct Node {
    pub key: Key,
    pub time_ns: i64,
    pub bytes: u64,
    /// Set for a snapshot.
    entry: Option<Arc<SnapshotEntry>>,
    /// Set for an entry of a file tree.
    pub inside: Option<Arc<Inside>>,
}

/// The entries of a folder.
pub enum Listing {
    Known(Vec<(String, Node)>),
    /// A directory of a file tree.
    Directory(Directory),
}

impl Node {
    pub fn root() -> Self {
        Self::new(Key::Root, 0)
    }

    pub fn new(key: Key, time_ns: i64) -> Self {
        Self { key, time_ns, bytes: 0, entry: None, inside: None }
    }

    /// Returns the node of an entry of a file tree.
    pub fn inside(key: Key, inside: Inside) -> Self {
        Self { inside: Some(Arc::new(inside)), ..Self::new(key, 0) }
    }

    pub fn mode(&self) -> u32 {
        if let Some(inside) = &self.inside {
            return inside.mode();
        }
        match self.key {
            Key::Volume(_) => FILE,
            Key::IdLink(..) | Key::Latest(_) => LINK,
            _ => FOLDER,
        }
    }

    /// Returns whether the name leads to the same node as long as its folder exists.
    pub fn is_lasting(&self) -> bool {
        matches!(self.key, Key::Volume(_) | Key::Inside(..) | Key::ById)
    }

    /// Returns the attributes of the node, whose number is `number`. Nodes outside of file trees
    /// belong to `owner`, a user and a group.
    pub fn attributes(&self, number: u64, mounted_ns: i64, owner: (u32, u32)) -> Attributes {
        if let Some(inside) = &self.inside {
            return inside.attributes(number, &self.key);
        }
        let time = Time::of_ns(if self.time_ns == 0 { mounted_ns } else { self.time_ns });
        // One block less than its size: programs then look for holes in a disk.
        let blocks = self.bytes.div_ceil(512);
        Attributes {
            inode: number,
            bytes: self.bytes,
            blocks: if blocks > 1 { blocks - 1 } else { blocks },
            modified: time,
            changed: time,
            mode: self.mode(),
            // One link means that the number of subfolders is unknown.
            links: 1,
            uid: owner.0,
            gid: owner.1,
            device: 0,
        }
    }
}

/// The snapshots of a series by the names of their folders.
struct Indexed {
    listed: Arc<ListedSeries>,
    folder: String,
    /// The snapshots in the order of time, each with its listed name.
    snapshots: Vec<(String, Arc<SnapshotEntry>)>,
    /// Index into the list by name: by the listed one, and by the exact name.
    by_name: HashMap<String, usize>,
    by_id: HashMap<Id, usize>,
}

/// Returns the exact name of a snapshot: its time and id. Links use it, because the name by time
/// alone can change its meaning: if the first of two snapshots within a second is deleted, the
/// second gets that name, which the kernel may still have cached for the first.
fn exact_name(entry: &SnapshotEntry) -> String {
    format!("{}-{}", names::of_time(entry.time_ns), names::short(entry.id))
}

impl Indexed {
    fn new(listed: Arc<ListedSeries>) -> Self {
        let mut entries: Vec<_> = listed.snapshots.iter().cloned().map(Arc::new).collect();
        entries.sort_by_key(|entry| entry.time_ns);
        let mut snapshots = Vec::with_capacity(entries.len());
        let mut by_name = HashMap::with_capacity(entries.len() * 2);
        let mut by_id = HashMap::with_capacity(entries.len());
        for (at, entry) in entries.into_iter().enumerate() {
            let time = names::of_time(entry.time_ns);
            let exact = exact_name(&entry);
            by_id.insert(entry.id, at);
            by_name.insert(exact.clone(), at);
            // Of several snapshots within a second, only the first is listed by its time alone.
            let name = if by_name.contains_key(&time) { exact } else { time };
            by_name.insert(name.clone(), at);
            snapshots.push((name, entry));
        }
        Self { folder: names::of_series(&listed.name), listed, snapshots, by_name, by_id }
    }

    fn node(&self) -> Node {
        let time_ns = self.snapshots.last().map_or(0, |(_, entry)| entry.time_ns);
        Node::new(Key::Series(self.listed.id), time_ns)
    }

    fn snapshot(&self, at: usize) -> Node {
        let (_, entry) = &self.snapshots[at];
        let key = Key::Snapshot(self.listed.id, entry.id);
        Node { entry: Some(Arc::clone(entry)), ..Node::new(key, entry.time_ns) }
    }

    fn latest(&self) -> Option<Node> {
        let (_, entry) = self.snapshots.last()?;
        let bytes = exact_name(entry).len() as u64;
        Some(Node { bytes, ..Node::new(Key::Latest(self.listed.id), entry.time_ns) })
    }

    fn id_link(&self, at: usize) -> Node {
        let (_, entry) = &self.snapshots[at];
        let bytes = (exact_name(entry).len() + self.folder.len() + 4) as u64;
        Node { bytes, ..Node::new(Key::IdLink(self.listed.id, entry.id), entry.time_ns) }
    }
}

type Index = Arc<Vec<Arc<Indexed>>>;

/// The files and folders of a catalog.
pub struct Tree {
    catalog: Catalog,
    trees: Trees,
    index: Mutex<Index>,
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "it is not there any more")
}

impl Tree {
    pub fn new(catalog: Catalog) -> Self {
        Self { catalog, trees: Trees::default(), index: Mutex::default() }
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns all series. Reuses the index of series that did not change. If storage cannot be
    /// reached, warns and returns the last index.
    fn index(&self) -> Result<Index> {
        let before = Arc::clone(&lock(&self.index));
        let listing = match self.catalog.series() {
            Ok(listing) => listing,
            Err(error) if error.kind() == ErrorKind::Unavailable && !before.is_empty() => {
                let error = error.context("the listing of snapshots is not up to date");
                self.catalog.repository().warn(&error);
                return Ok(before);
            }
            Err(error) => return Err(error),
        };
        let known = |at: usize, listed: &Arc<ListedSeries>| {
            before.get(at).is_some_and(|indexed| Arc::ptr_eq(&indexed.listed, listed))
        };
        let is_same = before.len() == listing.len()
            && listing.iter().enumerate().all(|(at, listed)| known(at, listed));
        if is_same {
            return Ok(before);
        }
        let by_id: HashMap<SeriesId, &Arc<Indexed>> =
            before.iter().map(|indexed| (indexed.listed.id, indexed)).collect();
        let indexed = listing.iter().map(|listed| match by_id.get(&listed.id) {
            Some(before) if Arc::ptr_eq(&before.listed, listed) => Arc::clone(before),
            _ => Arc::new(Indexed::new(Arc::clone(listed))),
        });
        let index: Index = Arc::new(indexed.collect());
        *lock(&self.index) = Arc::clone(&index);
        Ok(index)
    }

    fn series(&self, id: SeriesId) -> Result<Arc<Indexed>> {
        let index = self.index()?;
        index.iter().find(|indexed| indexed.listed.id == id).cloned().ok_or_else(gone)
    }

    fn volumes(&self, series: SeriesId, entry: &Arc<SnapshotEntry>) -> Result<Vec<(String, Node)>> {
        let volumes = self.catalog.volumes(series, entry)?;
        let of = |volume: &VolumeInfo| {
            let id = VolumeId { series, snapshot: entry.id, volume: volume.name.clone() };
            if let Some(root) = &volume.root {
                return (names::of_tree(&volume.name), Inside::root(id, root));
            }
            let node = Node::new(Key::Volume(id), entry.time_ns);
            (names::of_disk(&volume.name), Node { bytes: volume.bytes, ..node })
        };
        Ok(volumes.iter().map(of).collect())
    }

    /// Returns an open file tree.
    pub fn open_tree(&self, id: &VolumeId) -> Result<Arc<OpenVolume>> {
        self.trees.open(&self.catalog, id)
    }

    /// Returns the entry `name` of a folder, whose node number is `number`.
    pub fn look_up(&self, folder: &Node, number: u64, name: &[u8]) -> Result<Option<Node>> {
        if let Some(inside) = &folder.inside {
            return self.trees.look_up(&self.catalog, inside, number, name);
        }
        let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
        match &folder.key {
            Key::Root if name == BY_ID => Ok(Some(Node::new(Key::ById, 0))),
            Key::Root => {
                let index = self.index()?;
                Ok(index.iter().find(|indexed| indexed.folder == name).map(|found| found.node()))
            }
            Key::ById => {
                let digits = name.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
                let Some(id) = Id::from_hex(name).filter(|_| digits) else {
                    return self.by_short_id(name);
                };
                let index = self.index()?;
                let mut series = index.iter();
                Ok(series.find_map(|of| of.by_id.get(&id).map(|at| of.id_link(*at))))
            }
            Key::Series(id) => {
                let of = self.series(*id)?;
                if name == LATEST {
                    return Ok(of.latest());
                }
                Ok(of.by_name.get(name).map(|at| of.snapshot(*at)))
            }
            Key::Snapshot(series, _) => {
                let entry = folder.entry.as_ref().ok_or_else(gone)?;
                let volumes = self.volumes(*series, entry)?;
                Ok(volumes.into_iter().find(|(found, _)| found == name).map(|(_, node)| node))
            }
            _ => Ok(None),
        }
    }

    /// Returns the link of the only snapshot whose id begins with these eight digits.
    fn by_short_id(&self, name: &str) -> Result<Option<Node>> {
        if name.len() != 8 {
            return Ok(None);
        }
        let index = self.index()?;
        let mut found = index.iter().flat_map(|of| {
            let matching = of.by_id.iter().filter(|(id, _)| names::short(**id) == name);
            matching.map(|(_, at)| of.id_link(*at))
        });
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(Some(only)),
            _ => Ok(None),
        }
    }

    /// Returns the entries of a folder, whose node number is `number`.
    pub fn list(&self, folder: &Node, number: u64) -> Result<Listing> {
        if let Some(inside) = &folder.inside {
            let volume = self.open_tree(&inside.volume)?;
            return Ok(Listing::Directory(Directory::new(volume, (**inside).clone(), number)));
        }
        self.list_known(folder).map(Listing::Known)
    }

    fn list_known(&self, folder: &Node) -> Result<Vec<(String, Node)>> {
        match &folder.key {
            Key::Root => {
                let index = self.index()?;
                let by_id = (BY_ID.to_owned(), Node::new(Key::ById, 0));
                let series = index.iter().map(|of| (of.folder.clone(), of.node()));
                Ok(std::iter::once(by_id).chain(series).collect())
            }
            Key::ById => {
                let index = self.index()?;
                let links = index.iter().flat_map(|of| {
                    let all = 0..of.snapshots.len();
                    all.map(|at| (of.snapshots[at].1.id.to_string(), of.id_link(at)))
                });
                Ok(links.collect())
            }
            Key::Series(id) => {
                let of = self.series(*id)?;
                let all = 0..of.snapshots.len();
                let mut found: Vec<_> =
                    all.map(|at| (of.snapshots[at].0.clone(), of.snapshot(at))).collect();
                found.extend(of.latest().map(|latest| (LATEST.to_owned(), latest)));
                Ok(found)
            }
            Key::Snapshot(series, _) => {
                self.volumes(*series, folder.entry.as_ref().ok_or_else(gone)?)
            }
            _ => Err(Error::invalid("not a folder")),
        }
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self, link: &Node) -> Result<Vec<u8>> {
        if let Some(inside) = &link.inside {
            return Ok(inside.entry.metadata.target.clone());
        }
        match &link.key {
            Key::Latest(series) => {
                let of = self.series(*series)?;
                let newest = of.snapshots.last().map(|(_, entry)| exact_name(entry));
                newest.map(String::into_bytes).ok_or_else(gone)
            }
            Key::IdLink(series, id) => {
                let of = self.series(*series)?;
                let at = of.by_id.get(id).ok_or_else(gone)?;
                let name = exact_name(&of.snapshots[*at].1);
                Ok(format!("../{}/{name}", of.folder).into_bytes())
            }
            _ => Err(Error::invalid("not a link")),
        }
    }
}
