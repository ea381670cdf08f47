//! A sweep whose references are counted by hosts.

use std::time::Duration;

use silt_format::{Error, ErrorKind, Result, SeriesId};
use silt_repository::Repository;
use silt_repository::event::Warning;
use silt_sharing::counting::{CountTask, Counted, CountedHead, Counters};

use super::orders::{Order, Outcome};
use super::peers::{Duty, Fulfilled, Peers, Trust};
use crate::{Bus, Messages, Name};

/// Series of one order at most, so that it and its outcome fit in a message.
const SERIES_OF_AN_ORDER: usize = 512;
/// Orders for each host, so that one that is done early takes over.
const ORDERS_OF_A_HOST: usize = 2;

/// How long hosts may take.
#[derive(Clone, Copy, Debug)]
pub struct CountersOptions {
    /// A host that does not answer for so long is left out.
    pub patience: Duration,
    /// What hosts have not counted after so long is counted without them.
    pub limit: Duration,
}

/// Calls hosts to a round, given by its id, and returns those that come.
pub type Call<'a> = dyn Fn(u64) -> Result<Vec<Name>> + 'a;

/// Lets hosts of the bus count references, each time in a round of its own.
///
/// The answer of a host counts if its key may remove what it has read, still when all have
/// answered: in an append-only repository that is no host, and the sweep counts everything by
/// itself.
pub struct HostCounters<'a> {
    repository: &'a Repository,
    bus: &'a dyn Bus,
    messages: &'a Messages,
    call: &'a Call<'a>,
    options: CountersOptions,
}

impl<'a> HostCounters<'a> {
    /// Hosts that `call` brings, on this bus.
    pub fn new(
        repository: &'a Repository,
        (bus, messages): (&'a dyn Bus, &'a Messages),
        call: &'a Call<'a>,
        options: CountersOptions,
    ) -> Self {
        Self { repository, bus, messages, call, options }
    }

    fn count_with(
        &self,
        peers: &mut Peers<'_>,
        task: &CountTask,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Counted>> {
        let orders = orders(task, peers.living());
        let env = &self.repository.objects.context.env;
        let limit_ns = i64::try_from(self.options.limit.as_nanos()).unwrap_or(i64::MAX);
        let until_ns = env.now_ns().saturating_add(limit_ns);
        let duties = peers.spread(orders);
        let (mut done, mut is_late) = (Vec::new(), false);
        let keep = &mut || {
            keep()?;
            is_late = env.now_ns() >= until_ns;
            let late = "hosts take too long to count references; the rest is counted without them";
            if is_late { Err(Error::new(ErrorKind::Unavailable, late)) } else { Ok(()) }
        };
        let ended = peers.fulfil_into(duties, self.options.patience, keep, &mut done);
        match ended {
            Err(error) if is_late => self.warn(&error),
            ended => ended?,
        }
        // Keys that were removed while hosts counted are not believed.
        self.messages.refresh()?;
        let believed = done.into_iter().filter(|(duty, _)| peers.is_believed(duty.peer));
        Ok(believed.filter_map(counted).collect())
    }

    fn warn(&self, error: &Error) {
        self.repository.warn(Warning::from(error));
    }
}

impl Counters for HostCounters<'_> {
    fn count(
        &self,
        task: &CountTask,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Counted>> {
        if task.series.is_empty() {
            return Ok(Vec::new());
        }
        let round = self.repository.objects.context.random_id();
        let hosts = match (self.call)(round) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.warn(&error);
                return Ok(Vec::new());
            }
            Ok(hosts) => hosts,
        };
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        let (bus, messages) = (self.bus, self.messages);
        let trust = Trust::Removing;
        let mut peers = Peers::new(self.repository, bus, messages, (round, &hosts), trust)?;
        let counted = self.count_with(&mut peers, task, keep);
        // After an error, too: hosts would wait for orders.
        peers.end();
        counted
    }
}

/// The series of a task in parts.
fn orders(task: &CountTask, hosts: usize) -> Vec<(String, Order)> {
    let parts = (ORDERS_OF_A_HOST * hosts).max(1);
    let of_a_part = task.series.len().div_ceil(parts).clamp(1, SERIES_OF_AN_ORDER);
    let CountTask { store, containers, .. } = *task;
    let order = |(number, series): (usize, &[SeriesId])| {
        let series = series.iter().map(|id| id.0).collect();
        (format!("count-{number}"), Order::Count { store, containers, series })
    };
    task.series.chunks(of_a_part).enumerate().map(order).collect()
}

/// What a host has counted, if that is an answer to its order.
fn counted((duty, outcome): (Duty, Fulfilled)) -> Option<Counted> {
    let (Order::Count { series, .. }, Ok(Outcome::Counted { run, heads })) = (duty.order, outcome)
    else {
        return None;
    };
    if heads.len() != series.len() {
        return None;
    }
    let head = |(series, (generation, writer)): ([u8; 12], (u64, [u8; 16]))| CountedHead {
        series: SeriesId(series),
        generation,
        writer,
    };
    let heads = series.into_iter().zip(heads).map(head).collect();
    Some(Counted { heads, run: run.read().ok()? })
}
