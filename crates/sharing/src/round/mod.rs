//! A round: many series backed up together, so that their common chunks are stored once from the
//! start.
//!
//! Each volume is scanned, disks and file trees. The fingerprints of chunks that are new to their
//! series are sorted together, with those of all chunks that other series have stored. Chunks of
//! two or more series go to the shared store, in the order of the volumes. Then each series is
//! backed up as usual: it reads only the segments that the scan found changed, and finds the shared
//! chunks in the index.

mod again;
mod batch;
mod cost;
mod files;
mod place;
mod schedule;
mod sessions;
mod spool;
mod volume;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::number::to_u16;
use silt_format::{Error, ErrorKind, Record, Result, SeriesId};
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::temporary::TemporaryFile;
use silt_runs::shared_record::Owner;
use silt_runs::{Sorted, Sorter, join};

pub use cost::{CostModel, RoundLoad, StageSeconds};
pub use schedule::{Picking, RoundMemory, Schedule, ScheduledVm, rounds_for_memory};
pub use volume::RoundVolume;

use self::place::NewChunk;
pub(crate) use self::place::{by_place, region_of};
use self::sessions::{Awaited, Sessions};
use self::spool::SpoolWriter;
use self::volume::{Records, Scan, Volume};
use crate::owners::{Census, STORE, sorter};
use silt_backup::{BackupOptions, BackupReport, BackupSession, ClaimedNames, SurveySession};
use silt_repository::Repository;
use silt_repository::edit::Edit;

/// One series of a round.
pub struct RoundMember<'a> {
    /// The series' name.
    pub series: String,
    /// Its volumes by name, disks and file trees.
    pub volumes: Vec<(String, RoundVolume<'a>)>,
    /// How its backup is made.
    pub options: BackupOptions,
    /// Called when the volumes are closed and no longer needed, also after a failure.
    pub on_released: Option<Box<dyn FnOnce() + 'a>>,
}

/// How a round works.
#[derive(Clone, Debug)]
pub struct RoundOptions {
    /// A folder for temporary files. They take about 32 bytes for each stored chunk and 24 for each
    /// changed chunk, and hold the changed data itself if it is spooled.
    pub folder: PathBuf,
    /// Bytes of memory to sort in, 0 for the default.
    pub memory_bytes: u64,
    /// Whether the scan copies changed data to a temporary file. Volumes are then read only once
    /// and released early; otherwise changed data is read twice.
    pub spool: bool,
}

/// The result of a round, and the time of each stage.
#[derive(Debug, Default)]
pub struct RoundReport {
    /// The backups in the order of the members. A failed one does not affect the others.
    pub backups: Vec<Result<BackupReport>>,
    /// When each member's volumes were released, in milliseconds from the start of the round.
    pub held_ms: Vec<u64>,
    /// Chunks that were new to their series, counted once per series.
    pub requested_chunks: u64,
    /// Chunks that were copied to the shared store.
    pub shared_chunks: u64,
    /// Bytes of the shared chunks.
    pub shared_bytes: u64,
    /// Bytes written to the shared store.
    pub stored_bytes: u64,
    /// Bytes written to the spool.
    pub spooled_bytes: u64,
    /// Scanning all volumes.
    pub scan_ms: u64,
    /// Sorting, joining and choosing.
    pub compare_ms: u64,
    /// Duration of reading shared chunks again and storing them, in milliseconds.
    pub share_ms: u64,
    /// Backing up the series.
    pub backup_ms: u64,
}

/// Refuses what can't be numbered, and what can't be read twice.
fn check_members(members: &[RoundMember<'_>]) -> Result<()> {
    let most = usize::from(u16::MAX);
    if members.len() > most {
        return Err(Error::invalid(format!("a round cannot have {} series", members.len())));
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
        if let Some((name, _)) = member.volumes.iter().find(|(_, volume)| volume.is_stream()) {
            return Err(Error::invalid(format!(
                "volume '{name}' of series '{series}' is a stream, but a round reads volumes \
                 twice; back it up alone"
            )));
        }
    }
    Ok(())
}

pub(crate) struct Member<'a> {
    series: String,
    options: BackupOptions,
    volumes: Vec<Volume<'a>>,
    on_released: Option<Box<dyn FnOnce() + 'a>>,
    held_ms: u64,
    failure: Option<Error>,
}

impl<'a> Member<'a> {
    fn new(member: RoundMember<'a>) -> Self {
        let RoundMember { series, volumes, options, on_released } = member;
        let volumes = volumes.into_iter().map(Volume::new).collect();
        Self { series, options, volumes, on_released, held_ms: 0, failure: None }
    }

    /// The volumes are needed no more.
    fn release(&mut self, held_ms: u64) {
        if let Some(released) = self.on_released.take() {
            released();
        }
        self.held_ms = held_ms;
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.volumes.clear();
        self.release(self.held_ms);
    }
}

/// The series of a round on one host.
pub(crate) struct Round<'a, 'm> {
    pub(crate) repository: &'a Repository,
    pub(crate) members: Vec<Member<'m>>,
    pub(crate) options: &'a RoundOptions,
    pub(crate) report: RoundReport,
    /// What the scans have recorded.
    records: Records,
    /// The names of those series that are new.
    claimed: Arc<ClaimedNames>,
    began_ns: i64,
}

/// An error of one member; an interruption is one of all.
fn of_one<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        other => Ok(other),
    }
}

/// Backs up many series together. Chunks of two or more of them, or of one of them and any
/// other series of the repository, are stored once.
///
/// Each series commits separately; the report lists failed ones, and the others continue. If
/// another process is changing the shared store, or this key may not change it, no new chunks
/// are shared, with a warning.
pub fn backup_round(
    repository: &Repository,
    members: Vec<RoundMember<'_>>,
    options: &RoundOptions,
) -> Result<RoundReport> {
    let mut round = Round::new(repository, members, options)?;
    let done = round.run();
    round.end(done)
}

impl<'a, 'm> Round<'a, 'm> {
    pub(crate) fn new(
        repository: &'a Repository,
        members: Vec<RoundMember<'m>>,
        options: &'a RoundOptions,
    ) -> Result<Self> {
        check_members(&members)?;
        let members = members.into_iter().map(Member::new).collect();
        let (report, began_ns) = (RoundReport::default(), repository.objects.context.env.now_ns());
        let file = || TemporaryFile::new(&repository.objects, &options.folder);
        let records = Records { scans: file(), pieces: file() };
        let claimed = Arc::default();
        Ok(Self { repository, members, options, report, records, claimed, began_ns })
    }

    /// Releases what is not released yet; after an error, too, no thread may wait forever.
    fn end(mut self, done: Result<()>) -> Result<RoundReport> {
        let now = self.elapsed_ms();
        self.members.iter_mut().filter(|member| member.on_released.is_some()).for_each(|member| {
            member.volumes.clear();
            member.release(now);
        });
        done?;
        self.report.held_ms = self.members.iter().map(|member| member.held_ms).collect();
        Ok(self.report)
    }

    /// Stage 1 alone; what is new, in the order of fingerprints.
    pub(crate) fn scan_all(&mut self) -> Result<Sorted> {
        let requests = self.scan()?;
        self.report.scan_ms = self.elapsed_ms();
        Ok(requests)
    }

    /// Stage 4 alone, and the end.
    pub(crate) fn back_up_all(mut self) -> Result<RoundReport> {
        let before_ms = self.elapsed_ms();
        let done = self.backup();
        self.report.backup_ms = self.elapsed_ms() - before_ms;
        self.end(done)
    }

    /// The ids of the members' series, in their order.
    pub(crate) fn series_ids(&self) -> Vec<SeriesId> {
        self.members.iter().map(|member| self.repository.series_id(&member.series)).collect()
    }

    /// The member that has made a request, if it still takes part.
    pub(crate) fn member_of(&self, request: &Record) -> Option<usize> {
        let number = usize::from(NewChunk::decode(&request.payload).member);
        self.members[number].failure.is_none().then_some(number)
    }

    /// Whether the member that has made a request still takes part.
    pub(crate) fn takes_part(&self, request: &Record) -> bool {
        self.member_of(request).is_some()
    }
}

impl Round<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let requests = self.scan_all()?;
        // Where nothing is new nothing can be shared.
        if requests.records() > 0 {
            self.compare_and_share(requests)?;
        }
        let shared_ms = self.elapsed_ms();
        self.report.share_ms = shared_ms - self.report.compare_ms - self.report.scan_ms;
        self.backup()?;
        self.report.backup_ms = self.elapsed_ms() - shared_ms;
        Ok(())
    }

    /// Stages 2 and 3, unless another process changes the shared store.
    fn compare_and_share(&mut self, requests: Sorted) -> Result<()> {
        let mut edit = match Edit::begin_shared(self.repository, DEFAULT_DOMAIN) {
            // Who may not add to the shared store still backs up.
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Denied) => {
                self.repository.warn(Warning::after(&error, "this round shares nothing new"));
                return Ok(());
            }
            edit => edit?,
        };
        let (folder, bytes) = (&self.options.folder, self.options.memory_bytes);
        let census = match Census::new(self.repository, folder, bytes) {
            // What a series has whose head cannot be read is not known.
            Err(error) if is_damage(&error) => {
                self.repository.warn(Warning::after(&error, "this round shares nothing new"));
                return edit.finish();
            }
            census => census?,
        };
        let chosen = self.choose(&census, &mut edit, &requests)?;
        drop(requests);
        self.report.compare_ms = self.elapsed_ms() - self.report.scan_ms;
        self.share(&census, &mut edit, &chosen)?;
        edit.finish()
    }

    fn elapsed_ms(&self) -> u64 {
        let now = self.repository.objects.context.env.now_ns();
        u64::try_from((now - self.began_ns) / 1_000_000).unwrap_or(0)
    }

    /// Stage 1: what is new to its series, in the order of fingerprints.
    fn scan(&mut self) -> Result<Sorted> {
        let (folder, bytes) = (&self.options.folder, self.options.memory_bytes);
        let mut requests = sorter(&self.repository.objects, folder, bytes);
        let members = self.awaited();
        let names = members.iter().map(|it| (it.series.as_str(), it.options.no_share));
        self.claimed = Arc::new(ClaimedNames::claim(self.repository, names)?);
        std::thread::scope(|scope| {
            let mut sessions = Sessions::new(scope, (self.repository, &self.claimed), members);
            while let Some((number, session)) = sessions.next() {
                let surveyed = session.and_then(|session| {
                    let mut session = SurveySession::from(session);
                    let surveyed = if session.is_alone() {
                        Ok(false)
                    } else {
                        self.survey(number, &mut session, &mut requests, &mut sessions)
                    };
                    sessions.end(0, move || drop(session));
                    surveyed
                });
                let now = self.elapsed_ms();
                let member = &mut self.members[number];
                match of_one(surveyed)? {
                    Ok(true) => member.release(now),
                    Ok(false) => {}
                    Err(error) => member.failure = Some(error),
                }
            }
            Ok(())
        })?;
        requests.finish()
    }

    /// The members that may still be backed up.
    fn awaited(&self) -> VecDeque<Awaited> {
        let members = self.members.iter().enumerate();
        let awaited = members.filter(|(_, member)| member.failure.is_none());
        let awaited = awaited.map(|(number, member)| {
            let bytes = member.volumes.iter().map(Volume::bytes);
            let (series, options) = (member.series.clone(), member.options.clone());
            Awaited { number, series, options, bytes: bytes.sum() }
        });
        awaited.collect()
    }

    /// Scans a member's volumes; whether the volumes themselves are needed no more.
    fn survey<'scope, 'r: 'scope>(
        &mut self,
        number: usize,
        session: &mut SurveySession<'_>,
        requests: &mut Sorter,
        sessions: &mut Sessions<'scope, '_, 'r, ()>,
    ) -> Result<bool> {
        let (objects, report) = (&self.repository.objects, &mut self.report);
        let member = &mut self.members[number];
        let last = member.volumes.len().saturating_sub(1);
        for (at, volume) in (0_u8..).zip(&mut member.volumes) {
            let is_spooling = self.options.spool && volume.can_be_spooled();
            let spool = is_spooling.then(|| TemporaryFile::new(objects, &self.options.folder));
            let mut scan = Scan {
                member: to_u16(number),
                volume: at,
                requests,
                spool: spool.map(SpoolWriter::new),
                requested_chunks: 0,
                spooled_bytes: 0,
            };
            let mut watch = |progress| {
                if usize::from(at) == last {
                    sessions.look_ahead(progress);
                }
            };
            let surveyed = volume.survey(session, &mut scan, &mut self.records, &mut watch);
            report.requested_chunks += scan.requested_chunks;
            report.spooled_bytes += scan.spooled_bytes;
            surveyed?;
            if is_spooling && !volume.is_spooled() {
                let (name, series) = (&volume.name, &member.series);
                let message = format!(
                    "volume '{name}' of series '{series}' cannot be spooled and is read again"
                );
                self.repository.warn(Warning::new(ErrorKind::Unavailable, message));
            }
        }
        Ok(member.volumes.iter().all(Volume::is_spooled))
    }

    /// Stage 2: of the requests, those that two series have, in the order of the volumes.
    fn choose(
        &self,
        census: &Census<'_>,
        edit: &mut Edit<'_>,
        requests: &Sorted,
    ) -> Result<Sorted> {
        let mut owners = census.sorter();
        census.each_owner(edit, &mut |record| owners.push(record))?;
        let owners = owners.finish()?;
        // The members by the numbers that the census gives to series.
        let ids = self.series_ids();
        let member_of = |owner: &Owner| {
            let id = census.members.get(owner.series as usize).map(|member| member.id);
            id.and_then(|id| ids.iter().position(|member| *member == id))
        };
        let mut chosen = census.sorter();
        join(&mut requests.stream(), &mut owners.stream(), &mut |fingerprint, asked, owned| {
            let mut asked = asked.iter().filter(|request| self.takes_part(request));
            let Some(request) = asked.next() else { return Ok(()) };
            let first = NewChunk::decode(&request.payload).member;
            let others_ask = asked.any(|other| NewChunk::decode(&other.payload).member != first);
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
    fn share(&mut self, census: &Census<'_>, edit: &mut Edit<'_>, chosen: &Sorted) -> Result<()> {
        if chosen.records() == 0 {
            return Ok(());
        }
        let ((shared_chunks, shared_bytes), stored_bytes) = census
            .add_to_store(edit, |additions, edit| {
                self.add_chosen(chosen, additions, &mut || edit.keep())
            })?;
        let report = &mut self.report;
        (report.shared_chunks, report.shared_bytes) = (shared_chunks, shared_bytes);
        report.stored_bytes = stored_bytes;
        Ok(())
    }

    /// Stage 4: the backups themselves.
    fn backup(&mut self) -> Result<()> {
        let members = self.awaited();
        let mut backups: Vec<Option<Result<BackupReport>>> = Vec::new();
        backups.extend(self.members.iter_mut().map(|member| member.failure.take().map(Err)));
        let failed = |(number, backup): (usize, &Option<_>)| backup.as_ref().map(|_| number);
        backups.iter().enumerate().filter_map(failed).for_each(|number| self.released(number));
        std::thread::scope(|scope| {
            let mut sessions = Sessions::new(scope, (self.repository, &self.claimed), members);
            let mut ended = |(number, report): (usize, Result<BackupReport>)| {
                backups[number] = Some(of_one(report)?);
                Ok::<_, Error>(())
            };
            while let Some((number, session)) = sessions.next() {
                let read = session.and_then(|session| {
                    read_volumes(session, &self.members[number], &mut sessions)
                });
                self.released(number);
                let bytes = read.as_ref().map_or(0, BackupSession::finish_bytes);
                let end = move || (number, read.and_then(BackupSession::finish));
                sessions.end(bytes, end).into_iter().try_for_each(&mut ended)?;
            }
            std::iter::from_fn(|| sessions.ended()).try_for_each(&mut ended)
        })?;
        self.report.backups = backups.into_iter().flatten().collect();
        Ok(())
    }

    /// A member's volumes are closed; a spool's space is given back, too.
    fn released(&mut self, number: usize) {
        let held_ms = self.elapsed_ms();
        let member = &mut self.members[number];
        member.volumes.clear();
        if member.on_released.is_some() || member.held_ms == 0 {
            member.release(held_ms);
        }
    }
}

/// Backs up a member's volumes; what is left to do is the commit.
fn read_volumes<'scope, 'r: 'scope, T: Send + 'scope>(
    mut session: BackupSession<'r>,
    member: &Member<'_>,
    sessions: &mut Sessions<'scope, '_, 'r, T>,
) -> Result<BackupSession<'r>> {
    let last = member.volumes.len().saturating_sub(1);
    for (at, volume) in member.volumes.iter().enumerate() {
        volume.back_up(&mut session, &mut |progress| {
            if at == last {
                sessions.look_ahead(progress);
            }
        })?;
    }
    Ok(session)
}
