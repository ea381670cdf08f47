//! The process of an agent: starts backups, whatever becomes of the bus.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::json;
use silt_cluster::{Agent, Event, FileNotes, NoNotes, Notes, Step};
use silt_format::Error;
use silt_terminal::failure::Failure;
use silt_terminal::output;
use siltstone::Env;

use crate::child::{ChildWorker, Program};
use crate::link::{self, Link, LinkState, Open};
use crate::plan::Plan;
use crate::systemd::Notifier;
use crate::tell::Teller;

/// How often it is seen what is due, and what the runs do.
const STEP_NS: u64 = 1_000_000_000;

/// What the process of an agent needs.
pub struct Process<'p> {
    /// What it does.
    pub plan: Plan,
    /// What it starts.
    pub program: Program,
    /// Its clock and signals.
    pub env: Arc<dyn Env>,
    /// The folder of its notes; `None` if there is no place for them.
    pub folder: Option<PathBuf>,
    /// Its manager.
    pub notifier: Notifier,
    /// Opens the repository, whose keys seal what is said on the bus.
    pub open: Open<'p>,
    /// Whether it tells what happens as JSON.
    pub json: bool,
}

impl Process<'_> {
    /// Runs until the process is asked to end. Running backups are asked to end too; the next start
    /// goes on from there.
    pub fn run(mut self) -> Result<u8, Failure> {
        let worker = ChildWorker::new(self.program.clone(), Arc::clone(&self.env));
        let options = self.plan.options();
        let (env, notes) = (Arc::clone(&self.env), self.notes());
        let agent = Agent::new(options, env, Box::new(worker.clone()), notes)?;
        let teller = Teller { json: self.json };
        let mut notifier = std::mem::take(&mut self.notifier);
        let bus = self.plan.settings.bus.as_ref();
        let connect = || match bus {
            Some(bus) => link::connect(bus, &self.plan.name, &self.env),
            None => Err(Error::invalid("no bus is set").into()),
        };
        let link = bus.map(|_| Link {
            agent: &agent,
            env: &self.env,
            open: self.open,
            connect: &connect,
            teller,
            state: Mutex::default(),
            index_memory: self.plan.settings.index_memory,
        });
        self.tell_ready();
        notifier.ready();
        std::thread::scope(|scope| {
            if let Some(link) = &link {
                scope.spawn(|| link.run());
            }
            let mut are_notes_lost = false;
            while !self.env.is_interrupted() {
                let is_up = link.as_ref().is_some_and(|link| link.state() == LinkState::Up);
                worker.set_index_hosts(if is_up { agent.index_hosts() } else { Vec::new() });
                let step = agent.step();
                let is_loss = |event: &Event| matches!(event, Event::NotesNotSaved { .. });
                let known_loss = are_notes_lost;
                are_notes_lost = step.events.iter().any(is_loss);
                // Each step tries to save them again, and the loss is told once.
                let news = step.events.iter().filter(|event| !(known_loss && is_loss(event)));
                news.for_each(|event| teller.event(event));
                notifier.alive(self.env.now_ns());
                notifier.status(Self::status(&step, link.as_ref()));
                self.env.sleep_ns(STEP_NS);
            }
            notifier.stopping();
            worker.stop();
        });
        Ok(0)
    }

    /// The file of the notes. An agent without one still backs up.
    fn notes(&self) -> Box<dyn Notes> {
        let opened = match &self.folder {
            None => Err(Error::invalid("neither XDG_STATE_HOME nor HOME is set")),
            Some(folder) => self.notes_in(folder),
        };
        opened.unwrap_or_else(|error| {
            output::note(&format!(
                "silt: warning: this agent keeps no notes, so after its next start it makes up for \
                 nothing that it missed: {error}"
            ));
            Box::new(NoNotes)
        })
    }

    fn notes_in(&self, folder: &Path) -> Result<Box<dyn Notes>, Error> {
        let failed = |error| Error::io(format!("make the folder {}", folder.display()), error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut notes = FileNotes::new(folder.join(format!("{}.json", self.plan.name)));
        notes.load()?;
        Ok(Box::new(notes))
    }

    fn tell_ready(&self) {
        let plan = &self.plan;
        let scheduled = plan.tasks.iter().filter(|task| task.when.is_some()).count();
        if self.json {
            let value = json!({
                "agent": plan.name.as_str(),
                "tasks": plan.tasks.len(),
                "scheduled": scheduled,
            });
            output::message("agent_ready", value);
        } else {
            let tasks = output::count(plan.tasks.len(), "task");
            output::done(&format!("agent {}: {tasks}, {scheduled} with a schedule", plan.name));
        }
    }

    /// One line for the manager.
    fn status(step: &Step, link: Option<&Link<'_>>) -> String {
        let next = step.next_ns.map_or_else(String::new, |next_ns| {
            format!("; the next is due {}", output::time(next_ns))
        });
        let bus = match link.map(Link::state) {
            None | Some(LinkState::New) => "",
            Some(LinkState::Down) => "; the bus is not reached",
            Some(LinkState::Up) => "; on the bus",
        };
        format!("{}{next}{bus}", output::count(step.running, "run"))
    }
}
