//! The series, snapshots and volumes of a repository, kept up to date while a server runs; and the
//! open volumes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use jiff::tz::TimeZone;
use silt_format::number::to_u64;
use silt_format::tree::Entry;
use silt_format::{
    Error, ErrorKind, Head, Id, ObjectRange, Result, SeriesId, SnapshotEntry, VolumeKind,
};
use siltstone::{
    Found, FoundVolume, ReadCache, Repository, Selector, TreeVolume, VolumeReader, When,
};

use crate::snapshot_name::parse_with_volume;

/// Most snapshots whose volumes are remembered; each takes some hundred bytes.
const SNAPSHOTS_REMEMBERED_MAX: usize = 50_000;
/// Most volumes that are open at once. An open volume holds its series' lists of objects.
const OPEN_MAX: usize = 1024;

/// The part of the memory that the lists of objects of open volumes may take: one in so many.
const LISTS_ONE_IN: u64 = 8;

/// How a [`Catalog`] behaves.
#[derive(Clone, Debug)]
pub struct CatalogOptions {
    /// Memory limit of all open volumes together, in bytes: cached data, and the lists of their
    /// series' objects.
    pub memory_bytes: u64,
    /// Time in nanoseconds for which a listing is used before storage is listed again.
    pub refresh_ns: u64,
    /// The time zone of times in names.
    pub zone: TimeZone,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, refresh_ns: 10_000_000_000, zone: TimeZone::UTC }
    }
}

/// A series and its living snapshots.
#[derive(Clone, Debug)]
pub struct ListedSeries {
    /// The series.
    pub id: SeriesId,
    /// Its name.
    pub name: String,
    /// The generation of the head that lists the snapshots.
    pub generation: u64,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<SnapshotEntry>,
}

/// A volume of a snapshot, as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The root directory of a file tree; `None` for a disk.
    pub root: Option<Arc<Entry>>,
}

impl VolumeInfo {
    fn of(volume: siltstone::Volume) -> Self {
        let root = match volume.kind {
            VolumeKind::Disk => None,
            VolumeKind::Tree(tree) => Some(Arc::new(tree.root)),
        };
        Self { name: volume.name, bytes: volume.bytes, root }
    }

    /// Whether it is a disk, not a file tree.
    pub fn is_disk(&self) -> bool {
        self.root.is_none()
    }
}

/// Names one volume of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeId {
    /// The series.
    pub series: SeriesId,
    /// The snapshot.
    pub snapshot: Id,
    /// The volume's name.
    pub volume: String,
}

/// A volume that is open for reading.
pub struct OpenVolume {
    id: VolumeId,
    series_name: String,
    time_ns: i64,
    content: Content,
}

/// What an open volume is read by.
enum Content {
    Disk(Box<VolumeReader>),
    Tree(Box<TreeVolume>),
}

impl Content {
    fn open(repository: &Repository, of: FoundVolume<'_>, cache: Arc<ReadCache>) -> Result<Self> {
        Ok(match of.volume().kind {
            VolumeKind::Disk => {
                Self::Disk(Box::new(VolumeReader::open_sharing(repository, of, cache)?))
            }
            VolumeKind::Tree(_) => {
                Self::Tree(Box::new(TreeVolume::open_sharing(repository, of, cache)?))
            }
        })
    }
}

impl OpenVolume {
    /// Which volume it is.
    pub fn id(&self) -> &VolumeId {
        &self.id
    }

    /// The name of the series.
    pub fn series_name(&self) -> &str {
        &self.series_name
    }

    /// When the snapshot's backup began, in nanoseconds since 1970.
    pub fn time_ns(&self) -> i64 {
        self.time_ns
    }

    /// Returns the reader of its bytes.
    pub fn reader(&self) -> &VolumeReader {
        match &self.content {
            Content::Disk(reader) => reader,
            Content::Tree(tree) => tree.content(),
        }
    }

    /// Returns the file tree; `None` for a disk.
    pub fn tree(&self) -> Option<&TreeVolume> {
        match &self.content {
            Content::Disk(_) => None,
            Content::Tree(tree) => Some(tree),
        }
    }
}

/// What was known of a series at some time.
struct Known {
    checked_ns: i64,
    series: Arc<ListedSeries>,
}

#[derive(Default)]
struct State {
    known: HashMap<SeriesId, Known>,
    /// When all series were listed last.
    listed_ns: Option<i64>,
    /// All series, sorted by name.
    listing: Arc<Vec<Arc<ListedSeries>>>,
    volumes: HashMap<(SeriesId, Id), Arc<[VolumeInfo]>>,
    /// Why the newest head of a series can't be read, as the last warning said.
    damaged: HashMap<SeriesId, String>,
}

/// An open volume, and the bytes of its lists of objects.
struct Opened {
    volume: Weak<OpenVolume>,
    list_bytes: u64,
}

/// The series, snapshots and volumes of a repository.
///
/// Lists storage at most once per [`CatalogOptions::refresh_ns`]: one listing of the states of all
/// series, and the heads that have changed. Any number of threads may use a catalog at once.
pub struct Catalog {
    repository: Repository,
    options: CatalogOptions,
    cache: Arc<ReadCache>,
    state: Mutex<State>,
    /// Held while storage is listed, so that one thread does it for all.
    refreshing: Mutex<()>,
    open: Mutex<HashMap<VolumeId, Opened>>,
}

/// A lock whose data stays whole if a thread panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Catalog {
    /// A catalog of a repository. Nothing is read yet.
    pub fn new(repository: Repository, options: CatalogOptions) -> Self {
        let lists_bytes = options.memory_bytes / LISTS_ONE_IN;
        let cache = Arc::new(ReadCache::new(&repository, options.memory_bytes - lists_bytes));
        Self {
            repository,
            options,
            cache,
            state: Mutex::default(),
            refreshing: Mutex::default(),
            open: Mutex::default(),
        }
    }

    /// The repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The time zone of times in names.
    pub fn zone(&self) -> &TimeZone {
        &self.options.zone
    }

    fn now_ns(&self) -> i64 {
        self.repository.objects.context.env.now_ns()
    }

    /// Whether something that was learned at `then_ns` is still to be used.
    fn is_fresh(&self, then_ns: i64) -> bool {
        let age_ns = self.now_ns().saturating_sub(then_ns);
        u64::try_from(age_ns).is_ok_and(|age_ns| age_ns < self.options.refresh_ns)
    }

    /// All series by name. Asks storage if the last listing is older than the options allow.
    ///
    /// A series whose newest head is damaged is shown as it was before, with a warning.
    pub fn series(&self) -> Result<Arc<Vec<Arc<ListedSeries>>>> {
        if let Some(listing) = self.fresh_listing() {
            return Ok(listing);
        }
        let _one = lock(&self.refreshing);
        // Another thread may have listed meanwhile.
        match self.fresh_listing() {
            Some(listing) => Ok(listing),
            None => self.list(),
        }
    }

    fn fresh_listing(&self) -> Option<Arc<Vec<Arc<ListedSeries>>>> {
        let state = lock(&self.state);
        let fresh = state.listed_ns.is_some_and(|then_ns| self.is_fresh(then_ns));
        fresh.then(|| Arc::clone(&state.listing))
    }

    /// Lists all series, and reads the heads that have changed.
    fn list(&self) -> Result<Arc<Vec<Arc<ListedSeries>>>> {
        let newest = self.repository.newest_generations()?;
        let mut known = HashMap::new();
        for (id, generation) in newest {
            let before = lock(&self.state).known.get(&id).map(|known| Arc::clone(&known.series));
            let series = match before {
                Some(series) if series.generation == generation => Some(series),
                before => self.read_series(id, before)?,
            };
            known.extend(series.map(|series| (id, Known { checked_ns: self.now_ns(), series })));
        }
        let mut listing: Vec<_> = known.values().map(|known| Arc::clone(&known.series)).collect();
        listing.sort_by(|a, b| a.name.cmp(&b.name));
        let listing = Arc::new(listing);
        let mut state = lock(&self.state);
        state.volumes.retain(|(series, snapshot), _| {
            known.get(series).is_some_and(|known| has(&known.series, *snapshot))
        });
        state.known = known;
        state.listing = Arc::clone(&listing);
        state.listed_ns = Some(self.now_ns());
        Ok(listing)
    }

    /// Reads the newest head of a series; `before` if it is damaged.
    fn read_series(
        &self,
        id: SeriesId,
        before: Option<Arc<ListedSeries>>,
    ) -> Result<Option<Arc<ListedSeries>>> {
        match self.repository.head(id) {
            Ok(head) => {
                lock(&self.state).damaged.remove(&id);
                Ok(head.map(|head| Arc::new(listed(head))))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                // The head is read at each refresh, and the warning would be the same.
                let why = error.to_string();
                let before_why = lock(&self.state).damaged.insert(id, why.clone());
                if before_why != Some(why) {
                    self.repository.warn(&error.context("a series is not up to date"));
                }
                Ok(before)
            }
            Err(error) => Err(error),
        }
    }

    /// One series, which costs no listing of the others. Fails as `NotFound` if there is none of
    /// this name.
    pub fn series_named(&self, name: &str) -> Result<Arc<ListedSeries>> {
        let id = self.repository.series_id(name);
        if let Some(known) = lock(&self.state).known.get(&id)
            && self.is_fresh(known.checked_ns)
        {
            return Ok(Arc::clone(&known.series));
        }
        if let Some(series) = self.reread(id)? {
            return Ok(series);
        }
        let shown = self.series()?.iter().find(|series| series.name == name).cloned();
        shown.ok_or_else(|| {
            let message = format!("there is no series '{name}' with a snapshot");
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Reads the newest head of a series, however fresh what is known of it is.
    fn reread(&self, id: SeriesId) -> Result<Option<Arc<ListedSeries>>> {
        let before = lock(&self.state).known.get(&id).map(|known| Arc::clone(&known.series));
        let series = self.read_series(id, before)?;
        let mut state = lock(&self.state);
        match &series {
            Some(series) => {
                let known = Known { checked_ns: self.now_ns(), series: Arc::clone(series) };
                state.known.insert(id, known);
            }
            None => drop(state.known.remove(&id)),
        }
        Ok(series)
    }

    /// Returns the volumes of a snapshot. Reads each snapshot once, because snapshots never change.
    pub fn volumes(&self, series: SeriesId, entry: &SnapshotEntry) -> Result<Arc<[VolumeInfo]>> {
        let key = (series, entry.id);
        if let Some(volumes) = lock(&self.state).volumes.get(&key) {
            return Ok(Arc::clone(volumes));
        }
        let snapshot = self.repository.snapshot(series, entry)?;
        let volumes: Arc<[VolumeInfo]> = snapshot.volumes.into_iter().map(VolumeInfo::of).collect();
        let mut state = lock(&self.state);
        if state.volumes.len() >= SNAPSHOTS_REMEMBERED_MAX {
            state.volumes.clear();
        }
        state.volumes.insert(key, Arc::clone(&volumes));
        Ok(volumes)
    }

    /// The series and the snapshot that a selector means now.
    pub fn snapshot(&self, selector: &Selector) -> Result<(Arc<ListedSeries>, SnapshotEntry)> {
        match selector {
            Selector::Id(prefix) => self.snapshot_by_id(prefix),
            Selector::Time(Some(name), when) => at(self.series_named(name)?, *when),
            Selector::Time(None, when) => {
                let all = self.series()?;
                let mut filled = all.iter().filter(|series| !series.snapshots.is_empty());
                match (filled.next(), filled.next()) {
                    (Some(only), None) => at(Arc::clone(only), *when),
                    (None, _) => {
                        let message = "the repository has no snapshots yet";
                        Err(Error::new(ErrorKind::NotFound, message))
                    }
                    (Some(first), Some(_)) => Err(Error::invalid(format!(
                        "there are several series; say which, as in {}@latest",
                        first.name
                    ))),
                }
            }
        }
    }

    fn snapshot_by_id(&self, prefix: &str) -> Result<(Arc<ListedSeries>, SnapshotEntry)> {
        let all = self.series()?;
        let found = all.iter().flat_map(|series| {
            let begins = |entry: &&SnapshotEntry| entry.id.to_string().starts_with(prefix);
            series.snapshots.iter().filter(begins).map(move |entry| (series, entry))
        });
        let found: Vec<_> = found.take(2).collect();
        match found[..] {
            [(series, entry)] => Ok((Arc::clone(series), entry.clone())),
            [] => Err(Error::new(
                ErrorKind::NotFound,
                format!("no snapshot's id begins with '{prefix}'"),
            )),
            _ => Err(Error::invalid(format!(
                "several snapshots' ids begin with '{prefix}'; give more of the id"
            ))),
        }
    }

    /// The disk that a name such as `web1@latest:root` or `3f9a01bc:root` means now. A snapshot's
    /// only disk need not be named.
    pub fn resolve(&self, name: &str) -> Result<VolumeId> {
        let (selector, volume) = parse_with_volume(name, &self.options.zone)?;
        let (series, entry) = self.snapshot(&selector)?;
        let volumes = self.volumes(series.id, &entry)?;
        let disks: Vec<_> = volumes.iter().filter(|volume| volume.is_disk()).collect();
        let volume = pick(&disks, volume.as_deref())?;
        Ok(VolumeId { series: series.id, snapshot: entry.id, volume: volume.name.clone() })
    }

    /// Opens a volume. All concurrent users of a volume share one [`OpenVolume`]; it is closed when
    /// the last of them drops it.
    ///
    /// Fails with `NotFound` if the snapshot was deleted; with `Busy` if too many volumes are open,
    /// or if their lists of objects take too much memory. One volume can always be opened.
    pub fn open(&self, id: &VolumeId) -> Result<Arc<OpenVolume>> {
        if let Some(open) = lock(&self.open).get(id).and_then(|opened| opened.volume.upgrade()) {
            return Ok(open);
        }
        let gone = || {
            let message = format!("snapshot {} is not there any more", id.snapshot);
            Error::new(ErrorKind::NotFound, message)
        };
        let head = self.repository.head(id.series)?.ok_or_else(gone)?;
        let entry = head.snapshots.iter().find(|entry| entry.id == id.snapshot);
        let entry = entry.ok_or_else(gone)?.clone();
        let (snapshot, key) = self.repository.snapshot_and_key(id.series, &entry)?;
        let list_bytes = list_bytes(&head);
        let found = Found { head, snapshot, entry, key };
        let volume = found.volume(&id.volume)?;
        let cache = Arc::clone(&self.cache);
        let content = Content::open(&self.repository, volume, cache)?;
        let opened = Arc::new(OpenVolume {
            id: id.clone(),
            series_name: found.head.shown().to_owned(),
            time_ns: found.entry.time_ns,
            content,
        });
        let mut open = lock(&self.open);
        // Another thread may have opened it meanwhile.
        if let Some(theirs) = open.get(id).and_then(|opened| opened.volume.upgrade()) {
            return Ok(theirs);
        }
        open.retain(|_, opened| opened.volume.strong_count() > 0);
        if open.len() >= OPEN_MAX {
            let message = format!("{OPEN_MAX} volumes are open, which is the most there may be");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let listed: u64 = open.values().map(|opened| opened.list_bytes).sum();
        let most = self.options.memory_bytes / LISTS_ONE_IN;
        if listed + list_bytes > most && !open.is_empty() {
            let message = format!(
                "the lists of objects of {} open volumes and this one take {} bytes, and at most \
                 {most} may be taken; allow more memory or close some",
                open.len(),
                listed + list_bytes
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        open.insert(id.clone(), Opened { volume: Arc::downgrade(&opened), list_bytes });
        Ok(opened)
    }

    /// Whether the snapshot of a volume is listed no more, by the newest head there is. Tells a
    /// failed read of a deleted snapshot from damage.
    pub fn is_deleted(&self, id: &VolumeId) -> Result<bool> {
        let series = self.reread(id.series)?;
        Ok(!series.is_some_and(|series| has(&series, id.snapshot)))
    }
}

/// Bytes that the lists of a head's containers and packs take for each open volume.
fn list_bytes(head: &Head) -> u64 {
    let ranges = head.containers.ranges().len() + head.packs.ranges().len();
    to_u64(ranges * size_of::<ObjectRange>())
}

fn has(series: &ListedSeries, snapshot: Id) -> bool {
    series.snapshots.iter().any(|entry| entry.id == snapshot)
}

fn listed(head: Head) -> ListedSeries {
    let name = head.shown().to_owned();
    let Head { series: id, generation, snapshots, .. } = head;
    ListedSeries { id, name, generation, snapshots }
}

/// The snapshot of a series at a time.
fn at(series: Arc<ListedSeries>, when: When) -> Result<(Arc<ListedSeries>, SnapshotEntry)> {
    let entry = match when {
        When::Latest => series.snapshots.last(),
        When::AtOrBefore(time) => series.snapshots.iter().rfind(|entry| entry.time_ns <= time),
    };
    let entry = entry.cloned().ok_or_else(|| {
        let message = format!("series '{}' has no snapshot that old", series.name);
        Error::new(ErrorKind::NotFound, message)
    })?;
    Ok((series, entry))
}

/// The volume called so, or the only one.
fn pick<'v>(volumes: &[&'v VolumeInfo], name: Option<&str>) -> Result<&'v VolumeInfo> {
    let names = || volumes.iter().map(|each| each.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, volumes) {
        (None, [only]) => Ok(only),
        (None, _) => Err(Error::invalid(format!(
            "the snapshot has several volumes; say which behind a colon: {}",
            names()
        ))),
        (Some(name), _) => {
            volumes.iter().find(|each| each.name == name).copied().ok_or_else(|| {
                let message =
                    format!("the snapshot has no volume '{name}'; there are: {}", names());
                Error::new(ErrorKind::NotFound, message)
            })
        }
    }
}
