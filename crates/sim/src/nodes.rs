//! Storage nodes in a history: how hosts change them, and what is looked at in the end.

use std::collections::BTreeSet;

use silt_format::{Error, ErrorKind, Result, names};
use siltstone::{Repository, SharedSweepOptions, SharedSweepReport};

use crate::history::{Here, Stage, one_of, thorough};
use crate::plan::Action;
use crate::stage::{LOCATIONS, NODE_LOCATIONS, listed, opener, place_to_open};
use crate::verify::open_by;
use crate::world::minutes_ns;

/// The names of nodes.
const NAMES: [&str; 4] = ["one", "two", "three", "four"];
/// For how many minutes a place is cut off.
const CUT_MINUTES: [u64; 4] = [5, 60, 600, 3000];

/// Adds, closes or moves a node. Returns the repository, if it is still open.
pub fn change(
    at: &Here<'_>,
    repository: Repository,
    here: &str,
    action: Action,
) -> (Option<Repository>, Result<()>) {
    let Here { stage, process, site, .. } = *at;
    let (places, open) = (stage.plan.nodes, opener(stage, process));
    if site > 0 || places == 0 {
        return (Some(repository), Ok(()));
    }
    let one = |which: u64| {
        let nodes = repository.nodes();
        (!nodes.is_empty()).then(|| nodes[one_of(which, nodes.len())].clone())
    };
    let changed = match action {
        Action::AddNode(which) => {
            let place = one_of(which, places);
            repository.add_node(here, NAMES[place], NODE_LOCATIONS[place], &open)
        }
        Action::CloseNode(which) => {
            let Some(node) = one(which / 4) else { return (Some(repository), Ok(())) };
            repository.close_node(here, &node.name, !which.is_multiple_of(4), &open)
        }
        Action::MoveNode(which) => {
            let Some(node) = one(which / 4) else { return (Some(repository), Ok(())) };
            let location = NODE_LOCATIONS[one_of(which, places)];
            repository.move_node(here, &node.name, location, &open).map(|(moved, _)| moved)
        }
        _ => return (Some(repository), Ok(())),
    };
    match changed {
        Ok(repository) => (Some(repository), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// Cuts a place of nodes off.
pub fn cut(stage: &Stage, which: u64) {
    let places = stage.places_of_nodes();
    if places.is_empty() {
        return;
    }
    let place = places.start + one_of(which, places.len());
    let minutes = CUT_MINUTES[one_of(which / 4, CUT_MINUTES.len())];
    let mut state = stage.world.state();
    state.note(format_args!("place {place} is cut off for {minutes} minutes"));
    state.places[place].away_until_ns = state.now_ns.saturating_add(minutes_ns(minutes));
}

/// Returns options with which a sweep removes everything dead.
pub fn sweeping() -> SharedSweepOptions {
    SharedSweepOptions {
        spool: Stage::spool(),
        memory_bytes: 0,
        reclaim: thorough(),
        dry_run: false,
    }
}

/// Sweeps every node, also after one that fails. Fails with the first error.
pub fn sweep(repository: &Repository) -> Result<Vec<SharedSweepReport>> {
    let nodes = repository.nodes().iter();
    let reports: Vec<Result<SharedSweepReport>> =
        nodes.map(|node| repository.sweep_store(node.number, &sweeping())).collect();
    reports.into_iter().collect()
}

/// Continues what was interrupted while nodes were added.
pub fn complete(stage: &Stage) -> Result<()> {
    if stage.plan.nodes == 0 {
        return Ok(());
    }
    let process = stage.process(stage.plan.auditor(), 0);
    let mut repository = open_by(stage, 0, &process)?;
    let here = LOCATIONS[listed(&repository, place_to_open(stage, 0))];
    let is_begun = |repository: &Repository, location: &str| {
        let places = repository.places();
        places.iter().any(|place| place.location == location && place.failure.is_none())
    };
    for node in repository.nodes().to_vec() {
        let [location] = &node.locations[..] else { continue };
        if !is_begun(&repository, location) {
            let added = repository.add_node(here, &node.name, location, &opener(stage, &process));
            repository = added.map_err(|error| error.context("adding a node once more"))?;
        }
    }
    Ok(())
}

/// Verifies that the next sweep of each node works and waits for nobody.
pub fn go_on(stage: &Stage, repository: &Repository) -> Result<()> {
    let reports = sweep(repository).map_err(|error| error.context("the next sweep of nodes"))?;
    for report in reports.iter().filter(|report| !report.waiting_for.is_empty()) {
        stage.violated(format!("the next sweep of a node waits for {:?}", report.waiting_for));
    }
    Ok(())
}

/// Verifies that nothing is left over in a node after sweeps: a sweep finds nothing more, no
/// backup's reservation stays, and there are no containers but those that the head names.
pub fn waste_nothing(stage: &Stage, repository: &Repository) -> Result<()> {
    for node in repository.nodes() {
        let report = repository.sweep_store(node.number, &sweeping())?;
        let reclaimed = &report.reclaimed;
        let found = report.condemned_slots + report.dead_slots;
        if found + reclaimed.dead_slots_left + reclaimed.removed_objects > 0 {
            stage.violated(format!("a sweep of {} after others finds more: {report:?}", node.name));
        }
        let store = repository.store(node.number).id;
        let head = repository.head(store)?;
        if head.as_ref().is_some_and(|head| !head.store_writers.is_empty()) {
            stage.violated(format!("{} has reservations in the end: {head:?}", node.name));
        }
        let named: BTreeSet<_> = head.iter().flat_map(|head| head.containers.iter()).collect();
        let Some(place) = node.locations.first().and_then(|it| stage.place_at(it)) else {
            return Err(Error::new(ErrorKind::NotFound, "a node has no place"));
        };
        let state = stage.world.state();
        let objects = state.places[place].objects.keys().map(silt_storage::Key::as_str);
        let containers = objects.filter(|name| name.starts_with(&names::containers(store)));
        let there: BTreeSet<_> = containers.filter_map(names::number_and_tag).collect();
        drop(state);
        if there != named {
            stage.violated(format!("{} has {there:?} and names {named:?}", node.name));
        }
    }
    Ok(())
}
