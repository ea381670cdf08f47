//! The director: offers the tasks that are due to the agents that list them.
//!
//! It knows nothing but what agents say about themselves, so that it may be lost, or be there
//! twice, at any time. Agents refuse jobs that are not due, and start what no job comes for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use silt_format::Result;

use crate::bus::{Bus, Job, Name, Offer};
use crate::messages::Messages;
use crate::status::{AgentStatus, DIRECTOR, DirectorStatus, Issue, JobBody, TaskStatus};

/// How long an offer is given to begin.
const OFFER_NS: i64 = 120_000_000_000;
/// Agents say so often what they do. One that was not due then may be due now; as the director
/// knows itself best, it would else offer shared tasks to itself alone.
pub(crate) const SOON_NS: i64 = 60_000_000_000;
/// The same for an offer that was not added because a job of its task is there.
const PRESENT_NS: i64 = 10_000_000_000;
/// Most tasks of which the director says that they are done. All agents read that.
const UNHEARD_MAX: usize = 256;
/// Most agents that hold the shared index. All agents read who they are.
const INDEX_HOSTS_MAX: usize = 64;
/// For how long the director says that it is there.
const TERM: Duration = Duration::from_secs(90);

/// The pool of an agent, from which only it takes jobs, and the service that it answers.
pub(crate) fn pool(agent: &Name) -> Name {
    Name::made(format!("agent-{agent}"))
}

/// An offer of a task.
struct Offered {
    to: Name,
    at_ns: i64,
    due_ns: i64,
    /// How often the task was offered and did not begin.
    tries: u64,
}

/// A task that is due.
struct Wanted<'a> {
    since_ns: i64,
    due_ns: i64,
    /// When it was done last, wherever that was.
    done_ns: Option<i64>,
    /// The agents that would begin it.
    agents: Vec<&'a Name>,
}

/// What the holder of the lease knows.
pub(crate) struct Director {
    agent: Name,
    limit: usize,
    since_ns: i64,
    issue: Issue,
    offered: u64,
    offers: BTreeMap<Name, Offered>,
    /// Whether something is due that found no room.
    is_short: bool,
}

impl Director {
    pub fn new(agent: Name, limit: usize, instance: u64, now_ns: i64) -> Self {
        let issue = Issue { instance, count: 0 };
        Self {
            agent,
            limit,
            since_ns: now_ns,
            issue,
            offered: 0,
            offers: BTreeMap::new(),
            is_short: false,
        }
    }

    /// Whether something is due that waits for a run to end: then agents are read sooner again.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Offers what is due, and says so. `agents` are those that live, each once.
    pub fn step(
        &mut self,
        agents: &[AgentStatus],
        (bus, messages): (&dyn Bus, &Messages),
        now_ns: i64,
    ) -> Result<()> {
        let wanted = wanted(agents);
        self.offers.retain(|key, offer| {
            offer.at_ns = offer.at_ns.min(now_ns);
            // What was offered may be done, and the task due again.
            let is_open = |task: &Wanted<'_>| task.done_ns.is_none_or(|at| at < offer.due_ns);
            wanted.get(key).is_some_and(is_open)
        });
        let mut room = self.room(agents, now_ns);
        let running: usize = agents.iter().map(running).sum();
        let open = self.offers.values().filter(|offer| is_open(offer, now_ns)).count();
        let mut outstanding = running + open;
        let (mut held, mut is_short) = (Vec::new(), false);
        let mut outcome = Ok(());
        for key in self.order(&wanted, now_ns) {
            let task = &wanted[&key];
            if self.limit > 0 && outstanding >= self.limit {
                held.push(task.since_ns);
                continue;
            }
            let tries = self.offers.get(&key).map_or(0, |offer| offer.tries + 1);
            let Some(to) = chosen(&key, &task.agents, &room, tries) else {
                is_short = true;
                continue;
            };
            let body = messages.seal_json(0, &JobBody { key: key.clone(), due_ns: task.due_ns });
            let offered = body.and_then(|body| {
                let id = messages.hidden(&format!("job\0{key}\0{to}\0{}\0{tries}", task.due_ns));
                let hidden = messages.hidden(&format!("task\0{key}"));
                bus.offer(&Job { pool: pool(&to), key: hidden, id, body })
            });
            match offered {
                Ok(offer) => {
                    // An earlier job may be done, and not settled yet: then this one was not added.
                    let age_ns = if offer == Offer::Present { OFFER_NS - PRESENT_NS } else { 0 };
                    let at_ns = now_ns - age_ns;
                    self.offered += 1;
                    outstanding += 1;
                    room.entry(to.clone()).and_modify(|room| *room = room.saturating_sub(1));
                    let due_ns = task.due_ns;
                    self.offers.insert(key, Offered { to, at_ns, due_ns, tries });
                }
                Err(error) => outcome = Err(error),
            }
        }
        self.is_short = is_short || !held.is_empty();
        self.issue.count += 1;
        let status = DirectorStatus {
            agent: self.agent.clone(),
            issue: self.issue,
            at_ns: now_ns,
            since_ns: self.since_ns,
            limit: self.limit,
            offered: self.offered,
            outstanding,
            waiting: held.len(),
            oldest_waiting_ns: held.into_iter().min(),
            done_by: unheard(agents),
            index_hosts: index_hosts(agents),
        };
        let sealed = messages.seal_json(0, &status)?;
        bus.announce(&Name::made(DIRECTOR.to_owned()), &sealed, TERM).and(outcome)
    }

    /// What is due and not offered: first what was offered least often, then what is due longest.
    fn order(&self, wanted: &BTreeMap<Name, Wanted<'_>>, now_ns: i64) -> Vec<Name> {
        let mut order = Vec::new();
        for (key, task) in wanted {
            let offer = self.offers.get(key);
            if offer.is_none_or(|offer| !is_open(offer, now_ns)) {
                order.push((offer.map_or(0, |offer| offer.tries + 1), task.since_ns, key.clone()));
            }
        }
        order.sort();
        order.into_iter().map(|(.., key)| key).collect()
    }

    /// How many more runs each agent has room for.
    fn room(&self, agents: &[AgentStatus], now_ns: i64) -> BTreeMap<Name, usize> {
        let of = |agent: &AgentStatus| {
            let open = self.offers.values().filter(|offer| is_open(offer, now_ns));
            let open = open.filter(|offer| offer.to == agent.name).count();
            agent.parallel.saturating_sub(running(agent) + open)
        };
        agents.iter().map(|agent| (agent.name.clone(), of(agent))).collect()
    }
}

fn is_open(offer: &Offered, now_ns: i64) -> bool {
    now_ns - offer.at_ns < OFFER_NS
}

fn running(agent: &AgentStatus) -> usize {
    agent.tasks.iter().filter(|task| task.running.is_some()).count()
}

/// The tasks that are due, and run and are done nowhere.
fn wanted(agents: &[AgentStatus]) -> BTreeMap<Name, Wanted<'_>> {
    let mut wanted: BTreeMap<Name, Wanted<'_>> = BTreeMap::new();
    let tasks = || agents.iter().flat_map(|agent| &agent.tasks);
    let running = tasks().filter(|task| task.running.is_some()).map(|task| &task.key);
    let running: BTreeSet<&Name> = running.collect();
    let mut done: BTreeMap<&Name, i64> = BTreeMap::new();
    for (key, done_ns) in tasks().filter_map(|task| Some((&task.key, task.done_ns?))) {
        let known = done.entry(key).or_insert(done_ns);
        *known = (*known).max(done_ns);
    }
    for task in tasks().filter(|task| task.is_ready) {
        let (Some(since_ns), Some(due_ns)) = (task.due_since_ns, task.due_ns) else { continue };
        // Its agent may not have heard yet that another has done it.
        let done_ns = done.get(&task.key).copied();
        if done_ns.is_some_and(|done_ns| done_ns >= due_ns) {
            continue;
        }
        let known = wanted.entry(task.key.clone());
        let known = known.or_insert(Wanted { since_ns, due_ns, done_ns, agents: Vec::new() });
        known.since_ns = known.since_ns.min(since_ns);
        known.due_ns = known.due_ns.max(due_ns);
    }
    for agent in agents {
        for task in agent.tasks.iter().filter(|task| task.is_ready || is_soon(task, agent.at_ns)) {
            if let Some(known) = wanted.get_mut(&task.key) {
                known.agents.push(&agent.name);
            }
        }
    }
    wanted.retain(|key, _| !running.contains(key));
    wanted
}

/// The agents that hold the shared index: the first by name, if there are more than enough.
fn index_hosts(agents: &[AgentStatus]) -> Vec<Name> {
    let mut hosts: Vec<&Name> =
        agents.iter().filter(|agent| agent.index.is_some()).map(|agent| &agent.name).collect();
    hosts.sort();
    hosts.into_iter().take(INDEX_HOSTS_MAX).cloned().collect()
}

/// Tasks that are done, of which agents say that they are due: whom they are to ask, by key.
fn unheard(agents: &[AgentStatus]) -> BTreeMap<Name, Name> {
    let mut done: BTreeMap<&Name, (i64, &Name)> = BTreeMap::new();
    for agent in agents {
        for task in &agent.tasks {
            let Some(done_ns) = task.done_ns else { continue };
            let known = done.entry(&task.key).or_insert((done_ns, &agent.name));
            *known = (*known).max((done_ns, &agent.name));
        }
    }
    let mut unheard = Vec::new();
    for task in agents.iter().flat_map(|agent| &agent.tasks).filter(|task| task.is_ready) {
        let (Some(due_ns), Some((done_ns, by))) = (task.due_ns, done.get(&task.key)) else {
            continue;
        };
        if *done_ns >= due_ns {
            unheard.push((due_ns, &task.key, *by));
        }
    }
    unheard.sort();
    // The same task may be there several times; those that are left out come later.
    let first = unheard.into_iter().take(UNHEARD_MAX);
    first.map(|(_, key, by)| (key.clone(), by.clone())).collect()
}

/// Whether a task that was not due when its agent said so is due about now.
fn is_soon(task: &TaskStatus, at_ns: i64) -> bool {
    let is_free = task.running.is_none() && task.retry_ns.is_none_or(|retry| retry <= at_ns);
    is_free && task.due_ns.is_none() && task.next_ns.is_some_and(|next| next - at_ns <= SOON_NS)
}

/// Which agent a task is offered to: of those with room, the first in an order that depends on
/// agent and task alone (rendezvous hashing, Thaler and Ravishankar 1998), and if that did not
/// begin it, the next.
fn chosen(key: &Name, agents: &[&Name], room: &BTreeMap<Name, usize>, tries: u64) -> Option<Name> {
    let weight = |agent: &&Name| {
        let hash = blake3::hash(format!("rendezvous\0{key}\0{agent}").as_bytes());
        *hash.as_bytes()
    };
    let has_room = |agent: &&&Name| room.get(**agent).is_some_and(|room| *room > 0);
    let mut agents: Vec<&Name> = agents.iter().filter(has_room).copied().collect();
    agents.sort_by_key(weight);
    let count = u64::try_from(agents.len()).ok().filter(|count| *count > 0)?;
    let at = usize::try_from(tries % count).ok()?;
    Some(agents[at].clone())
}
