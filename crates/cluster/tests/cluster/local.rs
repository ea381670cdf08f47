//! The bus inside one process, and the hostile one around it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use silt_cluster::{Bus, HostileBus, JobState, LocalBus, Name};
use silt_repository::env::{Env, Process};

use crate::conformance::{SECOND, SHORT, Site, conforms, job, name};

/// Time that passes only when somebody waits.
#[derive(Default)]
struct Clock(AtomicI64);

impl Env for Clock {
    fn now_ns(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
    fn entropy(&self, _: &mut [u8]) {}
    fn process(&self) -> Process {
        Process::default()
    }
    fn may_be_running(&self, _: &silt_format::Lease) -> bool {
        true
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn sleep_ns(&self, nanoseconds: u64) {
        self.0.fetch_add(i64::try_from(nanoseconds).unwrap(), Ordering::Relaxed);
    }
}

struct Here {
    clock: Arc<Clock>,
    bus: LocalBus,
}

fn here() -> Here {
    let clock = Arc::new(Clock::default());
    let bus = LocalBus::new(Arc::clone(&clock) as _);
    Here { clock, bus }
}

impl Site for Here {
    fn member(&self) -> Arc<dyn Bus> {
        Arc::new(self.bus.member(Arc::clone(&self.clock) as _))
    }
    fn pass(&self, time: Duration) {
        self.clock.sleep_ns(u64::try_from(time.as_nanos()).unwrap());
    }
}

#[test]
fn the_bus_of_one_process_conforms() {
    conforms(&here());
}

/// A hostile bus on which nothing goes wrong.
struct Tame(Here);

impl Site for Tame {
    fn member(&self) -> Arc<dyn Bus> {
        Arc::new(HostileBus::new(self.0.bus.clone(), 1, 0))
    }
    fn pass(&self, time: Duration) {
        self.0.pass(time);
    }
}

#[test]
fn a_hostile_bus_without_faults_conforms() {
    conforms(&Tame(here()));
}

#[test]
fn names_are_short_and_plain() {
    for text in ["", "a b", "a.b", "a*", "web>", "ä", &"a".repeat(101)] {
        assert!(Name::new(text).is_err(), "{text}");
    }
    assert_eq!(Name::new("web-1_x").unwrap().as_str(), "web-1_x");
}

/// Each kind of fault happens.
#[test]
fn a_hostile_bus_does_everything_wrong() {
    let here = here();
    let bus = HostileBus::new(here.bus.clone(), 5, 400);
    let (mut seen, mut done) = (BTreeSet::new(), BTreeSet::new());
    let answering = bus.answer(&name("echo"), Arc::new(<[u8]>::to_vec)).unwrap();
    let mut listener = bus.listen(&name("progress")).unwrap();
    let mut heard = 0;
    for round in 0..400_u64 {
        let id = format!("job-{round}");
        let is_added = bus.offer(&job(&id, &id)).is_ok();
        if let Ok(Some(delivery)) = bus.take(&name("backup"), SHORT) {
            if !done.insert(delivery.job.id.clone()) {
                seen.insert("a job is delivered again that was settled");
            }
            let settled = bus.settle(&delivery, JobState::Done);
            seen.extend(settled.is_err().then_some("it is not known whether a job was settled"));
        } else if is_added {
            seen.insert("a job is lost or late");
        }
        let acquire = || bus.acquire(&name("director"), SECOND).ok().flatten();
        let (first, second) = (acquire(), acquire());
        if first.is_some() && second.is_some() {
            seen.insert("a lease has two holders");
        }
        if first.is_some_and(|mut lease| !bus.renew(&mut lease, SECOND).unwrap_or(true)) {
            seen.insert("a lease is lost early");
        }
        here.pass(2 * SECOND);
        let member = name(&format!("host-{}", round % 5));
        let _ = bus.announce(&member, b"here", SECOND);
        if let Ok(members) = bus.members() {
            let is_there = members.iter().any(|one| one.name == member);
            seen.insert(if is_there { "a member is there" } else { "a member is not seen" });
            seen.extend((members.len() > 1).then_some("a member is seen that is gone"));
        }
        let question = round.to_le_bytes();
        match bus.ask(&name("echo"), &question, SHORT) {
            Ok(Some(answer)) if answer == question => {}
            Ok(Some(answer)) if answer.len() == 8 && answer[2..] == [0; 6] => {
                seen.insert("an answer is old or changed");
            }
            Ok(Some(_)) => drop(seen.insert("an answer is garbage")),
            _ => drop(seen.insert("there is no answer")),
        }
        let _ = bus.tell(&name("progress"), &question);
        while listener.next(Duration::ZERO).unwrap().is_some() {
            heard += 1;
        }
    }
    drop(answering);
    assert_eq!(seen.len(), 11, "{seen:?}");
    assert!(done.len() > 100 && done.len() < 400 && heard != 400);
}
