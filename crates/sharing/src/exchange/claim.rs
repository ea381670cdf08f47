//! Claims: that a series wants or has a chunk.

use std::sync::Arc;

use silt_format::{Fingerprint, Record, Result, RunUse, SeriesId};
use silt_repository::Repository;
use silt_repository::objects::Objects;
use silt_runs::shared_record::Owner;
use silt_runs::{DurableRun, RunWriter, Sorted};

use super::{Workspace, shared_store};
use crate::owners::Census;

/// Who wants or has a chunk, as the payload of a record: the beginning of the series' id, where in
/// its volumes, and the host that has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) series: [u8; 6],
    /// 0 if it was not asked for.
    pub(super) region: u32,
    pub(super) host: u16,
}

/// The host of a claim that is no request.
const NO_HOST: u16 = u16::MAX;

impl Claim {
    pub(super) fn of(series: SeriesId, region: u32, host: u16) -> Self {
        let mut beginning = [0; 6];
        beginning.copy_from_slice(&series.0[..6]);
        Self { series: beginning, region, host }
    }

    fn encode(self) -> [u8; 12] {
        let mut payload = [0; 12];
        payload[..6].copy_from_slice(&self.series);
        payload[6..10].copy_from_slice(&self.region.to_be_bytes());
        payload[10..].copy_from_slice(&self.host.to_be_bytes());
        payload
    }

    pub(super) fn decode(record: &Record) -> Self {
        let payload = &record.payload;
        let (mut series, mut region) = ([0; 6], [0; 4]);
        series.copy_from_slice(&payload[..6]);
        region.copy_from_slice(&payload[6..10]);
        let host = u16::from_be_bytes([payload[10], payload[11]]);
        Self { series, region: u32::from_be_bytes(region), host }
    }

    /// How much the chunks of this region should be stored by a host. Of several hosts, the one
    /// with most stores them: all come to the same answer, and hosts get equal shares of many
    /// regions (rendezvous hashing; the mixing is splitmix64's, Steele et al. 2014).
    pub(super) fn weight(&self, host: u16) -> u64 {
        let series = self.series.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mix = |number: u64| {
            let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            number ^ number >> 31
        };
        let region = mix(series ^ u64::from(self.region) << 32);
        mix(region.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(host) + 1)))
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
        let is_new = |claim: &Claim| claims.iter().all(|known| known.series != claim.series);
        let claim = claim.filter(is_new);
        claims.extend(claim);
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
        Some(Claim::of(member.id, 0, NO_HOST))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_equal_shares_of_regions_and_keep_them_when_another_wants_one_too() {
        let mut shares = [0; 4];
        for region in 0..4000 {
            let claim = Claim::of(SeriesId([7; 12]), region, 0);
            let of = |hosts: u16| (0..hosts).max_by_key(|host| claim.weight(*host));
            let (of_three, of_four) = (of(3), of(4));
            assert!(of_four == of_three || of_four == Some(3));
            shares[usize::from(of_four.unwrap())] += 1;
        }
        assert!(shares.iter().all(|share| (900..1100).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_claim_survives_its_payload() {
        let claim = Claim::of(SeriesId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), 0x0102_0304, 9);
        let record = Record { fingerprint: Fingerprint([0; 20]), payload: claim.encode() };
        assert_eq!(Claim::decode(&record), claim);
        assert_ne!(claim, Claim { region: 5, ..claim });
    }
}
