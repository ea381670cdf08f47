//! The checks at the end of a history: no reported snapshot is lost, the repository continues to
//! work without repair, and no unreferenced object is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_format::{ErrorKind, Result, names};
use siltstone::{CheckOptions, DataCheck, HealOptions, Repository};

use crate::history::{self, LOCATIONS, Stage, all_data, backup, reclaim, restore, sweep};
use crate::plan::{Action, Keep, Role, Series};
use crate::process::Process;
use crate::world::minutes_ns;

/// After this time, all late operations have taken effect.
const QUIET_MINUTES: u64 = 20_000;

/// Verifies the repository at the end of a history.
pub fn verify(stage: &Stage) {
    let auditor = stage.plan.hosts.len();
    stage.world.pass(auditor, minutes_ns(QUIET_MINUTES));
    stage.note(format_args!("all is quiet"));
    if let Err(error) = try_verify(stage) {
        stage.violated(format!("in the end: {error}"));
    }
}

fn try_verify(stage: &Stage) -> Result<()> {
    if is_split(stage)? {
        return look_at_both(stage);
    }
    let repository = open(stage)?;
    let locations = repository.places();
    stage.note(format_args!("places {locations:?}"));
    let at = |location: &str| LOCATIONS.iter().position(|known| *known == location);
    let of = |shared: bool| -> Vec<usize> {
        let places =
            locations.iter().filter(|place| place.is_shared == shared && !place.is_filling);
        places.filter_map(|place| at(&place.location)).collect()
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
    look(stage, &open(stage)?, "all places", DataCheck::All)?;
    goes_on(stage)?;
    look(stage, &open(stage)?, "after another backup and reclaim", DataCheck::None)?;
    wastes_nothing(stage)
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
        let complete = places.filter(|place| !place.is_shared && !place.is_filling);
        let complete: BTreeSet<_> = complete.map(|place| place.location).collect();
        if complete.is_empty() {
            found.push(BTreeSet::from([LOCATIONS[place].to_owned()]));
        } else {
            found.push(complete);
        }
    }
    Ok(found.iter().any(|one| found.iter().any(|other| one.is_disjoint(other))))
}

/// Returns the places that contain a configuration.
fn holding(stage: &Stage) -> Vec<usize> {
    let state = stage.world.state();
    let places = (0..).zip(&state.places);
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
    let all = 0..stage.world.state().places.len();
    for place in holding(stage) {
        // With all other places, and without each of them, as it may conflict with one.
        for away in all.clone() {
            if away != place {
                stage.world.state().places[away].away_until_ns = i64::MAX;
            }
            let by = format!("place {place} without {away}");
            let listed = match history::open(stage, &process(stage), place, Role::Administrator) {
                Ok(repository) => restore_all(stage, &repository, &by),
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(BTreeMap::new()),
                Err(error) => Err(error),
            };
            stage.world.state().places[away].away_until_ns = 0;
            let whole = listed?.into_iter().filter(|(_, restored)| restored.is_ok());
            found.extend(whole.map(|(snapshot, _)| snapshot));
        }
    }
    let known = stage.model().known.clone();
    for ((series, id), known) in known {
        if known.is_living == Some(true) && !found.contains(&(series, id)) {
            stage.violated(format!("the parts: {}@{id:016x} is lost", series.name()));
        }
    }
    Ok(())
}

/// Restores every listed snapshot. Returns the results by series and id.
fn restore_all(
    stage: &Stage,
    repository: &Repository,
    by: &str,
) -> Result<BTreeMap<(Series, u64), Result<()>>> {
    let mut all = BTreeMap::new();
    for series in Series::ALL {
        let head = repository.head(repository.series_id(series.name()))?;
        for entry in head.iter().flat_map(|head| &head.snapshots) {
            let restored = restore(stage, repository, series, entry.id, by);
            all.insert((series, entry.id.0), restored);
        }
    }
    Ok(all)
}

fn process(stage: &Stage) -> Arc<Process> {
    stage.process(stage.plan.hosts.len(), 0)
}

fn open(stage: &Stage) -> Result<Repository> {
    open_by(stage, &process(stage))
}

/// Opens the repository by the first place that holds it and is reached.
fn open_by(stage: &Stage, process: &Arc<Process>) -> Result<Repository> {
    let place = {
        let state = stage.world.state();
        let holds = |place: &crate::world::Place| {
            place.away_until_ns <= state.now_ns
                && place.objects.keys().any(|key| key.as_str() == names::CONFIG)
        };
        state.places.iter().position(holds).unwrap_or(0)
    };
    history::open_where_it_is(stage, process, place, Role::Administrator)
}

fn with_only(stage: &Stage, alone: &[usize], opened_by: usize) -> Result<()> {
    let all = stage.world.state().places.len();
    for place in (0..all).filter(|place| !alone.contains(place)) {
        stage.world.state().places[place].away_until_ns = i64::MAX;
    }
    let looked = history::open(stage, &process(stage), opened_by, Role::Administrator).and_then(
        |repository| look(stage, &repository, &format!("places {alone:?} alone"), DataCheck::None),
    );
    stage.world.state().places.iter_mut().for_each(|place| place.away_until_ns = 0);
    looked
}

/// Verifies that exactly the expected snapshots are listed, that all of them can be restored, and
/// that a check finds no damage. `data` selects the data that the check reads besides.
fn look(stage: &Stage, repository: &Repository, by: &str, data: DataCheck) -> Result<()> {
    let listed = restore_all(stage, repository, by)?;
    for ((series, id), restored) in &listed {
        if let Err(error) = restored {
            let name = series.name();
            stage.violated(format!("{by}: {name}@{id:016x} does not restore: {error}"));
        }
    }
    let known = stage.model().known.clone();
    for (snapshot, known) in known {
        let is_listed = listed.contains_key(&snapshot);
        if known.is_living == Some(!is_listed) {
            let what = if is_listed { "is listed though it was deleted" } else { "is lost" };
            let (series, id) = snapshot;
            stage.violated(format!("{by}: {}@{id:016x} {what}", series.name()));
        }
    }
    let report = repository.check(&CheckOptions { data, ..all_data() })?;
    // A process that added or removed a key may have died between the key and its copy.
    let is_half = |name: &str| names::key_id(name).is_some();
    if let Some(damage) = report.damage.iter().find(|damage| !is_half(&damage.object)) {
        stage.violated(format!("{by}: {} is damaged: {}", damage.object, damage.error));
    }
    Ok(())
}

/// Verifies that the next backup, reclaim and sweep work without repair.
fn goes_on(stage: &Stage) -> Result<()> {
    for series in Series::ALL {
        let process = process(stage);
        let repository = open_by(stage, &process)?;
        backup(stage, &process, &repository, series)
            .map_err(|error| error.context("the next backup"))?;
        reclaim(&repository, series, Keep::Nothing)
            .map_err(|error| error.context("the next reclaim"))?;
    }
    let waiting = sweep(&open(stage)?).map_err(|error| error.context("the next sweep"))?;
    if !waiting.is_empty() {
        stage.violated(format!("the next sweep waits for {waiting:?}"));
    }
    Ok(())
}

/// Verifies that after healing, sweeps and reclaims no unreferenced object is left.
fn wastes_nothing(stage: &Stage) -> Result<()> {
    let repository = open(stage)?;
    let healed = repository.heal_copies(HealOptions { read_data: true, dry_run: false })?;
    if !healed.lost.is_empty() {
        stage.violated(format!("healing finds lost: {:?}", healed.lost));
    }
    for _ in 0..2 {
        sweep(&repository)?;
        for series in Series::ALL {
            reclaim(&repository, series, Keep::Nothing)?;
        }
    }
    let report = repository.check(&all_data())?;
    if report.unreferenced > 0 {
        stage.violated(format!("{} objects are left that nothing names", report.unreferenced));
    }
    for series in Series::ALL {
        match repository.reclaim(series.name(), &history::thorough()) {
            Ok(report) if report.dead_slots_left + report.removed_objects > 0 => {
                stage.violated(format!("a reclaim after others finds more: {report:?}"));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
