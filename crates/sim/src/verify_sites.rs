//! The checks at the end of a history of several sites: each of them is whole, and replications
//! bring what is missing without repair.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::Result;
use silt_replicate::{Outcome, ReplicateReport};
use siltstone::{DataCheck, Repository};

use crate::called::Called;
use crate::history::{Stage, options};
use crate::link::{End, Link};
use crate::model::Origin;
use crate::plan::{Action, Series};
use crate::site::Replication;
use crate::verify::nodes;
use crate::verify::{
    all_called, goes_on, look, look_through_caches, open_by, wait_until_quiet, wastes_nothing,
};

/// The source and the replica of a replication, and whether names have a prefix.
type Edge = (usize, usize, bool);

/// Verifies the repositories of all sites at the end of a history.
pub fn verify(stage: &Stage) {
    wait_until_quiet(stage, stage.plan.auditor());
    if let Err(error) = try_verify(stage) {
        stage.violated(format!("in the end: {error}"));
    }
}

fn try_verify(stage: &Stage) -> Result<()> {
    nodes::complete(stage)?;
    let sites = 0..=stage.plan.replicas;
    for site in sites.clone() {
        look_at(stage, site, "in the end", DataCheck::All)?;
        if stage.plan.seed.is_multiple_of(2) {
            look_through_caches(stage, site)?;
        }
    }
    for edge in edges(stage) {
        replicate(stage, edge)?;
    }
    for site in sites.clone() {
        goes_on(stage, site)?;
    }
    for edge in edges(stage) {
        brings_the_newest(stage, edge)?;
    }
    for site in sites {
        look_at(stage, site, "after more replications", DataCheck::None)?;
        wastes_nothing(stage, site)?;
        look_through_caches(stage, site)?;
    }
    Ok(())
}

/// Looks at a site, and at the origins of all copies there, deleted ones, too.
fn look_at(stage: &Stage, site: usize, by: &str, data: DataCheck) -> Result<()> {
    let process = stage.process(stage.plan.auditor(), 0);
    let repository = open_by(stage, site, &process)?;
    look(stage, (&repository, site), by, data)?;
    for called in all_called(stage, site) {
        let head = repository.head(repository.series_id(called.name()))?;
        let Some(head) = head else { continue };
        let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
        for entry in head.snapshots.iter().chain(deleted) {
            let snapshot = repository.snapshot(head.series, entry)?;
            let mut model = stage.model();
            if let Some(origin) = model.origin_of(&snapshot) {
                model.saw_copy(called, entry.id.0, origin);
            }
        }
    }
    Ok(())
}

/// All ways by which the history replicates.
fn edges(stage: &Stage) -> BTreeSet<Edge> {
    let plan = &stage.plan;
    let of_hosts = plan
        .hosts
        .iter()
        .flat_map(|host| host.work.iter().map(move |work| (host.site, work.action)));
    let all = plan.prelude.iter().map(|action| (0, *action)).chain(of_hosts);
    let edges = all.filter_map(|(site, action)| match action {
        Action::Replicate(replication) => {
            let (from, to) = replication.ends(site);
            Some((from, to, replication.is_prefixed))
        }
        _ => None,
    });
    edges.filter(|(from, to, _)| from != to && *from.max(to) <= plan.replicas).collect()
}

/// Replicates without faults. Everything that the replica lacks must arrive.
fn replicate(stage: &Stage, edge: Edge) -> Result<ReplicateReport> {
    let (from, to, is_prefixed) = edge;
    let auditor = stage.plan.auditor();
    let (here, there) = (stage.process(auditor, 0), stage.process_there(auditor, 0));
    let (source, replica) = (open_by(stage, from, &here)?, open_by(stage, to, &there)?);
    let before = times(stage, &replica, edge)?;
    let replication = Replication {
        other: to,
        pulls: false,
        is_prefixed,
        only_newest: false,
        skew_minutes: 0,
        seed: stage.plan.seed,
    };
    let near = End { repository: &source, process: &here };
    let far = End { repository: &replica, process: &there };
    let link = Link::new(&stage.model, (near, from), (far, to), replication);
    let report =
        link.replicate(options()).map_err(|error| error.context("the next replication"))?;
    let failed =
        report.snapshots.iter().find(|snapshot| !matches!(snapshot.outcome, Outcome::Sent(_)));
    if let Some(failed) = failed {
        stage.violated(format!("the next replication from {from} to {to}: {failed:?}"));
    }
    for series in Series::ALL {
        let (here, there) = (Called::own(from, series), copy_of(edge, series));
        if report.refused.iter().any(|(name, _)| name == series.name()) {
            continue;
        }
        let arrived = origins_of(stage, &replica, there)?;
        let mut living = origins_of(stage, &source, here)?;
        living.retain(|_, (_, is_living)| *is_living);
        for (origin, (time_ns, _)) in &living {
            // The replica may have forgotten what is older than a common one, or one of the site.
            let mut had = before.iter().filter(|((called, of), _)| {
                *called == there && (of.0 == origin.0 || living.contains_key(of))
            });
            if !arrived.contains_key(origin) && had.all(|(_, there_ns)| there_ns < time_ns) {
                let name = there.name();
                stage.violated(format!("site {to} has not got {origin:x?} of {name} from {from}"));
            }
        }
    }
    Ok(report)
}

/// What a series of a source is called at the replica.
fn copy_of((from, to, is_prefixed): Edge, series: Series) -> Called {
    Called { site: to, prefix: is_prefixed.then_some(from), series }
}

/// The times of the snapshots that a replica has, by series and origin.
fn times(
    stage: &Stage,
    replica: &Repository,
    edge: Edge,
) -> Result<BTreeMap<(Called, Origin), i64>> {
    let mut times = BTreeMap::new();
    for series in Series::ALL {
        let called = copy_of(edge, series);
        for (origin, (time_ns, _)) in origins_of(stage, replica, called)? {
            times.insert((called, origin), time_ns);
        }
    }
    Ok(times)
}

/// Replicates, and verifies that the newest snapshot of each series is there, unless the replica
/// refuses the series because it only has snapshots of other sites.
fn brings_the_newest(stage: &Stage, edge: Edge) -> Result<()> {
    let report = replicate(stage, edge)?;
    let (from, to, _) = edge;
    let process = stage.process(stage.plan.auditor(), 0);
    let (source, replica) = (open_by(stage, from, &process)?, open_by(stage, to, &process)?);
    for series in Series::ALL {
        let called = copy_of(edge, series);
        let head = source.head(source.series_id(series.name()))?;
        let Some(newest) = head.and_then(|head| head.snapshots.last().map(|entry| entry.id)) else {
            continue;
        };
        let origins = origins_of(stage, &replica, called)?;
        let is_refused = report.refused.iter().any(|(name, _)| name == series.name());
        if is_refused && origins.keys().any(|(site, _)| *site == from) {
            let name = called.name();
            stage.violated(format!("site {to} refuses more of {name} from {from}: {report:?}"));
        }
        if !is_refused && !origins.contains_key(&(from, newest.0)) {
            let name = called.name();
            stage.violated(format!("site {to} lacks {newest} of {name} from {from}: {report:?}"));
        }
    }
    Ok(())
}

/// The origins and times of a series' snapshots, and whether they are not deleted.
fn origins_of(
    stage: &Stage,
    repository: &Repository,
    called: Called,
) -> Result<BTreeMap<Origin, (i64, bool)>> {
    let series = repository.series_id(called.name());
    let mut origins = BTreeMap::new();
    let Some(head) = repository.head(series)? else { return Ok(origins) };
    let living = head.snapshots.iter().map(|entry| (entry, true));
    let deleted = head.deleted.iter().map(|deleted| (&deleted.entry, false));
    for (entry, is_living) in living.chain(deleted) {
        let snapshot = repository.snapshot(series, entry)?;
        let origin = stage.model().origin_of(&snapshot).unwrap_or((called.site, entry.id.0));
        origins.insert(origin, (entry.time_ns, is_living));
    }
    Ok(origins)
}
