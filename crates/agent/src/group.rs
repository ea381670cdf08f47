//! What is asked of the agents of a repository, from any host that can open it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use silt_cluster::index::IndexClient;
use silt_cluster::nodes::NodeClient;
use silt_cluster::{
    Bus, End, Fleet, LastRun, Messages, Name, Remote, TaskStatus, Telling, Told, Watch, fleet,
    side_by_side, watch,
};
use silt_format::{Error, ErrorKind};
use silt_terminal::failure::Failure;
use silt_terminal::output;
use siltstone::{Env, NodeAnswers, Repository, SharedPlaces};

use crate::plan::host_name;
use crate::settings::{AgentSettings, BusSettings};
use crate::{link, tell};

const SECOND_NS: i64 = 1_000_000_000;
/// How often an agent is asked for the end of a run whose end it may have told in vain.
const ASK_NS: i64 = 5 * SECOND_NS;
/// For how long an agent that does not answer is waited for.
const SILENT_NS: i64 = 120 * SECOND_NS;
/// How often an agent is called that is in another round, and how long between.
const CALLS: u32 = 20;
const CALL_PAUSE_NS: u64 = 500_000_000;
/// Agents that are called at the same time.
const CALLS_AT_ONCE: usize = 32;
/// How long a message about a run is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// The agents of a repository.
pub struct Group {
    bus: Arc<dyn Bus>,
    messages: Messages,
    env: Arc<dyn Env>,
}

/// A command that an agent obeys.
pub struct Asked {
    /// The agent.
    pub agent: Name,
    /// The task.
    pub key: Name,
    /// When it was asked, by the agent's clock.
    pub at_ns: i64,
    /// Whether the task was running already.
    pub was_running: bool,
}

impl Group {
    /// Connects to the bus of this repository's agents.
    pub fn connect(
        bus: &BusSettings,
        member: &Name,
        env: &Arc<dyn Env>,
        repository: &Repository,
    ) -> Result<Self, Failure> {
        let bus = link::connect(bus, member, env)?;
        let messages = Messages::new(&repository.objects);
        Ok(Self { bus, messages, env: Arc::clone(env) })
    }

    /// The bus.
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// What seals messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Asks agents side by side to take part in a round. Returns what each says.
    pub fn join(&self, agents: &[Name], round: u64) -> Vec<Result<(), Error>> {
        side_by_side(agents, CALLS_AT_ONCE, |agent| {
            let mut tries = 0..CALLS;
            loop {
                match self.remote(agent).join(round) {
                    // The part in the last round may be about to end.
                    Err(error) if error.kind() == ErrorKind::Busy && tries.next().is_some() => {
                        if self.env.is_interrupted() {
                            return Err(error);
                        }
                        self.env.sleep_ns(CALL_PAUSE_NS);
                    }
                    joined => return joined.map(drop),
                }
            }
        })
    }

    /// Who is there.
    pub fn fleet(&self) -> Result<Fleet, Error> {
        fleet(&*self.bus, &self.messages)
    }

    /// What is told from now on.
    pub fn watch(&self) -> Result<Watch, Error> {
        watch(&*self.bus, &self.messages)
    }

    fn remote(&self, agent: &Name) -> Remote {
        let (bus, messages) = (Arc::clone(&self.bus), self.messages.clone());
        Remote::new(bus, messages, Arc::clone(&self.env), agent.clone())
    }

    /// Asks an agent for a backup.
    pub fn backup(&self, agent: &Name, series: &str, now: bool) -> Result<Asked, Error> {
        let accepted = self.remote(agent).backup(series, now)?;
        let (key, at_ns, was_running) = (accepted.key, accepted.at_ns, accepted.was_running);
        Ok(Asked { agent: agent.clone(), key, at_ns, was_running })
    }

    /// Cancels the run of a series.
    pub fn cancel(&self, agent: &Name, series: &str) -> Result<(), Error> {
        self.remote(agent).cancel(series).map(drop)
    }

    /// Follows a run to its end, and reports its progress on the way.
    pub fn wait(
        &self,
        asked: &Asked,
        watch: &mut Watch,
        mut progress: impl FnMut(u64, Option<u64>),
    ) -> Result<LastRun, Error> {
        let mut heard_ns = self.env.now_ns();
        let mut asked_ns = heard_ns;
        loop {
            if self.env.is_interrupted() {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted; the backup goes on"));
            }
            let is_ours = |told: &Telling| told.agent == asked.agent && told.key == asked.key;
            match watch.next(PATIENCE).ok().flatten().filter(is_ours).map(|told| told.what) {
                Some(Told::Progress(run)) => progress(run.done, run.total),
                Some(Told::Ended(last)) if last.at_ns >= asked.at_ns => return Ok(last),
                Some(Told::Ended(_)) | None => {}
            }
            let now_ns = self.env.now_ns();
            if now_ns - asked_ns < ASK_NS {
                continue;
            }
            asked_ns = now_ns;
            match self.remote(&asked.agent).status() {
                Ok(status) => {
                    heard_ns = now_ns;
                    let task = status.tasks.into_iter().find(|task| task.key == asked.key);
                    let last = task.and_then(|task| task.last);
                    if let Some(last) = last.filter(|last| last.at_ns >= asked.at_ns) {
                        return Ok(last);
                    }
                }
                Err(error) if now_ns - heard_ns > SILENT_NS => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Who can be asked for chunks over the bus.
#[derive(Clone, Default)]
pub struct Lookups {
    /// The agents that hold the shared index in memory.
    pub places: Option<Arc<dyn SharedPlaces>>,
    /// The processes of storage nodes.
    pub nodes: Option<Arc<dyn NodeAnswers>>,
}

impl Lookups {
    /// The ways to these agents, and to the processes of the repository's nodes if they are to be
    /// asked, by the bus of a host's agent; none if it has none.
    pub fn of_agent(
        settings: Option<&AgentSettings>,
        host: &str,
        repository: &Repository,
        agents: &[String],
    ) -> Result<Self, Failure> {
        let Some(settings) = settings else { return Ok(Self::default()) };
        let Some(bus) = &settings.bus else { return Ok(Self::default()) };
        let name = settings.name.clone().map_or_else(|| host_name(host), Ok)?;
        let nodes = repository.nodes().iter().filter(|_| settings.ask_nodes);
        let nodes: Vec<u16> = nodes.map(|node| node.number).collect();
        if nodes.is_empty() && agents.is_empty() {
            return Ok(Self::default());
        }
        let context = repository.objects.context.clone();
        let bus = link::connect(bus, &name, &context.env)?;
        let messages = Messages::new(&repository.objects);
        let mut lookups = Self::default();
        if !nodes.is_empty() {
            let (bus, messages) = (Arc::clone(&bus), messages.clone());
            let client = NodeClient::new(bus, messages, context.clone(), &nodes)?;
            lookups.nodes = Some(Arc::new(client));
        }
        if !agents.is_empty() {
            let agents = agents.iter().map(Name::new).collect::<Result<Vec<_>, _>>()?;
            lookups.places = Some(Arc::new(IndexClient::new(bus, messages, context, &agents)?));
        }
        Ok(lookups)
    }
}

fn not_found<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::NotFound, message))
}

/// The agents that list a series; only the named one, if one is named.
fn listing<'f>(
    fleet: &'f Fleet,
    series: &str,
    named: Option<&str>,
) -> Result<Vec<(&'f Name, &'f TaskStatus)>, Error> {
    let mut found = Vec::new();
    for agent in &fleet.agents {
        let is_it = named.is_none_or(|name| agent.name.as_str() == name);
        let tasks = agent.tasks.iter().filter(|task| is_it && task.work.series() == Some(series));
        found.extend(tasks.map(|task| (&agent.name, task)));
    }
    match named {
        _ if !found.is_empty() => Ok(found),
        Some(name) => not_found(format!("there is no agent '{name}' that backs up '{series}'")),
        None => not_found(format!("no agent that is there backs up '{series}'")),
    }
}

/// The agent that is to back up a series: the named one, or else one that does so now, or the
/// first that lists it.
pub fn choose<'f>(fleet: &'f Fleet, series: &str, named: Option<&str>) -> Result<&'f Name, Error> {
    let found = listing(fleet, series, named)?;
    let runs = found.iter().find(|(_, task)| task.running.is_some());
    Ok(runs.unwrap_or(&found[0]).0)
}

/// The agent that backs up a series now, or was asked to.
pub fn running<'f>(fleet: &'f Fleet, series: &str, named: Option<&str>) -> Result<&'f Name, Error> {
    let found = listing(fleet, series, named)?;
    let runs = |(_, task): &&(&Name, &TaskStatus)| task.running.is_some() || task.is_asked;
    match found.iter().find(runs) {
        Some((agent, _)) => Ok(agent),
        None if found.len() == 1 => Ok(found[0].0),
        None => not_found(format!("no agent is backing up '{series}'")),
    }
}

/// Prints how a run that was waited for has ended. Returns the exit status that says so.
pub fn run_ended(agent: &Name, series: &str, last: &LastRun, as_json: bool) -> u8 {
    let (time_ns, warning, error) = tell::parts(&last.end);
    if as_json {
        let value = json!({
            "agent": agent.as_str(), "work": "backup", "series": series,
            "end": tell::end(&last.end), "time": tell::time(time_ns),
            "warning": warning, "error": error, "retry": null,
        });
        output::message("run_ended", value);
    } else {
        let trouble = warning.or(error).map(|text| format!(": {text}")).unwrap_or_default();
        output::done(&format!("{series}: {}{trouble}", tell::end(&last.end)));
    }
    match &last.end {
        End::Done { warning: None, .. } => 0,
        End::Done { warning: Some(_), .. } => 3,
        End::Busy => 11,
        End::Cancelled => 130,
        End::Failed { .. } => 1,
    }
}
