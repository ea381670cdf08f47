//! The bus of one process: agents and tests that need no server.

mod queue;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use silt_format::Result;
use silt_repository::env::Env;

use crate::bus::{
    Answering, Bus, Delivery, Job, JobState, Lease, Listener, Member, Name, Offer, Respond,
    check_bytes,
};
use queue::Queue;

/// How long a member waits until it looks again.
const LOOK_NS: u64 = 5_000_000;
/// Messages that are kept for a listener.
const HEARD_MAX: usize = 1024;

/// What the members of a bus share.
#[derive(Default)]
struct Board {
    queue: Queue,
    leases: BTreeMap<Name, Granted>,
    /// The number of the newest grant of any lease.
    newest_grant: u64,
    /// What members say about themselves, and until when.
    members: BTreeMap<Name, (Vec<u8>, i64)>,
    /// The same for their details.
    details: BTreeMap<Name, (Vec<u8>, i64)>,
    services: BTreeMap<Name, VecDeque<Weak<Respondent>>>,
    listeners: Vec<Weak<Hearing>>,
}

struct Granted {
    number: u64,
    until_ns: i64,
}

struct Respondent(Respond);

impl Answering for Arc<Respondent> {}

struct Hearing {
    topic: Name,
    heard: Mutex<VecDeque<Vec<u8>>>,
}

/// A bus inside one process; its clones and those of [`LocalBus::member`] share everything.
#[derive(Clone)]
pub struct LocalBus {
    board: Arc<Mutex<Board>>,
    /// The clock by which terms end.
    clock: Arc<dyn Env>,
    /// The member that waits.
    env: Arc<dyn Env>,
}

impl LocalBus {
    /// An empty bus, whose terms end by the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Self {
        Self { board: Arc::default(), clock: Arc::clone(&env), env }
    }

    /// The same bus for a member with an environment of its own.
    #[must_use]
    pub fn member(&self, env: Arc<dyn Env>) -> Self {
        Self { env, ..self.clone() }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, term: Duration) -> i64 {
        let term_ns = i64::try_from(term.as_nanos()).unwrap_or(i64::MAX);
        self.clock.now_ns().saturating_add(term_ns)
    }

    /// Looks until there is something, or `patience` is over.
    fn wait<T>(&self, patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let until_ns = self.after(patience);
        loop {
            let found = look();
            if found.is_some() || self.clock.now_ns() >= until_ns || self.env.is_interrupted() {
                return found;
            }
            self.env.sleep_ns(LOOK_NS);
        }
    }
}

/// What a member has said, if that still holds.
fn lasting(said: &BTreeMap<Name, (Vec<u8>, i64)>, name: &Name, now_ns: i64) -> Option<Member> {
    let (about, _) = said.get(name).filter(|(_, until_ns)| *until_ns > now_ns)?;
    Some(Member { name: name.clone(), about: about.clone() })
}

impl Bus for LocalBus {
    fn offer(&self, job: &Job) -> Result<Offer> {
        check_bytes(&job.body)?;
        Ok(self.board().queue.offer(job, self.clock.now_ns()))
    }

    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        Ok(self.wait(patience, || self.board().queue.take(pool, self.clock.now_ns())))
    }

    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()> {
        self.board().queue.settle(delivery, state, self.clock.now_ns());
        Ok(())
    }

    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>> {
        let (now_ns, until_ns) = (self.clock.now_ns(), self.after(term));
        let mut board = self.board();
        if board.leases.get(name).is_some_and(|granted| granted.until_ns > now_ns) {
            return Ok(None);
        }
        board.newest_grant += 1;
        let number = board.newest_grant;
        board.leases.insert(name.clone(), Granted { number, until_ns });
        Ok(Some(Lease { name: name.clone(), number }))
    }

    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool> {
        let (now_ns, until_ns) = (self.clock.now_ns(), self.after(term));
        let mut board = self.board();
        let board = &mut *board;
        let granted = board.leases.get_mut(&lease.name);
        let Some(granted) = granted.filter(|granted| granted.number == lease.number) else {
            return Ok(false);
        };
        if granted.until_ns <= now_ns {
            return Ok(false);
        }
        board.newest_grant += 1;
        lease.number = board.newest_grant;
        *granted = Granted { number: lease.number, until_ns };
        Ok(true)
    }

    fn release(&self, lease: Lease) -> Result<()> {
        let mut board = self.board();
        if board.leases.get(&lease.name).is_some_and(|granted| granted.number == lease.number) {
            board.leases.remove(&lease.name);
        }
        Ok(())
    }

    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        check_bytes(about)?;
        let until_ns = self.after(term);
        self.board().members.insert(member.clone(), (about.to_vec(), until_ns));
        Ok(())
    }

    fn members(&self) -> Result<Vec<Member>> {
        let now_ns = self.clock.now_ns();
        let mut board = self.board();
        board.members.retain(|_, (_, until_ns)| *until_ns > now_ns);
        let member = |(name, (about, _)): (&Name, &(Vec<u8>, i64))| Member {
            name: name.clone(),
            about: about.clone(),
        };
        Ok(board.members.iter().map(member).collect())
    }

    fn find_member(&self, name: &Name) -> Result<Option<Member>> {
        Ok(lasting(&self.board().members, name, self.clock.now_ns()))
    }

    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        check_bytes(details)?;
        let until_ns = self.after(term);
        self.board().details.insert(member.clone(), (details.to_vec(), until_ns));
        Ok(())
    }

    fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        let now_ns = self.clock.now_ns();
        let mut board = self.board();
        board.details.retain(|_, (_, until_ns)| *until_ns > now_ns);
        Ok(members.iter().filter_map(|name| lasting(&board.details, name, now_ns)).collect())
    }

    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>> {
        let respondent = Arc::new(Respondent(respond));
        let mut board = self.board();
        let all = board.services.entry(service.clone()).or_default();
        all.push_back(Arc::downgrade(&respondent));
        Ok(Box::new(respondent))
    }

    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        check_bytes(question)?;
        let respondent = self.wait(patience, || {
            let mut board = self.board();
            let all = board.services.get_mut(service)?;
            all.retain(|respondent| respondent.strong_count() > 0);
            // By turns.
            all.rotate_left(1.min(all.len()));
            all.back().and_then(Weak::upgrade)
        });
        Ok(respondent.map(|respondent| (respondent.0)(question)))
    }

    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        check_bytes(message)?;
        let mut board = self.board();
        board.listeners.retain(|hearing| hearing.strong_count() > 0);
        for hearing in board.listeners.iter().filter_map(Weak::upgrade) {
            if hearing.topic == *topic {
                let mut heard = hearing.heard.lock().unwrap_or_else(PoisonError::into_inner);
                if heard.len() == HEARD_MAX {
                    heard.pop_front();
                }
                heard.push_back(message.to_vec());
            }
        }
        Ok(())
    }

    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>> {
        let hearing = Arc::new(Hearing { topic: topic.clone(), heard: Mutex::default() });
        self.board().listeners.push(Arc::downgrade(&hearing));
        Ok(Box::new(LocalListener { bus: self.clone(), hearing }))
    }
}

struct LocalListener {
    bus: LocalBus,
    hearing: Arc<Hearing>,
}

impl Listener for LocalListener {
    fn next(&mut self, patience: Duration) -> Result<Option<Vec<u8>>> {
        let heard = &self.hearing.heard;
        let next = || heard.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Ok(self.bus.wait(patience, next))
    }
}
