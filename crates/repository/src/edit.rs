//! Changes a series without backing it up: lease, head, commit.

use silt_format::names::Numbered;
use silt_format::{Error, ErrorKind, Head, Id, Result, SeriesId, Snapshot, SnapshotEntry};

use crate::heads;
use crate::lease::{self, HeldLease};
use crate::repository::Repository;
use crate::stores::store_name;

/// A series that is being changed. Releases its lease when dropped.
pub struct Edit<'r> {
    /// The repository that holds the series.
    pub repository: &'r Repository,
    /// The future head.
    pub head: Head,
    session: [u8; 16],
    /// `None` for a brief change.
    lease: Option<HeldLease>,
}

impl<'r> Edit<'r> {
    /// Takes the lease of a series and reads its head.
    ///
    /// Fails with `Busy` while a backup of the series or another change of it runs; with `NotFound`
    /// without a head; with `Denied` in an append-only repository without the administrator's key,
    /// or if a head there removes something that it may not.
    pub fn begin(repository: &'r Repository, series: SeriesId, name: &str) -> Result<Self> {
        Self::begin_or_make(repository, series, name)?.not_empty(name)
    }

    /// The same for a change that takes milliseconds: checks the lease without taking one. If
    /// another process commits meanwhile, this change fails with `Busy`, or the other does.
    pub fn begin_brief(repository: &'r Repository, series: SeriesId, name: &str) -> Result<Self> {
        repository.required_authority()?;
        let newest = repository.objects.newest_name(Numbered::Lease, series)?;
        lease::wait_while_held(&repository.objects, series, newest, name)?;
        Self::of(repository, series, name, None)?.not_empty(name)
    }

    fn not_empty(self, name: &str) -> Result<Self> {
        if self.head.generation == 0 {
            let message = format!("there is no series '{name}' with a snapshot");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(self)
    }

    /// The same, with an empty head where there is none yet.
    pub fn begin_or_make(repository: &'r Repository, series: SeriesId, name: &str) -> Result<Self> {
        repository.required_authority()?;
        let session = repository.objects.context.random();
        let mut newest = repository.objects.newest_name(Numbered::Lease, series)?;
        let shown = repository.shown_name(series, name);
        if lease::wait_while_held(&repository.objects, series, newest.clone(), &shown)? {
            newest = repository.objects.newest_name(Numbered::Lease, series)?;
        }
        let lease = HeldLease::acquire(&repository.objects, series, &shown, newest, session)?;
        Self::of(repository, series, name, Some((session, lease)))
    }

    fn of(
        repository: &'r Repository,
        series: SeriesId,
        name: &str,
        lease: Option<([u8; 16], HeldLease)>,
    ) -> Result<Self> {
        let objects = &repository.objects;
        let (session, lease) = match lease {
            Some((session, lease)) => (session, Some(lease)),
            None => (objects.context.random(), None),
        };
        crate::settle::verify_unchanged_since_opened(objects)?;
        let head = repository.verified_head(series);
        let head =
            head.map_err(|error| heads::with_recovery(error, &repository.called(series, name)))?;
        if head.is_none() && !heads::has_name(objects, series, name) {
            let message = format!("series {series} has no head and no record of its name");
            return Err(Error::corrupt(message));
        }
        match &head {
            Some(head) => heads::settle(objects, head)?,
            None => crate::settle::settle_record(objects, series)?,
        }
        let empty = || Head::empty(series, crate::series::DEFAULT_DOMAIN, name);
        Ok(Self { repository, head: head.unwrap_or_else(empty), session, lease })
    }

    /// Begins a change of a domain's shared store.
    pub fn begin_shared(repository: &'r Repository, domain: u32) -> Result<Self> {
        let store = repository.objects.keys.shared_store_id(domain);
        Self::begin_or_make(repository, store, crate::series::SHARED_NAME)
    }

    /// Begins a change of the store with this number, which several series refer to.
    pub fn begin_store(repository: &'r Repository, number: u16) -> Result<Self> {
        let store = repository.objects.keys.store_id(crate::series::DEFAULT_DOMAIN, number);
        Self::begin_or_make(repository, store, &store_name(number))
    }

    /// The same for a change that takes milliseconds, without taking the lease. Fails with `Busy`
    /// while another process holds it.
    pub fn begin_store_brief(repository: &'r Repository, number: u16) -> Result<Self> {
        repository.required_authority()?;
        let store = repository.store(number);
        lease::require_free(&repository.objects, store.id, &store.shown)?;
        Self::of(repository, store.id, &store_name(number), None)
    }

    /// Keeps the lease while a long change goes on.
    pub fn keep(&mut self) -> Result<()> {
        self.repository.objects.context.check_interrupted()?;
        self.lease.as_mut().map_or(Ok(()), HeldLease::keep)
    }

    /// Commits the head.
    pub fn commit(&mut self) -> Result<()> {
        self.lease.as_mut().map_or(Ok(()), HeldLease::keep)?;
        let authority = self.repository.required_authority()?;
        let objects = &self.repository.objects;
        if self.head.generation == 0 {
            self.repository.settle_node(self.head.series)?;
        }
        heads::commit(objects, &mut self.head, self.session, authority.as_deref()).map(drop)
    }

    /// Releases the lease.
    pub fn finish(self) -> Result<()> {
        self.lease.map_or(Ok(()), HeldLease::release)
    }

    /// The living snapshots, oldest first; all must be readable.
    pub fn living(&self) -> Result<Vec<Snapshot>> {
        read_snapshots(self.repository, self.head.series, &self.head.snapshots)
    }

    /// Returns the index of `id` in the list of living snapshots.
    pub fn place(&self, id: Id) -> Result<usize> {
        let found = self.head.snapshots.iter().position(|entry| entry.id == id);
        found.ok_or_else(|| {
            let message = format!("series '{}' has no snapshot {id}", self.head.name);
            Error::new(ErrorKind::NotFound, message)
        })
    }
}

/// Reads the snapshots that a head lists.
pub fn read_snapshots(
    repository: &Repository,
    series: SeriesId,
    entries: &[SnapshotEntry],
) -> Result<Vec<Snapshot>> {
    entries.iter().map(|entry| repository.snapshot(series, entry)).collect()
}
