//! Histories that failed once, and newly drawn ones.

#[path = "histories/caches.rs"]
mod caches;
#[path = "histories/nodes.rs"]
mod nodes;
#[path = "histories/trees.rs"]
mod trees;

use silt_sim::{
    Action, Class, Exact, Fault, Host, Keep, Kind, Plan, Point, Series, Shape, Work, Wrong, play,
    shrink,
};

/// Number of histories that are drawn and played, unless `SILT_SIM_HISTORIES` is set.
const HISTORIES: u64 = 2000;
/// Fewer, as each password takes long to try.
const GUARDED_HISTORIES: u64 = 60;

/// Histories of agents, which are long.
const AGENTS_HISTORIES: u64 = 16;

/// Histories of several sites.
const SITES_HISTORIES: u64 = 60;

const BACKUP: Action = Action::Backup(Series::Vm);

fn host(work: Vec<Work>) -> Host {
    Host { work, ..Host::default() }
}

fn does(after_minutes: u64, action: Action) -> Work {
    Work { after_minutes, action, faults: Vec::new(), faults_there: Vec::new() }
}

fn fails(after_minutes: u64, action: Action, point: (Kind, Class, u64), what: Wrong) -> Work {
    let at = Point { kind: point.0, class: Some(point.1), nth: point.2 };
    Work { after_minutes, action, faults: vec![Fault { at, what }], faults_there: Vec::new() }
}

/// Plays a plan with several seeds, on folders and on buckets.
fn play_all(plan: &Plan) {
    play_seeds(plan, 40);
}

/// The same with so many seeds.
fn play_seeds(plan: &Plan, seeds: u64) {
    for seed in 0..seeds {
        for folders in [false, true] {
            // A series must be safe with every kind of source.
            let shapes = [Shape::Disk, Shape::Tree, Shape::Both];
            let shapes = [shapes[usize::try_from(seed % 3).unwrap_or(0)]; 2];
            let caches = seed % 2 == 1;
            let plan = Plan { seed, folders, caches, shapes, ..plan.clone() };
            let outcome = play(&plan, true);
            let events = outcome.events.join("\n");
            assert!(
                outcome.violations.is_empty(),
                "{plan:#?}\n{events}\n{:#?}",
                outcome.violations
            );
        }
    }
}

/// Plays a plan with file trees: one, two, and some of a disk and two; with times of their own and
/// with those that a kernel or an old file system gives.
fn play_trees(plan: &Plan) {
    for seed in 0..24 {
        let shapes = [Shape::Tree, Shape::Trees, Shape::Varied, Shape::Varied];
        let ticks_ms = [0, 4, 2000];
        let place = |seed: u64, count: usize| usize::try_from(seed).unwrap_or(0) % count;
        let (shape, tick_ms) = (shapes[place(seed, 4)], ticks_ms[place(seed, 3)]);
        let plan = Plan { seed, shapes: [shape; 2], tick_ms, ..plan.clone() };
        let outcome = play(&plan, true);
        let events = outcome.events.join("\n");
        assert!(outcome.violations.is_empty(), "{plan:#?}\n{events}\n{:#?}", outcome.violations);
    }
}

/// The files of a series are cut in other ways while one of its backups sleeps, and others go on.
#[test]
fn files_are_cut_in_another_way_while_a_backup_sleeps() {
    let tune = |which| Action::Tune(Series::Vm, which);
    for class in [Class::Recipes, Class::Containers, Class::Snapshots, Class::Heads] {
        play_trees(&Plan {
            places: 1,
            prelude: vec![BACKUP, BACKUP],
            hosts: vec![
                host(vec![
                    fails(0, BACKUP, (Kind::Put, class, 0), Wrong::Sleep(600)),
                    does(0, BACKUP),
                ]),
                host(vec![does(1, tune(5)), does(0, BACKUP), does(0, tune(4)), does(0, BACKUP)]),
                host(vec![
                    fails(2, tune(7), (Kind::Put, Class::Heads, 0), Wrong::LoseAnswer),
                    does(0, BACKUP),
                    does(0, Action::Delete(Series::Vm, 1, Exact::Yes)),
                    does(0, Action::Reclaim(Series::Vm, Keep::Nothing)),
                ]),
            ],
            ..Plan::default()
        });
    }
}

/// Volumes are left out of some snapshots, and the numbers of their segments begin anew, while
/// another host sleeps that has seen the old ones.
#[test]
fn a_tree_that_was_left_out_comes_back_while_a_backup_sleeps() {
    let delete = |which| Action::Delete(Series::Vm, which, Exact::No);
    for class in [Class::Recipes, Class::Containers, Class::Heads] {
        play_trees(&Plan {
            places: 1,
            prelude: vec![BACKUP, BACKUP, Action::Round, BACKUP],
            hosts: vec![
                host(vec![
                    fails(0, BACKUP, (Kind::Put, class, 0), Wrong::Sleep(600)),
                    does(0, BACKUP),
                ]),
                host(vec![
                    does(1, BACKUP),
                    does(0, Action::Round),
                    does(0, BACKUP),
                    does(0, delete(1)),
                    does(0, delete(2)),
                    does(0, Action::Reclaim(Series::Vm, Keep::Nothing)),
                    does(0, Action::Undelete(Series::Vm, 0)),
                    does(0, BACKUP),
                ]),
            ],
            ..Plan::default()
        });
    }
}

/// Files change in the tick of the clock in which they are backed up, on machines whose clocks are
/// right or wrong.
#[test]
fn a_change_in_the_tick_of_a_backup_is_in_the_next_one() {
    for skew_minutes in [0, 3, -3, 1440, -1440] {
        for tick_ms in [4, 10, 1000, 2000] {
            for seed in 0..12 {
                let work = vec![does(0, BACKUP), does(0, BACKUP), does(0, BACKUP)];
                let one = Host { skew_minutes, ..host(work) };
                let shapes = [[Shape::Tree; 2], [Shape::Trees; 2]][usize::from(seed % 4 == 3)];
                let hosts = vec![one.clone(), one];
                let plan = Plan { seed, places: 1, tick_ms, shapes, hosts, ..Plan::default() };
                let outcome = play(&plan, true);
                let events = outcome.events.join("\n");
                let violations = outcome.violations;
                assert!(violations.is_empty(), "{plan:#?}\n{events}\n{violations:#?}");
            }
        }
    }
}

/// Bases of deltas die while the process that makes the deltas sleeps, and the other way round.
#[test]
fn bases_stay_whoever_sleeps() {
    let (optimize, reclaim) =
        (Action::Optimize(Series::Vm), Action::Reclaim(Series::Vm, Keep::Nothing));
    let delete = |which| Action::Delete(Series::Vm, which, Exact::Yes);
    let points = [
        (Kind::Put, Class::Containers, 0),
        (Kind::Put, Class::Dead, 0),
        (Kind::Put, Class::Heads, 0),
        (Kind::Put, Class::Heads, 1),
        (Kind::Delete, Class::Containers, 0),
    ];
    for point in points {
        let sleeping = |action| fails(0, action, point, Wrong::Sleep(600));
        let makes = vec![sleeping(optimize), does(0, BACKUP), does(0, optimize)];
        let removes = vec![does(1, delete(0)), does(0, reclaim), does(0, BACKUP), does(0, reclaim)];
        let slept = vec![does(0, delete(1)), sleeping(reclaim), does(0, BACKUP)];
        let meanwhile = vec![does(5, optimize), does(0, BACKUP), does(0, optimize)];
        let shared = vec![
            does(1, Action::Popular),
            sleeping(Action::Repoint(Series::Vm)),
            does(0, Action::Sweep),
        ];
        let beside = vec![does(5, optimize), does(0, delete(0)), does(0, reclaim)];
        for (one, other) in [(makes, removes), (slept, meanwhile), (shared, beside)] {
            let other_series = Action::Backup(Series::Other);
            let prelude = vec![BACKUP, BACKUP, BACKUP, other_series, optimize, BACKUP];
            let hosts = vec![host(one), host(other)];
            play_seeds(&Plan { places: 1, prelude, hosts, ..Plan::default() }, 6);
        }
    }
}

/// A backup sleeps while the place that decides is removed and another host commits to the other
/// place.
#[test]
fn a_writer_that_sleeps_while_a_place_is_removed_replaces_nothing() {
    for class in [Class::Recipes, Class::Containers, Class::Heads] {
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP, Action::AddPlace(1)],
            hosts: vec![
                host(vec![fails(0, BACKUP, (Kind::Put, class, 0), Wrong::Sleep(600))]),
                host(vec![does(1, Action::RemovePlace(0)), does(10, BACKUP)]),
            ],
            ..Plan::default()
        });
    }
}

/// A reclaim dies before its second head and leaves a rewritten container. The request that removes
/// it is repeated late, after a third reclaim has rewritten the same container again.
#[test]
fn no_name_of_a_rewritten_container_is_given_twice() {
    let (nothing, usual) = (Keep::Nothing, Keep::Usual);
    for head in 0..4 {
        let killed = (Kind::Put, Class::Heads, head);
        let repeated = (Kind::Delete, Class::Containers, 0);
        play_all(&Plan {
            places: 1,
            prelude: vec![BACKUP, BACKUP, Action::Delete(Series::Vm, 0, Exact::Yes)],
            hosts: vec![host(vec![
                fails(0, Action::Reclaim(Series::Vm, nothing), killed, Wrong::Kill),
                fails(0, Action::Reclaim(Series::Vm, usual), repeated, Wrong::Repeat(600)),
                does(0, Action::Reclaim(Series::Vm, nothing)),
            ])],
            ..Plan::default()
        });
    }
}

/// A backup dies when its container is in the first of two places; the next one uses it.
#[test]
fn a_container_that_one_place_lacks_is_brought_there_before_it_is_named() {
    play_all(&Plan {
        places: 2,
        prelude: vec![BACKUP, Action::AddPlace(1)],
        hosts: vec![host(vec![
            fails(0, BACKUP, (Kind::Put, Class::Containers, 0), Wrong::KillAfter),
            does(0, BACKUP),
        ])],
        ..Plan::default()
    });
}

/// The same when the power fails after the next backup, and the folder was not durable.
#[test]
fn a_container_whose_folder_was_not_synced_is_synced_before_it_is_named() {
    play_all(&Plan {
        places: 1,
        prelude: vec![BACKUP],
        hosts: vec![host(vec![
            fails(0, BACKUP, (Kind::Put, Class::Containers, 0), Wrong::LosePower(60)),
            does(0, BACKUP),
        ])],
        ..Plan::default()
    });
}

/// The first backup of a series sleeps while another host creates the first head and many more, and
/// the first head is removed.
#[test]
fn a_first_backup_that_wakes_up_late_is_told_so() {
    play_all(&Plan {
        places: 1,
        hosts: vec![
            host(vec![fails(0, BACKUP, (Kind::Put, Class::Heads, 0), Wrong::Sleep(600))]),
            host(vec![
                does(10, BACKUP),
                does(0, Action::Protect(Series::Vm, 20)),
                does(0, Action::Reclaim(Series::Vm, Keep::Nothing)),
            ]),
        ],
        ..Plan::default()
    });
}

/// A round dies when the shared store's head is visible but not durable. A backup refers to chunks
/// that this head names, and the power fails.
#[test]
fn a_shared_head_is_durable_before_anything_refers_to_what_it_names() {
    play_all(&Plan {
        places: 1,
        hosts: vec![host(vec![
            fails(0, Action::Round, (Kind::Put, Class::Heads, 0), Wrong::LosePower(60)),
            does(0, BACKUP),
        ])],
        ..Plan::default()
    });
}

/// The first place is unreachable while another is being added, and a host opens that one.
#[test]
fn a_place_that_is_being_added_is_not_taken_for_the_repository() {
    for action in [Action::AddPlace(1), Action::AddSharedPlace(1)] {
        for nth in 0..3 {
            play_all(&Plan {
                places: 2,
                hosts: vec![
                    host(vec![fails(0, action, (Kind::Put, Class::Places, nth), Wrong::Away(30))]),
                    host(vec![does(0, BACKUP), does(1, BACKUP)]),
                ],
                ..Plan::default()
            });
        }
    }
}

/// The place from which another is filled becomes unreachable in the middle.
#[test]
fn a_place_is_not_complete_if_what_it_is_filled_from_has_gone_away() {
    for class in [Class::Containers, Class::Recipes, Class::Heads] {
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP],
            hosts: vec![
                host(vec![fails(0, Action::AddPlace(1), (Kind::Get, class, 0), Wrong::Away(1))]),
                host(vec![]),
            ],
            ..Plan::default()
        });
    }
}

/// A backup that does not know a new place commits without it. A healing that knows it dies in the
/// middle. The host that added the place continues with the objects that it had listed before.
#[test]
fn a_place_has_no_head_before_what_it_names() {
    for nth in 0..2 {
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP],
            hosts: vec![
                host(vec![
                    does(100, BACKUP),
                    fails(0, Action::Heal, (Kind::Put, Class::Heads, nth), Wrong::Kill),
                ]),
                host(vec![fails(
                    100,
                    Action::AddPlace(1),
                    (Kind::Put, Class::Containers, 0),
                    Wrong::Sleep(2000),
                )]),
            ],
            ..Plan::default()
        });
    }
}

/// A head is visible in one place and not durable when a healing brings it to the other; the power
/// fails, and a writer that slept finds its number free.
#[test]
fn a_head_is_durable_where_it_is_before_it_is_copied() {
    for action in [BACKUP, Action::Protect(Series::Vm, 1), Action::Tune(Series::Vm, 5)] {
        let sleeps = (Kind::Put, Class::Leases, 0);
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP, Action::AddPlace(1)],
            hosts: vec![
                host(vec![fails(0, action, sleeps, Wrong::Sleep(600))]),
                host(vec![
                    fails(10, action, (Kind::Put, Class::Heads, 0), Wrong::LosePower(60)),
                    does(0, Action::Heal),
                ]),
            ],
            ..Plan::default()
        });
    }
}

/// A writer brings the head that it builds upon to a place that lacks it, and sleeps; the place
/// that has the head is removed, and others commit their own in the one that is left.
#[test]
fn a_head_is_not_built_upon_if_another_is_in_its_place() {
    play_all(&Plan {
        places: 2,
        prelude: vec![BACKUP, Action::AddPlace(1)],
        hosts: vec![
            host(vec![
                fails(0, BACKUP, (Kind::Put, Class::Heads, 0), Wrong::KillAfter),
                fails(0, BACKUP, (Kind::Put, Class::Heads, 0), Wrong::Sleep(600)),
            ]),
            host(vec![
                does(1, Action::RemovePlace(0)),
                does(1, Action::Reclaim(Series::Vm, Keep::Nothing)),
            ]),
        ],
        ..Plan::default()
    });
}

/// A host that fills a place dies when an object there is visible but not durable. Another host
/// continues and sees the object, before the power fails.
#[test]
fn a_place_is_complete_only_with_what_stays_there() {
    for class in [Class::Containers, Class::Recipes, Class::Snapshots] {
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP],
            hosts: vec![
                host(vec![fails(
                    0,
                    Action::AddPlace(1),
                    (Kind::Put, class, 0),
                    Wrong::LosePower(2000),
                )]),
                host(vec![fails(
                    100,
                    Action::AddPlace(1),
                    (Kind::Put, Class::Heads, 0),
                    Wrong::Sleep(2000),
                )]),
            ],
            ..Plan::default()
        });
    }
}

/// A process that knows only the first place adds a place that another host adds for the shared
/// store meanwhile.
#[test]
fn who_knows_an_old_list_of_places_changes_none() {
    for sleeps in [None, Some(Class::Places), Some(Class::Others)] {
        let add = match sleeps {
            Some(class) => fails(5, Action::AddPlace(1), (Kind::List, class, 1), Wrong::Sleep(60)),
            None => does(60, Action::AddPlace(1)),
        };
        play_all(&Plan {
            places: 2,
            prelude: vec![BACKUP, Action::Backup(Series::Other)],
            hosts: vec![
                Host { stays_open: true, ..host(vec![does(0, Action::Heal), add]) },
                host(vec![
                    does(10, Action::AddSharedPlace(1)),
                    does(1, Action::Popular),
                    does(100, Action::Popular),
                ]),
            ],
            ..Plan::default()
        });
    }
}

/// Two hosts each remove one of the two full keys at the same time.
#[test]
fn the_last_key_that_reads_stays() {
    for seed in 0..12 {
        let plan = Plan {
            seed,
            places: 1,
            guarded: true,
            prelude: vec![BACKUP, Action::AddKey(false)],
            hosts: vec![
                host(vec![fails(
                    0,
                    Action::RemoveKey(0),
                    (Kind::Delete, Class::Others, 0),
                    Wrong::Sleep(60),
                )]),
                host(vec![does(1, Action::RemoveKey(1))]),
            ],
            ..Plan::default()
        };
        assert!(play(&plan, true).violations.is_empty(), "seed {seed}");
    }
}

/// A first backup sleeps while a place is added, writes the record of its series where it knew a
/// place, and is refused. The next change of the series brings the record to the new place.
#[test]
fn the_record_of_a_series_is_in_every_place_before_its_first_head() {
    for next in [Action::Reclaim(Series::Vm, Keep::Nothing), BACKUP] {
        let slept = fails(0, BACKUP, (Kind::Put, Class::Leases, 0), Wrong::Sleep(2000));
        play_all(&Plan {
            places: 2,
            hosts: vec![host(vec![slept, does(1, next)]), host(vec![does(1, Action::AddPlace(1))])],
            ..Plan::default()
        });
    }
}

/// A process opened the repository before a place was added, and works for a long time.
#[test]
fn a_process_that_does_not_know_a_place_tells_nobody_that_it_has_committed() {
    play_all(&Plan {
        places: 2,
        hosts: vec![
            Host { stays_open: true, ..host(vec![does(0, BACKUP), does(10, BACKUP)]) },
            host(vec![does(1, Action::AddPlace(1)), does(30, Action::RemovePlace(0))]),
        ],
        ..Plan::default()
    });
}

#[test]
fn a_plan_gives_the_same_events_every_time() {
    for seed in 0..40 {
        let plan = Plan::draw(seed);
        assert_eq!(play(&plan, false).digest, play(&plan, true).digest, "seed {seed}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long a test runs is the tester's choice")]
fn histories_lose_nothing() {
    let histories = std::env::var("SILT_SIM_HISTORIES").ok();
    let histories = histories.and_then(|text| text.parse().ok()).unwrap_or(HISTORIES);
    play_drawn(histories, Plan::draw);
}

#[test]
fn histories_of_guarded_repositories_lose_nothing() {
    play_drawn(GUARDED_HISTORIES, Plan::draw_guarded);
}

#[test]
fn histories_of_several_sites_lose_nothing() {
    play_drawn(SITES_HISTORIES, Plan::draw_sites);
}

#[test]
fn histories_of_agents_lose_nothing_and_miss_nothing() {
    play_drawn(AGENTS_HISTORIES, Plan::draw_agents);
}

/// Histories of agents that failed once: the repository is away when an agent begins, and an agent
/// is stopped without notes before it has begun again.
#[test]
fn histories_of_agents_that_failed_once() {
    for seed in [832_000_056, 832_000_080, 832_000_479, 832_001_811] {
        let outcome = play(&Plan::draw_agents(seed), true);
        let (events, violations) = (outcome.events.join("\n"), outcome.violations);
        assert!(violations.is_empty(), "seed {seed}\n{events}\n{violations:#?}");
    }
}

/// Agents are disturbed in every way that is drawn, and do their work.
#[test]
fn agents_are_disturbed_and_go_on() {
    let mut events = String::new();
    for seed in 0..12 {
        let outcome = play(&Plan::draw_agents(seed), true);
        events.extend(outcome.events);
        if seed < 3 {
            let digest = play(&Plan::draw_agents(seed), false).digest;
            assert_eq!(outcome.digest, digest, "seed {seed}");
        }
    }
    let states = [
        "Started { run",
        "end: Done",
        "end: Failed",
        "end: Busy",
        "loses_bus: true",
        "forgets: true",
        "work: Reclaim",
    ];
    for state in states {
        assert!(events.contains(state), "{state}");
    }
    let begun = events.matches("Started { run").count();
    assert!(begun > 12 * 10, "{begun}");
}

/// Hosts that make deltas are disturbed, and make some.
#[test]
fn deltas_are_made_and_interrupted() {
    let mut events = Vec::new();
    for seed in 0..100 {
        events.extend(play(&Plan::draw(seed), true).events);
    }
    let count = |is: &dyn Fn(&str) -> bool| events.iter().filter(|event| is(event)).count();
    let made = count(&|event| event.contains("made deltas of ") && !event.contains(" of 0 "));
    let stopped = count(&|event| event.contains("could not do Optimize"));
    assert!(made > 30 && stopped > 5, "{made} {stopped}");
}

/// The histories that are drawn reach the states for which they are meant.
#[test]
fn replications_are_cut_and_refused_and_repeated() {
    let mut events = String::new();
    for seed in 0..70 {
        let outcome = play(&Plan::draw_sites(seed), true);
        events.extend(outcome.events);
        if seed < 8 {
            let digest = play(&Plan::draw_sites(seed), false).digest;
            assert_eq!(outcome.digest, digest, "seed {seed}");
        }
    }
    let states = [": Sent", ": Busy", ": Unavailable", ": Refused", "the line is cut", "is dead"];
    for state in states {
        let found = events.matches("replicated ").count();
        assert!(found > 90 && events.contains(state), "{state}");
    }
}

fn play_drawn(histories: u64, draw: fn(u64) -> Plan) {
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= histories {
                        return;
                    }
                    if !play(&draw(seed), false).violations.is_empty() {
                        let (plan, violations) = shrink(&draw(seed));
                        panic!("seed {seed}: {violations:#?}\nshrunk to {plan:#?}");
                    }
                }
            });
        }
    });
}

/// A reclaim dies when its commit has dropped snapshots, and before it drops their containers.
#[test]
fn a_container_of_which_all_is_dead_is_no_work_for_deltas() {
    let delete = |which, exact| does(0, Action::Delete(Series::Vm, which, exact));
    let reclaim = Action::Reclaim(Series::Vm, Keep::Nothing);
    let dies = (Kind::Get, Class::Containers, 11);
    let plan = Plan {
        seed: 993_001_355,
        places: 1,
        folders: true,
        shapes: [Shape::Varied, Shape::Disk],
        tick_ms: 1000,
        prelude: vec![BACKUP, BACKUP, BACKUP, BACKUP, Action::Optimize(Series::Vm)],
        hosts: vec![
            host(vec![
                delete(1_236_341_702_703_372_222, Exact::No),
                delete(15_855_307_932_987_362_371, Exact::No),
            ]),
            host(vec![
                does(100, Action::Delete(Series::Vm, 13_340_879_748_031_139_110, Exact::No)),
                does(0, reclaim),
            ]),
            host(vec![
                does(1500, Action::Delete(Series::Vm, 6_259_671_709_455_089_477, Exact::Yes)),
                fails(0, reclaim, dies, Wrong::KillAfter),
            ]),
        ],
        ..Plan::default()
    };
    let outcome = play(&plan, true);
    let events = outcome.events.join("\n");
    assert!(outcome.violations.is_empty(), "{events}\n{:#?}", outcome.violations);
}
