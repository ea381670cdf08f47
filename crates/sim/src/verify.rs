//! What must hold in the end: nothing that somebody was told is lost, the repository goes on by itself,
//! and nothing is left that nothing names.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_format::{ErrorKind, Id, Result, names};
use siltstone::{HealOptions, Repository};

use crate::history::{self, LOCATIONS, Stage, all_data, backup, reclaim, restore, sweep};
use crate::plan::{Keep, Series};
use crate::process::Process;
use crate::world::minutes_ns;

/// All that was late has come after so many minutes.
const QUIET_MINUTES: u64 = 20_000;

/// Looks at what a history has left.
pub fn verify(stage: &Stage) {
    let auditor = stage.plan.hosts.len();
    stage.world.pass(auditor, minutes_ns(QUIET_MINUTES));
    stage.world.state().note(|| "all is quiet".to_owned());
    if let Err(error) = try_verify(stage) {
        stage.violated(format!("in the end: {error}"));
    }
}

fn try_verify(stage: &Stage) -> Result<()> {
    let repository = open(stage)?;
    let locations = repository.places();
    stage.world.state().note(|| format!("places {locations:?}"));
    let at = |location: &str| LOCATIONS.iter().position(|known| *known == location);
    let of = |shared: bool| -> Vec<usize> {
        let places =
            locations.iter().filter(|place| place.is_shared == shared && !place.is_filling);
        places.filter_map(|place| at(&place.location)).collect()
    };
    let (copies, shared) = (of(false), of(true));
    // Each complete set of places by itself.
    for copy in &copies {
        for store in if shared.is_empty() { &copies[..1] } else { &shared[..] } {
            let alone: Vec<usize> =
                if shared.is_empty() { vec![*copy] } else { vec![*copy, *store] };
            if copies.len() > 1 || shared.len() > 1 {
                with_only(stage, &alone, *copy)?;
            }
        }
    }
    look(stage, &open(stage)?, "all places")?;
    goes_on(stage)?;
    look(stage, &open(stage)?, "after another backup and reclaim")?;
    wastes_nothing(stage)
}

fn process(stage: &Stage) -> Arc<Process> {
    stage.process(stage.plan.hosts.len(), 0)
}

/// Opens the repository by the first place that holds it and is reached.
fn open(stage: &Stage) -> Result<Repository> {
    let place = {
        let state = stage.world.state();
        let holds = |place: &crate::world::Place| {
            place.away_until_ns <= state.now_ns
                && place.objects.keys().any(|key| key.as_str() == names::CONFIG)
        };
        state.places.iter().position(holds).unwrap_or(0)
    };
    history::open(&process(stage), place)
}

fn with_only(stage: &Stage, alone: &[usize], opened_by: usize) -> Result<()> {
    let all = stage.world.state().places.len();
    for place in (0..all).filter(|place| !alone.contains(place)) {
        stage.world.state().places[place].away_until_ns = i64::MAX;
    }
    let looked = history::open(&process(stage), opened_by)
        .and_then(|repository| look(stage, &repository, &format!("places {alone:?} alone")));
    stage.world.state().places.iter_mut().for_each(|place| place.away_until_ns = 0);
    looked
}

/// Every snapshot that must be there is, none that must not be, and all that are restore.
fn look(stage: &Stage, repository: &Repository, by: &str) -> Result<()> {
    for series in Series::ALL {
        let head = repository.head(repository.series_id(series.name()))?;
        let listed: BTreeSet<u64> =
            head.iter().flat_map(|head| &head.snapshots).map(|entry| entry.id.0).collect();
        let known = stage.model().known.clone();
        for ((_, id), known) in known.iter().filter(|((of, _), _)| *of == series) {
            let is_listed = listed.contains(id);
            if known.is_living == Some(!is_listed) {
                let what = if is_listed { "is listed though it was deleted" } else { "is lost" };
                stage.violated(format!("{by}: {}@{id:016x} {what}", series.name()));
            }
        }
        for id in listed {
            if let Err(error) = restore(stage, repository, series, Id(id), by) {
                let name = series.name();
                stage.violated(format!("{by}: {name}@{id:016x} does not restore: {error}"));
            }
        }
    }
    let report = repository.check(&all_data())?;
    if let Some(damage) = report.damage.first() {
        stage.violated(format!("{by}: {} is damaged: {}", damage.object, damage.error));
    }
    Ok(())
}

/// The next backup and reclaim work without repair by hand.
fn goes_on(stage: &Stage) -> Result<()> {
    for series in Series::ALL {
        let repository = open(stage)?;
        backup(stage, &repository, series).map_err(|error| error.context("the next backup"))?;
        reclaim(&repository, series, Keep::Nothing)
            .map_err(|error| error.context("the next reclaim"))?;
    }
    let waiting = sweep(&open(stage)?).map_err(|error| error.context("the next sweep"))?;
    if !waiting.is_empty() {
        stage.violated(format!("the next sweep waits for {waiting:?}"));
    }
    Ok(())
}

/// After healing, sweeps and reclaims, the places hold what is named and nothing else.
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
