//! A task of a round: finds which chunks of its range become shared, and who stores them.

use std::ops::RangeInclusive;

use silt_format::{Fingerprint, Record, Result, RunRef, RunUse};
use silt_repository::Repository;
use silt_runs::{DurableRun, RunWriter, join, merge};

use super::claim::Claim;
use super::{Workspace, lane_of, shared_store, streams};

/// The answers of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// A run of the shared store: which host stores which chunk.
    pub run: DurableRun,
    /// How many chunks each host is to store.
    pub chunks: Vec<u64>,
}

/// Joins the requests of all hosts in a range of fingerprints with those that series have, and
/// writes which host stores which chunk: one that was asked for by two series, or by one while
/// another has it. Chunks that are near each other in a volume and wanted by the same hosts are
/// stored by one of these hosts: it reads them together, and whoever needs them finds them
/// together.
///
/// The result depends only on the runs, so whoever does the task comes to the same answers.
pub fn join_claims(
    repository: &Repository,
    keys: &RangeInclusive<u32>,
    requests: &[RunRef],
    owners: &[RunRef],
    hosts: u16,
    workspace: &Workspace,
) -> Result<Answers> {
    let mut answers = workspace.sorter(&repository.objects);
    let mut chunks = vec![0_u64; usize::from(hosts)];
    let mut asked = merge(streams(repository, requests, keys));
    let mut owned = merge(streams(repository, owners, keys));
    join(&mut asked, &mut owned, &mut |fingerprint, asked, owned| {
        let Some(first) = asked.iter().map(Claim::decode).min() else { return Ok(()) };
        let mut others = asked.iter().chain(owned).map(Claim::decode);
        if others.all(|other| other.series == first.series) {
            return Ok(());
        }
        let asking = asked.iter().map(|record| Claim::decode(record).host);
        let asking = asking.filter(|host| *host < hosts);
        let Some(host) = asking.max_by_key(|host| (first.weight(*host), *host)) else {
            return Ok(());
        };
        chunks[usize::from(host)] += 1;
        answers.push(answer(fingerprint, host, hosts))
    })?;
    let answers = answers.finish()?;
    let store = shared_store(repository);
    let objects = &repository.objects;
    let mut writer = RunWriter::new(objects, store, RunUse::Owners, answers.records())?;
    let mut stream = answers.stream();
    let mut last = None;
    while let Some(record) = stream.next()? {
        // Only requests that are out of order give one twice.
        if last.replace(record) != Some(record) {
            writer.push(record)?;
        }
    }
    Ok(Answers { run: writer.finish()?, chunks })
}

/// A record that sorts by its host: four bytes of the host's lane, then the fingerprint.
fn answer(fingerprint: &Fingerprint, host: u16, hosts: u16) -> Record {
    let (mut key, mut payload) = ([0; 20], [0; 12]);
    key[..4].copy_from_slice(&lane_of(host, hosts).start().to_be_bytes());
    key[4..].copy_from_slice(&fingerprint.0[..16]);
    payload[..4].copy_from_slice(&fingerprint.0[16..]);
    Record { fingerprint: Fingerprint(key), payload }
}

/// The fingerprint of such a record.
pub(super) fn answered(record: &Record) -> Fingerprint {
    let mut print = [0; 20];
    print[..16].copy_from_slice(&record.fingerprint.0[4..]);
    print[16..].copy_from_slice(&record.payload[..4]);
    Fingerprint(print)
}
