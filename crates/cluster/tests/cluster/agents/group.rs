//! What agents do together, and without the bus.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use silt_cluster::{AgentOptions, Bus, Job, JobState, Offer, Told, fleet, watch};

use super::stage::{DAY_NS, Group, HOUR_NS, Luck, MINUTE_NS, SECOND_NS, TICK_NS, backup};
use crate::conformance::name;

const HOUR: i64 = 3600;
const MINUTE: i64 = 60;

fn own(number: usize) -> Vec<silt_cluster::Task> {
    vec![backup(&format!("db{number}"), "01:00")]
}

#[test]
fn a_director_offers_what_is_due() {
    let group = Group::new(3, own);
    group.run_for(DAY_NS);
    for number in 0..3 {
        let began = group.began(&format!("db{number}"));
        assert!(matches!(began[..], [(host, at)] if host == number && at < HOUR + 30), "{began:?}");
    }
    assert_eq!(group.wire.jobs.lock().unwrap().len(), 3);
    let settled = group.wire.settled.lock().unwrap();
    assert_eq!(settled.iter().filter(|state| **state == JobState::Done).count(), 3);
    assert!(settled.contains(&JobState::Running), "a run takes 90 s");
    let members = group.wire.members().unwrap();
    let fleet = fleet(&*group.wire, &group.messages).unwrap();
    assert_eq!((members.len(), fleet.agents.len(), fleet.unreadable), (4, 3, 0));
    let director = fleet.director.unwrap();
    assert_eq!((director.offered, director.outstanding, director.waiting), (3, 0, 0));
    let shown = format!("{members:?}{:?}", group.wire.jobs.lock().unwrap());
    assert!(!shown.contains("db1") && !shown.contains("backup"), "the bus sees no names: {shown}");
}

#[test]
fn a_task_that_is_due_again_before_the_director_looks_is_offered_again() {
    let group = Group::new(1, |_| vec![backup("db0", "*:*:0/5")]);
    group.hosts[0].takes(SECOND_NS);
    group.run_for(10 * MINUTE_NS);
    let began = group.began("db0");
    assert!(began.len() >= 30, "the director looks each ten seconds: {began:?}");
}

#[test]
fn a_bus_that_is_dead_delays_backups_by_a_quarter_of_an_hour_at_most() {
    let group = Group::new(2, |number| vec![backup(&format!("db{number}"), "*:00")]);
    group.wire.is_dead.store(true, Relaxed);
    group.run_for(2 * HOUR_NS);
    assert_eq!(group.began("db0"), [(0, HOUR + 15 * MINUTE)]);
    group.wire.is_dead.store(false, Relaxed);
    group.run_for(2 * HOUR_NS);
    let back = group.began("db0");
    assert!(back[1..].iter().all(|(_, at)| at % HOUR < 30), "{back:?}");
    assert_eq!(back.len(), 3);
    // It dies while a run is on its way.
    group.run_for(30 * SECOND_NS);
    assert_eq!(group.hosts[0].hand.going() + group.hosts[1].hand.going(), 2);
    group.wire.is_dead.store(true, Relaxed);
    group.run_for(2 * HOUR_NS);
    let began = group.began("db0");
    assert_eq!(began.len(), 5, "{began:?}");
    assert_eq!(began[4].1, 5 * HOUR + 15 * MINUTE);
}

#[test]
fn an_agent_that_nobody_hears_goes_on_alone() {
    let group = Group::with(1, own, |options| AgentOptions { leads: false, ..options });
    group.run_for(DAY_NS);
    assert_eq!(group.began("db0"), [(0, HOUR + 15 * MINUTE)]);
    assert!(fleet(&*group.wire, &group.messages).unwrap().director.is_none());
}

#[test]
fn a_lost_job_is_no_lost_backup() {
    let group = Group::new(2, own);
    group.wire.loses_jobs.store(true, Relaxed);
    group.run_for(12 * HOUR_NS);
    for number in 0..2 {
        let began = group.began(&format!("db{number}"));
        assert_eq!(began, [(number, HOUR + 15 * MINUTE)]);
    }
    let offers = group.wire.jobs.lock().unwrap().len();
    assert!((12..=16).contains(&offers), "each is offered anew every two minutes: {offers}");
}

#[test]
fn a_job_that_comes_again_or_to_another_starts_nothing() {
    let group = Group::new(2, own);
    group.run_for(HOUR_NS + 20 * SECOND_NS);
    assert_eq!(group.hosts[0].hand.going(), 1);
    let job = group.wire.jobs.lock().unwrap()[0].clone();
    let again = |number: u32, pool: &str| {
        let id = name(&format!("again{number}"));
        // The job that runs has the key until it is done.
        let job = Job { id, pool: name(pool), key: name(&format!("k{number}")), ..job.clone() };
        assert_eq!(group.local.offer(&job).unwrap(), Offer::Added);
    };
    let own = if group.began("db0").is_empty() { "agent-web1" } else { job.pool.as_str() };
    again(1, own);
    group.run_for(10 * MINUTE_NS);
    again(2, own);
    let other = if own == "agent-web0" { "agent-web1" } else { "agent-web0" };
    again(3, other);
    group.run_for(10 * MINUTE_NS);
    assert_eq!((group.began("db0").len(), group.began("db1").len()), (1, 1));
    let pools = [name("agent-web0"), name("agent-web1")];
    group.clock.pass(10 * MINUTE_NS);
    let is_left = |pool| group.local.take(pool, Duration::ZERO).unwrap().is_some();
    assert!(!pools.iter().any(is_left), "all are settled");
    let unknown: u64 = group.hosts.iter().map(|host| host.agent.status().unknown_jobs).sum();
    assert_eq!(unknown, 1);
}

#[test]
fn garbage_for_a_job_or_a_member_is_dropped_and_counted() {
    let group = Group::new(1, own);
    let job = Job { pool: name("agent-web0"), key: name("x"), id: name("x"), body: vec![7; 500] };
    group.local.offer(&job).unwrap();
    group.local.announce(&name("evil"), b"{}", Duration::from_secs(90)).unwrap();
    group.local.announce(&name("director"), &[1; 200], Duration::from_secs(90)).unwrap();
    group.run_for(30 * SECOND_NS);
    assert!(group.hosts[0].agent.status().unreadable >= 3);
    assert_eq!(fleet(&*group.wire, &group.messages).unwrap().agents.len(), 1);
    let left = group.local.take(&name("agent-web0"), Duration::from_mins(2)).unwrap();
    assert!(left.is_none());
}

#[test]
fn what_one_agent_said_is_not_believed_of_another() {
    let group = Group::new(2, own);
    group.run_for(30 * SECOND_NS);
    let members = group.local.members().unwrap();
    let web1 = members.iter().find(|member| member.name == name("web1")).unwrap();
    group.local.announce(&name("web0"), &web1.about, Duration::from_secs(90)).unwrap();
    let fleet = fleet(&group.local, &group.messages).unwrap();
    assert_eq!((fleet.agents.len(), fleet.unreadable), (1, 1));
    let unreadable = || group.hosts[0].agent.status().unreadable;
    let before = unreadable();
    group.local.announce(&name("web9"), &web1.about, Duration::from_secs(90)).unwrap();
    group.run_for(70 * SECOND_NS);
    assert!(unreadable() > before);
}

#[test]
fn a_director_that_lost_its_lease_is_none_any_more() {
    let director = |group: &Group| fleet(&group.local, &group.messages).unwrap().director.unwrap();
    let mut group = Group::new(2, own);
    group.down = vec![0];
    group.run_for(MINUTE_NS);
    // The second of each tick: what it says is heard by all.
    let first = director(&group).agent;
    group.down = vec![1];
    group.run_for(MINUTE_NS);
    let second = director(&group).agent;
    assert_eq!((first, second.clone()), (name("web1"), name("web0")));
    group.down.clear();
    // It may act once more before it finds out.
    group.run_for(20 * SECOND_NS);
    group.run_with(2 * MINUTE_NS, |group| assert_eq!(director(group).agent, second));
}

#[test]
fn two_directors_do_no_harm() {
    let tasks = |number| vec![backup(&format!("db{number}"), "*:00"), backup("shared", "*:00")];
    let group = Group::new(3, tasks);
    group.wire.grants_all.store(true, Relaxed);
    group.run_for(10 * HOUR_NS);
    for series in ["db0", "db1", "db2", "shared"] {
        let began = group.began(series);
        assert_eq!(began.len(), 9, "{series}: {began:?}");
        assert!(began.iter().all(|(_, at)| at % HOUR < 5 * MINUTE), "{began:?}");
    }
    let offers = group.wire.jobs.lock().unwrap().len();
    assert!(offers > 9 * 4, "more than one of them offered: {offers}");
}

#[test]
fn a_shared_task_is_done_once_and_by_another_if_its_agent_dies() {
    let shared = |_| vec![backup("shared", "*:00")];
    let mut group = Group::new(3, shared);
    // Longer than an offer is given to begin.
    group.hosts.iter().for_each(|host| host.takes(5 * MINUTE_NS));
    group.run_for(5 * HOUR_NS);
    let began = group.began("shared");
    assert_eq!(began.len(), 4, "{began:?}");
    let usual = began[0].0;
    assert!(began.iter().all(|(host, at)| *host == usual && at % HOUR < 30), "{began:?}");
    // It dies before the next time, and the others find out.
    group.down.push(usual);
    group.run_for(2 * HOUR_NS + 10 * MINUTE_NS);
    let began = group.began("shared")[4..].to_vec();
    assert!(began.len() == 3 && began.iter().all(|(host, _)| *host != usual), "{began:?}");
    assert!(began[1..].iter().all(|(_, at)| at % HOUR < MINUTE), "{began:?}");
    // One dies in the middle of a run, which was busy meanwhile.
    let now = group.began("shared").last().unwrap().0;
    group.run_with(HOUR_NS, |_| ());
    group.truth.busy.lock().unwrap().clear();
    group.down.push(now);
    group.run_for(2 * HOUR_NS);
    let began = group.began("shared");
    let last = began.last().unwrap();
    assert!(last.0 != now && last.0 != usual, "{began:?}");
}

#[test]
fn the_limit_of_the_group_holds_and_holds_nothing_back_for_ever() {
    let tasks = |number: usize| {
        (0..3).map(|one| backup(&format!("db{number}-{one}"), &format!("01:0{one}"))).collect()
    };
    let group = Group::with(4, tasks, |options| AgentOptions { limit: 2, parallel: 2, ..options });
    for host in &group.hosts {
        host.takes(20 * MINUTE_NS);
    }
    let mut most = 0;
    group.run_with(4 * HOUR_NS, |group| {
        most = most.max(group.hosts.iter().map(|host| host.hand.going()).sum());
    });
    assert_eq!(most, 2, "though most were due for longer than a quarter of an hour");
    let mut first = Vec::new();
    for number in 0..4 {
        for one in 0..3 {
            let began = group.began(&format!("db{number}-{one}"));
            assert_eq!(began.len(), 1);
            first.push((began[0].1, one));
        }
    }
    first.sort_unstable();
    assert!(first.is_sorted_by_key(|(_, one)| *one), "in the order of due times: {first:?}");
}

#[test]
fn an_agent_that_takes_no_jobs_does_not_use_up_the_limit() {
    let tasks = |number| vec![backup(&format!("db{number}"), ["00:58", "01:00"][number])];
    let group = Group::with(2, tasks, |options| AgentOptions { limit: 1, ..options });
    *group.wire.loses_jobs_of.lock().unwrap() = Some(name("agent-web0"));
    group.run_for(2 * HOUR_NS);
    let (stolen, good) = (group.began("db0"), group.began("db1"));
    assert!(good.len() == 1 && good[0].1 < HOUR + 3 * MINUTE, "{good:?}");
    assert!(stolen.len() == 1 && stolen[0].1 < HOUR + 20 * MINUTE, "{stolen:?}");
}

#[test]
fn shared_tasks_are_spread_over_agents() {
    let tasks = |_| (0..8).map(|one| backup(&format!("shared{one}"), "*:00")).collect();
    let group = Group::with(3, tasks, |options| AgentOptions { parallel: 8, ..options });
    group.run_for(3 * HOUR_NS);
    let counts: Vec<usize> = group.hosts.iter().map(|host| host.hand.starts()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 16, "{counts:?}");
    assert!(counts.iter().all(|count| *count > 0 && *count < 16), "{counts:?}");
}

#[test]
fn a_job_that_comes_a_little_early_waits() {
    let tasks = |_| (0..8).map(|one| backup(&format!("shared{one}"), "*:00")).collect();
    let group = Group::with(2, tasks, |options| {
        let leads = options.name == name("web0");
        AgentOptions { leads, parallel: 8, ..options }
    });
    group.hosts[1].env.skew_ns.store(-30 * SECOND_NS, Relaxed);
    group.run_for(HOUR_NS + 30 * MINUTE_NS);
    let early = group.wire.settled.lock().unwrap();
    assert!(early.iter().any(|state| matches!(state, JobState::Again(_))), "{early:?}");
    assert!(group.hosts[1].hand.starts() > 0);
    for one in 0..8 {
        let mut began = group.began(&format!("shared{one}"));
        // A clock that is behind comes past midnight once more.
        began.retain(|(_, at)| *at > MINUTE);
        assert!(matches!(began[..], [(_, at)] if at < HOUR + 45), "{began:?}");
    }
}

#[test]
fn a_shared_task_is_offered_to_another_if_the_first_does_not_begin_it() {
    let group = Group::new(3, |_| vec![backup("shared", "*:00")]);
    group.run_for(HOUR_NS + 10 * MINUTE_NS);
    let usual = group.began("shared")[0].0;
    *group.wire.loses_jobs_of.lock().unwrap() = Some(name(&format!("agent-web{usual}")));
    group.run_for(HOUR_NS);
    let began = group.began("shared");
    assert!(began.len() == 2 && began[1].0 != usual, "{began:?}");
    assert!(began[1].1 < 2 * HOUR + 3 * MINUTE, "{began:?}");
}

#[test]
fn a_director_that_is_gone_is_not_heard_because_the_bus_repeats_it() {
    let tasks = |number| vec![backup(&format!("db{number}"), ["00:59", "01:00"][number])];
    let mut group = Group::with(2, tasks, |options| {
        let leads = options.name == name("web0");
        AgentOptions { leads, limit: 1, ..options }
    });
    group.hosts[0].luck(Luck::Hangs);
    group.run_for(HOUR_NS + 2 * MINUTE_NS);
    let members = group.local.members().unwrap();
    let director = fleet(&group.local, &group.messages).unwrap().director.unwrap();
    assert_eq!((director.waiting, group.began("db1").len()), (1, 0), "the limit holds it back");
    group.down.push(0);
    group.run_with(4 * HOUR_NS, |group| {
        for member in &members {
            group.local.announce(&member.name, &member.about, Duration::from_mins(1)).unwrap();
        }
    });
    let began = group.began("db1");
    assert!(matches!(began[..], [(1, at)] if at < HOUR + 20 * MINUTE), "{began:?}");
}

#[test]
fn a_director_that_holds_back_a_task_for_ever_is_not_obeyed_for_ever() {
    let tasks = |number| vec![backup(&format!("db{number}"), ["00:59", "01:00"][number])];
    let group = Group::with(2, tasks, |options| AgentOptions { limit: 1, ..options });
    group.hosts[0].luck(Luck::Hangs);
    group.run_for(8 * HOUR_NS);
    let began = group.began("db1");
    assert!(matches!(began[..], [(1, at)] if at == 5 * HOUR), "{began:?}");
}

#[test]
fn agents_that_were_all_down_wait_for_the_director() {
    let mut group = Group::with(3, own, |options| AgentOptions { limit: 1, ..options });
    group.run_for(30 * MINUTE_NS);
    group.clock.pass(4 * HOUR_NS);
    group.hosts.iter_mut().for_each(super::stage::Host::restart);
    let mut most = 0;
    group.run_with(HOUR_NS, |group| {
        most = most.max(group.hosts.iter().map(|host| host.hand.going()).sum());
    });
    let begun: usize = group.hosts.iter().map(|host| host.hand.starts()).sum();
    assert_eq!((most, begun), (1, 3));
}

#[test]
fn an_agent_that_is_gone_is_offered_nothing_because_the_bus_repeats_it() {
    let mut group = Group::new(3, |_| vec![backup("shared", "*:00")]);
    group.run_for(HOUR_NS + 10 * MINUTE_NS);
    let usual = group.began("shared")[0].0;
    let mut ghost = group.hosts[usual].agent.status();
    group.down.push(usual);
    group.run_for(41 * MINUTE_NS);
    // The last that it said: the task is due, and it has room.
    let due_ns = Some(group.clock.now_ns());
    let task = &mut ghost.tasks[0];
    (task.done_ns, task.due_since_ns, task.due_ns, task.is_ready) = (None, due_ns, due_ns, true);
    let ghost = group.messages.seal(0, &serde_json::to_vec(&ghost).unwrap()).unwrap();
    let from = name(&format!("web{usual}"));
    group.run_with(20 * MINUTE_NS, |group| {
        group.local.announce(&from, &ghost, Duration::from_mins(1)).unwrap();
    });
    let began = group.began("shared");
    assert!(matches!(began[..], [_, (_, at)] if at < 2 * HOUR + 30), "{began:?}");
}

/// A key for some series cannot keep others from being backed up.
#[test]
fn only_keys_of_a_series_say_that_it_was_done() {
    for (pattern, is_believed) in [("db*", true), ("files", false)] {
        let group = Group::new(1, own);
        group.run_for(30 * MINUTE_NS);
        let writer = group.secret.messages_of_writer(pattern);
        group.run_with(HOUR_NS, |group| {
            let mut claim = group.hosts[0].agent.status();
            (claim.name, claim.issue.instance, claim.parallel) = (name("evil"), 1, 0);
            claim.tasks[0].done_ns = Some(group.clock.now_ns() + MINUTE_NS);
            let claim = writer.seal(0, &serde_json::to_vec(&claim).unwrap()).unwrap();
            group.local.announce(&name("evil"), &claim, Duration::from_mins(1)).unwrap();
        });
        let began = group.began("db0");
        let is_on_time = matches!(began[..], [(0, at)] if at < HOUR + 30);
        assert_eq!((is_on_time, began.is_empty()), (!is_believed, is_believed), "{began:?}");
    }
}

#[test]
fn failures_go_back_to_the_bus_and_are_repeated() {
    let group = Group::new(1, own);
    group.hosts[0].luck(Luck::Fails);
    group.hosts[0].takes(0);
    group.run_for(HOUR_NS + 20 * MINUTE_NS);
    let began = group.began("db0");
    let pauses: Vec<i64> = began.windows(2).map(|two| (two[1].1 - two[0].1) / 60).collect();
    assert_eq!(pauses, [1, 2, 4, 8], "{began:?}");
    let settled = group.wire.settled.lock().unwrap();
    assert!(
        settled.iter().any(
            |state| matches!(state, JobState::Again(pause) if *pause > Duration::from_mins(1))
        )
    );
}

#[test]
fn an_idle_group_makes_no_runs_and_leaves_the_bus_in_order() {
    let group = Group::new(3, |number| vec![backup(&format!("db{number}"), "Sun 23:00")]);
    group.run_for(DAY_NS);
    assert!(group.hosts.iter().all(|host| host.hand.starts() == 0));
    assert!(group.wire.jobs.lock().unwrap().is_empty());
    let director = fleet(&*group.wire, &group.messages).unwrap().director.unwrap().agent;
    let bus = group.bus();
    let leader = group.hosts.iter().find(|host| host.options.name == director).unwrap();
    leader.agent.leave(&bus);
    let lease = group.local.acquire(&name("director"), Duration::from_secs(1)).unwrap();
    assert!(lease.is_some(), "an agent that leaves gives up its lease");
}

#[test]
fn what_happens_to_runs_is_told_once_a_second_at_most() {
    let group = Group::new(1, own);
    group.hosts[0].takes(10 * SECOND_NS);
    let mut watch = watch(&*group.wire, &group.messages).unwrap();
    group.local.tell(&name("progress"), b"garbage").unwrap();
    group.run_for(HOUR_NS - TICK_NS);
    let bus = group.bus();
    for _ in 0..400 {
        group.hosts[0].agent.step();
        group.hosts[0].agent.meet(&bus, &group.messages).unwrap();
        group.clock.pass(SECOND_NS / 10);
    }
    let mut progress = Vec::new();
    let mut ended = 0;
    while let Some(telling) = watch.next(Duration::ZERO).unwrap() {
        assert_eq!((telling.agent.as_str(), telling.work.series()), ("web0", Some("db0")));
        match telling.what {
            Told::Progress(run) => {
                let is_first = progress.is_empty() && (run.done, run.total) == (0, None);
                assert!(is_first || (run.done, run.total, ended) == (5, Some(10), 0));
                progress.push(telling.at_ns);
            }
            Told::Ended(_) => ended += 1,
        }
    }
    assert!(ended == 1 && (9..=11).contains(&progress.len()), "{ended} {}", progress.len());
    assert!(progress.windows(2).all(|two| two[1] - two[0] >= SECOND_NS));
}

#[test]
fn a_new_bus_begins_anew() {
    let mut group = Group::new(2, own);
    group.run_for(HOUR_NS + 30 * SECOND_NS);
    assert_eq!(group.hosts[0].hand.going(), 1);
    let env = super::stage::HostEnv::new(&group.clock, 9);
    group.local = silt_cluster::LocalBus::new(env);
    group.wire = super::stage::Wire::new(group.local.clone());
    group.run_for(DAY_NS);
    let began = group.began("db0");
    assert!(began.len() == 2 && began[1].1 < 25 * HOUR + 30, "{began:?}");
    assert_eq!(group.remote(1, &group.messages).status().unwrap().name, name("web1"));
    assert_eq!(Arc::strong_count(&group.wire), 3, "nobody keeps the old one");
}
