//! Histories in which machines have caches that are older than the repository.

use silt_sim::{Action, Class, Exact, Keep, Kind, Plan, Series, Shape, Wrong, play};

use crate::{BACKUP, does, fails, host};

/// Plays a plan with caches, and with many seeds.
fn play_with_caches(plan: &Plan) {
    for seed in 0..30 {
        let shapes = [Shape::Disk, Shape::Tree, Shape::Both];
        let shapes = [shapes[usize::try_from(seed % 3).unwrap_or(0)]; 2];
        let plan = Plan { seed, caches: true, places: 1, shapes, ..plan.clone() };
        let outcome = play(&plan, true);
        let events = outcome.events.join("\n");
        assert!(outcome.violations.is_empty(), "{plan:#?}\n{events}\n{:#?}", outcome.violations);
    }
}

/// All heads, containers and recipes that hosts have in their caches are of before a rollback, and
/// their names come back with other objects.
#[test]
fn caches_that_are_older_than_a_rollback_do_no_harm() {
    let restore = Action::Restore(Series::Vm, 1);
    let delete = Action::Delete(Series::Vm, 0, Exact::Yes);
    let reclaim = Action::Reclaim(Series::Vm, Keep::Nothing);
    for which in 0..4 {
        let prelude = vec![BACKUP, restore, BACKUP, restore, BACKUP, Action::RollBack(which)];
        play_with_caches(&Plan {
            prelude,
            hosts: vec![
                host(vec![does(0, BACKUP), does(1, restore), does(0, BACKUP)]),
                host(vec![does(0, BACKUP), does(0, delete), does(0, reclaim), does(0, BACKUP)]),
            ],
            ..Plan::default()
        });
    }
}

/// The same with nodes, of which one is not one yet after the rollback: who has its configuration
/// in the cache must not take its place for one that holds the repository.
#[test]
fn a_place_in_the_cache_that_is_none_after_a_rollback_is_not_taken_for_one() {
    let (add, other) = (Action::AddNode(0), Action::AddNode(1));
    let restore = Action::Restore(Series::Vm, 0);
    for action in [Action::MoveNode(2), Action::MoveNode(5), BACKUP, Action::SweepNodes] {
        let mut cached = host(vec![
            fails(1, add, (Kind::Put, Class::Places, 1), Wrong::Away(60)),
            does(0, action),
        ]);
        cached.stays_open = true;
        play_with_caches(&Plan {
            nodes: 3,
            prelude: vec![other, add, BACKUP, restore, BACKUP, Action::RollBack(1)],
            hosts: vec![cached, host(vec![does(300, restore)])],
            ..Plan::default()
        });
    }
}
