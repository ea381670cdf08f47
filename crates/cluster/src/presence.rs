//! How agents say what they do: in short to the director, and in full to those who ask.
//!
//! A presence is small, so that the director can read those of all agents often. The tasks are
//! kept beside it, and read again when the presence names others than before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use silt_format::Result;
use silt_repository::believed::SignedBy;

use crate::bus::{Bus, Member, Name};
use crate::messages::Messages;
use crate::status::{AgentStatus, DIRECTOR, DirectorStatus, Issue, RunStatus, TaskStatus};

/// For how long an agent says that it is there.
pub(crate) const TERM: Duration = Duration::from_secs(90);
/// For how long its tasks are kept.
const DETAILS_TERM: Duration = Duration::from_mins(20);
/// How often the tasks are said again if they are the same: the bus may have lost them.
pub(crate) const DETAILS_NS: i64 = 300 * 1_000_000_000;
/// Agents whose tasks are read with one call.
const AT_ONCE: usize = 64;
/// Most agents whose tasks are remembered.
const AGENTS_MAX: usize = 100_000;

/// What an agent says about itself in short.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Presence {
    /// The status without tasks.
    #[serde(flatten)]
    agent: AgentStatus,
    /// The tasks that the agent has said last.
    #[serde(default)]
    details: Option<String>,
    /// Its runs, by task.
    #[serde(default)]
    runs: BTreeMap<Name, RunStatus>,
}

/// The tasks of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Details {
    /// The agent.
    pub name: Name,
    /// When they were said: `count` is that of the status.
    issue: Issue,
    /// Names these tasks.
    hash: String,
    /// The tasks.
    pub tasks: Vec<TaskStatus>,
}

/// Identifies tasks, without how far their runs are.
fn hash_of(tasks: &[TaskStatus]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("siltstone 2026 v1 tasks of an agent");
    for task in tasks {
        let running = task.running.as_ref();
        let running = running.map(|run| RunStatus { done: 0, total: None, ..run.clone() });
        let task = TaskStatus { running, ..task.clone() };
        hasher.update(&serde_json::to_vec(&task).unwrap_or_default());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// What an agent has said last.
#[derive(Default)]
pub(crate) struct Speaker {
    hash: Option<String>,
    described_ns: i64,
}

impl Speaker {
    /// Says what the agent does.
    pub fn say(
        &mut self,
        mut status: AgentStatus,
        (bus, messages): (&dyn Bus, &Messages),
        now_ns: i64,
    ) -> Result<()> {
        let hash = hash_of(&status.tasks);
        let running = status.tasks.iter().filter_map(|task| {
            Some((task.key.clone(), task.running.clone()?)) //
        });
        let runs = running.collect();
        let tasks = std::mem::take(&mut status.tasks);
        let is_old = !(0..DETAILS_NS).contains(&(now_ns - self.described_ns));
        if is_old || self.hash.as_ref() != Some(&hash) {
            let (name, issue) = (status.name.clone(), status.issue);
            let details = Details { name, issue, hash: hash.clone(), tasks };
            let sealed = messages.seal_json(0, &details)?;
            bus.describe(&status.name, &sealed, DETAILS_TERM)?;
            (self.hash, self.described_ns) = (Some(hash.clone()), now_ns);
        }
        let name = status.name.clone();
        let presence = Presence { agent: status, details: Some(hash), runs };
        bus.announce(&name, &messages.seal_json(0, &presence)?, TERM)
    }
}

/// The tasks of an agent as they were read last.
struct Known {
    issue: Issue,
    hash: String,
    tasks: Vec<TaskStatus>,
    signer: SignedBy,
}

/// What was read of others.
#[derive(Default)]
pub(crate) struct Reader {
    known: BTreeMap<Name, Known>,
}

/// Who is there.
#[derive(Default)]
pub(crate) struct Present {
    /// The agents, and who signs for their tasks.
    pub agents: Vec<(AgentStatus, SignedBy)>,
    pub director: Option<DirectorStatus>,
    /// Members that cannot be opened.
    pub unreadable: usize,
}

impl Reader {
    /// Reads the presence of all members, and the tasks of those that have others than before.
    pub fn read(&mut self, bus: &dyn Bus, messages: &Messages) -> Result<Present> {
        let mut present = Present::default();
        let mut presences = Vec::new();
        for member in bus.members()? {
            if member.name.as_str() == DIRECTOR {
                let director = messages.open_json(0, &member.about).ok();
                present.unreadable += usize::from(director.is_none());
                present.director = director.map(|(director, _)| director);
                continue;
            }
            let opened = messages.open_json::<Presence>(0, &member.about).ok();
            let opened = opened.filter(|(presence, _)| presence.agent.name == member.name);
            present.unreadable += usize::from(opened.is_none());
            presences.extend(opened);
        }
        let names: BTreeSet<&Name> =
            presences.iter().map(|(presence, _)| &presence.agent.name).collect();
        self.known.retain(|name, _| names.contains(name));
        let is_new = |presence: &Presence| {
            let known = self.known.get(&presence.agent.name).map(|known| &known.hash);
            presence.details.is_some() && presence.details.as_ref() != known
        };
        let changed = presences.iter().filter(|(presence, _)| is_new(presence));
        let changed: Vec<Name> = changed.map(|(presence, _)| presence.agent.name.clone()).collect();
        for names in changed.chunks(AT_ONCE) {
            for (details, signer) in details(bus, messages, names)? {
                self.note(details, signer);
            }
        }
        present.agents =
            presences.into_iter().map(|(one, signer)| self.full(one, signer)).collect();
        Ok(present)
    }

    fn note(&mut self, details: Details, signer: SignedBy) {
        let Details { name, issue, hash, tasks } = details;
        let known = self.known.get(&name).map(|known| known.issue);
        // A bus may repeat what was said before.
        let is_older =
            |known: &Issue| known.instance == issue.instance && known.count > issue.count;
        if known.as_ref().is_some_and(is_older) || known.is_none() && self.known.len() >= AGENTS_MAX
        {
            return;
        }
        self.known.insert(name, Known { issue, hash, tasks, signer });
    }

    /// The whole status of an agent that has said this.
    fn full(&self, presence: Presence, signer: SignedBy) -> (AgentStatus, SignedBy) {
        let Presence { mut agent, details, mut runs } = presence;
        if details.is_none() {
            return (agent, signer);
        }
        let Some(known) = self.known.get(&agent.name) else { return (agent, signer) };
        agent.tasks.clone_from(&known.tasks);
        if details.as_ref() == Some(&known.hash) {
            for task in &mut agent.tasks {
                task.running = runs.remove(&task.key).or(task.running.take());
            }
        }
        (agent, known.signer.clone())
    }
}

/// What these agents have said about their tasks, if it can be opened and is their own.
pub(crate) fn details(
    bus: &dyn Bus,
    messages: &Messages,
    agents: &[Name],
) -> Result<Vec<(Details, SignedBy)>> {
    let open = |member: Member| {
        let opened = messages.open_json::<Details>(0, &member.about).ok();
        opened.filter(|(details, _)| details.name == member.name)
    };
    Ok(bus.details(agents)?.into_iter().filter_map(open).collect())
}
