//! What an agent does on the bus. No call of the bus is made while its state is locked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_format::number::to_u64;
use silt_format::{Error, Result};
use silt_repository::believed::SignedBy;

use super::lock;
use super::service::Service;
use super::state::{Grant, State};
use crate::bus::{Answering, Bus, Delivery, JobState, Lease, Name};
use crate::director::{Director, pool};
use crate::messages::Messages;
use crate::presence::{self, Reader, Speaker};
use crate::status::{
    AgentStatus, DIRECTOR, DirectorStatus, Issue, JobBody, PROGRESS, Telling, Told,
};
use crate::work::Work;

const SECOND_NS: i64 = 1_000_000_000;
/// How often an agent says what it does, if nothing changes, and for how long it counts as there.
const ANNOUNCE_NS: i64 = 15 * SECOND_NS;
const TERM_NS: i64 = 90 * SECOND_NS;
/// How often the director reads what agents say.
const DIRECT_NS: i64 = 10 * SECOND_NS;
/// The same while something is due that waits for room: short backups would wait longer than they
/// take.
const DIRECT_SHORT_NS: i64 = 2 * SECOND_NS;
/// How often the others hear the director.
const LISTEN_NS: i64 = 30 * SECOND_NS;
/// Most agents that are asked about what they have done, each time that the director is heard.
const ASKED_MAX: usize = 16;
/// How often an agent looks for jobs.
const TAKE_NS: i64 = 2 * SECOND_NS;
/// How often a job that runs is shown to be alive.
const ALIVE_NS: i64 = 20 * SECOND_NS;
/// The lease of the director, and how often it is renewed, or tried for.
const LEASE_TERM: Duration = Duration::from_secs(30);
const LEASE_NS: i64 = 10 * SECOND_NS;
/// How often the progress of a run is told.
const TELL_NS: i64 = SECOND_NS;
/// How often the list of writers is read: keys that were removed are believed until then.
const WRITERS_NS: i64 = 600 * SECOND_NS;
/// How long, and of how many members, the newest status is remembered.
const FORGET_NS: i64 = 86_400 * SECOND_NS;
const MEMBERS_MAX: usize = 100_000;

/// A job whose task runs, or is about to.
struct Held {
    delivery: Delivery,
    alive_ns: i64,
}

/// When something was done last.
#[derive(Default)]
struct Done(Option<i64>);

impl Done {
    /// Whether it is to be done again; then it counts as done now.
    fn is_over(&mut self, now_ns: i64, pause_ns: i64) -> bool {
        // A clock may be set back.
        let is_over = self.0.is_none_or(|at| !(0..pause_ns).contains(&(now_ns - at)));
        if is_over {
            self.0 = Some(now_ns);
        }
        is_over
    }
}

/// What an agent has to do with one bus.
#[derive(Default)]
struct Connection {
    answering: Option<Box<dyn Answering>>,
    /// Jobs by task.
    held: BTreeMap<Name, Held>,
    lease: Option<Lease>,
    director: Option<Director>,
    /// The revision that was announced.
    announced: u64,
    announced_at: Done,
    read_at: Done,
    taken_at: Done,
    leased_at: Done,
    told_at: BTreeMap<Name, Done>,
    refreshed_at: Done,
    speaker: Speaker,
    reader: Reader,
    /// The newest status of each member, and when it came.
    newest: BTreeMap<Name, (Issue, i64)>,
}

pub(super) struct Meeting {
    state: Arc<Mutex<State>>,
    bus: Option<Arc<dyn Bus>>,
    connection: Connection,
}

impl Meeting {
    pub fn new(state: &Arc<Mutex<State>>) -> Self {
        Self { state: Arc::clone(state), bus: None, connection: Connection::default() }
    }

    pub fn meet(&mut self, bus: &Arc<dyn Bus>, messages: &Messages) -> Result<()> {
        if !self.bus.as_ref().is_some_and(|known| Arc::ptr_eq(known, bus)) {
            self.connection = Connection::default();
            self.bus = Some(Arc::clone(bus));
        }
        let (name, leads, now_ns) = {
            let state = lock(&self.state);
            (state.options.name.clone(), state.options.leads, state.env.now_ns())
        };
        let meet = &mut Meet {
            state: &self.state,
            bus: &**bus,
            messages,
            name: &name,
            now_ns,
            connection: &mut self.connection,
        };
        let outcomes = [
            meet.refresh(),
            meet.answer(),
            if leads { meet.lead() } else { Ok(()) },
            meet.listen(),
            meet.settle(),
            meet.take(),
            meet.announce(),
            meet.tell(),
        ];
        outcomes.into_iter().collect()
    }

    pub fn leave(&mut self, bus: &Arc<dyn Bus>) {
        if !self.bus.as_ref().is_some_and(|known| Arc::ptr_eq(known, bus)) {
            return;
        }
        let connection = std::mem::take(&mut self.connection);
        self.bus = None;
        // A job or a lease that cannot be given up ends by itself.
        if let Some(lease) = connection.lease {
            let _ = bus.release(lease);
        }
        for held in connection.held.into_values() {
            let _ = bus.settle(&held.delivery, JobState::Again(Duration::ZERO));
        }
    }
}

/// One call of `meet`.
struct Meet<'m> {
    state: &'m Arc<Mutex<State>>,
    bus: &'m dyn Bus,
    messages: &'m Messages,
    name: &'m Name,
    now_ns: i64,
    connection: &'m mut Connection,
}

impl Meet<'_> {
    fn refresh(&mut self) -> Result<()> {
        if !self.connection.refreshed_at.is_over(self.now_ns, WRITERS_NS) {
            return Ok(());
        }
        self.messages.refresh()
    }

    fn answer(&mut self) -> Result<()> {
        if self.connection.answering.is_none() {
            let service = Service::new(self.state, self.messages);
            let respond = Arc::new(move |question: &[u8]| service.respond(question));
            self.connection.answering = Some(self.bus.answer(&pool(self.name), respond)?);
        }
        Ok(())
    }

    /// Holds the lease of the director, or tries to get it.
    fn lead(&mut self) -> Result<()> {
        if !self.connection.leased_at.is_over(self.now_ns, LEASE_NS) {
            return Ok(());
        }
        let connection = &mut *self.connection;
        if let Some(lease) = &mut connection.lease {
            match self.bus.renew(lease, LEASE_TERM) {
                Ok(true) => return Ok(()),
                // It is not known who holds it.
                lost => {
                    (connection.lease, connection.director) = (None, None);
                    return lost.map(drop);
                }
            }
        }
        connection.lease = self.bus.acquire(&Name::made(DIRECTOR.to_owned()), LEASE_TERM)?;
        if connection.lease.is_some() {
            let state = lock(self.state);
            let mut instance = [0; 8];
            state.env.entropy(&mut instance);
            let (limit, instance) = (state.options.limit, u64::from_le_bytes(instance));
            let director = Director::new(self.name.clone(), limit, instance, self.now_ns);
            connection.director = Some(director);
            // So that it begins with what agents say now.
            connection.read_at = Done::default();
        }
        Ok(())
    }

    /// Reads what the director says, and the tasks of agents that have done what is due here. So
    /// what an agent reads does not grow with the group.
    fn hear(&mut self) -> Result<()> {
        let Some(member) = self.bus.find_member(&Name::made(DIRECTOR.to_owned()))? else {
            return Ok(());
        };
        let opened = self.messages.open_json::<DirectorStatus>(0, &member.about);
        let Ok((director, _)) = opened else {
            lock(self.state).unreadable += 1;
            return Ok(());
        };
        let agents = {
            let mut state = lock(self.state);
            state.hear_director(&director);
            state.whom_to_ask(&director.done_by)
        };
        let agents: Vec<Name> = agents.into_iter().take(ASKED_MAX).collect();
        if agents.is_empty() {
            return Ok(());
        }
        for (details, signer) in presence::details(self.bus, self.messages, &agents)? {
            let mut state = lock(self.state);
            let believed = details.tasks.iter().filter(|task| is_believed(&task.work, &signer));
            believed.for_each(|task| state.hear_done(task));
        }
        Ok(())
    }

    /// Hears the director, or as the director reads what all say, and offers what is due.
    fn listen(&mut self) -> Result<()> {
        let directs = self.connection.director.is_some();
        let pause_ns = match &self.connection.director {
            Some(director) if director.is_short() => DIRECT_SHORT_NS,
            Some(_) => DIRECT_NS,
            None => LISTEN_NS,
        };
        if !self.connection.read_at.is_over(self.now_ns, pause_ns) {
            return Ok(());
        }
        if !directs {
            return self.hear();
        }
        let mut agents: BTreeMap<Name, AgentStatus> = BTreeMap::new();
        let keys = lock(self.state).keys();
        let present = self.connection.reader.read(self.bus, self.messages)?;
        lock(self.state).unreadable += to_u64(present.unreadable);
        if let Some(director) = &present.director {
            lock(self.state).hear_director(director);
        }
        for (mut agent, signer) in present.agents {
            for task in &mut agent.tasks {
                task.done_ns = task.done_ns.filter(|_| is_believed(&task.work, &signer));
            }
            if agent.name != *self.name {
                let shared = agent.tasks.iter().filter(|task| keys.contains(&task.key));
                let mut state = lock(self.state);
                shared.for_each(|task| state.hear_done(task));
            }
            if self.is_living(&agent) {
                agents.insert(agent.name.clone(), agent);
            }
        }
        // Much longer than they live, as what is forgotten would be news again.
        let now_ns = self.now_ns;
        let newest = &mut self.connection.newest;
        newest.retain(|_, (_, at_ns)| (0..FORGET_NS).contains(&(now_ns - *at_ns)));
        let Some(director) = &mut self.connection.director else { return Ok(()) };
        // What it says itself is newer than what it has heard of itself.
        let own = lock(self.state).status();
        agents.insert(own.name.clone(), own);
        let agents: Vec<AgentStatus> = agents.into_values().collect();
        director.step(&agents, (self.bus, self.messages), self.now_ns)
    }

    /// Whether an agent has said something new lately: a bus may repeat what it said once.
    fn is_living(&mut self, agent: &AgentStatus) -> bool {
        let newest = &mut self.connection.newest;
        if let Some((known, at_ns)) = newest.get(&agent.name)
            && known.instance == agent.issue.instance
            && known.count >= agent.issue.count
        {
            return known.count == agent.issue.count && is_recent(*at_ns, self.now_ns);
        }
        if newest.len() < MEMBERS_MAX {
            newest.insert(agent.name.clone(), (agent.issue, self.now_ns));
        }
        true
    }

    /// Says how the jobs go on whose tasks run, or have ended.
    fn settle(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        let mut ended = Vec::new();
        for (key, held) in &mut self.connection.held {
            let (goes_on, retry) = {
                let state = lock(self.state);
                (state.job_goes_on(key), state.retry_in(key))
            };
            let job_state = match retry {
                _ if goes_on => JobState::Running,
                Some(pause) => JobState::Again(pause),
                None => JobState::Done,
            };
            if goes_on && (0..ALIVE_NS).contains(&(self.now_ns - held.alive_ns)) {
                continue;
            }
            match self.bus.settle(&held.delivery, job_state) {
                Ok(()) => held.alive_ns = self.now_ns,
                Err(error) => outcome = Err(error),
            }
            if !goes_on {
                // If that was lost, the job comes again, and is needless then.
                ended.push(key.clone());
            }
        }
        for key in ended {
            self.connection.held.remove(&key);
        }
        outcome
    }

    /// Takes jobs as long as there is room for their runs.
    fn take(&mut self) -> Result<()> {
        if !self.connection.taken_at.is_over(self.now_ns, TAKE_NS) {
            return Ok(());
        }
        // What is needless takes no room, so this has an end of its own.
        for _ in 0..16 {
            if lock(self.state).room() == 0 {
                break;
            }
            let Some(delivery) = self.bus.take(&pool(self.name), Duration::ZERO)? else { break };
            let job_state = match self.messages.open_json::<JobBody>(0, &delivery.job.body) {
                Err(_) => {
                    lock(self.state).unreadable += 1;
                    JobState::Done
                }
                Ok((JobBody { key, .. }, _)) => {
                    let granted = lock(self.state).grant(&key);
                    match granted {
                        Grant::Taken => {
                            let held = Held { delivery, alive_ns: self.now_ns };
                            self.connection.held.insert(key, held);
                            continue;
                        }
                        Grant::Needless => JobState::Done,
                        Grant::Later(pause) => JobState::Again(pause),
                    }
                }
            };
            self.bus.settle(&delivery, job_state)?;
        }
        Ok(())
    }

    /// Says what the agent does.
    fn announce(&mut self) -> Result<()> {
        let revision = lock(self.state).revision;
        let pause_ns = if revision == self.connection.announced { ANNOUNCE_NS } else { SECOND_NS };
        if !self.connection.announced_at.is_over(self.now_ns, pause_ns) {
            return Ok(());
        }
        let status = lock(self.state).status();
        self.connection.speaker.say(status, (self.bus, self.messages), self.now_ns)?;
        self.connection.announced = revision;
        Ok(())
    }

    /// Tells how runs go on, and how they ended.
    fn tell(&mut self) -> Result<()> {
        let (ended, runs) = {
            let mut state = lock(self.state);
            (std::mem::take(&mut state.tellings), state.runs())
        };
        let mut outcome = Ok(());
        for telling in ended {
            self.connection.told_at.remove(&telling.key);
            outcome = outcome.and(self.tell_one(&telling));
        }
        for (key, work, run) in runs {
            let told_at = self.connection.told_at.entry(key.clone()).or_default();
            if told_at.is_over(self.now_ns, TELL_NS) {
                let (agent, at_ns) = (self.name.clone(), self.now_ns);
                let telling = Telling { agent, key, work, at_ns, what: Told::Progress(run) };
                outcome = outcome.and(self.tell_one(&telling));
            }
        }
        outcome
    }

    fn tell_one(&self, telling: &Telling) -> Result<(), Error> {
        let sealed = self.messages.seal_json(0, telling)?;
        self.bus.tell(&Name::made(PROGRESS.to_owned()), &sealed)
    }
}

fn is_recent(at_ns: i64, now_ns: i64) -> bool {
    (0..TERM_NS).contains(&(now_ns - at_ns))
}

/// Whether whoever signed may say that a task was done.
fn is_believed(work: &Work, signer: &SignedBy) -> bool {
    match work.series() {
        Some(series) => signer.may_write(series).is_ok(),
        None => signer.is_full(),
    }
}
