//! One host's part of a round.

use std::ops::Range;

use silt_format::{Record, Result, RunRef, RunUse};
use silt_repository::Repository;
use silt_runs::{DurableRun, RunWriter, Sorted, Stream, join};

use super::claim::{Claim, write_claims};
use super::commit::Placed;
use super::join::answered;
use super::{Workspace, lane_of, shared_store, streams};
use crate::copy::fill_containers;
use crate::round::{Round, RoundMember, RoundOptions, RoundReport, region_of};

/// A host's part of a round: its series, scanned.
pub struct HostRound<'a, 'm> {
    round: Round<'a, 'm>,
    requests: Sorted,
}

impl<'a, 'm> HostRound<'a, 'm> {
    /// Scans the volumes of the members. What is new to their series is sorted in a temporary
    /// file.
    pub fn scan(
        repository: &'a Repository,
        members: Vec<RoundMember<'m>>,
        options: &'a RoundOptions,
    ) -> Result<Self> {
        let mut round = Round::new(repository, members, options)?;
        let requests = round.scan_all()?;
        Ok(Self { round, requests })
    }

    /// Chunks that are new to their series, counted once per series.
    pub fn requested_chunks(&self) -> u64 {
        self.round.report.requested_chunks
    }

    /// Writes the requests as a run of the shared store, as those of host number `host`.
    pub fn write_requests(&self, host: u16) -> Result<DurableRun> {
        let repository = self.round.repository;
        let series = self.round.series_ids();
        let store = shared_store(repository);
        write_claims(&repository.objects, store, &self.requests, |request| {
            let member = self.round.member_of(request)?;
            Some(Claim::of(series[member], region_of(&request.payload), host))
        })
    }

    /// Stores the chunks that the answers of all tasks leave to this host, in containers with these
    /// numbers. What has changed since the scan is left out.
    pub fn store(
        &mut self,
        answers: &[RunRef],
        (host, hosts): (u16, u16),
        numbers: Range<u32>,
    ) -> Result<Placed> {
        let repository = self.round.repository;
        let objects = &repository.objects;
        let lane = lane_of(host, hosts);
        let options = self.round.options;
        let RoundOptions { folder, memory_bytes, .. } = options;
        let workspace = Workspace { folder: folder.clone(), memory_bytes: *memory_bytes };
        let mut chosen = workspace.sorter(objects);
        let answers = streams(repository, answers, &lane, &workspace).into_iter();
        let answers = answers.map(|answers| Stream::new(Answered(answers))).collect();
        let mut many = None;
        let mut wanted = workspace.merged(objects, answers, &mut many)?;
        join(&mut wanted, &mut self.requests.stream(), &mut |fingerprint, _, asked| {
            let mut asked = asked.iter().filter(|request| self.round.takes_part(request));
            asked.next().map_or(Ok(()), |request| {
                chosen.push(crate::round::by_place(&request.payload, fingerprint))
            })
        })?;
        let chosen = chosen.finish()?;
        let store = shared_store(repository);
        let keep = &mut || objects.context.check_interrupted();
        let ((chunks, bytes), filled) =
            fill_containers(repository, store, numbers, workspace.sorter(objects), |additions| {
                self.round.add_chosen(&chosen, additions, keep)
            })?;
        let records = filled.placed.records();
        let mut writer = RunWriter::new(objects, store, RunUse::Shared, records)?;
        let mut placed = filled.placed.stream();
        while let Some(record) = placed.next()? {
            writer.push(record)?;
        }
        let run = writer.finish()?;
        let stored_bytes = filled.stored_bytes + run.stored_bytes;
        let report = &mut self.round.report;
        (report.shared_chunks, report.shared_bytes) = (chunks, bytes);
        report.stored_bytes = stored_bytes;
        Ok(Placed { containers: filled.containers, run: run.run, chunks, bytes, stored_bytes })
    }

    /// Backs the series up. What the round has shared by now is found in the shared store.
    pub fn back_up(self) -> Result<RoundReport> {
        let Self { round, requests } = self;
        drop(requests);
        round.back_up_all()
    }
}

/// Answers as records of their fingerprints.
struct Answered(Stream<'static>);

impl silt_runs::Records for Answered {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        self.0.next_batch(batch)?;
        for record in batch.iter_mut() {
            *record = Record { fingerprint: answered(record), payload: [0; 12] };
        }
        Ok(())
    }
}
