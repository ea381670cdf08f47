//! The hosts of a round as their coordinator sees them: asked again and again, until they have done
//! their duties or are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Id, Result};
use silt_repository::Repository;
use silt_repository::believed::SignedBy;
use silt_repository::event::Warning;

use super::orders::{Answer, Order, Outcome, Question, State};
use super::service_of;
use crate::{Bus, MESSAGE_BYTES_MAX, Messages, Name, side_by_side};

/// How long one question waits for its answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The same of a host that did not answer the last one: it must not keep the others waiting.
const LATE_ANSWER: Duration = Duration::from_millis(100);
/// How long to wait between two turns, at first and at most.
const TURN_NS: [u64; 2] = [5_000_000, 250_000_000];
/// Hosts that are asked at the same time.
const AT_ONCE: usize = 32;
/// Bytes of the orders in one question: those that do not fit come with the next one.
const ORDERS_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4 * 3;
/// How often a host is told that the round is over.
const ENDS: u32 = 3;

/// Something that a host is to do, and which host.
#[derive(Clone, Debug)]
pub(in crate::round) struct Duty {
    pub(in crate::round) peer: usize,
    pub(in crate::round) name: String,
    pub(in crate::round) order: Order,
    /// Whether another host can do it as well.
    is_free: bool,
    /// Whether the host has said that it has the order: then its name is enough.
    is_known: bool,
}

/// The first of these orders, by their names: as many as fit in a question, but at least one.
fn fitting<'d>(duties: impl Iterator<Item = &'d Duty>) -> BTreeMap<String, Order> {
    let mut orders = BTreeMap::new();
    let mut bytes = 0;
    for duty in duties {
        let order = serde_json::to_vec(&duty.order).unwrap_or_default();
        bytes += duty.name.len() + order.len();
        if bytes > ORDERS_BYTES_MAX && !orders.is_empty() {
            break;
        }
        orders.insert(duty.name.clone(), duty.order.clone());
    }
    orders
}

/// What a duty has come to, or why it has not.
pub(in crate::round) type Fulfilled = Result<Outcome, String>;

struct Peer {
    name: Name,
    service: Name,
    heard_ns: i64,
    /// Whether the last question was answered.
    answers: bool,
    is_lost: bool,
    /// The keys that signed its answers.
    signers: BTreeSet<Id>,
}

/// Whose answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::round) enum Trust {
    /// Of keys that read data.
    Full,
    /// Of those that may also remove what they have read: something is deleted after the answers.
    Removing,
}

impl Trust {
    fn covers(self, signer: &SignedBy) -> bool {
        signer.is_full() && (self == Self::Full || signer.may_remove)
    }
}

pub(in crate::round) struct Peers<'a> {
    repository: &'a Repository,
    bus: &'a dyn Bus,
    messages: &'a Messages,
    round: u64,
    trust: Trust,
    turn: u64,
    all: Vec<Peer>,
}

impl<'a> Peers<'a> {
    pub(in crate::round) fn new(
        repository: &'a Repository,
        bus: &'a dyn Bus,
        messages: &'a Messages,
        (round, hosts): (u64, &[Name]),
        trust: Trust,
    ) -> Result<Self> {
        let heard_ns = repository.objects.context.env.now_ns();
        let peer = |name: &Name| {
            let service = service_of(name)?;
            let (name, signers) = (name.clone(), BTreeSet::new());
            Ok(Peer { name, service, heard_ns, answers: true, is_lost: false, signers })
        };
        let all = hosts.iter().map(peer).collect::<Result<_>>()?;
        Ok(Self { repository, bus, messages, round, trust, turn: 0, all })
    }

    /// How many are not lost.
    pub(in crate::round) fn living(&self) -> usize {
        self.all.iter().filter(|peer| !peer.is_lost).count()
    }

    /// Those that were lost.
    pub(in crate::round) fn lost(&self) -> Vec<Name> {
        let lost = self.all.iter().filter(|peer| peer.is_lost);
        lost.map(|peer| peer.name.clone()).collect()
    }

    pub(in crate::round) fn require_some(&self) -> Result<()> {
        if self.living() > 0 {
            return Ok(());
        }
        let message = "no host of the round answers";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// A duty for each living host that `duty_of` has one for.
    pub(in crate::round) fn each(
        &self,
        duty_of: impl Fn(usize) -> Option<(String, Order)>,
    ) -> Vec<Duty> {
        let living = self.all.iter().enumerate().filter(|(_, peer)| !peer.is_lost);
        living
            .filter_map(|(peer, _)| {
                let (name, order) = duty_of(peer)?;
                Some(Duty { peer, name, order, is_free: false, is_known: false })
            })
            .collect()
    }

    /// Duties that any host can do, by turns.
    pub(in crate::round) fn spread(&self, orders: Vec<(String, Order)>) -> Vec<Duty> {
        let living: Vec<usize> = (0..self.all.len()).filter(|it| !self.all[*it].is_lost).collect();
        let peers = living.iter().copied().cycle();
        let duties = orders.into_iter().zip(peers);
        let duty =
            |((name, order), peer)| Duty { peer, name, order, is_free: true, is_known: false };
        duties.map(duty).collect()
    }

    /// Asks until each duty is done, has failed, or its host is lost; what another host can do is
    /// then done by another. `keep` is called at each turn.
    pub(in crate::round) fn fulfil(
        &mut self,
        open: Vec<Duty>,
        patience: Duration,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<(Duty, Fulfilled)>> {
        let mut done = Vec::new();
        self.fulfil_into(open, patience, keep, &mut done)?;
        Ok(done)
    }

    /// The same; after an error, too, `done` has what has ended.
    pub(in crate::round) fn fulfil_into(
        &mut self,
        mut open: Vec<Duty>,
        patience: Duration,
        keep: &mut dyn FnMut() -> Result<()>,
        done: &mut Vec<(Duty, Fulfilled)>,
    ) -> Result<()> {
        let env = std::sync::Arc::clone(&self.repository.objects.context.env);
        // Whoever had nothing to do was not asked.
        let now_ns = env.now_ns();
        self.all.iter_mut().for_each(|peer| peer.heard_ns = now_ns);
        let mut pause_ns = TURN_NS[0];
        loop {
            self.turn(&mut open, done, patience);
            if open.is_empty() {
                return Ok(());
            }
            self.repository.objects.context.check_interrupted()?;
            keep()?;
            env.sleep_ns(pause_ns);
            pause_ns = (pause_ns * 2).min(TURN_NS[1]);
        }
    }

    /// Asks all hosts once, side by side, and takes those out that have ended.
    fn turn(
        &mut self,
        open: &mut Vec<Duty>,
        done: &mut Vec<(Duty, Fulfilled)>,
        patience: Duration,
    ) {
        self.turn += 1;
        let asked: Vec<usize> = (0..self.all.len())
            .filter(|it| !self.all[*it].is_lost || open.iter().any(|duty| duty.peer == *it))
            .collect();
        let duties: &[Duty] = open;
        let answers = side_by_side(&asked, AT_ONCE, |peer| {
            let of_peer = || duties.iter().filter(|duty| duty.peer == *peer);
            let orders = fitting(of_peer().filter(|duty| !duty.is_known));
            let known = of_peer().filter(|duty| duty.is_known).map(|duty| duty.name.clone());
            // Who has nothing to do is asked, too, so that nobody takes this one for lost.
            let is_lost = self.all[*peer].is_lost;
            let answer =
                if is_lost { None } else { self.ask(*peer, orders, known.collect(), false) };
            (answer, self.repository.objects.context.env.now_ns())
        });
        for (peer, (answer, now_ns)) in asked.into_iter().zip(answers) {
            self.all[peer].answers = answer.is_some();
            let Some((mut answer, signer)) = answer else {
                self.miss(peer, now_ns, patience, open, done);
                continue;
            };
            self.all[peer].heard_ns = now_ns;
            self.all[peer].signers.insert(signer);
            open.retain_mut(|duty| {
                if duty.peer != peer {
                    return true;
                }
                let state = answer.states.remove(&duty.name);
                duty.is_known = state.is_some();
                let ended = match state {
                    Some(State::Done(outcome)) => Ok(outcome),
                    Some(State::Failed { error }) => Err(error),
                    Some(State::Awaited) | None => return true,
                };
                done.push((duty.clone(), ended));
                false
            });
        }
    }

    /// A host has not answered. If that is so for too long, its duties are another's, or fail.
    fn miss(
        &mut self,
        peer: usize,
        now_ns: i64,
        patience: Duration,
        open: &mut Vec<Duty>,
        done: &mut Vec<(Duty, Fulfilled)>,
    ) {
        let silent_ns = i128::from(now_ns.saturating_sub(self.all[peer].heard_ns));
        if silent_ns <= i128::try_from(patience.as_nanos()).unwrap_or(i128::MAX) {
            return;
        }
        if !self.all[peer].is_lost {
            self.all[peer].is_lost = true;
            let message = format!("host '{}' does not answer any more", self.all[peer].name);
            self.repository.warn(Warning::new(ErrorKind::Unavailable, message));
        }
        let load = |peer: usize, open: &[Duty]| open.iter().filter(|it| it.peer == peer).count();
        let mut kept = Vec::new();
        for mut duty in std::mem::take(open) {
            if duty.peer != peer {
                kept.push(duty);
                continue;
            }
            let living = (0..self.all.len()).filter(|it| !self.all[*it].is_lost);
            match living.filter(|_| duty.is_free).min_by_key(|it| (load(*it, &kept), *it)) {
                Some(other) => {
                    (duty.peer, duty.is_known) = (other, false);
                    kept.push(duty);
                }
                None => done.push((duty, Err("its host does not answer any more".to_owned()))),
            }
        }
        *open = kept;
    }

    fn ask(
        &self,
        peer: usize,
        orders: BTreeMap<String, Order>,
        known: Vec<String>,
        is_end: bool,
    ) -> Option<(Answer, Id)> {
        let nonce = self.repository.objects.context.random_id();
        let question = Question { nonce, turn: self.turn, orders, known, is_end };
        let question = serde_json::to_vec(&question).ok()?;
        let question = self.messages.seal(self.round, &question).ok()?;
        let patience = if self.all[peer].answers { ANSWER } else { LATE_ANSWER };
        let answer = self.bus.ask(&self.all[peer].service, &question, patience).ok()??;
        let opened = self.messages.open(nonce, &answer).ok()?;
        if !self.trust.covers(&opened.signer) {
            return None;
        }
        Some((serde_json::from_slice(&opened.plain).ok()?, opened.signer.id))
    }

    /// Whether all keys that signed answers of a host are active by the newest list of writers.
    pub(in crate::round) fn is_believed(&self, peer: usize) -> bool {
        let believed = &self.repository.objects.believed;
        self.all[peer].signers.iter().all(|id| believed.verify_active(*id).is_ok())
    }

    /// Tells all that the round is over. Who does not hear it finds that nobody asks any more.
    pub(in crate::round) fn end(&mut self) {
        self.turn += 1;
        let living: Vec<usize> = (0..self.all.len()).filter(|it| !self.all[*it].is_lost).collect();
        side_by_side(&living, AT_ONCE, |peer| {
            let told = |_| self.ask(*peer, BTreeMap::new(), Vec::new(), true).is_some();
            (0..ENDS).any(told)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_do_not_fit_in_a_message_come_later() {
        let order = |ids: usize| Order::Owners { series: vec![[200; 12]; ids] };
        let duty = |number: usize, ids: usize| Duty {
            peer: 0,
            name: format!("owners-0-{number}"),
            order: order(ids),
            is_free: true,
            is_known: false,
        };
        let asked = |duties: &[Duty]| fitting(duties.iter()).into_keys().collect::<Vec<_>>();
        // 1,000 series are 50 KB.
        let many: Vec<Duty> = (0..9).map(|number| duty(number, 1000)).collect();
        let first = fitting(many.iter());
        assert!(serde_json::to_vec(&first).unwrap().len() < MESSAGE_BYTES_MAX);
        assert_eq!(first.len(), 7);
        assert_eq!(asked(&many[7..]), ["owners-0-7", "owners-0-8"]);
        assert_eq!(asked(&[duty(0, 20_000), duty(1, 1)]), ["owners-0-0"]);
    }
}
