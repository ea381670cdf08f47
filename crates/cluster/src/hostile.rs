//! A bus that does everything which a bus may do wrong, decided by a seed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};

use crate::bus::{
    Answering, Bus, Delivery, Job, JobState, Lease, Listener, Member, Name, Offer, Respond,
};
use crate::local::LocalBus;

/// Deliveries, answers, members and messages of the past that are kept to be repeated.
const PAST_MAX: usize = 64;

/// Loses what it has acknowledged, repeats, reorders and delays it, grants a lease twice, answers
/// with what is old, and with garbage. Whoever uses a [`Bus`] must lose nothing with this one.
pub struct HostileBus {
    bus: LocalBus,
    state: Mutex<State>,
    /// Of a thousand calls, how many go wrong.
    faults: u64,
}

struct State {
    seed: u64,
    deliveries: Past<Delivery>,
    answers: Past<Vec<u8>>,
    members: Past<Member>,
    details: Past<Member>,
    told: Past<(Name, Vec<u8>)>,
}

impl State {
    /// The next number (SplitMix64, Steele and others 2014).
    fn roll(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What was carried once, to be repeated.
struct Past<T>(Vec<T>);

impl<T: Clone> Past<T> {
    fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one, if need be in place of another, which a roll chooses.
    fn keep(&mut self, one: T, roll: u64) {
        match index(self.0.len(), roll).filter(|_| self.0.len() >= PAST_MAX) {
            Some(index) => self.0[index] = one,
            None => self.0.push(one),
        }
    }

    /// One of them, which a roll chooses.
    fn any(&self, roll: u64) -> Option<T> {
        index(self.0.len(), roll).map(|index| self.0[index].clone())
    }
}

fn index(length: usize, roll: u64) -> Option<usize> {
    let length = u64::try_from(length).ok().filter(|length| *length > 0)?;
    usize::try_from(roll % length).ok()
}

impl HostileBus {
    /// A hostile view of a bus. Of a thousand calls, `faults` go wrong.
    pub fn new(bus: LocalBus, seed: u64, faults: u64) -> Self {
        let (deliveries, answers) = (Past::new(), Past::new());
        let (members, details, told) = (Past::new(), Past::new(), Past::new());
        let state = Mutex::new(State { seed, deliveries, answers, members, details, told });
        Self { bus, state, faults }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of `kinds` faults happens in a call, if one does.
    fn fault(&self, kinds: u64) -> Option<u64> {
        let mut state = self.state();
        (state.roll() % 1000 < self.faults).then(|| state.roll() % kinds)
    }

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "the bus did not answer")
    }
}

impl Bus for HostileBus {
    fn offer(&self, job: &Job) -> Result<Offer> {
        match self.fault(4) {
            Some(0) => Ok(Offer::Added),
            Some(1) => Ok(Offer::Present),
            Some(2) => self.bus.offer(job).and(Err(Self::unavailable())),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.offer(job),
        }
    }

    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        let fault = self.fault(4);
        match fault {
            Some(0) => {
                let mut state = self.state();
                let roll = state.roll();
                let old = state.deliveries.any(roll);
                return Ok(old.filter(|old| old.job.pool == *pool));
            }
            Some(1) => return Ok(None),
            Some(2) => return Err(Self::unavailable()),
            _ => {}
        }
        let taken = self.bus.take(pool, patience)?;
        if let Some(delivery) = &taken {
            let mut state = self.state();
            let roll = state.roll();
            state.deliveries.keep(delivery.clone(), roll);
            drop(state);
            if fault.is_some() {
                // Somebody else gets it as well.
                self.bus.settle(delivery, JobState::Again(Duration::ZERO))?;
            }
        }
        Ok(taken)
    }

    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()> {
        match self.fault(3) {
            Some(0) => Ok(()),
            Some(1) => self.bus.settle(delivery, state).and(Err(Self::unavailable())),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.settle(delivery, state),
        }
    }

    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>> {
        match self.fault(4) {
            // It may be held.
            Some(0 | 1) => {
                Ok(Some(Lease { name: name.clone(), number: self.state().roll() >> 32 }))
            }
            Some(2) => self.bus.acquire(name, term).and(Err(Self::unavailable())),
            Some(_) => Ok(None),
            None => self.bus.acquire(name, term),
        }
    }

    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool> {
        match self.fault(3) {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.renew(lease, term),
        }
    }

    fn release(&self, lease: Lease) -> Result<()> {
        match self.fault(2) {
            Some(0) => Ok(()),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.release(lease),
        }
    }

    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        let mut state = self.state();
        let (roll, one) = (state.roll(), Member { name: member.clone(), about: about.to_vec() });
        state.members.keep(one, roll);
        drop(state);
        match self.fault(2) {
            Some(0) => Ok(()),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.announce(member, about, term),
        }
    }

    fn members(&self) -> Result<Vec<Member>> {
        let mut members = self.bus.members()?;
        match self.fault(3) {
            Some(0) => members.clear(),
            Some(1) => members.clone_from(&self.state().members.0),
            Some(_) => return Err(Self::unavailable()),
            None => {}
        }
        Ok(members)
    }

    fn find_member(&self, name: &Name) -> Result<Option<Member>> {
        let member = self.bus.find_member(name)?;
        match self.fault(3) {
            Some(0) => Ok(None),
            Some(1) => {
                let mut state = self.state();
                let roll = state.roll();
                Ok(state.members.any(roll))
            }
            Some(_) => Err(Self::unavailable()),
            None => Ok(member),
        }
    }

    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        let mut state = self.state();
        let (roll, one) = (state.roll(), Member { name: member.clone(), about: details.to_vec() });
        state.details.keep(one, roll);
        drop(state);
        match self.fault(2) {
            Some(0) => Ok(()),
            Some(_) => Err(Self::unavailable()),
            None => self.bus.describe(member, details, term),
        }
    }

    fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        let mut details = self.bus.details(members)?;
        match self.fault(3) {
            Some(0) => details.clear(),
            Some(1) => details.clone_from(&self.state().details.0),
            Some(_) => return Err(Self::unavailable()),
            None => {}
        }
        Ok(details)
    }

    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>> {
        self.bus.answer(service, respond)
    }

    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        let fault = self.fault(4);
        if fault == Some(0) {
            return Ok(None);
        }
        let answer = self.bus.ask(service, question, patience)?;
        let mut state = self.state();
        let roll = state.roll();
        let answer = match (fault, answer) {
            (Some(1), _) => state.answers.any(roll),
            (Some(2), _) => Some(state.roll().to_le_bytes().repeat(3)),
            (Some(_), Some(mut answer)) => {
                if let Some(index) = index(answer.len(), roll) {
                    answer[index] ^= 1;
                }
                Some(answer)
            }
            (_, answer) => answer,
        };
        if let Some(answer) = &answer {
            state.answers.keep(answer.clone(), roll);
        }
        Ok(answer)
    }

    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        let fault = self.fault(3);
        let mut state = self.state();
        let roll = state.roll();
        state.told.keep((topic.clone(), message.to_vec()), roll);
        let old = state.told.any(roll);
        drop(state);
        match fault {
            Some(0) => return Ok(()),
            Some(1) => return Err(Self::unavailable()),
            Some(_) => {
                if let Some((topic, message)) = old {
                    self.bus.tell(&topic, &message)?;
                }
            }
            None => {}
        }
        self.bus.tell(topic, message)
    }

    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>> {
        self.bus.listen(topic)
    }
}
