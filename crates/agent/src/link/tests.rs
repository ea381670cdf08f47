use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use silt_cluster::{
    AgentOptions, Answering, Delivery, Job, JobState, Lease, Listener, Member, NoNotes, Offer,
    Respond, Run, Worker,
};
use silt_format::{Error, ErrorKind, Lease as SeriesLease, Result};
use silt_storage::MemoryStorage;
use siltstone::{Config, Process, Protection, SystemEnv};

use super::*;

const MINUTE_NS: i64 = 60_000_000_000;

/// A clock that only waiting moves. The process is asked to end at a time.
struct Clock {
    now_ns: AtomicI64,
    end_ns: i64,
}

impl Env for Clock {
    fn now_ns(&self) -> i64 {
        self.now_ns.load(Ordering::SeqCst)
    }
    fn entropy(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
    fn process(&self) -> Process {
        Process::default()
    }
    fn may_be_running(&self, _: &SeriesLease) -> bool {
        true
    }
    fn is_interrupted(&self) -> bool {
        self.now_ns() >= self.end_ns
    }
    fn sleep_ns(&self, nanoseconds: u64) {
        self.now_ns.fetch_add(i64::try_from(nanoseconds).unwrap(), Ordering::SeqCst);
    }
}

/// A bus that is never there.
struct Dead;

fn dead<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "nobody is there"))
}

impl Bus for Dead {
    fn offer(&self, _: &Job) -> Result<Offer> {
        dead()
    }
    fn take(&self, _: &Name, _: Duration) -> Result<Option<Delivery>> {
        dead()
    }
    fn settle(&self, _: &Delivery, _: JobState) -> Result<()> {
        dead()
    }
    fn acquire(&self, _: &Name, _: Duration) -> Result<Option<Lease>> {
        dead()
    }
    fn renew(&self, _: &mut Lease, _: Duration) -> Result<bool> {
        dead()
    }
    fn release(&self, _: Lease) -> Result<()> {
        dead()
    }
    fn announce(&self, _: &Name, _: &[u8], _: Duration) -> Result<()> {
        dead()
    }
    fn members(&self) -> Result<Vec<Member>> {
        dead()
    }
    fn find_member(&self, _: &Name) -> Result<Option<Member>> {
        dead()
    }
    fn describe(&self, _: &Name, _: &[u8], _: Duration) -> Result<()> {
        dead()
    }
    fn details(&self, _: &[Name]) -> Result<Vec<Member>> {
        dead()
    }
    fn answer(&self, _: &Name, _: Respond) -> Result<Box<dyn Answering>> {
        dead()
    }
    fn ask(&self, _: &Name, _: &[u8], _: Duration) -> Result<Option<Vec<u8>>> {
        dead()
    }
    fn tell(&self, _: &Name, _: &[u8]) -> Result<()> {
        dead()
    }
    fn listen(&self, _: &Name) -> Result<Box<dyn Listener>> {
        dead()
    }
}

/// A worker without work.
struct Idle;

impl Worker for Idle {
    fn start(&mut self, _: &Run) -> Result<()> {
        Ok(())
    }
    fn cancel(&mut self, _: &Name) {}
    fn news(&mut self) -> Vec<silt_cluster::News> {
        Vec::new()
    }
}

fn repository() -> Repository {
    let storage = Arc::new(MemoryStorage::new());
    let (context, config) = (SystemEnv::context(), Config::default());
    Repository::init(storage, context, config, &Protection::None, None).unwrap()
}

/// Runs a link for some minutes whose repository cannot be opened the first times, and whose bus
/// cannot be connected to the first times. Returns how often each was tried.
fn attempts(
    minutes: i64,
    opens_failing: usize,
    connects_failing: usize,
) -> (usize, usize, LinkState) {
    let clock = Clock { now_ns: AtomicI64::new(0), end_ns: minutes * MINUTE_NS };
    let env: Arc<dyn Env> = Arc::new(clock);
    let options = AgentOptions::new(Name::new("host1").unwrap());
    let agent = Agent::new(options, Arc::clone(&env), Box::new(Idle), Box::new(NoNotes)).unwrap();
    let (opens, connects) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failing = |count: &AtomicUsize, failing: usize| {
        let is_failing = count.fetch_add(1, Ordering::SeqCst) < failing;
        if is_failing { dead().map_err(Failure::from) } else { Ok(()) }
    };
    let link = Link {
        agent: &agent,
        env: &env,
        open: &|| failing(&opens, opens_failing).map(|()| repository()),
        connect: &|| failing(&connects, connects_failing).map(|()| Arc::new(Dead) as Arc<dyn Bus>),
        teller: Teller { json: false },
        state: Mutex::default(),
        index_memory: 0,
    };
    link.run();
    let state = link.state();
    (opens.into_inner(), connects.into_inner(), state)
}

#[test]
fn what_cannot_be_reached_is_tried_again_with_longer_pauses() {
    // At 0, 5, 15, 35 seconds.
    assert_eq!(attempts(1, usize::MAX, 0), (4, 0, LinkState::Down));
    // Then at 75, 155 and 315, and from there on each 300 until 3,315.
    assert_eq!(attempts(60, usize::MAX, 0).0, 7 + 10);
    // Once it is open it is not opened again.
    assert_eq!(attempts(1, 3, usize::MAX), (4, 3, LinkState::Down));
}

#[test]
fn a_bus_that_is_away_for_long_is_connected_to_anew() {
    assert_eq!(attempts(4, 0, 0), (1, 1, LinkState::Down));
    assert_eq!(attempts(9, 0, 0), (1, 2, LinkState::Down));
}
