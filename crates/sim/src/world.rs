//! Simulated time, hosts that take turns, and places that contain objects: everything that a
//! process can observe.
//!
//! Each host is a thread. Only the host with the lowest time runs. Every storage operation takes
//! some time, so that operations of different hosts interleave.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Arguments, Write as _};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use silt_format::{Error, ErrorKind, Result};
use silt_storage::Key;

use crate::random::Random;

/// Nanoseconds of a minute.
pub const MINUTE_NS: i64 = 60_000_000_000;
/// Events are added to the digest when they have this many bytes.
const LINES_BYTES: usize = 64 << 10;
/// The time at which histories begin, in nanoseconds since 1970.
const BEGINNING_NS: i64 = 1_790_000_000_000_000_000;
/// The time of a host that has ended.
const NEVER: i64 = i64::MAX;
/// That of a host that sleeps until another one wakes it, and of the auditor, who comes before it.
const PARKED: i64 = i64::MAX - 1;
const LAST: i64 = i64::MAX - 2;

/// One object in a place.
#[derive(Clone)]
pub struct Object {
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
    /// A hash of them, which listings tell.
    pub tag: String,
    /// When it was created, by the place's clock.
    pub modified_ms: u64,
    /// Whether it survives a power failure.
    pub is_durable: bool,
}

/// A place: a folder or a bucket.
#[derive(Clone, Default)]
pub struct Place {
    /// Its objects.
    pub objects: BTreeMap<Key, Object>,
    /// Objects whose deletion is not durable: a power failure brings them back.
    undone: BTreeMap<Key, Object>,
    /// Whether it is one of those for storage nodes.
    pub is_node: bool,
    /// The time until which it is unreachable.
    pub away_until_ns: i64,
    /// Whether objects that somebody may have read were lost with the power.
    pub has_lost: bool,
}

/// A change of a place.
#[derive(Clone)]
pub enum Change {
    /// Creates an object if there is none of that name.
    Put(Key, Arc<Vec<u8>>),
    /// Removes an object.
    Delete(Key),
    /// Undoes all changes that are not durable.
    LosePower,
}

impl Place {
    /// Creates an object. Fails with `AlreadyExists` if it exists; with `is_durable`, the existing
    /// object then becomes durable.
    pub fn put(
        &mut self,
        key: &Key,
        bytes: &Arc<Vec<u8>>,
        now_ns: i64,
        is_durable: bool,
    ) -> Result<()> {
        if let Some(there) = self.objects.get_mut(key) {
            there.is_durable |= is_durable;
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("object {key} already exists"),
            ));
        }
        let modified_ms = u64::try_from(now_ns / 1_000_000).unwrap_or(0);
        let tag = blake3::hash(bytes).to_hex()[..16].to_owned();
        let object = Object { bytes: Arc::clone(bytes), tag, modified_ms, is_durable };
        self.objects.insert(key.clone(), object);
        self.undone.remove(key);
        Ok(())
    }

    /// Removes an object: durably, or until the power fails.
    pub fn delete(&mut self, key: &Key, is_durable: bool) {
        if let Some(object) = self.objects.remove(key)
            && !is_durable
        {
            self.undone.insert(key.clone(), object);
        }
        if is_durable {
            self.undone.remove(key);
        }
    }

    fn lose_power(&mut self) {
        let before = self.objects.len();
        self.objects.retain(|_, object| object.is_durable);
        self.has_lost |= self.objects.len() < before;
        for (key, object) in std::mem::take(&mut self.undone) {
            self.objects.entry(key).or_insert(object);
        }
    }

    fn change(&mut self, change: &Change, now_ns: i64) {
        match change {
            // An existing object stays as it is.
            Change::Put(key, bytes) => drop(self.put(key, bytes, now_ns, true)),
            Change::Delete(key) => self.delete(key, true),
            Change::LosePower => self.lose_power(),
        }
    }
}

/// What was once in places.
type Copies = Vec<(usize, BTreeMap<Key, Object>)>;

/// A change that takes effect later.
struct Late {
    at_ns: i64,
    place: usize,
    change: Change,
}

/// The state of the world.
pub struct State {
    /// The true time in nanoseconds since 1970.
    pub now_ns: i64,
    /// The places.
    pub places: Vec<Place>,
    /// Processes that have ended.
    pub dead: BTreeSet<u32>,
    /// All events, if they are kept.
    pub events: Option<Vec<String>>,
    digest: blake3::Hasher,
    /// The last events, which are not yet in the digest.
    lines: String,
    /// The time at which each host continues.
    ready_ns: Vec<i64>,
    /// The host that runs.
    turn: usize,
    late: Vec<Late>,
    /// Older copies of places, by their age.
    copies: Copies,
    random: Random,
    next_process: u32,
}

impl State {
    /// Records an event.
    pub fn note(&mut self, event: Arguments<'_>) {
        let start = self.lines.len();
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{event}");
        if let Some(events) = &mut self.events {
            let seconds = (self.now_ns - BEGINNING_NS) / 1_000_000;
            let event = self.lines[start..].trim_end();
            events.push(format!("{:>12}.{:03} {event}", seconds / 1000, seconds % 1000));
        }
        // Many at once take less time.
        if self.lines.len() >= LINES_BYTES {
            self.digest.update(self.lines.as_bytes());
            self.lines.clear();
        }
    }

    /// Schedules a change to take effect this many minutes later.
    pub fn later(&mut self, minutes: u64, place: usize, change: Change) {
        let at_ns = self.now_ns.saturating_add(minutes_ns(minutes));
        self.late.push(Late { at_ns, place, change });
        self.late.sort_by_key(|late| late.at_ns);
    }

    /// Keeps a copy of these places that hold something.
    pub fn copy_places(&mut self, places: Range<usize>) {
        let held = places.map(|place| (place, self.places[place].objects.clone()));
        self.copies.extend(held.filter(|(_, objects)| !objects.is_empty()));
    }

    /// Puts a place back to what it was when one of the copies was made; the place, or `None` if
    /// there is none. What would take effect later there does not any more.
    pub fn restore_copy(&mut self, which: u64) -> Option<usize> {
        let count = silt_format::number::to_u64(self.copies.len());
        let which = usize::try_from(which.checked_rem(count)?).ok()?;
        let (place, objects) = self.copies[which].clone();
        self.late.retain(|late| late.place != place);
        self.places[place].objects = objects;
        self.places[place].undone.clear();
        Some(place)
    }

    /// Returns the id of a new process.
    pub fn new_process(&mut self) -> u32 {
        self.next_process += 1;
        self.next_process
    }

    fn change_what_is_due(&mut self) {
        while self.late.first().is_some_and(|late| late.at_ns <= self.now_ns) {
            let Late { place, change, .. } = self.late.remove(0);
            let now_ns = self.now_ns;
            match &change {
                Change::Put(key, _) => self.note(format_args!("late: {place} put {key}")),
                Change::Delete(key) => self.note(format_args!("late: {place} delete {key}")),
                Change::LosePower => self.note(format_args!("late: {place} loses power")),
            }
            self.places[place].change(&change, now_ns);
        }
    }

    fn next(&self) -> usize {
        let ready = self.ready_ns.iter().enumerate().min_by_key(|(host, at)| (**at, *host));
        ready.map_or(0, |(host, _)| host)
    }
}

/// Converts minutes to nanoseconds.
pub fn minutes_ns(minutes: u64) -> i64 {
    i64::try_from(minutes).unwrap_or(i64::MAX).saturating_mul(MINUTE_NS)
}

/// The world of one history.
pub struct World {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

impl World {
    /// Returns a world with empty places, the last of them for nodes. The host after the last one
    /// is the auditor, which begins.
    pub fn new(
        seed: u64,
        (places, nodes): (usize, usize),
        hosts: usize,
        keeps_events: bool,
    ) -> Arc<Self> {
        let mut ready_ns = vec![NEVER; hosts];
        ready_ns.push(BEGINNING_NS);
        let state = State {
            now_ns: BEGINNING_NS,
            places: (0..places + nodes)
                .map(|place| Place { is_node: place >= places, ..Place::default() })
                .collect(),
            dead: BTreeSet::new(),
            events: keeps_events.then(Vec::new),
            digest: blake3::Hasher::new(),
            lines: String::new(),
            ready_ns,
            turn: hosts,
            late: Vec::new(),
            copies: Vec::new(),
            random: Random(seed ^ 0x5eed),
            next_process: 0,
        };
        let turns = (0..=hosts).map(|_| Condvar::new()).collect();
        Arc::new(Self { state: Mutex::new(state), turns })
    }

    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass for a host. Others run meanwhile.
    pub fn pass(&self, host: usize, nanoseconds: i64) {
        drop(self.pass_in(self.state(), host, nanoseconds));
    }

    /// Lets a host sleep until another one wakes it.
    pub fn park(&self, host: usize) {
        drop(self.pass_until(self.state(), host, PARKED));
    }

    /// Wakes a host that is parked, so much later.
    pub fn wake(&self, host: usize, nanoseconds: i64) {
        let mut state = self.state();
        if state.ready_ns[host] == PARKED {
            state.ready_ns[host] = state.now_ns.saturating_add(nanoseconds);
        }
    }

    /// Lets the time of a storage operation pass, and `more_ns` nanoseconds.
    pub fn pass_a_little<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        host: usize,
        more_ns: i64,
    ) -> MutexGuard<'s, State> {
        let cost_ns = i64::try_from(1 + state.random.below(40)).unwrap_or(1) * 1_000_000;
        self.pass_in(state, host, cost_ns.saturating_add(more_ns))
    }

    fn pass_in<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        host: usize,
        nanoseconds: i64,
    ) -> MutexGuard<'s, State> {
        let ready_ns = state.now_ns.saturating_add(nanoseconds);
        self.pass_until(state, host, ready_ns)
    }

    fn pass_until<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        host: usize,
        ready_ns: i64,
    ) -> MutexGuard<'s, State> {
        state.ready_ns[host] = ready_ns;
        let next = state.next();
        if next != host {
            state.turn = next;
            self.turns[next].notify_one();
            state = self.wait(state, host);
        }
        state.now_ns = state.now_ns.max(state.ready_ns[host]);
        state.change_what_is_due();
        state
    }

    fn wait<'s>(&'s self, mut state: MutexGuard<'s, State>, host: usize) -> MutexGuard<'s, State> {
        while state.turn != host {
            state = self.turns[host].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Starts all hosts, and waits until they have ended. Called by the auditor.
    pub fn let_hosts_begin(&self) {
        let mut state = self.state();
        let (now_ns, auditor) = (state.now_ns, self.turns.len() - 1);
        state.ready_ns.iter_mut().for_each(|ready| *ready = now_ns);
        state.ready_ns[auditor] = LAST;
        state.turn = state.next();
        let first = state.turn;
        self.turns[first].notify_one();
        let mut state = self.wait(state, auditor);
        let now_ns = state.now_ns;
        state.ready_ns[auditor] = now_ns;
    }

    /// Waits for the first turn of a host. Called by the host's thread.
    pub fn begin(&self, host: usize) {
        drop(self.wait(self.state(), host));
    }

    /// Ends a host. Called by the host's thread.
    pub fn end(&self, host: usize) {
        let mut state = self.state();
        state.ready_ns[host] = NEVER;
        let next = state.next();
        state.turn = next;
        self.turns[next].notify_one();
    }

    /// Returns a digest of all events, which identifies this history.
    pub fn digest(&self) -> String {
        let state = self.state();
        let mut digest = state.digest.clone();
        digest.update(state.lines.as_bytes());
        digest.finalize().to_hex()[..16].to_owned()
    }
}
