//! Finds snapshots by the names that users give.

use std::collections::HashSet;

use crate::event::Warning;
use silt_format::names::{self, Numbered};
use silt_format::{Advice, Error, ErrorKind, Head, Id, Result, SeriesId, SnapshotEntry};

use crate::beside::each_beside;
use crate::heads;
use crate::objects::{is_damage, key};
use crate::repository::{Found, Repository};
use crate::series::ID_PREFIX;

/// A point in the history of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The newest snapshot.
    Latest,
    /// The newest snapshot at or before this time, in nanoseconds since 1970.
    AtOrBefore(i64),
}

/// A name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// By the first digits of its id, in any series.
    Id(String),
    /// By time, in the series of this name; `None` if the repository has one series only.
    Time(Option<String>, When),
}

/// The heads of several series, and the series without a readable head.
#[derive(Debug, Default)]
pub struct AllHeads {
    /// The newest head of each series that has one and can be read.
    pub heads: Vec<Head>,
    /// Series whose newest head is damaged.
    pub damaged: Vec<DamagedHead>,
    /// The names of series without a head.
    pub unfinished: Vec<String>,
}

/// A series whose newest head can't be read.
#[derive(Debug)]
pub struct DamagedHead {
    /// The series.
    pub series: String,
    /// Why the head can't be read.
    pub error: Error,
    /// The newest head that can be read, if there is one: an earlier state of the series.
    pub before: Option<Head>,
}

/// What a series has for a newest head.
enum Newest {
    Head(Box<Head>),
    Damaged(Box<DamagedHead>),
    Unfinished(String),
}

impl Repository {
    /// Returns the newest heads of all series, or of those in `names` unless it is empty.
    ///
    /// A damaged head gives a warning, so that the other series stay usable. Fails if a series
    /// given by name does not exist or is damaged.
    pub fn heads(&self, names: &[String]) -> Result<Vec<Head>> {
        if !names.is_empty() {
            return names.iter().map(|name| self.head_by_name(name)).collect();
        }
        self.readable_heads(&self.series()?)
    }

    /// Returns the heads of the series in `names`, or of all; the damaged ones; and the names of
    /// series without a head, whose first backup was interrupted or is still running.
    pub fn all_heads(&self, names: &[String]) -> Result<AllHeads> {
        let mut all = AllHeads::default();
        let series = if names.is_empty() {
            self.series()?
        } else {
            let own = |name: &String| {
                let own = self.own_name(name)?;
                Ok((self.series_id(&own), own))
            };
            names.iter().map(own).collect::<Result<_>>()?
        };
        each_beside(self, series, Self::newest_of, |newest| {
            match newest? {
                Newest::Head(head) => all.heads.push(*head),
                Newest::Damaged(damaged) => all.damaged.push(*damaged),
                Newest::Unfinished(name) => all.unfinished.push(name),
            }
            Ok::<_, Error>(())
        })?;
        Ok(all)
    }

    fn newest_of(&self, (id, name): (SeriesId, String)) -> Result<Newest> {
        match self.head(id) {
            Ok(Some(head)) => Ok(Newest::Head(Box::new(head))),
            Ok(None) if self.has_record(id)? => Ok(Newest::Unfinished(name)),
            Ok(None) => Err(self.no_such_series(&name)?),
            Err(error) if is_damage(&error) => {
                let before = heads::newest_readable(&self.objects, id)?;
                Ok(Newest::Damaged(Box::new(DamagedHead { series: name, error, before })))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the series has a record.
    pub fn has_record(&self, id: SeriesId) -> Result<bool> {
        match self.objects.storage.head(&key(&names::series(id))?) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn readable_heads(&self, series: &[(SeriesId, String)]) -> Result<Vec<Head>> {
        let mut heads = Vec::new();
        let read = |repository: &Self, (id, name): &(SeriesId, String)| match repository.head(*id) {
            Err(error) if is_damage(&error) => {
                let message = format!("series '{name}' is skipped: {error}");
                let recover = || Advice::RecoverSeries { series: name.clone() };
                let advice = error.advice().cloned().unwrap_or_else(recover);
                repository.warn(Warning::new(error.kind(), message).with_advice(advice));
                Ok(None)
            }
            head => head,
        };
        each_beside(self, series.iter().collect(), read, |head| {
            heads.extend(head?);
            Ok::<_, Error>(())
        })?;
        Ok(heads)
    }

    /// Returns the newest heads of the series whose records are lost, if readable.
    fn heads_without_record(&self) -> Result<Vec<Head>> {
        let mut series = self.unrecorded(&self.series()?)?;
        series.retain(|(id, _)| !self.is_store(*id));
        self.readable_heads(&series)
    }

    /// Returns the series that have heads but no record. If the head cannot be read, the name is
    /// the id as `recover` accepts it.
    pub fn unrecorded(&self, recorded: &[(SeriesId, String)]) -> Result<Vec<(SeriesId, String)>> {
        let mut known: HashSet<SeriesId> = recorded.iter().map(|(id, _)| *id).collect();
        let mut found: Vec<(SeriesId, String)> = Vec::new();
        for item in self.objects.names(names::STATE, None)? {
            let (name, _) = item?;
            let Some(id) = name.split('/').nth(1).and_then(SeriesId::from_hex) else { continue };
            if Numbered::Head.number_of(id, &name).is_none() || !self.objects.keys.opens(id) {
                continue;
            }
            if known.insert(id) {
                let head = self.head(id).ok().flatten();
                let unnamed = || format!("{ID_PREFIX}{id}");
                found.push((id, head.map_or_else(unnamed, |head| head.name)));
            }
        }
        Ok(found)
    }

    /// Returns the generation of the newest head of every series that this key opens. Lists the
    /// repository's state once, and reads no head. [`head`](Repository::head) may skip the newest
    /// head if it is refused.
    pub fn newest_generations(&self) -> Result<Vec<(SeriesId, u64)>> {
        let stores = self.stores();
        let mut newest: Vec<(SeriesId, u64)> = Vec::new();
        for item in self.objects.names(names::STATE, None)? {
            let (name, _) = item?;
            let Some(id) = name.split('/').nth(1).and_then(SeriesId::from_hex) else { continue };
            // Of a series the newest head is listed first.
            let is_known = newest.last().is_some_and(|(last, _)| *last == id);
            let is_store = stores.iter().any(|store| store.id == id);
            if is_known || is_store || !self.objects.keys.opens(id) {
                continue;
            }
            newest.extend(Numbered::Head.number_of(id, &name).map(|number| (id, number)));
        }
        Ok(newest)
    }

    /// The bytes of containers of the stores of several series, and of each series, or of each in
    /// `names`: in the order in which a check reads them. Lists storage.
    pub fn container_bytes(&self, names: &[String]) -> Result<(u64, Vec<u64>)> {
        let sum = |repository: &Self, id| {
            let mut sum = 0;
            for item in repository.objects.names(&names::containers(id), None)? {
                sum += item?.1;
            }
            Ok::<u64, Error>(sum)
        };
        let mut shared = 0;
        for store in self.stores().iter().filter(|store| self.objects.keys.opens(store.id)) {
            shared += sum(self, store.id)?;
        }
        let mut series = self.series()?;
        series.retain(|(_, name)| names.is_empty() || names.contains(name));
        let (ids, mut sums) = (series.into_iter().map(|(id, _)| id).collect(), Vec::new());
        each_beside(self, ids, sum, |bytes| {
            sums.push(bytes?);
            Ok::<_, Error>(())
        })?;
        Ok((shared, sums))
    }

    fn head_by_name(&self, name: &str) -> Result<Head> {
        let head = self.head(self.series_id(name));
        if let Some(head) = head.map_err(|error| heads::with_recovery(error, name))? {
            return Ok(head);
        }
        match self.shown_as(name)? {
            Some(head) => Ok(head),
            None => Err(self.no_such_series(name)?),
        }
    }

    /// Returns the newest head of the series whose alias is `name`. Reads the newest heads of all
    /// series that this key opens; skips damaged ones.
    pub fn shown_as(&self, name: &str) -> Result<Option<Head>> {
        self.find_head(&mut |head| head.alias.as_deref() == Some(name))
    }

    /// The first newest head that `is_wanted`, of the series that this key opens.
    pub fn find_head(&self, is_wanted: &mut dyn FnMut(&Head) -> bool) -> Result<Option<Head>> {
        let read = |repository: &Self, (id, _)| match repository.head(id) {
            Err(error) if !is_damage(&error) => Err(error),
            head => Ok(head.ok().flatten()),
        };
        // The first one that is found ends the search, as an error does.
        let found = each_beside(self, self.newest_generations()?, read, |head| match head {
            Ok(Some(head)) if is_wanted(&head) => Err(Ok(Box::new(head))),
            Ok(_) => Ok(()),
            Err(error) => Err(Err(error)),
        });
        found.map_or_else(|found| found.map(|head| Some(*head)), |()| Ok(None))
    }

    /// Calls `each` with the alias of every series that has one, of those that this key opens;
    /// skips damaged heads.
    pub fn for_each_alias(&self, each: &mut dyn FnMut(&str)) -> Result<()> {
        let found = self.find_head(&mut |head| {
            head.alias.as_deref().map(&mut *each);
            false
        });
        found.map(drop)
    }

    fn no_such_series(&self, name: &str) -> Result<Error> {
        let shown = |(id, name): (SeriesId, String)| {
            let head = self.head(id).ok().flatten();
            head.map_or(name, |head| head.shown().to_owned())
        };
        let known: Vec<String> = self.series()?.into_iter().map(shown).collect();
        let hint = if known.is_empty() {
            "the repository has no series yet".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        let message = format!("there is no series '{name}' with a snapshot; {hint}");
        Ok(Error::new(ErrorKind::NotFound, message))
    }

    /// Returns the snapshot that `selector` selects.
    pub fn find(&self, selector: &Selector) -> Result<Found> {
        let (head, entry) = match selector {
            Selector::Id(prefix) => self.find_id(prefix)?,
            Selector::Time(series, when) => self.find_time(series.as_deref(), *when)?,
        };
        let (snapshot, key) = self.snapshot_and_key(head.series, &entry)?;
        Ok(Found { head, snapshot, entry, key })
    }

    /// Returns the deleted snapshot whose id begins with `prefix`, with its series' head.
    pub fn find_deleted(&self, prefix: &str) -> Result<(Head, SnapshotEntry)> {
        let mut found = Vec::new();
        for head in self.heads(&[])? {
            let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
            let matching = deleted.filter(|entry| entry.id.to_string().starts_with(prefix));
            let matching: Vec<SnapshotEntry> = matching.cloned().collect();
            found.extend(matching.into_iter().map(|entry| (head.clone(), entry)));
        }
        match found.pop() {
            Some(only) if found.is_empty() => Ok(only),
            Some(_) => Err(Error::invalid(format!(
                "several deleted snapshots have ids that begin with '{prefix}'; give more digits"
            ))),
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("no deleted snapshot has an id that begins with '{prefix}'"),
            )
            .with_advice(Advice::ListDeletedSnapshots)),
        }
    }

    /// Returns how many seconds storage has held a snapshot, by its own clock, if known.
    pub fn snapshot_age_s(&self, series: SeriesId, id: Id) -> Result<Option<u64>> {
        let name = key(&names::snapshot(series, id))?;
        let modified_ms = self.objects.storage.head(&name)?.modified_ms;
        let now_ms = u64::try_from(self.objects.context.env.now_ns() / 1_000_000).unwrap_or(0);
        Ok(modified_ms.map(|modified| now_ms.saturating_sub(modified) / 1000))
    }

    fn find_id(&self, prefix: &str) -> Result<(Head, SnapshotEntry)> {
        let mut found = matching(self.heads(&[])?, prefix);
        if found.is_empty() {
            found = matching(self.heads_without_record()?, prefix);
        }
        match found.len() {
            1 => found.pop().ok_or_else(|| Error::invalid("no snapshot")),
            0 => Err(Error::new(
                ErrorKind::NotFound,
                format!("no snapshot has an id that begins with '{prefix}'"),
            )
            .with_advice(Advice::ListSnapshots)),
            several => Err(Error::invalid(format!(
                "{several} snapshots have ids that begin with '{prefix}'; give more digits"
            ))),
        }
    }

    fn find_time(&self, series: Option<&str>, when: When) -> Result<(Head, SnapshotEntry)> {
        let mut heads = self.heads(&series.map(str::to_owned).into_iter().collect::<Vec<_>>())?;
        heads.retain(|head| !head.snapshots.is_empty());
        if heads.len() > 1 {
            let names: Vec<&str> = heads.iter().map(Head::shown).collect();
            return Err(Error::invalid(format!(
                "there are several series; name one, as in {}@latest (there are: {})",
                names[0],
                names.join(", ")
            )));
        }
        let none = || Error::new(ErrorKind::NotFound, "the repository has no snapshots yet");
        let head = heads.pop().ok_or_else(none)?;
        let entry = match when {
            When::Latest => head.snapshots.last(),
            When::AtOrBefore(time) => head.snapshots.iter().rfind(|s| s.time_ns <= time),
        };
        let entry = entry.cloned().ok_or_else(|| {
            let message = format!("series '{}' has no snapshot that old", head.shown());
            Error::new(ErrorKind::NotFound, message)
        })?;
        Ok((head, entry))
    }
}

/// Returns the living snapshots in heads whose ids begin with `prefix`.
fn matching(heads: Vec<Head>, prefix: &str) -> Vec<(Head, SnapshotEntry)> {
    let mut found = Vec::new();
    for head in heads {
        let matching = head.snapshots.iter().filter(|s| s.id.to_string().starts_with(prefix));
        let matching: Vec<SnapshotEntry> = matching.cloned().collect();
        found.extend(matching.into_iter().map(|entry| (head.clone(), entry)));
    }
    found
}
