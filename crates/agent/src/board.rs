//! The tables of `silt cluster`: agents, tasks, the director.

use serde_json::{Value, json};
use silt_cluster::{AgentStatus, DirectorStatus, Fleet, TaskStatus};
use silt_format::Head;
use silt_terminal::output;

use crate::index;
use crate::tell::{self, time};

/// What there is to say of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// It runs.
    Running,
    /// It was to be done long ago.
    Overdue,
    /// It has failed, and is tried again.
    Failing,
    /// It is due, and begins soon.
    Due,
    /// It was done, with a warning.
    Warned,
    /// It was done, or was never due.
    Ok,
}

impl TaskState {
    /// The state of a task that counts as overdue after so long.
    fn of(task: &TaskStatus, now_ns: i64, overdue_after_ns: i64) -> Self {
        let late_ns = task.due_since_ns.map(|since_ns| now_ns.saturating_sub(since_ns));
        if late_ns.is_some_and(|late_ns| late_ns > overdue_after_ns) && task.running.is_none() {
            Self::Overdue
        } else if task.running.is_some() {
            Self::Running
        } else if task.failure.is_some() {
            Self::Failing
        } else if task.due_since_ns.is_some() || task.is_asked {
            Self::Due
        } else if task.warning.is_some() {
            Self::Warned
        } else {
            Self::Ok
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Overdue => "overdue",
            Self::Failing => "failing",
            Self::Due => "due",
            Self::Warned => "warned",
            Self::Ok => "ok",
        }
    }
}

/// A task as JSON.
fn task_json(agent: &AgentStatus, task: &TaskStatus, state: TaskState) -> Value {
    let (work, series) = tell::work(&task.work);
    let running = task.running.as_ref();
    json!({
        "agent": agent.name.as_str(),
        "work": work,
        "series": series,
        "schedule": task.schedule,
        "state": state.name(),
        "last": time(task.done_ns),
        "next": time(task.next_ns),
        "due_since": time(task.due_since_ns),
        "running_since": time(running.map(|run| run.since_ns)),
        "done_bytes": running.map(|run| run.done),
        "total_bytes": running.and_then(|run| run.total),
        "attempts": task.attempts,
        "error": task.failure,
        "warning": task.warning,
        "retry": time(task.retry_ns),
    })
}

/// A task as a row of a table.
fn task_row(agent: &AgentStatus, task: &TaskStatus, state: TaskState) -> Vec<String> {
    let shown = |time_ns: Option<i64>| time_ns.map_or_else(|| "-".to_owned(), output::time);
    let name = task.work.series().map_or_else(|| task.work.to_string(), str::to_owned);
    let state = match &task.running {
        Some(run) => match run.total {
            Some(total) => format!("running {}", output::percent(run.done, total)),
            None => format!("running {}", output::bytes(run.done)),
        },
        None => state.name().to_owned(),
    };
    let trouble = task.failure.as_ref().or(task.warning.as_ref());
    let trouble = trouble.map_or("", |text| text.lines().next().unwrap_or_default());
    vec![
        name,
        agent.name.to_string(),
        state,
        shown(task.done_ns),
        shown(task.next_ns),
        trouble.to_owned(),
    ]
}

/// The header of the rows.
const TASK_HEADER: [&str; 6] = ["TASK", "AGENT", "STATE", "LAST", "NEXT", "TROUBLE"];

/// An agent as JSON.
fn agent_json(agent: &AgentStatus) -> Value {
    let allowed = agent.allowed;
    json!({
        "agent": agent.name.as_str(),
        "version": agent.version,
        "time": output::rfc3339(agent.at_ns),
        "zone": agent.zone,
        "parallel": agent.parallel,
        "leads": agent.leads,
        "allow": {
            "backup": allowed.backup, "cancel": allowed.cancel, "round": allowed.round,
        },
        "tasks": agent.tasks.len(),
        "running": running(agent),
        "failing": failing(agent),
        "unreadable_messages": agent.unreadable,
        "unknown_jobs": agent.unknown_jobs,
        "index": agent.index.map(|index| json!({
            "memory_bytes": index.memory_bytes,
            "used_bytes": index.used_bytes,
            "partitions": index.partitions,
            "left_out": index.left_out,
            "chunks": index.chunks,
            "asked": index.asked,
            "found": index.found,
        })),
    })
}

fn running(agent: &AgentStatus) -> usize {
    agent.tasks.iter().filter(|task| task.running.is_some()).count()
}

fn failing(agent: &AgentStatus) -> usize {
    agent.tasks.iter().filter(|task| task.failure.is_some()).count()
}

/// An agent as a row of a table.
fn agent_row(agent: &AgentStatus) -> Vec<String> {
    let allowed = agent.allowed;
    let commands =
        [("backup", allowed.backup), ("cancel", allowed.cancel), ("round", allowed.round)];
    let obeyed: Vec<&str> =
        commands.into_iter().filter(|(_, obeys)| *obeys).map(|(name, _)| name).collect();
    vec![
        agent.name.to_string(),
        agent.version.clone(),
        output::time(agent.at_ns),
        agent.tasks.len().to_string(),
        format!("{} of {}", running(agent), agent.parallel),
        failing(agent).to_string(),
        index::shown(agent.index.as_ref()),
        obeyed.join(" "),
    ]
}

/// The header of the rows.
const AGENT_HEADER: [&str; 8] =
    ["AGENT", "VERSION", "SEEN", "TASKS", "RUNNING", "FAILING", "INDEX", "OBEYS"];

/// The director as JSON.
fn director_json(director: &DirectorStatus) -> Value {
    json!({
        "agent": director.agent.as_str(),
        "since": output::rfc3339(director.since_ns),
        "time": output::rfc3339(director.at_ns),
        "limit": director.limit,
        "outstanding": director.outstanding,
        "waiting": director.waiting,
        "oldest_waiting": time(director.oldest_waiting_ns),
    })
}

/// What agents say, as tables or JSON.
#[derive(Clone, Copy)]
pub struct Board<'b> {
    /// The agents.
    pub fleet: &'b Fleet,
    /// Whether as JSON.
    pub json: bool,
}

impl Board<'_> {
    /// Whether an agent lists this series.
    pub fn lists(self, head: &Head) -> bool {
        let mut tasks = self.fleet.agents.iter().flat_map(|agent| &agent.tasks);
        let names = [head.name.as_str(), head.shown()];
        tasks.any(|task| task.work.series().is_some_and(|series| names.contains(&series)))
    }

    /// Prints the agents and the director.
    pub fn print_agents(self) {
        let agents = &self.fleet.agents;
        if self.json {
            agents.iter().for_each(|agent| output::message("cluster_agent", agent_json(agent)));
        } else if agents.is_empty() {
            output::line("No agent is there. `silt agent run` is one.");
        } else {
            output::table(&AGENT_HEADER, &agents.iter().map(agent_row).collect::<Vec<_>>(), &[3]);
        }
        self.print_director();
    }

    /// Prints the tasks of all agents. Returns those that were to begin longer ago than this.
    pub fn print_tasks(self, overdue_after_ns: i64) -> Vec<String> {
        let (mut rows, mut overdue) = (Vec::new(), Vec::new());
        for agent in &self.fleet.agents {
            for task in &agent.tasks {
                // By the agent's own clock, which may differ from that of this host.
                let state = TaskState::of(task, agent.at_ns, overdue_after_ns);
                if state == TaskState::Overdue {
                    overdue.push(format!("{} at {}", task.work, agent.name));
                }
                if self.json {
                    output::message("cluster_task", task_json(agent, task, state));
                }
                rows.push(task_row(agent, task, state));
            }
        }
        rows.sort();
        if self.json {
            return overdue;
        }
        if rows.is_empty() {
            output::line("No agent is there. `silt agent run` is one.");
        } else {
            output::table(&TASK_HEADER, &rows, &[]);
        }
        overdue
    }

    /// Prints who the director is, and how many members could not be read.
    pub fn print_director(self) {
        let Fleet { director, unreadable, .. } = self.fleet;
        if self.json {
            if let Some(director) = director {
                output::message("cluster_director", director_json(director));
            }
            return;
        }
        match director {
            None => output::line("Director: none; each agent works alone until there is one"),
            Some(director) => {
                let waiting = match director.waiting {
                    0 => String::new(),
                    waiting => format!("; {waiting} held back by its limit of {}", director.limit),
                };
                output::line(&format!(
                    "Director: {} since {}; {} outstanding{waiting}",
                    director.agent,
                    output::time(director.since_ns),
                    output::count(director.outstanding, "run"),
                ));
            }
        }
        if *unreadable > 0 {
            output::note(&format!(
                "silt: {} of the bus cannot be read: of another repository, or forged",
                output::count(*unreadable, "member")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use silt_cluster::{RunStatus, Work};

    use super::*;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn task() -> TaskStatus {
        let work = Work::Forget;
        TaskStatus {
            key: work.key(),
            work,
            schedule: None,
            done_ns: None,
            next_ns: None,
            due_since_ns: None,
            due_ns: None,
            is_ready: false,
            is_asked: false,
            running: None,
            attempts: 0,
            failure: None,
            warning: None,
            retry_ns: None,
            last: None,
        }
    }

    #[test]
    fn a_task_that_should_have_begun_long_ago_is_overdue() {
        let state = |task: &TaskStatus| TaskState::of(task, 10 * HOUR_NS, HOUR_NS);
        let mut task = task();
        assert_eq!(state(&task), TaskState::Ok);
        task.warning = Some("a source was partly unreadable".to_owned());
        assert_eq!(state(&task), TaskState::Warned);
        task.due_since_ns = Some(9 * HOUR_NS);
        assert_eq!(state(&task), TaskState::Due);
        task.failure = Some("disk full".to_owned());
        assert_eq!(state(&task), TaskState::Failing);
        task.due_since_ns = Some(9 * HOUR_NS - 1);
        assert_eq!(state(&task), TaskState::Overdue);
        task.running = Some(RunStatus { since_ns: 0, done: 1, total: Some(4) });
        assert_eq!(state(&task), TaskState::Running);
    }
}
