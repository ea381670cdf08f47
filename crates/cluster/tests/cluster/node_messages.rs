//! Each message between a backup and the processes of nodes is lost, late, repeated or garbled, or
//! is the last of the one or the other: the backup is right, or can be made again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::nodes::{NodeClient, NodeServer, NodeServerOptions};
use silt_cluster::{Bus, Messages, Name};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::env::Context;
use silt_repository::event::Silent;
use silt_repository::system::SystemEnv;
use silt_source::VolumeTarget;
use silt_storage::{MemoryStorage, Storage};
use siltstone::source::StreamSource;
use siltstone::{
    BackupOptions, CheckOptions, Config, DataCheck, DeleteMethod, Protection, Repository,
    RestoreOptions, Selector, SharedSweepOptions, When,
};

use crate::between::{Ask, Between};
use crate::conformance::name;
use crate::nodes::{local, thorough};
use crate::rounds::image;

/// What happens to one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// The question does not arrive.
    QuestionLost,
    /// The answer comes after its deadline, when the next question waits for one.
    AnswerLate,
    /// The question arrives twice.
    Twice,
    /// The answer is that to an earlier question.
    OldAnswer,
    /// The answer has other bytes.
    Garbled,
    /// The bus fails after it has brought the question.
    BusFails,
    /// The process dies before it answers.
    ServerDies,
    /// The process dies after it has answered.
    ServerDiesLater,
    /// The process sleeps for longer than any patience, and answers all questions with its first
    /// answer when it is back.
    ServerSleeps,
    /// Whoever backs up dies when it asks.
    ClientDies,
}

const ALL: [Wrong; 10] = [
    Wrong::QuestionLost,
    Wrong::AnswerLate,
    Wrong::Twice,
    Wrong::OldAnswer,
    Wrong::Garbled,
    Wrong::BusFails,
    Wrong::ServerDies,
    Wrong::ServerDiesLater,
    Wrong::ServerSleeps,
    Wrong::ClientDies,
];

/// Carries all questions but one as it should.
struct Faulty {
    at: usize,
    wrong: Wrong,
    asked: AtomicUsize,
    /// The processes, by their service. The bus waits for nobody who is not there.
    servers: Mutex<BTreeMap<Name, NodeServer>>,
    /// Answers that were given before.
    before: Mutex<Vec<Vec<u8>>>,
    is_late: AtomicBool,
    interrupted: Arc<AtomicBool>,
}

impl Faulty {
    fn is_there(&self, service: &Name) -> bool {
        self.servers.lock().unwrap().contains_key(service)
    }

    fn earlier(&self) -> Option<Vec<u8>> {
        self.before.lock().unwrap().first().cloned()
    }

    fn carry(&self, bus: &dyn Bus, service: &Name, question: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.is_there(service) {
            return Ok(None);
        }
        let answer = bus.ask(service, question, Duration::from_mins(1))?;
        self.before.lock().unwrap().extend(answer.clone());
        Ok(answer)
    }
}

impl Ask for Faulty {
    fn ask(
        &self,
        bus: &dyn Bus,
        service: &Name,
        question: &[u8],
        _: Duration,
    ) -> Result<Option<Vec<u8>>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        if number != self.at {
            let is_asleep = self.wrong == Wrong::ServerSleeps && number > self.at;
            if is_asleep || self.is_late.swap(false, Ordering::SeqCst) {
                return Ok(self.earlier());
            }
            return self.carry(bus, service, question);
        }
        match self.wrong {
            Wrong::QuestionLost | Wrong::ServerSleeps => Ok(None),
            Wrong::AnswerLate => {
                self.before.lock().unwrap().clear();
                self.carry(bus, service, question)?;
                self.is_late.store(true, Ordering::SeqCst);
                Ok(None)
            }
            Wrong::Twice => {
                self.carry(bus, service, question).and(self.carry(bus, service, question))
            }
            Wrong::OldAnswer => Ok(self.earlier()),
            Wrong::Garbled => {
                let mut answer = self.carry(bus, service, question)?;
                answer.iter_mut().flatten().last().into_iter().for_each(|last| *last ^= 1);
                Ok(answer)
            }
            Wrong::BusFails => {
                self.carry(bus, service, question)?;
                Err(Error::new(ErrorKind::Unavailable, "the bus did not answer"))
            }
            Wrong::ServerDies => {
                drop(self.servers.lock().unwrap().remove(service));
                Ok(None)
            }
            Wrong::ServerDiesLater => {
                let answer = self.carry(bus, service, question)?;
                drop(self.servers.lock().unwrap().remove(service));
                Ok(answer)
            }
            Wrong::ClientDies => {
                self.interrupted.store(true, Ordering::SeqCst);
                Ok(None)
            }
        }
    }
}

/// A volume in memory.
struct Restored(Mutex<Vec<u8>>);

impl VolumeTarget for Restored {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn can_read(&self) -> bool {
        false
    }
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The storages of a repository and its nodes.
struct Stores(BTreeMap<&'static str, Arc<MemoryStorage>>);

impl Stores {
    fn new() -> Self {
        let stores = Self(["main", "n1", "n2"].map(|name| (name, Arc::default())).into());
        let (main, config) = (stores.get("main").unwrap(), Config::default());
        let context = SystemEnv::context();
        let mut made = Repository::init(main, context, config, &Protection::None, None).unwrap();
        for node in ["n1", "n2"] {
            made = made.add_node("main", node, node, &|name: &str| stores.get(name)).unwrap();
        }
        stores
    }

    fn copy(&self) -> Self {
        let copy = |(name, storage): (&&'static str, &Arc<MemoryStorage>)| {
            (*name, Arc::new(storage.snapshot()))
        };
        Self(self.0.iter().map(copy).collect())
    }

    #[expect(clippy::unnecessary_wraps, reason = "as those who look for places want it")]
    fn get(&self, name: &str) -> Result<Arc<dyn Storage>> {
        Ok(self.0[name].clone())
    }

    fn open(&self, interrupted: &Arc<AtomicBool>) -> Repository {
        let env = Arc::new(SystemEnv::new(Arc::clone(interrupted)));
        let context = Context::new(env, Arc::new(Silent));
        let opened = Repository::open(self.get("main").unwrap(), context, || Ok(Vec::new()));
        opened.unwrap().with_places("main", &|name: &str| self.get(name)).unwrap()
    }
}

fn back_up(
    repository: &Repository,
    series: &str,
    image: &[u8],
    client: Option<NodeClient>,
) -> Result<()> {
    let node_answers = client.map(|client| Arc::new(client) as _);
    let options = BackupOptions { node_answers, ..BackupOptions::default() };
    let mut backup = repository.backup(series, options)?;
    let source = StreamSource::new(Box::new(std::io::Cursor::new(image.to_vec())));
    backup.add_volume("root", &source, None)?;
    backup.finish().map(drop)
}

fn restores(repository: &Repository, series: &str, image: &[u8]) {
    let latest = Selector::Time(Some(series.to_owned()), When::Latest);
    let found = repository.find(&latest).unwrap();
    let target = Restored(Mutex::new(vec![0; image.len()]));
    let volume = found.volume("root").unwrap();
    repository.restore(volume, &target, RestoreOptions::default()).unwrap();
    assert!(target.0.into_inner().unwrap() == image, "{series}");
}

/// All is whole; then all is deleted, and nothing is left in the nodes.
fn ends_well(stores: &Stores, living: &[(&str, &[u8])]) {
    let repository = stores.open(&Arc::default());
    living.iter().for_each(|(series, image)| restores(&repository, series, image));
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let check = repository.check(&all).unwrap();
    assert!(check.damage.is_empty(), "{check:?}");
    for (series, _) in living {
        let head = repository.heads(&[(*series).to_owned()]).unwrap().remove(0);
        let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
        repository.delete(series, &ids, DeleteMethod::Exact).unwrap();
        repository.reclaim(series, &thorough()).unwrap();
    }
    for node in repository.nodes().iter().chain(repository.nodes()) {
        let spool = std::env::temp_dir();
        let options =
            SharedSweepOptions { spool, memory_bytes: 0, reclaim: thorough(), dry_run: false };
        repository.sweep_store(node.number, &options).unwrap();
    }
    for node in ["n1", "n2"] {
        let left = stores.0[node].list("containers/", None).unwrap();
        assert!(left.objects.is_empty(), "{left:?}");
    }
}

#[test]
fn any_message_may_go_wrong() {
    let (first, second) = (image(0..900), image(200..1300));
    let base = Stores::new();
    back_up(&base.open(&Arc::default()), "a", &first, None).unwrap();
    for wrong in ALL {
        let mut messages = 0;
        for at in 0.. {
            let asked = goes_wrong(&base, (&first, &second), wrong, at);
            messages = messages.max(asked);
            if asked <= at {
                break;
            }
        }
        assert!(messages > 5, "{wrong:?}: {messages}");
    }
}

/// Backs up while a message goes wrong; returns how many there were.
fn goes_wrong(base: &Stores, (first, second): (&[u8], &[u8]), wrong: Wrong, at: usize) -> usize {
    let stores = base.copy();
    let interrupted = Arc::new(AtomicBool::new(false));
    let repository = stores.open(&interrupted);
    let messages = Messages::new(&repository.objects);
    let (bus, numbers) = (local(), repository.nodes().iter().map(|node| node.number));
    let numbers: Vec<u16> = numbers.collect();
    let start = |node: &u16| {
        let options = NodeServerOptions::default();
        let server = NodeServer::start(&bus, &messages, *node, options).unwrap();
        server.refresh().unwrap();
        (name(&format!("node-{node}")), server)
    };
    let servers = Mutex::new(numbers.iter().map(start).collect());
    let ask = Faulty {
        at,
        wrong,
        asked: AtomicUsize::new(0),
        servers,
        before: Mutex::default(),
        is_late: AtomicBool::new(false),
        interrupted: Arc::clone(&interrupted),
    };
    let faulty = Arc::new(Between { bus: Arc::new(bus.clone()), ask });
    let (asking, context) = (faulty.clone() as Arc<dyn Bus>, SystemEnv::context());
    let client = NodeClient::new(asking, messages.clone(), context, &numbers).unwrap();
    let done = back_up(&repository, "b", second, Some(client));
    let asked = faulty.ask.asked.load(Ordering::SeqCst);
    if let Err(error) = done {
        let is_expected = wrong == Wrong::ClientDies && error.kind() == ErrorKind::Interrupted;
        assert!(is_expected, "{wrong:?} {at}: {error}");
        interrupted.store(false, Ordering::SeqCst);
        drop(repository);
        let again = stores.open(&Arc::default());
        restores(&again, "a", first);
        back_up(&again, "b", second, None).unwrap();
    }
    ends_well(&stores, &[("a", first), ("b", second)]);
    asked
}
