//! What a group of agents says and reads grows with the number of agents, and no faster.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use silt_cluster::{Bus, fleet};

use super::stage::{Group, MINUTE_NS, SECOND_NS, TICK_NS, Wire, backup};

/// What agents have sent and received in the same half hour, in messages and bytes.
#[derive(Debug)]
struct Traffic {
    messages: u64,
    bytes: u64,
    /// What the agent reads that reads most, the director left out.
    most_read: u64,
}

/// A group in which each agent backs up five series of its own.
fn traffic(agents: usize) -> Traffic {
    let tasks = |number: usize| {
        (0..5).map(|series| backup(&format!("vm-{number}-{series}"), "00:05")).collect()
    };
    let group = Group::new(agents, tasks);
    let wires: Vec<Arc<Wire>> =
        group.hosts.iter().map(|_| Wire::new(group.local.clone())).collect();
    for _ in 0..30 * MINUTE_NS / TICK_NS {
        for (host, wire) in group.hosts.iter().zip(&wires) {
            host.agent.step();
            let bus = Arc::clone(wire) as Arc<dyn Bus>;
            host.agent.meet(&bus, &group.messages).unwrap();
        }
        group.clock.pass(TICK_NS);
    }
    let done: usize = group.hosts.iter().map(|host| host.hand.starts()).sum();
    assert_eq!(done, 5 * agents, "each series was backed up");
    let fleet = fleet(&*group.wire, &group.messages).unwrap();
    assert!(fleet.agents.iter().all(|agent| agent.tasks.iter().all(|task| task.done_ns.is_some())));
    let director = fleet.director.unwrap().agent;
    let sum = |of: &dyn Fn(&Wire) -> u64| wires.iter().map(|wire| of(wire)).sum();
    let others = group.hosts.iter().zip(&wires);
    let others = others.filter(|(host, _)| host.options.name != director);
    Traffic {
        messages: sum(&|wire| wire.messages.load(Relaxed)),
        bytes: sum(&|wire| wire.sent.load(Relaxed) + wire.read.load(Relaxed)),
        most_read: others.map(|(_, wire)| wire.read.load(Relaxed)).max().unwrap(),
    }
}

#[test]
fn traffic_grows_with_the_agents_and_no_faster() {
    let [few, some, many] = [10, 40, 160].map(traffic);
    eprintln!("10: {few:?}\n40: {some:?}\n160: {many:?}");
    for (less, more) in [(&few, &some), (&some, &many)] {
        assert!(10 * more.bytes < 44 * less.bytes, "{less:?} {more:?}");
        assert!(10 * more.messages < 44 * less.messages, "{less:?} {more:?}");
    }
    assert!(10 * many.most_read < 12 * few.most_read, "{few:?} {many:?}");
}

#[test]
fn an_agent_hears_of_what_another_has_done_for_it() {
    let group = Group::new(3, |_| vec![backup("shared", "00:05")]);
    group.run_for(10 * MINUTE_NS);
    assert_eq!(group.began("shared").len(), 1);
    for host in &group.hosts {
        let task = &host.agent.status().tasks[0];
        assert!(task.done_ns.is_some() && !task.is_ready, "{task:?}");
    }
    // Nobody is told any more what all know.
    group.run_for(MINUTE_NS);
    assert_eq!(fleet(&*group.wire, &group.messages).unwrap().director.unwrap().done_by.len(), 0);
}

/// Backups without changes take a second. An agent with one run at a time must not wait much longer
/// for the next one.
#[test]
fn many_short_backups_follow_each_other_quickly() {
    const SERIES: usize = 30;
    let tasks = |number: usize| {
        (0..SERIES).map(|series| backup(&format!("vm-{number}-{series}"), "00:05")).collect()
    };
    let group = Group::new(3, tasks);
    group.hosts.iter().for_each(|host| host.takes(SECOND_NS));
    let bus = group.bus();
    for _ in 0..15 * 60 {
        for host in &group.hosts {
            host.agent.step();
            host.agent.meet(&bus, &group.messages).unwrap();
        }
        group.clock.pass(SECOND_NS);
    }
    for host in &group.hosts {
        let ran = host.hand.ran.lock().unwrap();
        assert_eq!(ran.len(), SERIES);
        let took_s = (ran[SERIES - 1].at_ns - ran[0].at_ns) / SECOND_NS;
        assert!(took_s < 6 * i64::try_from(SERIES).unwrap(), "{took_s} s");
    }
}
