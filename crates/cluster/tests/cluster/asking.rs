//! How a coordinator asks the hosts of a round.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use silt_cluster::round::{
    Coordinator, CoordinatorOptions, HostSeries, PartReport, Parts, PlannedSeries, RoundHost,
    RoundHostOptions, Workspace,
};
use silt_cluster::{
    Answering, Bus, Delivery, Job, JobState, Lease, Listener, LocalBus, Member, Messages, Name,
    Offer, Respond, side_by_side,
};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::system::SystemEnv;
use silt_storage::MemoryStorage;
use siltstone::{
    BackupReport, Config, CostModel, Protection, Repository, RoundMember, RoundOptions,
};

use crate::conformance::name;

const HOSTS: usize = 5;
const ROUND: u64 = 77;
const SCAN_BYTES: u64 = 4 << 30;

/// What went to the hosts.
#[derive(Default)]
struct Asked {
    /// Questions that wait for their answers, and the most that did so at once.
    waiting: usize,
    most: usize,
    /// By service: how many questions there were, and how many answered ones had the whole order.
    questions: BTreeMap<Name, [usize; 2]>,
}

/// A bus on which questions wait until all hosts are asked, or that has taken too long.
struct Gate {
    bus: LocalBus,
    messages: Messages,
    asked: Mutex<Asked>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut asked = self.asked.lock().unwrap();
        asked.waiting += 1;
        asked.most = asked.most.max(asked.waiting);
        self.changed.notify_all();
        let is_alone = |asked: &mut Asked| asked.most < HOSTS;
        let wait = Duration::from_secs(3);
        let (mut asked, _) = self.changed.wait_timeout_while(asked, wait, is_alone).unwrap();
        asked.waiting -= 1;
    }
}

fn unused<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "a round needs none of this"))
}

impl Bus for Gate {
    fn ask(&self, to: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        self.pass();
        let answer = self.bus.ask(to, question, patience)?;
        let opened = self.messages.open(ROUND, question).unwrap().plain;
        let has_order = String::from_utf8(opened).unwrap().contains("\"order\":\"plan\"");
        let mut asked = self.asked.lock().unwrap();
        let counts = asked.questions.entry(to.clone()).or_default();
        counts[0] += 1;
        counts[1] += usize::from(has_order && answer.is_some());
        self.changed.notify_all();
        Ok(answer)
    }
    fn offer(&self, _: &Job) -> Result<Offer> {
        unused()
    }
    fn take(&self, _: &Name, _: Duration) -> Result<Option<Delivery>> {
        unused()
    }
    fn settle(&self, _: &Delivery, _: JobState) -> Result<()> {
        unused()
    }
    fn acquire(&self, _: &Name, _: Duration) -> Result<Option<Lease>> {
        unused()
    }
    fn renew(&self, _: &mut Lease, _: Duration) -> Result<bool> {
        unused()
    }
    fn release(&self, _: Lease) -> Result<()> {
        unused()
    }
    fn announce(&self, _: &Name, _: &[u8], _: Duration) -> Result<()> {
        unused()
    }
    fn members(&self) -> Result<Vec<Member>> {
        unused()
    }
    fn find_member(&self, _: &Name) -> Result<Option<Member>> {
        unused()
    }
    fn describe(&self, _: &Name, _: &[u8], _: Duration) -> Result<()> {
        unused()
    }
    fn details(&self, _: &[Name]) -> Result<Vec<Member>> {
        unused()
    }
    fn answer(&self, _: &Name, _: Respond) -> Result<Box<dyn Answering>> {
        unused()
    }
    fn tell(&self, _: &Name, _: &[u8]) -> Result<()> {
        unused()
    }
    fn listen(&self, _: &Name) -> Result<Box<dyn Listener>> {
        unused()
    }
}

/// A host that takes its time to plan: until it was asked four times.
struct Slow<'g> {
    gate: &'g Gate,
    service: Name,
    read_bytes_per_s: Option<u64>,
}

impl HostSeries for Slow<'_> {
    fn plan(&self) -> Result<Vec<PlannedSeries>> {
        let asked = self.gate.asked.lock().unwrap();
        let is_new =
            |asked: &mut Asked| asked.questions.get(&self.service).is_none_or(|it| it[0] < 4);
        drop(self.gate.changed.wait_while(asked, is_new).unwrap());
        Ok(vec![PlannedSeries {
            series: format!("of-{}", self.service),
            scan_bytes: SCAN_BYTES,
            requests: 0,
            read_bytes_per_s: self.read_bytes_per_s,
        }])
    }
    fn open(&self, _: &str) -> Result<RoundMember<'_>> {
        unused()
    }
    fn ended(&self, _: &str, _: &Result<BackupReport>) {}
}

/// The parts of a round that is only planned, and what was asked.
fn preview(limit: Option<u64>) -> (Vec<PartReport>, Asked) {
    let storage = Arc::new(MemoryStorage::new());
    let (config, protection) = (Config::default(), Protection::None);
    let repository =
        Repository::init(storage, SystemEnv::context(), config, &protection, None).unwrap();
    let messages = Messages::new(&repository.objects);
    let bus = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
    let (asked, changed) = (Mutex::default(), Condvar::new());
    let gate = Gate { bus, messages: messages.clone(), asked, changed };
    let hosts: Vec<Name> = (0..HOSTS).map(|number| name(&format!("host{number}"))).collect();
    let parts = std::thread::scope(|scope| {
        for host in &hosts {
            let service = name(&format!("round-{host}"));
            let series = Slow { gate: &gate, service, read_bytes_per_s: limit };
            let (repository, messages, bus) = (&repository, messages.clone(), gate.bus.clone());
            scope.spawn(move || {
                let folder = std::env::temp_dir();
                let options = RoundHostOptions {
                    round: ROUND,
                    host: host.clone(),
                    round_options: RoundOptions { folder, memory_bytes: 0, spool: false },
                    patience: [Duration::from_mins(5), Duration::from_mins(5)],
                };
                assert!(
                    RoundHost::new(repository, &series, &options).run(&bus, &messages).unwrap()
                );
            });
        }
        let options = CoordinatorOptions {
            round: ROUND,
            hosts: hosts.clone(),
            parts: Parts::Number(1),
            model: CostModel::published(),
            use_measured: true,
            patience: Duration::from_mins(5),
            arrival: Duration::from_mins(5),
            chunk_bytes: 4096,
            workspace: Workspace { folder: std::env::temp_dir(), memory_bytes: 0 },
        };
        Coordinator::new(&repository, &gate, &messages, &options).unwrap().preview().unwrap()
    });
    (parts, gate.asked.into_inner().unwrap())
}

#[test]
fn hosts_are_asked_side_by_side_and_given_each_order_once() {
    let (parts, asked) = preview(None);
    assert_eq!((parts[0].hosts.len(), asked.most), (HOSTS, HOSTS));
    for [questions, with_order] in asked.questions.into_values() {
        assert!(questions >= 5 && with_order == 1, "{questions} {with_order}");
    }
}

#[test]
fn the_limit_of_a_host_counts_in_the_expected_times() {
    let free = preview(None).0[0].predicted_s[0];
    let rate = CostModel::published().read_bytes_per_s;
    let slow = preview(Some(1 << 20)).0[0].predicted_s[0];
    assert!((slow / free - rate / f64::from(1 << 20)).abs() < 1e-3 * slow, "{free} {slow}");
}

#[test]
fn what_is_done_side_by_side_comes_in_order() {
    let items: Vec<u32> = (0..100).collect();
    for at_once in [0, 1, 7, 1000] {
        let done = side_by_side(&items, at_once, |item| item * 2);
        assert!(done.iter().zip(&items).all(|(done, item)| *done == item * 2));
        assert_eq!(done.len(), items.len());
    }
    assert!(side_by_side(&[], 4, |item: &u32| *item).is_empty());
}
