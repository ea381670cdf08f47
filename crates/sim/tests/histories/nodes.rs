//! Histories of storage nodes.

use silt_sim::{Action, Class, Exact, Fault, Keep, Kind, Plan, Point, Series, Work, Wrong, play};

use crate::{BACKUP, does, fails, host, play_all, play_drawn, play_seeds};

/// Histories of storage nodes, besides every third one of the others.
const NODES_HISTORIES: u64 = 200;

/// A node's move is interrupted, and another node is moved to the place that is not filled yet.
#[test]
fn a_place_that_is_being_filled_for_one_node_is_not_taken_for_another() {
    // To the third place: the first node, and the second one.
    let (one, other) = (Action::MoveNode(2), Action::MoveNode(5));
    for class in [Class::NodeContainers, Class::NodeRuns, Class::NodeHeads] {
        play_all(&Plan {
            places: 1,
            nodes: 3,
            prelude: vec![Action::AddNode(0), Action::AddNode(1), BACKUP],
            hosts: vec![host(vec![
                fails(0, one, (Kind::Put, class, 0), Wrong::Kill),
                does(0, other),
                does(0, one),
            ])],
            ..Plan::default()
        });
    }
}

/// Who adds a node dies when the node's configuration is visible but not durable. A backup writes
/// to the node, and the power fails.
#[test]
fn a_node_is_durably_one_before_anything_is_written_to_it() {
    for nth in 0..8 {
        let unsynced = (Kind::Put, Class::Others, nth);
        play_all(&Plan {
            places: 1,
            nodes: 1,
            hosts: vec![host(vec![
                fails(0, Action::AddNode(0), unsynced, Wrong::LosePower(7)),
                does(0, Action::Backup(Series::Other)),
            ])],
            ..Plan::default()
        });
    }
}

/// Who takes an empty node out sleeps before each list, while others write to the node; or a backup
/// sleeps while the node is taken out.
#[test]
fn a_node_that_gets_chunks_while_it_is_taken_out_stays() {
    let (add, remove) = (Action::AddNode(0), Action::RemoveNode(0));
    for nth in 0..8 {
        let sleeps = (Kind::Put, Class::Places, nth);
        play_seeds(
            &Plan {
                places: 1,
                nodes: 2,
                prelude: vec![add],
                hosts: vec![
                    host(vec![fails(0, remove, sleeps, Wrong::Sleep(60)), does(0, BACKUP)]),
                    host(vec![does(1, BACKUP), does(0, Action::Backup(Series::Other))]),
                ],
                ..Plan::default()
            },
            6,
        );
    }
    for class in [Class::NodeContainers, Class::NodeHeads, Class::Snapshots, Class::Heads] {
        for nth in 0..3 {
            let sleeps = (Kind::Put, class, nth);
            play_seeds(
                &Plan {
                    places: 1,
                    nodes: 2,
                    prelude: vec![add],
                    hosts: vec![
                        host(vec![fails(0, BACKUP, sleeps, Wrong::Sleep(60)), does(0, BACKUP)]),
                        host(vec![does(1, remove), does(100, remove), does(0, BACKUP)]),
                    ],
                    ..Plan::default()
                },
                6,
            );
        }
    }
}

/// A backup sleeps that has found chunks in a node, and all that referred to them is deleted and
/// swept.
#[test]
fn a_sleeping_backup_refers_to_nothing_that_a_sweep_of_its_node_has_deleted() {
    for class in [Class::Recipes, Class::NodeContainers, Class::NodeHeads, Class::Heads] {
        for minutes in [1, 600] {
            let sleeps = (Kind::Put, class, 0);
            let mut sweeps = vec![
                does(0, Action::Delete(Series::Vm, 0, Exact::Yes)),
                does(0, Action::Reclaim(Series::Vm, Keep::Nothing)),
            ];
            sweeps.extend((0..4).map(|_| does(0, Action::SweepNodes)));
            play_seeds(
                &Plan {
                    places: 1,
                    nodes: 2,
                    prelude: vec![Action::AddNode(0), Action::AddNode(1), BACKUP],
                    hosts: vec![
                        host(vec![fails(
                            0,
                            Action::Backup(Series::Other),
                            sleeps,
                            Wrong::Sleep(minutes),
                        )]),
                        host(sweeps),
                    ],
                    ..Plan::default()
                },
                6,
            );
        }
    }
}

/// A backup sleeps before the commit that registers its containers, and sweeps of the node remove
/// the index that it has written for that commit.
#[test]
fn the_index_of_a_failed_registration_is_not_used() {
    let backup = Action::Backup(Series::Other);
    for head in 0..3 {
        let sleeps = (Kind::Put, Class::NodeHeads, head);
        let mut sweeps = vec![does(0, Action::Delete(Series::Vm, 0, Exact::Yes))];
        sweeps.push(does(0, Action::Reclaim(Series::Vm, Keep::Nothing)));
        sweeps.extend((0..10).map(|_| does(0, Action::SweepNodes)));
        play_seeds(
            &Plan {
                places: 1,
                nodes: 1,
                prelude: vec![Action::AddNode(0), BACKUP],
                hosts: vec![host(vec![fails(0, backup, sleeps, Wrong::Sleep(1))]), host(sweeps)],
                ..Plan::default()
            },
            12,
        );
    }
}

/// A node is added while the place that decides is away, and filled when it is back: that place by
/// itself knows the node.
#[test]
fn a_place_that_was_away_when_a_node_was_added_has_the_list_before_a_head_names_the_node() {
    let other = Action::Backup(Series::Other);
    let at = Point { kind: Kind::List, class: None, nth: 0 };
    let away = Fault { at, what: Wrong::Away(30) };
    play_seeds(
        &Plan {
            places: 2,
            nodes: 2,
            prelude: vec![Action::AddNode(0), Action::AddPlace(1), BACKUP],
            hosts: vec![host(vec![
                Work { faults: vec![away], ..does(0, BACKUP) },
                does(0, Action::AddNode(1)),
                does(60, other),
                does(0, BACKUP),
            ])],
            ..Plan::default()
        },
        12,
    );
}

/// A process that stays open has looked at a node, and backs up a day later. Meanwhile the node was
/// moved, and what the process finds in its old place was deleted in the new one.
#[test]
fn a_process_that_stays_open_uses_no_node_where_it_was_before() {
    let outcome = play(&Plan::draw_with_nodes(3_064_779), true);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// A node is closed, interrupted by a power failure before all copies have both lists, and closed
/// again while the copy with the first list is away.
#[test]
fn a_change_that_was_made_in_two_copies_apart_is_one_change() {
    let at = |kind| Point { kind, class: None, nth: 1 };
    let fault = |kind, what| vec![Fault { at: at(kind), what }];
    let [first, again] = [354_925_464_143_911_393, 3_354_561_357_669_768_438];
    let work = vec![
        Work { faults: fault(Kind::Put, Wrong::LosePower(1)), ..does(0, Action::CloseNode(first)) },
        Work {
            faults: fault(Kind::Get, Wrong::Away(30)),
            ..does(0, Action::Backup(Series::Other))
        },
        does(1, Action::CloseNode(again)),
    ];
    let outcome = play(
        &Plan {
            seed: 9_029_107,
            places: 2,
            folders: true,
            nodes: 1,
            prelude: vec![Action::AddNode(1), Action::AddPlace(1)],
            hosts: vec![host(work)],
            ..Plan::default()
        },
        true,
    );
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn histories_of_storage_nodes_lose_nothing() {
    play_drawn(NODES_HISTORIES, Plan::draw_with_nodes);
}

/// The disk of a node is put back to what it was, and others back up who know nothing of it.
#[test]
fn what_a_node_has_lost_that_was_put_back_is_not_referred_to() {
    let other = Action::Backup(Series::Other);
    for which in 0..6 {
        for action in [Action::SweepNodes, Action::MoveNode(4), Action::CloseNode(0), BACKUP] {
            play_seeds(
                &Plan {
                    places: 1,
                    nodes: 2,
                    prelude: vec![Action::AddNode(0), BACKUP],
                    hosts: vec![
                        host(vec![
                            does(0, other),
                            does(0, BACKUP),
                            does(0, Action::RestoreNode(which)),
                            does(0, other),
                            does(10, BACKUP),
                        ]),
                        host(vec![
                            does(1, other),
                            does(60, action),
                            does(0, BACKUP),
                            does(0, other),
                        ]),
                    ],
                    ..Plan::default()
                },
                3,
            );
        }
    }
}

/// Whoever has registered chunks dies before the node's head is durable, and another backup marks
/// it; the power fails.
#[test]
fn a_head_is_durable_before_series_rely_on_it() {
    for seed in [1_003_002_784, 1_003_003_279] {
        let outcome = play(&Plan::draw_with_nodes(seed), true);
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// A process that stays open has the head in its cache that the node has lost.
#[test]
fn a_head_in_a_cache_does_not_make_a_node_whole() {
    let outcome = play(&Plan::draw_with_nodes(1_020_016_777), true);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// A move is interrupted, and another one leads elsewhere. The place that was being filled is then
/// that of a new node.
#[test]
fn a_place_that_is_left_while_it_is_filled_can_be_that_of_another_node() {
    let (one, back) = (Action::MoveNode(2), Action::MoveNode(0));
    for nth in 0..8 {
        let dies = |class| (Kind::Put, class, nth);
        play_all(&Plan {
            places: 1,
            nodes: 3,
            prelude: vec![Action::AddNode(0), BACKUP],
            hosts: vec![host(vec![
                fails(0, one, dies(Class::NodeContainers), Wrong::Kill),
                does(0, back),
                fails(0, Action::AddNode(2), dies(Class::Others), Wrong::Kill),
                does(0, BACKUP),
            ])],
            ..Plan::default()
        });
    }
    let outcome = play(&Plan::draw_with_nodes(998_021_088), true);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}
