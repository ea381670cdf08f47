//! Counts unreferenced objects, which interrupted runs have left.

use std::collections::{BTreeSet, HashSet};

use silt_format::names::{self, Numbered};
use silt_format::{Error, Head, Id, Result, SeriesId};
use silt_repository::objects::{Objects, is_damage, key};
use silt_storage::Key;

use crate::repository::Repository;

/// Counts the objects of a series that neither its head nor what that lists names, but for
/// containers and packs; `vectors` are the summary vectors of the living snapshots.
///
/// Summary vectors are left out if a snapshot that could name them can't be read.
pub(super) fn beside_data(
    repository: &Repository,
    head: &Head,
    vectors: Option<HashSet<Id>>,
) -> Result<u64> {
    let (objects, series) = (&repository.objects, head.series);
    let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
    let snapshots: HashSet<Id> =
        head.snapshots.iter().chain(deleted).map(|entry| entry.id).collect();
    let snapshot = |name: &str| name.rsplit('/').next().and_then(Id::from_hex);
    let part = |name: &str| names::id_and_part(name).map(|(id, _)| id);
    let mut count = unnamed(objects, &names::snapshots(series), &snapshot, &snapshots)?;
    let lists = head.dead.iter().chain(&head.condemned).chain(&head.delta_bases);
    let lists: HashSet<Id> = lists.map(|list| list.id).collect();
    count += unnamed(objects, &names::dead_lists(series), &part, &lists)?;
    let runs: HashSet<Id> = head.runs.iter().map(|run| run.id).collect();
    count += unnamed(objects, &names::runs(series), &part, &runs)?;
    count += all(objects, &Numbered::Check.prefix(series))?.saturating_sub(1);
    let Some(mut vectors) = vectors else { return Ok(count) };
    let summaries = names::summaries(series);
    let mut left = unnamed(objects, &summaries, &part, &vectors)?;
    if left > 0 && !head.deleted.is_empty() {
        // Those of snapshots that can be brought back; nothing else asks for these.
        for deleted in &head.deleted {
            match repository.snapshot(series, &deleted.entry) {
                Ok(snapshot) => vectors.extend(snapshot.summary.map(|summary| summary.id)),
                Err(error) if is_damage(&error) => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        left = unnamed(objects, &summaries, &part, &vectors)?;
    }
    Ok(count + left)
}

/// Counts all objects of a series that has no head, but for its record and leases.
pub(super) fn without_head(objects: &Objects, series: SeriesId) -> Result<u64> {
    let mut count = all(objects, &Numbered::Check.prefix(series))?;
    for prefix in names::data(series) {
        count += all(objects, &prefix)?;
    }
    Ok(count)
}

/// Every series that has an object. Lists at most a page for each series and kind, or all pages.
pub(super) fn series_with_objects(repository: &Repository) -> Result<BTreeSet<SeriesId>> {
    let mut found = BTreeSet::new();
    repository.each_beside(names::DATA.to_vec(), series_below, |series| {
        found.extend(series?);
        Ok::<_, Error>(())
    })?;
    Ok(found)
}

/// The series that have an object below `prefix`.
fn series_below(repository: &Repository, prefix: &str) -> Result<BTreeSet<SeriesId>> {
    let storage = &*repository.objects.storage;
    let (mut found, mut after) = (BTreeSet::new(), None);
    loop {
        let page = silt_storage::list_page(storage, prefix, after.as_ref())?;
        let series = |name: &Key| name.as_str().split('/').nth(1).map(str::to_owned);
        let listed = page.objects.iter().filter_map(|(name, _)| series(name));
        found.extend(listed.filter_map(|series| SeriesId::from_hex(&series)));
        let Some((last, _)) = page.objects.last().filter(|_| page.truncated) else {
            return Ok(found);
        };
        // Behind all that has digits for a name: the rest of that series.
        let behind = key(&format!("{prefix}{}/z", series(last).unwrap_or_default()))?;
        after = Some(behind.max(last.clone()));
    }
}

fn all(objects: &Objects, prefix: &str) -> Result<u64> {
    let mut count = 0;
    for item in objects.names(prefix, None)? {
        item?;
        count += 1;
    }
    Ok(count)
}

/// How many names below `prefix` have no id, or one that is not among `named`.
fn unnamed(
    objects: &Objects,
    prefix: &str,
    id: &dyn Fn(&str) -> Option<Id>,
    named: &HashSet<Id>,
) -> Result<u64> {
    let mut count = 0;
    for item in objects.names(prefix, None)? {
        let (name, _) = item?;
        count += u64::from(id(&name).is_none_or(|id| !named.contains(&id)));
    }
    Ok(count)
}
