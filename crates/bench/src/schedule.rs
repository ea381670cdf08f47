//! How many series a minute agents begin, when all of them are due at once: real agents and a real
//! director over a NATS server, with runs that only take their time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use silt_cluster::{
    Agent, AgentOptions, Bus, End, Event, Messages, Name, News, NoNotes, Run, Task, Work, Worker,
};
use silt_format::{Config, KdfCost, KeyLabel};
use silt_repository::env::Env;
use silt_repository::system::SystemEnv;
use silt_storage::MemoryStorage;
use siltstone::{Protection, Repository};

use crate::index::{Nats, connect};
use crate::{Result, ScheduleOptions};

/// How often an agent looks after its tasks, as `silt agent run` does.
const STEP: Duration = Duration::from_secs(1);
/// When everything is due, from the start: until then all agents are there.
const LEAD_S: i64 = 45;

/// Runs that take their time, and do nothing.
struct Waiting {
    takes: Duration,
    runs: BTreeMap<Name, Instant>,
}

impl Worker for Waiting {
    fn start(&mut self, run: &Run) -> silt_format::Result<()> {
        self.runs.insert(run.key.clone(), Instant::now());
        Ok(())
    }

    fn cancel(&mut self, key: &Name) {
        self.runs.remove(key);
    }

    fn news(&mut self) -> Vec<News> {
        let is_over = |since: &Instant| since.elapsed() >= self.takes;
        let over: Vec<Name> =
            self.runs.iter().filter(|(_, it)| is_over(it)).map(|(key, _)| key.clone()).collect();
        let at_ns = SystemEnv::new(Arc::default()).now_ns();
        let end = |key: Name| {
            self.runs.remove(&key);
            News::Ended { key, end: End::Done { at_ns, warning: None } }
        };
        over.into_iter().map(end).collect()
    }
}

/// What happened, in seconds from the time when all was due.
#[derive(Default)]
struct Seen {
    began: Vec<f64>,
    ended: Vec<f64>,
}

/// What the threads that look after agents have in common.
struct Scene {
    due: Instant,
    seen: Mutex<Seen>,
    failures: AtomicU64,
    longest_ms: AtomicU64,
    is_over: AtomicBool,
}

impl Scene {
    fn after(&self) -> f64 {
        Instant::now().saturating_duration_since(self.due).as_secs_f64()
    }

    /// Looks after some agents until all is over.
    fn serve(&self, agents: &[(Agent, Arc<dyn Bus>)], messages: &Messages) {
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            for (agent, bus) in agents {
                let events = agent.step().events;
                let now = self.after();
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                for event in events {
                    match event {
                        Event::Started { .. } => seen.began.push(now),
                        Event::Ended { .. } => seen.ended.push(now),
                        Event::NotesNotSaved { .. } => {}
                    }
                }
                drop(seen);
                let before = Instant::now();
                if agent.meet(bus, messages).is_err() {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                let took = u64::try_from(before.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.longest_ms.fetch_max(took, Ordering::Relaxed);
            }
            std::thread::sleep(STEP.saturating_sub(began.elapsed()));
        }
    }
}

fn agent(number: usize, when: &str, options: &ScheduleOptions) -> Result<Agent> {
    let name = Name::new(format!("host{number}"))?;
    let task = |series| -> Result<Task> {
        let work = Work::Backup { series: format!("vm{number}-{series}") };
        Ok(Task { work, when: Some(when.parse()?), spread: Duration::ZERO })
    };
    let tasks = (0..options.series).map(task).collect::<Result<_>>()?;
    let parallel = options.parallel;
    let agent = AgentOptions { tasks, parallel, has_bus: true, ..AgentOptions::new(name) };
    let takes = Duration::from_millis(options.run_ms);
    let worker = Box::new(Waiting { takes, runs: BTreeMap::new() });
    let env = Arc::new(SystemEnv::new(Arc::default()));
    Ok(Agent::new(agent, env, worker, Box::new(NoNotes))?)
}

pub fn run(options: &ScheduleOptions) -> Result<()> {
    let protection = Protection::Password {
        password: b"benchmark".to_vec(),
        cost: KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 },
        label: KeyLabel::default(),
    };
    let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
    let repository = Repository::init(storage, context, Config::default(), &protection, None)?;
    let messages = Messages::new(&repository.objects);
    let nats = Nats::start()?;
    let at = Timestamp::now().as_second() + LEAD_S;
    let due = Instant::now() + Duration::from_secs(u64::try_from(LEAD_S)?);
    let when = Timestamp::from_second(at)?.strftime("%Y-%m-%d %H:%M:%S").to_string();
    let mut agents = Vec::new();
    for number in 0..options.agents {
        let bus = connect(nats.port, &format!("host{number}"))?;
        agents.push((agent(number, &when, options)?, bus));
    }
    let all = options.agents * options.series;
    let scene = Scene {
        due,
        seen: Mutex::default(),
        failures: AtomicU64::new(0),
        longest_ms: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        for agents in agents.chunks(options.agents.div_ceil(options.threads).max(1)) {
            let (scene, messages) = (&scene, messages.clone());
            scope.spawn(move || scene.serve(agents, &messages));
        }
        let limit = Duration::from_secs(options.limit_s);
        let is_done = || {
            let seen = scene.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.ended.len() >= all
        };
        while !is_done() && Instant::now() < due + limit {
            std::thread::sleep(Duration::from_millis(100));
        }
        scene.is_over.store(true, Ordering::Relaxed);
    });
    report(options, &scene);
    Ok(())
}

fn report(options: &ScheduleOptions, scene: &Scene) {
    let mut seen = scene.seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.began.sort_by(f64::total_cmp);
    let last = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let within = |seconds: f64| seen.began.iter().filter(|at| **at <= seconds).count();
    println!(
        "agents,series,parallel,run_ms,began,ended,began_30s,began_60s,last_began_s,\
         last_ended_s,failures,longest_meet_ms"
    );
    println!(
        "{},{},{},{},{},{},{},{},{:.1},{:.1},{},{}",
        options.agents,
        options.agents * options.series,
        options.parallel,
        options.run_ms,
        seen.began.len(),
        seen.ended.len(),
        within(30.0),
        within(60.0),
        last(&seen.began),
        last(&seen.ended),
        scene.failures.load(Ordering::Relaxed),
        scene.longest_ms.load(Ordering::Relaxed),
    );
}
