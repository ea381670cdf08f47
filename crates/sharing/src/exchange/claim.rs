//! Claims: that a series wants or has a chunk.

use std::sync::Arc;

use silt_format::{Fingerprint, Record, Result, RunUse, SeriesId};
use silt_repository::Repository;
use silt_repository::objects::Objects;
use silt_runs::shared_record::Owner;
use silt_runs::{DurableRun, RunWriter, Sorted};

use super::{Workspace, shared_store};
use crate::owners::Census;

/// Who wants or has a chunk, as the payload of a record: the beginning of the series' id, and the
/// host that has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) series: [u8; 10],
    pub(super) host: u16,
}

/// The host of a claim that is no request.
const NO_HOST: u16 = u16::MAX;

impl Claim {
    pub(super) fn of(series: SeriesId, host: u16) -> Self {
        let mut beginning = [0; 10];
        beginning.copy_from_slice(&series.0[..10]);
        Self { series: beginning, host }
    }

    fn encode(self) -> [u8; 12] {
        let mut payload = [0; 12];
        payload[..10].copy_from_slice(&self.series);
        payload[10..].copy_from_slice(&self.host.to_be_bytes());
        payload
    }

    pub(super) fn decode(record: &Record) -> Self {
        let (series, host) = record.payload.split_at(10);
        let mut beginning = [0; 10];
        beginning.copy_from_slice(series);
        Self { series: beginning, host: u16::from_be_bytes([host[0], host[1]]) }
    }
}

/// Writes the claims that records make as a run. Of each fingerprint, the claims of two series are
/// written: more make no difference.
pub(super) fn write_claims(
    objects: &Arc<Objects>,
    store: SeriesId,
    records: &Sorted,
    claim_of: impl Fn(&Record) -> Option<Claim>,
) -> Result<DurableRun> {
    let mut writer = RunWriter::new(objects, store, RunUse::Owners, records.records())?;
    let mut stream = records.stream();
    let mut open: Option<(Fingerprint, Vec<Claim>)> = None;
    let mut write = |group: Option<(Fingerprint, Vec<Claim>)>| {
        let Some((fingerprint, mut claims)) = group else { return Ok(()) };
        claims.sort_unstable();
        let mut records = claims.iter().map(|it| Record { fingerprint, payload: it.encode() });
        records.try_for_each(|record| writer.push(record))
    };
    while let Some(record) = stream.next()? {
        if open.as_ref().is_none_or(|(fingerprint, _)| *fingerprint != record.fingerprint) {
            write(open.replace((record.fingerprint, Vec::new())))?;
        }
        let Some((_, claims)) = &mut open else { continue };
        let claim = claim_of(&record).filter(|_| claims.len() < 2);
        claims.extend(claim.filter(|claim| !claims.contains(claim)));
    }
    write(open)?;
    writer.finish()
}

/// Writes which of these series has which chunks, as a run of the shared store.
///
/// Series without a head, and those that share nothing, have none. `keep` is called now and then.
pub fn write_owners(
    repository: &Repository,
    series: &[SeriesId],
    workspace: &Workspace,
    keep: &mut dyn FnMut() -> Result<()>,
) -> Result<DurableRun> {
    let Workspace { folder, memory_bytes } = workspace;
    let census = Census::of(repository, series, folder, *memory_bytes)?;
    let mut owners = census.sorter();
    census.each_series_owner(keep, &mut |record| owners.push(record))?;
    let members = &census.members;
    write_claims(&repository.objects, shared_store(repository), &owners.finish()?, |record| {
        let member = members.get(Owner::decode(record).series as usize)?;
        Some(Claim::of(member.id, NO_HOST))
    })
}
