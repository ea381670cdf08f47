//! The table `[agent]` of a configuration file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, de};
use silt_cluster::{Calendar, Name};
use silt_terminal::{secrets, snapshot_name};

/// Most runs of an agent at once.
const PARALLEL_MAX: u64 = 64;
/// Most parts of a round.
const PARTS_MAX: u64 = 1000;
/// Most copies of the bus's streams.
const REPLICAS_MAX: u64 = 5;

/// When something is due.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// Only on command.
    Never,
    /// At these times.
    At(Calendar),
}

impl Schedule {
    /// Its times, if it has any.
    pub fn calendar(&self) -> Option<&Calendar> {
        match self {
            Self::Never => None,
            Self::At(calendar) => Some(calendar),
        }
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "never" {
            return Ok(Self::Never);
        }
        text.parse().map(Self::At).map_err(|error: silt_format::Error| de::Error::custom(error))
    }
}

/// A command that an agent may obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obeyed {
    /// Backing up a series now.
    Backup,
    /// Cancelling a run.
    Cancel,
    /// Taking part in a round of several hosts.
    Round,
}

/// All commands.
pub const ALL_OBEYED: [Obeyed; 3] = [Obeyed::Backup, Obeyed::Cancel, Obeyed::Round];

/// How a host's agent works.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentSettings {
    /// By default the name of the host.
    #[serde(deserialize_with = "name")]
    pub name: Option<Name>,
    /// The profile whose series it backs up.
    pub profile: Option<String>,
    /// When the series are due that say nothing of their own.
    pub backup: Option<Schedule>,
    /// When retention rules are applied.
    pub forget: Option<Schedule>,
    /// When space is freed.
    pub reclaim: Option<Schedule>,
    /// Whether all agents count references then.
    pub reclaim_with_agents: bool,
    /// When chunks are stored as differences, and compressed more.
    pub optimize: Option<Schedule>,
    /// When the repository is checked.
    pub check: Option<Schedule>,
    /// The share of the data that a check reads, in percent.
    #[serde(deserialize_with = "percent")]
    pub check_data: Option<String>,
    /// When snapshots are sent to the replicas.
    pub replicate: Option<Schedule>,
    /// When all hosts back up together in a round.
    pub round: Option<Schedule>,
    /// In how many parts.
    #[serde(deserialize_with = "parts")]
    pub round_parts: Option<usize>,
    /// Whether this host copies changed data to a temporary file in rounds.
    pub round_spool: bool,
    /// By how many seconds at most each task is put off.
    #[serde(deserialize_with = "seconds")]
    pub spread: Option<u64>,
    /// How many runs it has at once.
    #[serde(deserialize_with = "parallel")]
    pub parallel: Option<usize>,
    /// After how many seconds without a director it starts its tasks by itself.
    #[serde(deserialize_with = "seconds")]
    pub alone_after: Option<u64>,
    /// Whether it may be the director.
    pub leads: Option<bool>,
    /// How many runs of all agents there are at once while it is the director.
    pub limit: Option<usize>,
    /// The commands that it obeys; all by default.
    pub allow: Option<Vec<Obeyed>>,
    /// Memory for a part of the shared index, in bytes.
    #[serde(deserialize_with = "bytes")]
    pub index_memory: u64,
    /// Whether backups ask the processes of storage nodes before they read their indexes.
    pub ask_nodes: bool,
    /// Whether each backup applies the stored policy of its series.
    pub forget_after_backup: bool,
    /// How it reaches other agents; without it, it works alone.
    pub bus: Option<BusSettings>,
}

/// How a bus is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BusSettings {
    /// Addresses such as `nats://bus1:4222`.
    pub servers: Vec<String>,
    /// The user to log in as.
    pub user: Option<String>,
    /// A file with the password of the user in its first line, or a credential of systemd.
    pub password_file: Option<PathBuf>,
    /// A file of certificates that servers are verified by.
    pub certificates: Option<PathBuf>,
    /// A file with the certificate that is shown to servers.
    pub certificate: Option<PathBuf>,
    /// A file with its private key.
    pub key: Option<PathBuf>,
    /// Whether TLS begins before the server says anything.
    pub tls_first: bool,
    /// How many servers keep each job and lease.
    #[serde(deserialize_with = "replicas")]
    pub replicas: Option<usize>,
}

impl AgentSettings {
    /// What is wrong with the settings, and with which key.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.index_memory > 0 && self.bus.is_none() {
            let problem = "an index in memory is asked over the bus: it needs [agent.bus]";
            return Some(("index-memory", problem.to_owned()));
        }
        self.bus.as_ref().and_then(BusSettings::problem)
    }

    /// The same settings with paths that begin at this folder if they are relative.
    #[must_use]
    pub fn located(mut self, folder: &Path) -> Self {
        if let Some(bus) = &mut self.bus {
            let password = bus.password_file.iter_mut();
            let password = password.filter(|file| !secrets::is_credential(file));
            let files = [&mut bus.certificates, &mut bus.certificate, &mut bus.key];
            for file in password.chain(files.into_iter().flatten()) {
                *file = folder.join(&*file);
            }
        }
        self
    }
}

impl BusSettings {
    /// What is wrong with the settings, and with which key.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let problem = |key, what: &str| Some((key, what.to_owned()));
        if self.servers.is_empty() {
            return problem("bus.servers", "it names no server, such as \"nats://bus1:4222\"");
        }
        for server in &self.servers {
            let address = server.strip_prefix("nats://").or_else(|| server.strip_prefix("tls://"));
            if address.is_none_or(str::is_empty) {
                let what = format!("'{server}' is not a server, such as \"nats://bus1:4222\"");
                return Some(("bus.servers", what));
            }
            if server.contains('@') {
                return problem("bus.servers", "use user and password-file, not an address with @");
            }
        }
        if self.user.is_some() != self.password_file.is_some() {
            return problem("bus.user, bus.password-file", "they are set together or not at all");
        }
        if self.certificate.is_some() != self.key.is_some() {
            return problem("bus.certificate, bus.key", "they are set together or not at all");
        }
        None
    }
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Name>, D::Error> {
    Name::new(String::deserialize(from)?).map(Some).map_err(de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    snapshot_name::parse_seconds(&text).map(Some).map_err(|failure| de::Error::custom(&failure))
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    snapshot_name::parse_bytes(&text).map_err(|failure| de::Error::custom(&failure))
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    if number.is_some_and(|number| number > 0.0 && number <= 100.0) {
        return Ok(Some(text));
    }
    Err(de::Error::custom(format!("'{text}' is not a share of the data, such as \"5%\"")))
}

fn parallel<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    ranged(from, PARALLEL_MAX)
}

fn parts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    ranged(from, PARTS_MAX)
}

fn replicas<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    ranged(from, REPLICAS_MAX)
}

/// A number from 1 to `most`; the error has the line of the value.
fn ranged<'de, D: Deserializer<'de>>(from: D, most: u64) -> Result<Option<usize>, D::Error> {
    let value = u64::deserialize(from)?;
    let number = usize::try_from(value).ok().filter(|_| (1..=most).contains(&value));
    let wrong = || de::Error::custom(format!("{value} is not in the range 1 to {most}"));
    number.ok_or_else(wrong).map(Some)
}
