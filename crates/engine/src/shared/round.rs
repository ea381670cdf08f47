//! A round: many series backed up together, so that what they have in common is stored once from the
//! start.
//!
//! Each volume is scanned; the fingerprints of what is new to its series are sorted with those of all
//! others, and with those that other series have stored. What two or more series have goes to the
//! shared store, in the order of the volumes; then each series is backed up as usual, reading only what
//! the scan found changed, and finds the shared chunks in the index.

use std::path::PathBuf;

use silt_format::number::to_u64;
use silt_format::{Error, ErrorKind, Fingerprint, Record, Result};
use silt_source::{ChangedMap, VolumeSource};

use super::owners::{Census, STORE};
use super::record::Owner;
use crate::backup::{BackupOptions, BackupReport};
use crate::deletion::Edit;
use crate::env::Progress;
use crate::repository::{DEFAULT_DOMAIN, Repository};
use crate::runs::{Sorted, Sorter, join};

/// One series of a round.
pub struct RoundMember<'a> {
    /// The series' name.
    pub series: String,
    /// Its volumes by name, each of known size.
    pub volumes: Vec<(String, &'a dyn VolumeSource)>,
    /// How its backup is made.
    pub options: BackupOptions,
}

/// How a round works.
#[derive(Clone, Debug)]
pub struct RoundOptions {
    /// A folder for temporary files, which take about 32 bytes a stored chunk.
    pub spool: PathBuf,
    /// Bytes of memory to sort in, 0 for the default.
    pub memory_bytes: u64,
}

/// What a round came to, and what each stage took.
#[derive(Debug, Default)]
pub struct RoundReport {
    /// The backups in the order of the members; one that failed harms no other.
    pub backups: Vec<Result<BackupReport>>,
    /// Chunks that were new to their series, counted in each.
    pub requested_chunks: u64,
    /// Chunks that were copied to the shared store.
    pub shared_chunks: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// Bytes written to the shared store.
    pub stored_bytes: u64,
    /// Scanning all volumes.
    pub scan_ms: u64,
    /// Sorting, joining and choosing.
    pub compare_ms: u64,
    /// Reading what is shared again, and storing it.
    pub share_ms: u64,
    /// Backing up the series.
    pub backup_ms: u64,
}

/// Where a new chunk is: as the payload of a request.
#[derive(Clone, Copy)]
struct Place {
    member: u16,
    volume: u8,
    /// At most 2^48 bytes.
    offset: u64,
    /// At most 2^24 bytes.
    chunk_bytes: u32,
}

impl Place {
    fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&self.member.to_be_bytes());
        bytes[2] = self.volume;
        bytes[3..9].copy_from_slice(&self.offset.to_be_bytes()[2..]);
        bytes[9..].copy_from_slice(&self.chunk_bytes.to_be_bytes()[1..]);
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Self {
            member: u16::from_be_bytes([bytes[0], bytes[1]]),
            volume: bytes[2],
            offset: number(3..9),
            chunk_bytes: u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]),
        }
    }
}

/// A chosen chunk as a record that sorts by its place: place, then fingerprint.
fn by_place(place: &[u8; 12], fingerprint: &Fingerprint) -> Record {
    let (mut key, mut payload) = ([0; 20], [0; 12]);
    key[..12].copy_from_slice(place);
    key[12..].copy_from_slice(&fingerprint.0[..8]);
    payload.copy_from_slice(&fingerprint.0[8..]);
    Record { fingerprint: Fingerprint(key), payload }
}

fn fingerprint_of(record: &Record) -> Fingerprint {
    let mut print = [0; 20];
    print[..8].copy_from_slice(&record.fingerprint.0[12..]);
    print[8..].copy_from_slice(&record.payload);
    Fingerprint(print)
}

/// Refuses what can't be numbered, and what can't be read twice.
fn check_members(members: &[RoundMember<'_>]) -> Result<()> {
    let most = usize::from(u16::MAX);
    if members.len() > most {
        return Err(Error::invalid(format!("{} series are too many for a round", members.len())));
    }
    for (number, member) in members.iter().enumerate() {
        let series = &member.series;
        if members[..number].iter().any(|other| other.series == *series) {
            return Err(Error::invalid(format!("series '{series}' is in the round twice")));
        }
        if member.volumes.len() > usize::from(u8::MAX) {
            let message = format!("series '{series}' has too many volumes for a round");
            return Err(Error::invalid(message));
        }
        let of_no_size = member.volumes.iter().find(|(_, source)| source.info().size.is_none());
        if let Some((name, _)) = of_no_size {
            return Err(Error::invalid(format!(
                "volume '{name}' of series '{series}' is a stream; a round reads volumes twice, so \
                 back it up alone"
            )));
        }
    }
    Ok(())
}

struct Round<'a> {
    repository: &'a Repository,
    members: &'a [RoundMember<'a>],
    options: &'a RoundOptions,
    report: RoundReport,
    /// For each volume of each member, which segments are to be read; or why it can't be.
    surveyed: Vec<Result<Vec<Option<ChangedMap>>>>,
}

/// An error of one member; an interruption is one of all.
fn of_one<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        other => Ok(other),
    }
}

impl Repository {
    /// Backs up many series together; what two or more of them have, or one of them and any other
    /// series of the repository, is stored once.
    ///
    /// Each series commits for itself, and one that fails is said in the report: the others go on.
    /// While another process changes the shared store, nothing is shared, with a warning.
    pub fn backup_round(
        &self,
        members: &[RoundMember<'_>],
        options: &RoundOptions,
    ) -> Result<RoundReport> {
        check_members(members)?;
        let (report, surveyed) = (RoundReport::default(), Vec::new());
        let mut round = Round { repository: self, members, options, report, surveyed };
        let begin = self.objects.context.env.now_ns();
        let requests = round.scan()?;
        let scanned = self.objects.context.env.now_ns();
        let mut chose = scanned;
        match Edit::begin_shared(self, DEFAULT_DOMAIN) {
            Ok(mut edit) => {
                let chosen = round.choose(&mut edit, &requests)?;
                drop(requests);
                chose = self.objects.context.env.now_ns();
                round.share(&mut edit, &chosen)?;
                edit.finish()?;
            }
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.warn(&format!("{error}; this round shares nothing new"));
            }
            Err(error) => return Err(error),
        }
        let shared = self.objects.context.env.now_ns();
        round.backup()?;
        let ended = self.objects.context.env.now_ns();
        let ms = |from: i64, to: i64| u64::try_from((to - from) / 1_000_000).unwrap_or(0);
        let report = &mut round.report;
        (report.scan_ms, report.compare_ms) = (ms(begin, scanned), ms(scanned, chose));
        (report.share_ms, report.backup_ms) = (ms(chose, shared), ms(shared, ended));
        Ok(round.report)
    }
}

impl Round<'_> {
    fn census(&self) -> Result<Census<'_>> {
        Census::new(self.repository, &self.options.spool, self.options.memory_bytes)
    }

    /// Stage 1: what is new to its series, in the order of fingerprints.
    fn scan(&mut self) -> Result<Sorted> {
        let mut requests = self.census()?.sorter();
        for (number, member) in (0_u16..).zip(self.members) {
            let surveyed = of_one(self.survey(number, member, &mut requests))?;
            self.surveyed.push(surveyed);
        }
        requests.finish()
    }

    fn survey(
        &mut self,
        number: u16,
        member: &RoundMember<'_>,
        requests: &mut Sorter,
    ) -> Result<Vec<Option<ChangedMap>>> {
        let mut session = self.repository.backup(&member.series, member.options.clone())?;
        let mut changed = Vec::new();
        for (volume, (name, source)) in (0_u8..).zip(&member.volumes) {
            let survey = session.survey(name, *source, &mut |fingerprint, offset, bytes| {
                self.report.requested_chunks += 1;
                let chunk_bytes = silt_format::number::to_u32(bytes);
                let place = Place { member: number, volume, offset, chunk_bytes };
                requests.push(Record { fingerprint: *fingerprint, payload: place.encode() })
            })?;
            changed.push(survey.changed);
        }
        Ok(changed)
    }

    /// Whether the member still takes part.
    fn takes_part(&self, request: &Record) -> bool {
        self.surveyed[usize::from(Place::decode(&request.payload).member)].is_ok()
    }

    /// Stage 2: of the requests, those that two series have, in the order of the volumes.
    fn choose(&self, edit: &mut Edit<'_>, requests: &Sorted) -> Result<Sorted> {
        let census = self.census()?;
        let mut owners = census.sorter();
        census.each_owner(edit, &mut |record| owners.push(record))?;
        let owners = owners.finish()?;
        // The members by the numbers that the census gives to series.
        let ids: Vec<_> =
            self.members.iter().map(|m| self.repository.series_id(&m.series)).collect();
        let member_of = |owner: &Owner| {
            let id = census.members.get(owner.series as usize).map(|member| member.id);
            id.and_then(|id| ids.iter().position(|member| *member == id))
        };
        let mut chosen = census.sorter();
        join(&mut requests.stream(), &mut owners.stream(), &mut |fingerprint, asked, owned| {
            let mut asked = asked.iter().filter(|request| self.takes_part(request));
            let Some(request) = asked.next() else { return Ok(()) };
            let first = Place::decode(&request.payload).member;
            let others_ask = asked.any(|other| Place::decode(&other.payload).member != first);
            let other_has = owned.iter().map(Owner::decode).any(|owner| {
                owner.series != STORE && member_of(&owner) != Some(usize::from(first))
            });
            if others_ask || other_has {
                chosen.push(by_place(&request.payload, fingerprint))?;
            }
            Ok(())
        })?;
        chosen.finish()
    }

    /// Stage 3: reads what is shared again, and stores it.
    fn share(&mut self, edit: &mut Edit<'_>, chosen: &Sorted) -> Result<()> {
        if chosen.records() == 0 {
            return Ok(());
        }
        let objects = &self.repository.objects;
        let census = self.census()?;
        let mut additions = census.additions(&edit.head)?;
        let key = objects.master.fingerprint_key(DEFAULT_DOMAIN);
        let fingerprinter = silt_chunking::Fingerprinter::new(key);
        let (mut buffer, mut stream) = (Vec::new(), chosen.stream());
        let (mut shared_chunks, mut shared_bytes) = (0_u64, 0_u64);
        while let Some(record) = stream.next()? {
            let place = Place::decode(&record.fingerprint.0);
            let (_, source) =
                &self.members[usize::from(place.member)].volumes[usize::from(place.volume)];
            buffer.resize(place.chunk_bytes as usize, 0);
            let read = source.read_at(place.offset, &mut buffer).unwrap_or(0);
            let fingerprint = fingerprint_of(&record);
            // What has changed or can't be read any more is not shared.
            if read < buffer.len() || fingerprinter.fingerprint(&buffer) != fingerprint {
                continue;
            }
            additions.add(&buffer, fingerprint)?;
            shared_chunks += 1;
            shared_bytes += to_u64(buffer.len());
            if shared_chunks.is_multiple_of(1024) {
                edit.keep()?;
                let total_bytes = shared_bytes / shared_chunks * chosen.records();
                let progress =
                    Progress { done_bytes: shared_bytes, total_bytes, ..Progress::default() };
                objects.context.observer.progress("share", progress);
            }
        }
        let stored_bytes = additions.commit(edit)?;
        let report = &mut self.report;
        (report.shared_chunks, report.shared_bytes) = (shared_chunks, shared_bytes);
        report.stored_bytes = stored_bytes;
        Ok(())
    }

    /// Stage 4: the backups themselves.
    fn backup(&mut self) -> Result<()> {
        for (member, surveyed) in self.members.iter().zip(std::mem::take(&mut self.surveyed)) {
            let backup = surveyed.and_then(|changed| self.back_up(member, &changed));
            self.report.backups.push(of_one(backup)?);
        }
        Ok(())
    }

    fn back_up(
        &self,
        member: &RoundMember<'_>,
        changed: &[Option<ChangedMap>],
    ) -> Result<BackupReport> {
        let mut session = self.repository.backup(&member.series, member.options.clone())?;
        for ((name, source), changed) in member.volumes.iter().zip(changed) {
            session.add_volume(name, *source, changed.as_ref())?;
        }
        session.finish()
    }
}
