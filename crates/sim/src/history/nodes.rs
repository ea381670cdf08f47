//! Storage nodes in a history: how hosts change them.

use silt_format::Result;
use siltstone::{Repository, SharedSweepOptions, SharedSweepReport};

use super::{Here, Stage, one_of, thorough};
use crate::plan::Action;
use crate::stage::{NODE_LOCATIONS, opener};
use crate::world::minutes_ns;

/// The names of nodes.
const NAMES: [&str; 4] = ["one", "two", "three", "four"];
/// For how many minutes a place is cut off.
const CUT_MINUTES: [u64; 4] = [5, 60, 600, 3000];

/// For how many minutes whoever puts a disk back waits for others.
const WAITS_MAX: usize = 3000;

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
        Action::RemoveNode(which) => {
            let Some(node) = one(which) else { return (Some(repository), Ok(())) };
            repository.remove_node(here, &node.name, false, &open)
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

/// Puts the disk of a node back to what it was, once all others have ended what they do: nobody can
/// tell what a node loses that is written to it meanwhile.
pub fn restore(at: &Here<'_>, which: u64) {
    let Here { stage, host, .. } = *at;
    for _ in 0..WAITS_MAX {
        if stage.model().busy == 1 {
            break;
        }
        stage.world.pass(host, minutes_ns(1));
    }
    if stage.model().busy > 1 {
        return;
    }
    let restored = stage.world.state().restore_copy(which);
    if let Some(place) = restored {
        stage.model().lose(place);
        stage.note(format_args!("place {place} is what it was before"));
    }
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
