//! A task of a round: finds which chunks of its range become shared, and who stores them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use silt_format::{Fingerprint, Record, Result, RunRef, RunUse};
use silt_repository::Repository;
use silt_repository::objects::Objects;
use silt_runs::{DurableRun, RunWriter, Sorted, Stream, join, merge};

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
    let objects = &repository.objects;
    let mut answers = workspace.sorter(objects);
    let mut chunks = vec![0_u64; usize::from(hosts)];
    let asked = streams(repository, requests, keys, workspace);
    let owned = streams(repository, owners, keys, workspace);
    let each = &mut |fingerprint: &Fingerprint, asked: &[Record], owned: &[Record]| {
        let Some(host) = storing_host(asked, owned, hosts) else { return Ok(()) };
        chunks[usize::from(host)] += 1;
        answers.push(answer(fingerprint, host, hosts))
    };
    if asked.len() + owned.len() <= workspace.runs_at_once() {
        join(&mut merge(asked), &mut merge(owned), each)?;
    } else {
        let asked = workspace.gather(objects, asked)?;
        // In one piece: it is read again and again.
        let asked = workspace.gather(objects, vec![asked.stream()])?;
        let owned = owned_of(&asked, owned, objects, workspace)?;
        join(&mut asked.stream(), &mut owned.stream(), each)?;
    }
    let answers = answers.finish()?;
    let store = shared_store(repository);
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

/// Which host stores a chunk that was asked for: none, if no other series asks for it or has it.
fn storing_host(asked: &[Record], owned: &[Record], hosts: u16) -> Option<u16> {
    let first = asked.iter().map(Claim::decode).min()?;
    let mut others = asked.iter().chain(owned).map(Claim::decode);
    if others.all(|other| other.series == first.series) {
        return None;
    }
    let asking = asked.iter().map(|record| Claim::decode(record).host);
    let asking = asking.filter(|host| *host < hosts);
    asking.max_by_key(|host| (first.weight(*host), *host))
}

/// Of any number of streams, the records of chunks that are asked for, a few streams at a time. Of
/// each chunk, two series of those read at once suffice: more make no difference.
fn owned_of(
    asked: &Sorted,
    owned: Vec<Stream<'_>>,
    objects: &Arc<Objects>,
    workspace: &Workspace,
) -> Result<Sorted> {
    let mut found = workspace.sorter(objects);
    let mut owned = owned.into_iter();
    loop {
        let group: Vec<Stream<'_>> = owned.by_ref().take(workspace.runs_at_once()).collect();
        if group.is_empty() {
            return found.finish();
        }
        join(&mut asked.stream(), &mut merge(group), &mut |_, _, owned| {
            let series = |record: &Record| Claim::decode(record).series;
            let Some(first) = owned.first() else { return Ok(()) };
            let other = owned.iter().find(|record| series(record) != series(first));
            [Some(first), other].into_iter().flatten().try_for_each(|record| found.push(*record))
        })?;
    }
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
