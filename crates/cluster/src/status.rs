//! What agents and the director say about themselves, and tell while they work.
//!
//! All of it travels as JSON in sealed messages. A program ignores fields that it does not know.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{End, Name, Work};

/// The member as which the director announces itself.
pub(crate) const DIRECTOR: &str = "director";
/// The topic of what is told about runs.
pub(crate) const PROGRESS: &str = "progress";

/// Identifies one message of a member: a repeated one is not taken for news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// Drawn at random when the process started.
    pub instance: u64,
    /// Grows with each message.
    pub count: u64,
}

/// Which commands an agent obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// Backing up one of its series now, and running its other tasks.
    pub backup: bool,
    /// Cancelling a run.
    pub cancel: bool,
    /// Taking part in rounds of several hosts.
    pub round: bool,
}

impl Default for Allowed {
    fn default() -> Self {
        Self { backup: true, cancel: true, round: true }
    }
}

/// What an agent says about itself. Times are nanoseconds since 1970, by its clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its name.
    pub name: Name,
    /// The version of its program.
    pub version: String,
    /// Identifies this status.
    pub issue: Issue,
    /// When it was made.
    pub at_ns: i64,
    /// The time zone in which its schedules are read.
    pub zone: String,
    /// How many runs it has at once.
    pub parallel: usize,
    /// Whether it may be the director.
    pub leads: bool,
    /// Which commands it obeys.
    pub allowed: Allowed,
    /// Messages that it dropped because it could not open them, since it started.
    pub unreadable: u64,
    /// Jobs that it dropped because they were none of its tasks, since it started.
    pub unknown_jobs: u64,
    /// What it holds of the shared index, if it does.
    #[serde(default)]
    pub index: Option<IndexStatus>,
    /// Its tasks.
    #[serde(default)]
    pub tasks: Vec<TaskStatus>,
}

/// What an agent holds of the shared index in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexStatus {
    /// The most that it may hold.
    pub memory_bytes: u64,
    /// What it holds.
    pub used_bytes: u64,
    /// The generation of the shared store's head.
    pub generation: u64,
    /// Partitions, of 1,024 in all.
    pub partitions: u32,
    /// Partitions that would be its own, and do not fit.
    pub left_out: u32,
    /// Chunks whose places it knows.
    pub chunks: u64,
    /// Fingerprints that it was asked for since it started.
    pub asked: u64,
    /// Those of them that it knew.
    pub found: u64,
}

/// A task of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Identifies the task in the group.
    pub key: Name,
    /// What it is.
    pub work: Work,
    /// Its schedule, if it has one.
    pub schedule: Option<String>,
    /// When it was done last, by this agent or another one.
    pub done_ns: Option<i64>,
    /// When it will be due next.
    pub next_ns: Option<i64>,
    /// Since when it is due: the first time that it missed.
    pub due_since_ns: Option<i64>,
    /// The last time at which it was due since it was done.
    pub due_ns: Option<i64>,
    /// Whether it is due, does not run, and waits for no repetition.
    pub is_ready: bool,
    /// Whether it was asked for and has not begun.
    pub is_asked: bool,
    /// Its run.
    pub running: Option<RunStatus>,
    /// Failures since it was done last.
    pub attempts: u32,
    /// Why it failed last, unless it was done since.
    pub failure: Option<String>,
    /// What was not as it should be when it was done last.
    pub warning: Option<String>,
    /// When it is tried again.
    pub retry_ns: Option<i64>,
    /// How its last run ended since the agent started, and when.
    pub last: Option<LastRun>,
}

/// A run that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// When it began.
    pub since_ns: i64,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all, if known.
    pub total: Option<u64>,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// When it began.
    pub since_ns: i64,
    /// When it ended.
    pub at_ns: i64,
    /// How.
    pub end: End,
}

/// What the director says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectorStatus {
    /// The agent that is the director.
    pub agent: Name,
    /// Identifies this status.
    pub issue: Issue,
    /// When it was made, in nanoseconds since 1970 by the director's clock.
    pub at_ns: i64,
    /// Since when it is the director.
    pub since_ns: i64,
    /// How many runs of the whole group there are at once; 0 for no limit.
    pub limit: usize,
    /// How many jobs it has offered.
    pub offered: u64,
    /// How many runs and offers there are now.
    pub outstanding: usize,
    /// How many tasks the limit holds back.
    pub waiting: usize,
    /// The oldest due time that the limit holds back.
    pub oldest_waiting_ns: Option<i64>,
    /// Tasks that an agent has done, and others that list them do not know of: by key.
    #[serde(default)]
    pub done_by: BTreeMap<Name, Name>,
    /// The agents that hold the shared index in their memory.
    #[serde(default)]
    pub index_hosts: Vec<Name>,
}

/// What an agent tells about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telling {
    /// The agent.
    pub agent: Name,
    /// The task.
    pub key: Name,
    /// What it is.
    pub work: Work,
    /// When it was told, by the agent's clock.
    pub at_ns: i64,
    /// What is told.
    pub what: Told,
}

/// What happens to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "kebab-case")]
pub enum Told {
    /// It goes on.
    Progress(RunStatus),
    /// It has ended.
    Ended(LastRun),
}

/// What a job says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobBody {
    /// The task.
    pub key: Name,
    /// When it was due.
    pub due_ns: i64,
}

/// What is asked of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "kebab-case")]
pub(crate) enum Question {
    /// A number to seal a command with; the answer is sealed with `reply`.
    Hello { reply: u64 },
    /// Runs the backup of a series.
    Backup { series: String, now: bool },
    /// Cancels the run of a task, given by its key or its series.
    Cancel { what: String },
    /// Takes part in a round.
    Join { round: u64 },
    /// What the agent says about itself.
    Status,
}

/// What an agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The number to seal a command with.
    Number { number: u64 },
    /// It will be done.
    Accepted(Accepted),
    /// It will not.
    Refused { refusal: Refusal },
    /// What was asked for.
    Status { status: Box<AgentStatus> },
}

/// A command that an agent obeys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The task.
    pub key: Name,
    /// When, by the agent's clock: a run that begins later, or ends later, is its consequence.
    pub at_ns: i64,
    /// Whether the task was running when the command came.
    pub was_running: bool,
}

/// Why an agent does not obey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Refusal {
    /// Its settings do not allow it.
    NotAllowed {
        /// The entry that its setting `allow` lacks.
        entry: String,
    },
    /// It has no such task.
    NoTask {
        /// What was named.
        what: String,
    },
    /// There is no run to cancel.
    NotRunning {
        /// What was named.
        what: String,
    },
    /// It takes part in another round.
    InRound,
    /// The key of who asks does not read data, and so may not command.
    NotFull,
    /// The command came too late, or for the second time.
    Stale,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed { entry } => {
                write!(out, "its setting 'allow' does not contain \"{entry}\"")
            }
            Self::NoTask { what } => write!(out, "'{what}' is none of its tasks"),
            Self::NotRunning { what } => write!(out, "'{what}' is not running"),
            Self::InRound => out.write_str("it takes part in another round"),
            Self::NotFull => out.write_str("only keys that read data may give commands"),
            Self::Stale => out.write_str("the command came too late, or for the second time"),
        }
    }
}
