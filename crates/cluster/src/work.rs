//! What an agent does by itself, and who carries it out.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use silt_format::Result;

use crate::{Calendar, Name};

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "kebab-case")]
pub enum Work {
    /// Backing up a series.
    Backup {
        /// Its own name.
        series: String,
    },
    /// Applying the retention policies of all series.
    Forget,
    /// Giving back the space of what was deleted.
    Reclaim,
    /// Storing similar chunks as differences, and compressing more.
    Optimize,
    /// Checking the repository.
    Check,
    /// Bringing snapshots to the replicas.
    Replicate,
    /// Coordinating a round of all hosts.
    Round,
    /// Taking part in a round with the series of this host, on command only.
    Join {
        /// The round's id.
        round: u64,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backup { series } => write!(out, "backup of '{series}'"),
            Self::Forget => out.write_str("forget"),
            Self::Reclaim => out.write_str("reclaim"),
            Self::Optimize => out.write_str("optimize"),
            Self::Check => out.write_str("check"),
            Self::Replicate => out.write_str("replicate"),
            Self::Round => out.write_str("round of all hosts"),
            Self::Join { .. } => out.write_str("part in a round"),
        }
    }
}

impl Work {
    /// Identifies it among the tasks of agents: the same work has the same key everywhere.
    ///
    /// A key tells whoever guesses the name of a series that the guess is right, so keys leave a
    /// host in sealed messages only.
    pub fn key(&self) -> Name {
        let key = match self {
            Self::Backup { series } => {
                format!("backup-{}", &blake3::hash(series.as_bytes()).to_hex()[..24])
            }
            Self::Forget => "forget".to_owned(),
            Self::Reclaim => "reclaim".to_owned(),
            Self::Optimize => "optimize".to_owned(),
            Self::Check => "check".to_owned(),
            Self::Replicate => "replicate".to_owned(),
            Self::Round => "round".to_owned(),
            // A host takes part in one round at a time.
            Self::Join { .. } => "join".to_owned(),
        };
        Name::made(key)
    }

    /// The series that it is about.
    pub fn series(&self) -> Option<&str> {
        match self {
            Self::Backup { series } => Some(series),
            _ => None,
        }
    }
}

/// Work, and when it is due.
#[derive(Clone, Debug)]
pub struct Task {
    /// What to do. Of an agent's tasks no two are equal.
    pub work: Work,
    /// When it is due; `None` if only on command.
    pub when: Option<Calendar>,
    /// It is put off by up to this long, by a time that depends on agent and task, so that agents
    /// with the same schedule do not begin together.
    pub spread: Duration,
}

/// One run of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Identifies the task on the bus and among runs.
    pub key: Name,
    /// What to do.
    pub work: Work,
    /// When it was due, in nanoseconds since 1970. A backup is not made again if there is a
    /// snapshot of this time or later. `None` if it was asked for: it is always done.
    pub due_ns: Option<i64>,
}

/// Carries out runs. No call waits for a run.
pub trait Worker: Send {
    /// Begins a run.
    fn start(&mut self, run: &Run) -> Result<()>;

    /// Asks a run to end, if it goes on. It is reported as any other end.
    fn cancel(&mut self, key: &Name);

    /// What has happened since the last call.
    fn news(&mut self) -> Vec<News>;
}

/// What has happened to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It goes on.
    Progress {
        /// The run's key.
        key: Name,
        /// Bytes done.
        done: u64,
        /// Bytes in all, if known.
        total: Option<u64>,
    },
    /// A run that is about several series, such as the part in a round, has backed one of them up.
    Made {
        /// The series.
        series: String,
        /// The time of its snapshot, in nanoseconds since 1970.
        at_ns: i64,
        /// What was wrong with it.
        warning: Option<String>,
    },
    /// It has ended.
    Ended {
        /// The run's key.
        key: Name,
        /// How.
        end: End,
    },
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "kebab-case")]
pub enum End {
    /// It was done, or had been done already.
    Done {
        /// When: the time of the snapshot, or of the end of other work, in nanoseconds since 1970.
        at_ns: i64,
        /// What was not as it should be, in one line.
        warning: Option<String>,
    },
    /// Another process works on the series, or the agent has too much to do; it is tried again.
    Busy,
    /// It was cancelled.
    Cancelled,
    /// It failed; it is tried again.
    Failed {
        /// Why, in one line.
        error: String,
    },
}
