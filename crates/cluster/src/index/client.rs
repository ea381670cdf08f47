//! A host that looks chunks up in the memory of others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use silt_backup::SharedPlaces;
use silt_format::{Fingerprint, Reference, Result};
use silt_repository::env::Context;

use super::messages::{Wanted, decode_answer, encode_question};
use super::server::QUESTIONS;
use super::{FINGERPRINTS_MAX, PARTITIONS, holder, partition, service_of};
use crate::respondent::Respondent;
use crate::{Bus, Messages, Name};

/// Where answers take longer than this on average, the storage is asked instead: a segment waits
/// for its answers, while the storage's index is read for many segments at once.
const SLOW_NS: i64 = 10_000_000;
/// So many questions are asked before that is decided.
const TRIED: u32 = 8;
/// Of a thousand parts, what the newest answer counts in the average.
const NEWEST: i64 = 125;

/// Looks up chunks of the shared store with the hosts that hold its index.
pub struct IndexClient {
    bus: Arc<dyn Bus>,
    messages: Messages,
    context: Context,
    /// Of each partition, the number of its holder.
    holders: Vec<usize>,
    hosts: Vec<Respondent>,
    /// Questions, and how long their answers took on average, in nanoseconds.
    took: Mutex<(u32, i64)>,
}

impl std::fmt::Debug for IndexClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "IndexClient({} hosts)", self.hosts.len())
    }
}

impl IndexClient {
    /// A client of the hosts that hold the index.
    pub fn new(
        bus: Arc<dyn Bus>,
        messages: Messages,
        context: Context,
        hosts: &[Name],
    ) -> Result<Self> {
        let mut names = hosts.to_vec();
        names.sort();
        names.dedup();
        let number = |partition| {
            let found = holder(partition, &names);
            found.and_then(|found| names.iter().position(|name| name == found)).unwrap_or(0)
        };
        let holders = (0..PARTITIONS).map(number).collect();
        let host = |name| Ok(Respondent::new(service_of(name)?, QUESTIONS));
        let hosts = names.iter().map(host).collect::<Result<_>>()?;
        let took = Mutex::default();
        Ok(Self { bus, messages, context, holders, hosts, took })
    }

    fn note_time(&self, ns: i64) {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        let average = if took.0 == 0 { ns } else { took.1 + (ns - took.1) * NEWEST / 1000 };
        *took = (took.0.saturating_add(1), average);
    }

    /// Whether answers take so long that the storage is quicker.
    fn is_slow(&self) -> bool {
        let (asked, average_ns) = *self.took.lock().unwrap_or_else(PoisonError::into_inner);
        asked >= TRIED && average_ns > SLOW_NS
    }

    /// Asks a host; `None` if it does not answer.
    fn ask(&self, host: &Respondent, wanted: &[Wanted]) -> Option<Vec<Option<Reference>>> {
        let now_ns = self.context.env.now_ns();
        let found = host.ask(
            (&*self.bus, &self.messages, &self.context),
            |nonce| encode_question(nonce, wanted),
            |answer| decode_answer(answer, wanted.len()).ok(),
        );
        self.note_time(self.context.env.now_ns().saturating_sub(now_ns));
        found.answer()
    }
}

impl SharedPlaces for IndexClient {
    fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>> {
        let mut found = vec![None; wanted.len()];
        if self.hosts.is_empty() || self.is_slow() {
            return None;
        }
        let mut by_host: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, (fingerprint, _)) in wanted.iter().enumerate() {
            let host = self.holders[partition(fingerprint) as usize];
            by_host.entry(host).or_default().push(number);
        }
        for (host, numbers) in by_host {
            for numbers in numbers.chunks(FINGERPRINTS_MAX) {
                let asked: Vec<Wanted> = numbers.iter().map(|number| wanted[*number]).collect();
                let answer = self.ask(&self.hosts[host], &asked).unwrap_or_default();
                for (number, reference) in numbers.iter().zip(answer) {
                    found[*number] = reference;
                }
            }
        }
        Some(found)
    }
}
