//! The checks at the end of a history: no reported snapshot is lost, the repository continues to
//! work without repair, and no unreferenced object is left.

pub mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_format::names::Numbered;
use silt_format::{ErrorKind, Result, names};
use silt_storage::CachePolicy;
use siltstone::storage::{CACHE_POLICY, READER_CACHE_POLICY};
use siltstone::{CheckOptions, Damage, DataCheck, HealOptions, Repository};

use crate::called::Called;
use crate::history::{self, LOCATIONS, Stage, all_data, backup, optimize, reclaim, restore, sweep};

use crate::plan::{Action, Keep, Role, Series};
use crate::process::Process;
use crate::stage::opener;
use crate::world::minutes_ns;

/// After this time, all late operations have taken effect.
const QUIET_MINUTES: u64 = 20_000;

/// Verifies the repository at the end of a history.
pub fn verify(stage: &Stage) {
    let auditor = stage.plan.auditor();
    wait_until_quiet(stage, auditor);
    if let Err(error) = try_verify(stage) {
        stage.violated(format!("in the end: {error}"));
    }
}

/// Waits until all late operations have taken effect.
pub fn wait_until_quiet(stage: &Stage, auditor: usize) {
    stage.world.pass(auditor, minutes_ns(QUIET_MINUTES));
    stage.note(format_args!("all is quiet"));
}

fn try_verify(stage: &Stage) -> Result<()> {
    if is_split(stage)? {
        return look_at_both(stage);
    }
    nodes::complete(stage)?;
    nodes::give_up_older(stage)?;
    take_out_conflicts(stage)?;
    let repository = open(stage, 0)?;
    let locations = repository.places();
    stage.note(format_args!("places {locations:?}"));
    let of = |shared: bool| -> Vec<usize> {
        let places = locations
            .iter()
            .filter(|place| place.is_shared == shared && !place.is_filling && place.node.is_none());
        places.filter_map(|place| stage.place_at(&place.location)).collect()
    };
    let (copies, shared) = (of(false), of(true));
    // Every combination of one copy and one shared store must work by itself.
    for copy in &copies {
        for store in if shared.is_empty() { &copies[..1] } else { &shared[..] } {
            let alone: Vec<usize> =
                if shared.is_empty() { vec![*copy] } else { vec![*copy, *store] };
            if copies.len() > 1 || shared.len() > 1 {
                with_only(stage, &alone, *copy)?;
            }
        }
    }
    look(stage, (&open(stage, 0)?, 0), "all places", DataCheck::All)?;
    // Whoever looks renews what is old in the caches: in the other histories, backups meet it.
    if stage.plan.seed.is_multiple_of(2) {
        look_through_caches(stage, 0)?;
    }
    goes_on(stage, 0)?;
    let by = "after another backup and reclaim";
    look(stage, (&open(stage, 0)?, 0), by, DataCheck::None)?;
    wastes_nothing(stage, 0)?;
    look_through_caches(stage, 0)
}

/// Verifies that all snapshots can be restored through the cache of each machine, however old what
/// it has is.
pub fn look_through_caches(stage: &Stage, site: usize) -> Result<()> {
    for machine in stage.cached_machines() {
        let process = process_with_caches(stage, &machine, READER_CACHE_POLICY);
        let repository = open_by(stage, site, &process)?;
        look_at_snapshots(stage, (&repository, site), &format!("by the cache of {machine}"))?;
    }
    Ok(())
}

/// A process that uses the caches of a machine.
fn process_with_caches(stage: &Stage, machine: &str, policy: CachePolicy) -> Arc<Process> {
    let process = stage.process_on((stage.plan.auditor(), machine.to_owned()), 0);
    stage.lend_caches(&process, Some(policy));
    process
}

/// Does what OPERATIONS says if a backup that slept has left its head in a place that is still
/// being filled: takes that place out of the list.
fn take_out_conflicts(stage: &Stage) -> Result<()> {
    let repository = open(stage, 0)?;
    let filling = repository.places().into_iter().find(|place| place.is_filling);
    let Some(place) = filling.filter(|place| place.node.is_none()) else { return Ok(()) };
    let found = repository.heal_copies(HealOptions { read_data: true, dry_run: true })?;
    if found.conflicts.is_empty() {
        return Ok(());
    }
    stage.note(format_args!("{} is taken out: {:?}", place.location, found.conflicts));
    if !found.conflicts.iter().all(|name| Numbered::Head.is(name)) {
        stage.violated(format!("other than heads differ: {:?}", found.conflicts));
    }
    repository.remove_place(&place.location, &opener(stage, &process(stage)))
}

/// The series that a site may have.
pub fn all_called(stage: &Stage, site: usize) -> Vec<Called> {
    if stage.plan.replicas == 0 {
        return Series::ALL.map(|series| Called::own(0, series)).to_vec();
    }
    Called::all(site).collect()
}

/// Returns whether the places have become separate repositories: two hosts each removed the other's
/// place while it was unreachable. Only a person can merge them again.
fn is_split(stage: &Stage) -> Result<bool> {
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for place in holding(stage) {
        let repository = match history::open(stage, &process(stage), place, Role::Administrator) {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(true),
            opened => opened?,
        };
        let places = repository.places().into_iter();
        let complete =
            places.filter(|place| !place.is_shared && !place.is_filling && place.node.is_none());
        let complete: BTreeSet<_> = complete.map(|place| place.location).collect();
        if complete.is_empty() {
            found.push(BTreeSet::from([LOCATIONS[place].to_owned()]));
        } else {
            found.push(complete);
        }
    }
    Ok(found.iter().any(|one| found.iter().any(|other| one.is_disjoint(other))))
}

/// Returns the places that contain a configuration, except those of nodes.
fn holding(stage: &Stage) -> Vec<usize> {
    let state = stage.world.state();
    let places = (0..).zip(&state.places).filter(|(_, place)| !place.is_node);
    let holding =
        places.filter(|(_, place)| place.objects.keys().any(|key| key.as_str() == names::CONFIG));
    holding.map(|(place, _)| place).collect()
}

/// Verifies that each reported snapshot can be restored from one of the separate repositories.
fn look_at_both(stage: &Stage) -> Result<()> {
    let mut work = stage.plan.hosts.iter().flat_map(|host| &host.work);
    if !work.any(|work| matches!(work.action, Action::RemovePlace(_))) {
        stage.violated("nobody removed a place, and they are not one repository".to_owned());
    }
    let mut found = BTreeSet::new();
    let all = 0..stage.places_of_nodes().start;
    for place in holding(stage) {
        // With all other places, and without each of them, as it may conflict with one.
        for away in all.clone() {
            if away != place {
                stage.world.state().places[away].away_until_ns = i64::MAX;
            }
            let by = format!("place {place} without {away}");
            let listed = match history::open(stage, &process(stage), place, Role::Administrator) {
                Ok(repository) => restore_all(stage, (&repository, 0), &by),
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(BTreeMap::new()),
                Err(error) => Err(error),
            };
            stage.world.state().places[away].away_until_ns = 0;
            let whole = listed?.into_iter().filter(|(_, restored)| restored.is_ok());
            found.extend(whole.map(|(snapshot, _)| snapshot));
        }
    }
    let known = stage.model().known.clone();
    for ((called, id), known) in known {
        if known.is_living == Some(true) && !found.contains(&(called, id)) {
            stage.violated(format!("the parts: {}@{id:016x} is lost", called.name()));
        }
    }
    Ok(())
}

/// Restores every listed snapshot. Returns the results by series and id.
fn restore_all(
    stage: &Stage,
    (repository, site): (&Repository, usize),
    by: &str,
) -> Result<BTreeMap<(Called, u64), Result<()>>> {
    let mut all = BTreeMap::new();
    for called in all_called(stage, site) {
        let head = repository.head(repository.series_id(called.name()))?;
        for entry in head.iter().flat_map(|head| &head.snapshots) {
            let restored = restore(stage, repository, called, entry.id, by);
            all.insert((called, entry.id.0), restored);
        }
    }
    Ok(all)
}

fn process(stage: &Stage) -> Arc<Process> {
    stage.process(stage.plan.auditor(), 0)
}

/// Opens the repository of a site.
pub fn open(stage: &Stage, site: usize) -> Result<Repository> {
    open_by(stage, site, &process(stage))
}

/// Opens the repository of a site by the first place that holds it and is reached.
pub fn open_by(stage: &Stage, site: usize, process: &Arc<Process>) -> Result<Repository> {
    let place = history::place_to_open(stage, site);
    history::open_where_it_is(stage, process, place, Role::Administrator)
}

fn with_only(stage: &Stage, alone: &[usize], opened_by: usize) -> Result<()> {
    let all = stage.places_of_nodes().start;
    for place in (0..all).filter(|place| !alone.contains(place)) {
        stage.world.state().places[place].away_until_ns = i64::MAX;
    }
    let looked = history::open(stage, &process(stage), opened_by, Role::Administrator).and_then(
        |repository| {
            let by = format!("places {alone:?} alone");
            look(stage, (&repository, 0), &by, DataCheck::None)
        },
    );
    stage.world.state().places.iter_mut().for_each(|place| place.away_until_ns = 0);
    looked
}

/// Verifies that exactly the expected snapshots are listed, that all of them can be restored, and
/// that a check finds no damage. `data` selects the data that the check reads besides.
pub fn look(
    stage: &Stage,
    (repository, site): (&Repository, usize),
    by: &str,
    data: DataCheck,
) -> Result<()> {
    look_at_snapshots(stage, (repository, site), by)?;
    let report = repository.check(&CheckOptions { data, ..all_data() })?;
    // A process that added or removed a key may have died between the key and its copy.
    let is_half = |name: &str| names::key_id(name).is_some();
    if let Some(damage) = report.damage.iter().find(|damage| !is_half(&damage.object)) {
        let Damage { object, error, affected, .. } = damage;
        let message = format!("site {site}, {by}: {object} is damaged: {error}, for {affected:?}");
        stage.violated(message);
    }
    Ok(())
}

/// Verifies that exactly the expected snapshots are listed, and that all of them can be restored.
fn look_at_snapshots(
    stage: &Stage,
    (repository, site): (&Repository, usize),
    by: &str,
) -> Result<()> {
    let by = if site == 0 { by.to_owned() } else { format!("site {site}, {by}") };
    let listed = restore_all(stage, (repository, site), &by)?;
    for ((called, id), restored) in &listed {
        if let Err(error) = restored {
            let name = called.name();
            stage.violated(format!("{by}: {name}@{id:016x} does not restore: {error}"));
        }
    }
    let known = stage.model().known.clone();
    for (snapshot, known) in known.into_iter().filter(|((called, _), _)| called.site == site) {
        let is_listed = listed.contains_key(&snapshot);
        if known.is_living == Some(!is_listed) {
            let what = if is_listed { "is listed though it was deleted" } else { "is lost" };
            let (called, id) = snapshot;
            stage.violated(format!("{by}: {}@{id:016x} {what}", called.name()));
        }
    }
    Ok(())
}

/// Verifies that the next backup, reclaim and sweep work without repair.
pub fn goes_on(stage: &Stage, site: usize) -> Result<()> {
    let machines = stage.cached_machines();
    for (number, series) in Series::ALL.into_iter().enumerate() {
        let process = match number.checked_rem(machines.len()).map(|at| &machines[at]) {
            Some(machine) => process_with_caches(stage, machine, CACHE_POLICY),
            None => process(stage),
        };
        let repository = open_by(stage, site, &process)?;
        backup(stage, &process, &repository, (site, series))
            .map_err(|error| error.context("the next backup"))?;
        if stage.plan.has_deltas() {
            optimize(stage, &repository, Called::own(site, series))
                .map_err(|error| error.context("the next deltas"))?;
        }
        reclaim(&repository, Called::own(site, series), Keep::Nothing)
            .map_err(|error| error.context("the next reclaim"))?;
    }
    let waiting = sweep(&open(stage, site)?).map_err(|error| error.context("the next sweep"))?;
    if !waiting.is_empty() {
        stage.violated(format!("the next sweep waits for {waiting:?}"));
    }
    nodes::go_on(stage, &open(stage, site)?)
}

/// Verifies that after healing, sweeps and reclaims no unreferenced object is left.
pub fn wastes_nothing(stage: &Stage, site: usize) -> Result<()> {
    let repository = open(stage, site)?;
    let healed = repository.heal_copies(HealOptions { read_data: true, dry_run: false })?;
    if !healed.lost.is_empty() {
        stage.violated(format!("healing finds lost: {:?}", healed.lost));
    }
    let all = all_called(stage, site);
    for _ in 0..2 {
        sweep(&repository)?;
        history::nodes::sweep(&repository)?;
        for called in &all {
            match reclaim(&repository, *called, Keep::Nothing) {
                Err(error) if error.kind() == ErrorKind::NotFound && stage.plan.replicas > 0 => {}
                done => done?,
            }
        }
    }
    let report = repository.check(&all_data())?;
    if report.unreferenced > 0 {
        let left = report.unreferenced;
        stage.violated(format!("site {site}: {left} objects are left that nothing names"));
    }
    for called in all {
        match repository.reclaim(called.name(), &history::thorough()) {
            Ok(report) if report.dead_slots_left + report.removed_objects > 0 => {
                stage.violated(format!("a reclaim after others finds more: {report:?}"));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    nodes::waste_nothing(stage, &repository)
}
