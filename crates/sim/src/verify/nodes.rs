//! What is looked at in storage nodes in the end.

use std::collections::BTreeSet;

use silt_format::{Error, ErrorKind, Id, Result, names};
use siltstone::{Advice, DeleteMethod, Repository, SharedSweepOptions};

use super::{open_by, restore_all};
use crate::called::Called;
use crate::history::nodes::{sweep, sweeping};
use crate::history::{Stage, all_data};
use crate::plan::{Action, Work};
use crate::stage::{LOCATIONS, listed, opener, place_to_open};

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

/// Does what OPERATIONS says if disks of nodes were put back: gives up those that have lost
/// something, and deletes the snapshots that have been lost.
pub fn give_up_older(stage: &Stage) -> Result<()> {
    if !stage.model().has_lost() {
        return Ok(());
    }
    let process = stage.process(stage.plan.auditor(), 0);
    let mut repository = open_by(stage, 0, &process)?;
    let here = LOCATIONS[listed(&repository, place_to_open(stage, 0))];
    for ((called, id), restored) in restore_all(stage, (&repository, 0), "as nodes were put back")?
    {
        if let Err(error) = restored
            && !stage.model().may_be_lost(called, id)
        {
            stage.violated(format!("{}@{id:016x} was lost with a node: {error}", called.name()));
        }
    }
    for node in repository.nodes().to_vec().iter().filter(|node| !node.is_taken_out()) {
        let looked = repository
            .sweep_store(node.number, &SharedSweepOptions { dry_run: true, ..sweeping() });
        let is_older = looked.as_ref().err().and_then(Error::advice) == Some(&Advice::ReplaceNode);
        if is_older {
            let moves = |work: &Work| matches!(work.action, Action::MoveNode(_));
            let may_move = stage.plan.hosts.iter().flat_map(|host| &host.work).any(moves);
            let mut places = node.locations.iter().filter_map(|it| stage.place_at(it));
            if !may_move && !places.any(|place| stage.model().restored.contains(&place)) {
                stage.violated(format!("node {} is taken for an older copy", node.name));
            }
            stage.note(format_args!("node {} has lost something: {:?}", node.name, looked.err()));
            repository =
                repository.remove_node(here, &node.name, true, &opener(stage, &process))?;
        }
    }
    for ((called, id), restored) in restore_all(stage, (&repository, 0), "with nodes put back")? {
        if let Err(error) = restored {
            give_up(stage, &repository, (called, id), &error.to_string())?;
        }
    }
    // A tree may also have lost what none of its files has any more.
    let damaged = repository.check(&all_data())?.damage;
    let affected =
        damaged.iter().flat_map(|damage| damage.affected.iter().map(move |it| (damage, it)));
    for (damage, affected) in affected {
        let called = Called::all(0).find(|called| called.name() == affected.series);
        let Some((called, id)) = called.zip(affected.snapshot) else { continue };
        match give_up(stage, &repository, (called, id.0), &damage.error) {
            // It has been given up for another volume.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(())
}

/// Deletes a snapshot that was lost with a node.
fn give_up(
    stage: &Stage,
    repository: &Repository,
    (called, id): (Called, u64),
    why: &str,
) -> Result<()> {
    if !stage.model().may_be_lost(called, id) {
        stage.violated(format!("{}@{id:016x} was lost with a node: {why}", called.name()));
    }
    repository.delete(called.name(), &[Id(id)], DeleteMethod::Exact)?;
    stage.model().gives_up(called, id);
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
    for node in repository.nodes().iter().filter(|node| !node.is_taken_out()) {
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
