//! Which series have which chunks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use silt_format::number::to_usize;
use silt_format::{
    ALONE, Error, Fingerprint, Head, Record, Reference, Result, SHARED_STORE, SeriesId,
};
use silt_repository::beside::each_beside;
use silt_repository::bounds::require_listed;
use silt_repository::dead;
use silt_repository::objects::Objects;
use silt_repository::sync::lock;
use silt_runs::shared_record::{Owner, SharedRecord};
use silt_runs::{RunReader, Sorter, Stream};

use crate::copy::{Additions, add_to_store, open_or_warn, shared_runs};
use crate::references::each_reference_to;
use silt_repository::Repository;
use silt_repository::edit::Edit;

/// Memory to sort in by default, in bytes.
const SORT_BYTES_DEFAULT: u64 = 48 << 20;
/// Number of sorts that run at a time.
const SORTINGS: u64 = 3;
/// The owner number of the shared store itself.
pub const STORE: u32 = u32::MAX;

/// A series and its head when the counting began.
pub struct Member {
    /// Its id.
    pub id: SeriesId,
    /// Its head.
    pub head: Head,
}

/// Takes records of owners, from several threads one after the other.
pub type EachOwner<'e> = dyn FnMut(Record) -> Result<()> + Send + 'e;

/// All series of a domain, and what is needed to sort what they have.
pub struct Census<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// The series, in an order that gives them numbers.
    pub members: Vec<Member>,
    spool: &'a Path,
    memory_bytes: u64,
}

/// What sorts in one part of `memory_bytes`, 0 for the default, and in a folder for temporary
/// files.
pub fn sorter(objects: &Arc<Objects>, spool: &Path, memory_bytes: u64) -> Sorter {
    Sorter::new(objects, spool, to_usize(memory(memory_bytes) / SORTINGS))
}

/// So much memory, or the default for 0.
pub fn memory(memory_bytes: u64) -> u64 {
    if memory_bytes == 0 { SORT_BYTES_DEFAULT } else { memory_bytes }
}

impl<'a> Census<'a> {
    /// All series that have a head, and may share; `memory_bytes` to sort in, 0 for the default.
    pub fn new(repository: &'a Repository, spool: &'a Path, memory_bytes: u64) -> Result<Self> {
        Self::of(repository, &repository.series_ids()?, spool, memory_bytes)
    }

    /// The same for some series.
    pub fn of(
        repository: &'a Repository,
        series: &[SeriesId],
        spool: &'a Path,
        memory_bytes: u64,
    ) -> Result<Self> {
        let mut members = Vec::new();
        let read = |repository: &Repository, id| (id, repository.head(id));
        each_beside(repository, series.to_vec(), read, |(id, head)| {
            let head = head?.filter(|head| head.domain != ALONE);
            members.extend(head.map(|head| Member { id, head }));
            Ok::<_, Error>(())
        })?;
        Ok(Self { repository, members, spool, memory_bytes })
    }

    /// The repository's objects.
    pub fn objects(&self) -> &'a Arc<Objects> {
        &self.repository.objects
    }

    /// What sorts in one part of the memory.
    pub fn sorter(&self) -> Sorter {
        sorter(self.objects(), self.spool, self.memory_bytes)
    }

    /// Adds to the shared store what `fill` says, and commits it; with what `fill` came to, how
    /// many bytes were written.
    pub fn add_to_store<T>(
        &self,
        edit: &mut Edit<'_>,
        fill: impl FnOnce(&mut Additions<'_, '_>, &mut Edit<'_>) -> Result<T>,
    ) -> Result<(T, u64)> {
        add_to_store(self.repository, edit, self.sorter(), fill)
    }

    /// Records which series has which chunk: all living slots of all series, and the shared
    /// store's. Returns the numbers of private and shared slots that hold chunks.
    pub fn each_owner(&self, edit: &mut Edit<'_>, each: &mut EachOwner<'_>) -> Result<(u64, u64)> {
        let private_slots = self.each_series_owner(&mut || edit.keep(), each)?;
        let mut shared_slots = 0;
        for run in shared_runs(&edit.head) {
            let mut stream = Stream::new(RunReader::new(self.objects(), edit.head.series, run));
            while let Some(record) = stream.next()? {
                let found = SharedRecord::decode(&record).reference;
                shared_slots += 1;
                each(shared_owner(STORE, found).encode(record.fingerprint))?;
            }
        }
        Ok((private_slots, shared_slots))
    }

    /// Records which series has which chunk: all living slots of all series. Returns the number
    /// of private slots that hold chunks; `keep` is called now and then.
    pub fn each_series_owner(
        &self,
        keep: &mut dyn FnMut() -> Result<()>,
        each: &mut EachOwner<'_>,
    ) -> Result<u64> {
        let mut private_slots = 0;
        // In any order: they are sorted.
        let each = Mutex::new(each);
        let each = |record| (lock(&each))(record);
        let count = |repository: &Repository, (series, member): (u32, &Member)| {
            each_owner_in(repository, series, member, &each)
        };
        each_beside(self.repository, (0..).zip(&self.members).collect(), count, |slots| {
            private_slots += slots?;
            keep()
        })?;
        Ok(private_slots)
    }
}

/// Records which chunks a series has, and returns the number of its private slots that hold one.
fn each_owner_in(
    repository: &Repository,
    series: u32,
    member: &Member,
    each: &dyn Fn(Record) -> Result<()>,
) -> Result<u64> {
    let objects = &repository.objects;
    let mut private_slots = 0;
    require_listed(objects, &member.head)?;
    let dead = dead::read(objects, member.id, &member.head.dead)?;
    let dead: HashMap<_, _> = dead.by_container().collect();
    for (container, tag) in member.head.containers.iter() {
        objects.context.check_interrupted()?;
        let opened = open_or_warn(repository, member.id, container, tag)?;
        let Some(opened) = opened else { continue };
        let gone = dead.get(&container).copied().unwrap_or_default();
        let directory = &opened.directory;
        let chunks = directory
            .slots()
            .map(|(slot, place)| (slot, directory.fingerprints[place.index as usize]));
        for (slot, fingerprint) in chunks.filter(|(slot, _)| !dead::holds(gone, *slot)) {
            let owner = Owner { series, container, slot, is_shared: false };
            private_slots += 1;
            each(owner.encode(fingerprint))?;
        }
        for link in directory.links.iter().filter(|link| !dead::holds(gone, link.slot)) {
            each(shared_owner(series, link.target).encode(link.fingerprint))?;
        }
    }
    each_reference_to(repository, SHARED_STORE, &member.head, &mut |chunk| {
        let owner = shared_owner(series, chunk.reference);
        each(owner.encode(chunk.fingerprint))
    })?;
    Ok(private_slots)
}

/// What is known of one fingerprint.
#[derive(Default)]
pub struct Group {
    /// Number of series that have the chunk.
    pub series: u32,
    /// A private slot that holds it.
    pub source: Option<Owner>,
    /// Whether the shared store has it.
    pub is_present: bool,
}

fn shared_owner(series: u32, target: Reference) -> Owner {
    Owner { series, container: target.container(), slot: target.slot(), is_shared: true }
}

/// Calls `each` with every fingerprint of a stream of owners.
pub fn each_group(
    stream: &mut Stream<'_>,
    each: &mut dyn FnMut(&Fingerprint, Group) -> Result<()>,
) -> Result<()> {
    let mut open: Option<(Record, Group)> = None;
    while let Some(record) = stream.next()? {
        let owner = Owner::decode(&record);
        let is_same = |last: &Record| last.fingerprint == record.fingerprint;
        let (last, mut group) = match open.take() {
            Some((last, group)) if is_same(&last) => (Some(last), group),
            Some((last, group)) => {
                each(&last.fingerprint, group)?;
                (None, Group::default())
            }
            None => (None, Group::default()),
        };
        let is_new = last.is_none_or(|last| Owner::decode(&last).series != owner.series);
        group.series += u32::from(is_new && owner.series != STORE);
        group.is_present |= owner.series == STORE;
        if !owner.is_shared {
            group.source = group.source.or(Some(owner));
        }
        open = Some((record, group));
    }
    match open {
        Some((last, group)) => each(&last.fingerprint, group),
        None => Ok(()),
    }
}
