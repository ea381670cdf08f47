//! An agent: starts the backups of a host when they are due.

mod meeting;
mod service;
mod state;
mod task;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::tz::TimeZone;
use silt_format::Result;
use silt_repository::env::Env;

use crate::bus::{Bus, Name};
use crate::messages::Messages;
use crate::notes::Notes;
use crate::status::{AgentStatus, Allowed, IndexStatus, LastRun};
use crate::work::{Run, Task, Work, Worker};
use meeting::Meeting;
use state::State;

/// How an agent works.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Its name on the bus.
    pub name: Name,
    /// What it does, and when.
    pub tasks: Vec<Task>,
    /// In which its schedules are read.
    pub zone: TimeZone,
    /// How many runs it has at once.
    pub parallel: usize,
    /// Whether there is a bus: then a task that is due waits for a job.
    pub has_bus: bool,
    /// How long a task that is due waits for a job before the agent starts it by itself.
    pub alone_after: Duration,
    /// Whether it may be the director.
    pub leads: bool,
    /// As the director: how many runs the whole group has at once; 0 for no limit.
    pub limit: usize,
    /// Which commands it obeys.
    pub allowed: Allowed,
}

impl AgentOptions {
    /// An agent without tasks and without a bus, in UTC.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            tasks: Vec::new(),
            zone: TimeZone::UTC,
            parallel: 1,
            has_bus: false,
            alone_after: Duration::from_mins(15),
            leads: true,
            limit: 0,
            allowed: Allowed::default(),
        }
    }
}

/// Starts the tasks of a host when they are due, and repeats what failed.
///
/// A program calls [`step`](Self::step) each second or so, and [`meet`](Self::meet) as often from
/// another thread if there is a bus. `step` never uses the bus, so a bus that hangs delays nothing.
/// With a bus, a task that is due waits for a job of the director, so that shared tasks are done
/// once and a limit of the group holds; if none comes within [`AgentOptions::alone_after`], the
/// agent starts it by itself.
///
/// Clones are the same agent.
#[derive(Clone)]
pub struct Agent {
    state: Arc<Mutex<State>>,
    meeting: Arc<Mutex<Meeting>>,
}

impl Agent {
    /// An agent that remembers what was done by `notes`.
    ///
    /// Fails with `Invalid` if two tasks are equal or the name is reserved, and if notes cannot be
    /// loaded.
    pub fn new(
        options: AgentOptions,
        env: Arc<dyn Env>,
        worker: Box<dyn Worker>,
        notes: Box<dyn Notes>,
    ) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::new(options, env, worker, notes)?));
        let meeting = Arc::new(Mutex::new(Meeting::new(&state)));
        Ok(Self { state, meeting })
    }

    /// Takes the news of the worker, and starts what is due.
    pub fn step(&self) -> Step {
        lock(&self.state).step()
    }

    /// Does what there is to do on the bus, without waiting for anything but the bus: says what the
    /// agent does, takes and settles jobs, answers questions from now on, and is the director if it
    /// holds that lease. Give the same bus again, as it holds leases and jobs; a new one starts
    /// anew.
    ///
    /// Does as much as it can, and then fails with the first error.
    pub fn meet(&self, bus: &Arc<dyn Bus>, messages: &Messages) -> Result<()> {
        lock(&self.meeting).meet(bus, messages)
    }

    /// Gives up leases and jobs, for another agent to take. What runs goes on.
    pub fn leave(&self, bus: &Arc<dyn Bus>) {
        lock(&self.meeting).leave(bus);
    }

    /// Its name.
    pub fn name(&self) -> Name {
        lock(&self.state).options.name.clone()
    }

    /// What it holds of the shared index from now on, for others to know.
    pub fn set_index(&self, index: Option<IndexStatus>) {
        let mut state = lock(&self.state);
        // Others should know soon whom to ask.
        let is_news = state.index.is_some() != index.is_some();
        state.revision += u64::from(is_news);
        state.index = index;
    }

    /// The agents that hold the shared index, by name; none if no director is heard of.
    pub fn index_hosts(&self) -> Vec<Name> {
        lock(&self.state).index_hosts()
    }

    /// What the agent says about itself.
    pub fn status(&self) -> AgentStatus {
        lock(&self.state).status()
    }
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What has happened.
    pub events: Vec<Event>,
    /// When the next task is due, in nanoseconds since 1970, if nothing happens before. Commands,
    /// jobs and ends of runs may come earlier.
    pub next_ns: Option<i64>,
    /// How many runs go on.
    pub running: usize,
}

/// What happened in a step, for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A run began.
    Started {
        /// The run.
        run: Run,
    },
    /// A run ended.
    Ended {
        /// What it was.
        work: Work,
        /// How it ended.
        last: LastRun,
        /// When it is tried again.
        retry_ns: Option<i64>,
    },
    /// The notes could not be saved; the next step tries again.
    NotesNotSaved {
        /// Why.
        error: String,
    },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
