//! The first backup of a series: its record and its name.
//!
//! A series is named twice: by its own name, from which its id derives, and by an alias that a
//! rename gives it. Both are one set of names, and nothing locks it. A first backup writes the
//! series record, then searches all newest heads for an alias of that name. A rename commits the
//! alias, then looks for the record. If two take the same name at once, at most one succeeds.
//!
//! Many first backups claim their names together: all records first, then one search for all.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::{
    AHEAD_NS_MAX, ALONE, Error, ErrorKind, Head, ObjectKind, Result, SeriesId, SeriesRecord, names,
};
use silt_repository::beside::each_beside;
use silt_repository::objects::{Address, key};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::{Repository, heads, settle};

/// Names of series that have a record and that no other series has as an alias.
///
/// They stay so: records are never removed, and a rename refuses a name that has one.
#[derive(Debug, Default)]
pub struct ClaimedNames(BTreeSet<SeriesId>);

impl ClaimedNames {
    /// Claims the names of those series that are new; the second part of each is whether it is to
    /// share no chunks with others.
    ///
    /// A name that is taken, or that this key may not write, is left out: the backup of its series
    /// says why it fails.
    pub fn claim<'n>(
        repository: &Repository,
        wanted: impl IntoIterator<Item = (&'n str, bool)>,
    ) -> Result<Self> {
        let objects = &repository.objects;
        settle::verify_unchanged_since_opened(objects)?;
        let may_write =
            |name: &str| objects.believed.require_may_write(objects.signer.id(), name).is_ok();
        let mut new: BTreeMap<SeriesId, (&str, bool)> = wanted
            .into_iter()
            .filter(|(name, _)| silt_repository::series::is_name(name) && may_write(name))
            .map(|(name, alone)| (repository.series_id(name), (name, alone)))
            .collect();
        for item in objects.names(names::SERIES, None)? {
            let (name, _) = item?;
            let id = name.rsplit('/').next().and_then(SeriesId::from_hex);
            id.and_then(|id| new.remove(&id));
        }
        if new.len() < 2 {
            // There is nothing to be saved by searching once.
            return Ok(Self::default());
        }
        let make = |repository: &Repository, (id, (name, alone))| {
            make_record(repository, id, name, domain(repository, alone))
        };
        each_beside(repository, new.iter().map(|(id, of)| (*id, *of)).collect(), make, |made| {
            made
        })?;
        let aliases: BTreeMap<&str, SeriesId> =
            new.iter().map(|(id, (name, _))| (*name, *id)).collect();
        let mut taken = BTreeSet::<SeriesId>::new();
        repository.for_each_alias(&mut |alias| taken.extend(aliases.get(alias)))?;
        Ok(Self(new.into_keys().filter(|id| !taken.contains(id)).collect()))
    }

    /// Whether the name of a series is among them.
    pub(super) fn has(&self, series: SeriesId) -> bool {
        self.0.contains(&series)
    }
}

/// The domain of a new series.
fn domain(repository: &Repository, alone: bool) -> u32 {
    let is_alone = alone || !repository.objects.keys.has_domain(DEFAULT_DOMAIN);
    if is_alone { ALONE } else { DEFAULT_DOMAIN }
}

/// Fails with `Busy` if a series has been backed up since it was due: whoever did that has held the
/// lease of the series until now.
pub(super) fn require_due(head: &Head, since_ns: Option<i64>, now_ns: i64) -> Result<()> {
    let Some(since_ns) = since_ns else { return Ok(()) };
    let times = since_ns..=now_ns.saturating_add(AHEAD_NS_MAX);
    if head.snapshots.iter().all(|entry| !times.contains(&entry.time_ns)) {
        return Ok(());
    }
    let message = format!("another process has just backed up series '{}'", head.shown());
    Err(Error::new(ErrorKind::Busy, message))
}

/// Returns the head that a backup builds upon. Creates the series if there is none: one that shares
/// no chunks if it is to be `alone`, and without searching for its name if that is claimed.
pub(super) fn base(
    repository: &Repository,
    (series, name): (SeriesId, &str),
    newest: Option<String>,
    (alone, is_claimed): (bool, bool),
) -> Result<Head> {
    let objects = &repository.objects;
    // Before its first commit, the record defines the domain of a series: a sweep of the shared
    // store uses it.
    let empty = || {
        let record = repository.series_record(series);
        let domain = record.map_or_else(|_| domain(repository, alone), |record| record.domain);
        Head::empty(series, domain, name)
    };
    let head = newest.map(|name| heads::base(objects, series, &name, empty)).transpose();
    let head = head.map_err(|error| heads::with_recovery(error, name))?;
    // Create a lost record again: without it, listings would not show the series.
    let is_lost = !objects.exists(&names::series(series))?;
    if is_lost {
        let domain = head.as_ref().map_or_else(|| empty().domain, |head| head.domain);
        make_record(repository, series, name, domain)?;
    } else if head.is_none() {
        objects.storage.settle(&key(&names::series(series))?)?;
    }
    if head.is_none() && (is_lost || !is_claimed) {
        // After the record: a rename to this name looks for one after it has been committed.
        repository.require_unused_name(name)?;
    }
    let head = head.unwrap_or_else(empty);
    if !objects.keys.has_domain(head.domain) {
        let message =
            format!("series '{name}' shares chunks with others, but this key must not share");
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if alone && head.domain != ALONE {
        return Err(Error::invalid(format!(
            "series '{name}' shares chunks with others since its first backup; only a new series \
             can be one that shares nothing"
        )));
    }
    Ok(head)
}

/// Writes the record of a series unless there is one.
fn make_record(repository: &Repository, id: SeriesId, name: &str, domain: u32) -> Result<()> {
    let created_ns = repository.objects.context.env.now_ns();
    let record = SeriesRecord { name: name.to_owned(), domain, created_ns };
    let address = Address::new(ObjectKind::Series, id, 0);
    match repository.objects.put(&names::series(id), address, &record.encode()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.map(|_| ()),
    }
}
