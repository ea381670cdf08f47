//! A process of a host: its clock, its entropy, and its access to the places.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use silt_format::number::to_u64;
use silt_format::{Error, ErrorKind, Lease, Result};
use silt_storage::{
    ByteRange, CachePolicy, CachedStorage, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage,
    ObjectMeta, PutMode, Storage, TaggedPage,
};
use siltstone::{Context, Env, Observer};

use crate::plan::{Class, Fault, Kind, Wrong};
use crate::random::Random;
use crate::world::{Change, MINUTE_NS, State, World, minutes_ns};

/// So much that no file has to go: which one would go depends on the time that it was written.
const CACHE_BYTES: u64 = 1 << 30;

/// One process.
pub struct Process {
    /// The world that it is in.
    pub world: Arc<World>,
    host: usize,
    /// The name of the machine that it runs on.
    machine: String,
    id: u32,
    /// By how much its clock is ahead.
    pub skew_ns: i64,
    folders: bool,
    is_dead: AtomicBool,
    /// Whether it has said that a node can't be reached which a series needs.
    has_warned: AtomicBool,
    /// The folder of its caches, and what they keep.
    caches: OnceLock<(PathBuf, CachePolicy)>,
    /// The remaining faults, each with the number of matching operations before it.
    faults: Mutex<Vec<(Fault, u64)>>,
    entropy: Mutex<Random>,
}

impl Process {
    /// Starts a process of a host whose clock is ahead by `skew_minutes`.
    pub fn new(
        world: &Arc<World>,
        (host, machine): (usize, String),
        skew_minutes: i64,
        folders: bool,
        seed: u64,
    ) -> Arc<Self> {
        let id = world.state().new_process();
        Arc::new(Self {
            world: Arc::clone(world),
            host,
            machine,
            id,
            skew_ns: skew_minutes * MINUTE_NS,
            folders,
            is_dead: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            caches: OnceLock::new(),
            faults: Mutex::default(),
            entropy: Mutex::new(Random(seed ^ u64::from(id) << 32)),
        })
    }

    /// Sets the faults of the next operations.
    pub fn expect(&self, faults: &[Fault]) {
        let faults = faults.iter().map(|fault| (*fault, fault.at.nth)).collect();
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// The name of the machine that it runs on.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// From now on, it uses caches in this folder.
    pub fn use_caches(&self, folder: PathBuf, policy: CachePolicy) {
        // Who sets them twice means the first ones.
        let _ = self.caches.set((folder, policy));
    }

    /// Whether it has said since it was last asked that a node can't be reached which a series
    /// needs.
    pub fn take_warned(&self) -> bool {
        self.has_warned.swap(false, Ordering::SeqCst)
    }

    /// Returns whether it has ended.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Ends the process.
    pub fn end(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.world.state().dead.insert(self.id);
    }

    /// Returns a context for the library, with this process as environment and observer.
    pub fn context(self: &Arc<Self>) -> Context {
        Context::new(Arc::clone(self) as _, Arc::clone(self) as _)
    }

    /// Returns a place as this process accesses it.
    pub fn place(self: &Arc<Self>, place: usize) -> Arc<dyn Storage> {
        let is_node = self.world.state().places[place].is_node;
        let reached = Arc::new(Reached { process: Arc::clone(self), place, is_node });
        match self.caches.get() {
            Some((folder, policy)) => {
                let folder = folder.join(place.to_string());
                Arc::new(CachedStorage::new(reached, folder, *policy, CACHE_BYTES))
            }
            None => reached,
        }
    }

    /// A message of this process comes to the line. Fails with `Unavailable` if the line is cut
    /// there.
    pub fn at_message(&self) -> Result<()> {
        if self.is_dead() {
            return Err(Reached::dead());
        }
        let wrong = self.wrong(Kind::Message, "", false);
        let sleep_ns =
            if let Some(Wrong::Sleep(minutes)) = wrong { minutes_ns(minutes) } else { 0 };
        let mut state = self.world.state();
        if let Some(wrong) = wrong {
            let id = self.id;
            state.note(format_args!("process {id}: {wrong:?} at the next message"));
        }
        drop(self.world.pass_a_little(state, self.host, sleep_ns));
        match wrong {
            None | Some(Wrong::Sleep(_)) => Ok(()),
            Some(Wrong::Kill | Wrong::KillAfter | Wrong::LosePower(_)) => {
                self.end();
                Err(Reached::dead())
            }
            Some(_) => Err(Error::new(ErrorKind::Unavailable, "the line is cut")),
        }
    }

    /// Returns the fault at an operation, if there is one, and removes it.
    fn wrong(&self, kind: Kind, name: &str, is_node: bool) -> Option<Wrong> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let class = Class::of(name);
        let class_of_node = if is_node { Class::of_node(name) } else { class };
        let mut found = None;
        faults.retain_mut(|(fault, left)| {
            let is_of = |meant| meant == class || meant == class_of_node;
            let is_meant = fault.at.kind == kind && fault.at.class.is_none_or(is_of);
            if !is_meant || found.is_some() {
                return true;
            }
            if *left == 0 {
                found = Some(fault.what);
                return false;
            }
            *left -= 1;
            true
        });
        found
    }
}

impl Class {
    /// Returns the class of an object by its name, or of a listing by its prefix.
    pub fn of(name: &str) -> Self {
        let mut parts = name.split('/');
        match (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default()) {
            ("series", _) => Self::Series,
            ("state", "heads") => Self::Heads,
            ("state", "leases") => Self::Leases,
            ("snapshots", _) => Self::Snapshots,
            ("recipes", _) => Self::Recipes,
            ("containers", _) => Self::Containers,
            ("dead", _) => Self::Dead,
            ("root", _) if name.starts_with("root/places") => Self::Places,
            _ => Self::Others,
        }
    }

    /// The same in the place of a storage node.
    pub fn of_node(name: &str) -> Self {
        match Self::of(name) {
            Self::Heads => Self::NodeHeads,
            Self::Leases => Self::NodeLeases,
            Self::Containers => Self::NodeContainers,
            Self::Others if name.starts_with("runs/") => Self::NodeRuns,
            other => other,
        }
    }
}

impl Env for Process {
    fn now_ns(&self) -> i64 {
        let mut state = self.world.state();
        // The clock never shows the same time twice.
        state.now_ns += 1_000;
        state.now_ns + self.skew_ns
    }
    fn entropy(&self, bytes: &mut [u8]) {
        self.entropy.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
    fn process(&self) -> siltstone::Process {
        let host = self.machine.clone();
        siltstone::Process { host, boot: "boot".to_owned(), id: self.id, start: 1 }
    }
    fn may_be_running(&self, lease: &Lease) -> bool {
        lease.host != self.machine || !self.world.state().dead.contains(&lease.process)
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn is_single_threaded(&self) -> bool {
        true
    }
    fn sleep_ns(&self, nanoseconds: u64) {
        self.world.pass(self.host, i64::try_from(nanoseconds).unwrap_or(i64::MAX));
    }
}

impl Observer for Process {
    fn event(&self, _: siltstone::OperationId, event: &siltstone::Event<'_>) {
        if let siltstone::Event::Warning(warning) = event {
            let id = self.id;
            if warning.to_string().contains("cannot be restored until it is back") {
                self.has_warned.store(true, Ordering::SeqCst);
            }
            self.world.state().note(format_args!("process {id} warns: {warning}"));
        }
    }
}

/// A place as one process accesses it.
struct Reached {
    process: Arc<Process>,
    place: usize,
    /// Whether it is one of those for storage nodes.
    is_node: bool,
}

/// The effect of an operation.
enum Effect {
    /// It takes effect, durably or not.
    Now { durable: bool },
    /// It has no effect.
    None,
}

impl Reached {
    fn dead() -> Error {
        Error::new(ErrorKind::Interrupted, "the process is dead")
    }

    fn unreachable(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("place {} did not answer", self.place))
    }

    /// Runs an operation, or its fault. `change` is the change of a mutation, to run it again
    /// later.
    fn operate<T>(
        &self,
        kind: Kind,
        name: &str,
        change: Option<&Change>,
        carry_out: impl FnOnce(&mut State, bool) -> Result<T>,
    ) -> Result<T> {
        let Process { world, host, id, .. } = &*self.process;
        if self.process.is_dead() {
            return Err(Self::dead());
        }
        let wrong = self.process.wrong(kind, name, self.is_node);
        let sleep_ns =
            if let Some(Wrong::Sleep(minutes)) = wrong { minutes_ns(minutes) } else { 0 };
        let mut state = world.state();
        if let Some(wrong) = wrong {
            state.note(format_args!("process {id}: {wrong:?} at the next"));
        }
        let mut state = world.pass_a_little(state, *host, sleep_ns);
        let place = self.place;
        if let Some(Wrong::Away(minutes)) = wrong {
            state.places[place].away_until_ns = state.now_ns.saturating_add(minutes_ns(minutes));
        }
        if state.places[place].away_until_ns > state.now_ns {
            state.note(format_args!("process {id}: {place} {kind:?} {name}: away"));
            return Err(self.unreachable());
        }
        let loses_power = matches!(wrong, Some(Wrong::LosePower(_))) && self.process.folders;
        let effect = match wrong {
            Some(Wrong::Kill | Wrong::Late(_)) => Effect::None,
            _ => Effect::Now { durable: !loses_power },
        };
        let done = match effect {
            Effect::Now { durable } => carry_out(&mut state, durable),
            Effect::None => Err(self.unreachable()),
        };
        let outcome = done.as_ref().map(|_| ()).map_err(Error::kind);
        state.note(format_args!("process {id}: {place} {kind:?} {name}: {outcome:?}"));
        match (wrong, change) {
            (Some(Wrong::Late(minutes) | Wrong::Repeat(minutes)), Some(change)) => {
                state.later(minutes, place, change.clone());
            }
            (Some(Wrong::LosePower(minutes)), _) if loses_power => {
                state.later(minutes, place, Change::LosePower);
            }
            _ => {}
        }
        match wrong {
            Some(Wrong::Kill | Wrong::KillAfter | Wrong::LosePower(_)) => {
                drop(state);
                self.process.end();
                Err(Self::dead())
            }
            Some(Wrong::LoseAnswer) => Err(self.unreachable()),
            _ => done,
        }
    }
}

impl Storage for Reached {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.put_tagged(key, body, mode).map(drop)
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        let bytes = Arc::new(body.concat());
        let change = Change::Put(key.clone(), Arc::clone(&bytes));
        self.operate(Kind::Put, key.as_str(), Some(&change), |state, is_durable| {
            let is_durable = is_durable && mode == PutMode::Create;
            let now_ns = state.now_ns;
            let place = &mut state.places[self.place];
            place.put(key, &bytes, now_ns, is_durable)?;
            let put = place.objects.get(key).filter(|_| !self.process.folders);
            Ok(put.map(|object| object.tag.clone()))
        })
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        self.operate(Kind::Get, key.as_str(), None, |state, _| {
            let object = state.places[self.place].objects.get(key).ok_or_else(|| absent(key))?;
            let range = range.resolve(key, to_u64(object.bytes.len()))?;
            let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
            let bytes =
                start.ok().zip(end.ok()).and_then(|(start, end)| object.bytes.get(start..end));
            into.extend_from_slice(bytes.unwrap_or_default());
            Ok(())
        })
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.operate(Kind::Head, key.as_str(), None, |state, _| {
            let object =
                state.places[self.place].objects.get_mut(key).ok_or_else(|| absent(key))?;
            object.is_durable = true;
            Ok(())
        })
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.operate(Kind::Head, key.as_str(), None, |state, _| {
            let object = state.places[self.place].objects.get(key).ok_or_else(|| absent(key))?;
            let size = to_u64(object.bytes.len());
            Ok(ObjectMeta { size, modified_ms: Some(object.modified_ms) })
        })
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        keys.iter().try_for_each(|key| {
            let change = Change::Delete(key.clone());
            self.operate(Kind::Delete, key.as_str(), Some(&change), |state, is_durable| {
                state.places[self.place].delete(key, is_durable);
                Ok(())
            })
        })
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.list_tagged(prefix, after).map(|tagged| tagged.page)
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        self.operate(Kind::List, prefix, None, |state, _| {
            let objects = state.places[self.place].objects.iter();
            let mut rest = objects.filter(|(key, _)| {
                key.as_str().starts_with(prefix) && after.is_none_or(|after| *key > after)
            });
            let (mut objects, mut tags) = (Vec::new(), Vec::new());
            for (key, object) in rest.by_ref().take(LIST_PAGE_OBJECTS_MAX) {
                objects.push((key.clone(), to_u64(object.bytes.len())));
                tags.push((key.clone(), object.tag.clone()));
            }
            let page = ListPage { objects, truncated: rest.next().is_some() };
            Ok(TaggedPage { page, tags: Some(tags).filter(|_| !self.process.folders) })
        })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        format!("place {}", self.place)
    }
}

fn absent(key: &Key) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no object {key}"))
}
