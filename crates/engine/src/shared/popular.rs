//! Chooses popular chunks and copies them to the shared store: the popular data set of the papers.
//!
//! The fingerprints of all chunks of all series are sorted; one pass then counts in how many series
//! each occurs. The most popular chunks are sorted again, by their places, and copied in that
//! order. So each container is read once, and adjacent chunks stay adjacent.

use std::path::PathBuf;

use silt_format::Result;
use silt_format::number::to_u64;
use silt_repository::event::{Activity, Progress};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::Sorted;
use silt_runs::shared_record::{by_place, place_of};

use crate::edit::Edit;
use crate::repository::Repository;
use silt_sharing::copy::Source;
use silt_sharing::owners::{Census, each_group};

/// Which chunks are copied to the shared store.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let options = || BackupOptions::default();
/// # let mut backup = repository.backup("web2", options())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// let (spool, memory_bytes, dry_run) = (std::env::temp_dir(), 0, true);
/// let policy = SharePolicy::Popular(0.02);
/// let options = PopularOptions { policy, spool, memory_bytes, dry_run };
/// let two_percent = repository.build_popular(&options)?.chosen_chunks;
/// let policy = SharePolicy::Duplicates;
/// let all = repository.build_popular(&PopularOptions { policy, ..options })?.chosen_chunks;
/// assert!(two_percent <= all);
/// assert_eq!(all, 2, "web1 and web2 have the same two chunks");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharePolicy {
    /// The chunks that most series have, at most this share of all unique chunks, from 0 to 1.
    Popular(f64),
    /// All that occur in two or more series.
    Duplicates,
}

/// How chunks are chosen and copied to the shared store.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let options = PopularOptions {
///     policy: SharePolicy::Duplicates,
///     spool: std::env::temp_dir(),
///     memory_bytes: 0,
///     dry_run: true,
/// };
/// assert_eq!(repository.build_popular(&options)?.chosen_chunks, 0, "there is one series");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PopularOptions {
    /// Which chunks are copied.
    pub policy: SharePolicy,
    /// A folder for temporary files, which take about 32 bytes a stored chunk.
    pub spool: PathBuf,
    /// Bytes of memory to sort in, 0 for the default.
    pub memory_bytes: u64,
    /// Counts, and copies nothing.
    pub dry_run: bool,
}

/// The counts of chunks, and the chunks copied to the shared store.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let mut backup = repository.backup("web2", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// # let (spool, memory_bytes, dry_run) = (std::env::temp_dir(), 0, false);
/// # let policy = SharePolicy::Duplicates;
/// # let options = PopularOptions { policy, spool, memory_bytes, dry_run };
/// let report = repository.build_popular(&options)?;
/// assert_eq!(report.series, 2);
/// assert_eq!(report.chunks_by_series, [0, 2], "both chunks are in two series");
/// assert_eq!(report.copied_chunks, 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PopularReport {
    /// Series whose chunks were counted.
    pub series: u64,
    /// Different chunks in all series together.
    pub unique_chunks: u64,
    /// Element `n` counts the chunks that `n + 1` series have.
    pub chunks_by_series: Vec<u64>,
    /// Slots that hold chunks in the series' own containers.
    pub private_slots: u64,
    /// Slots that hold chunks in the shared store.
    pub shared_slots: u64,
    /// Chunks that the policy chooses.
    pub chosen_chunks: u64,
    /// Each chosen chunk occurs in at least this many series.
    pub series_min: u32,
    /// Chosen chunks that were in the shared store already.
    pub present_chunks: u64,
    /// Chunks copied to the shared store.
    pub copied_chunks: u64,
    /// Bytes of the copied chunks.
    pub copied_bytes: u64,
    /// Bytes written to storage.
    pub stored_bytes: u64,
}

impl PopularReport {
    /// The number of stored chunks if series shared nothing.
    pub fn private_chunks(&self) -> u64 {
        (1..).zip(&self.chunks_by_series).map(|(series, chunks): (u64, _)| series * chunks).sum()
    }
}

impl PopularReport {
    /// Number of chunks to copy if all of them can be read.
    fn copied_chunks_max(&self) -> u64 {
        self.chosen_chunks.saturating_sub(self.present_chunks)
    }
}

/// Which groups are chosen: all in more series than `limit`, and `at_limit` of those in as many.
#[derive(Clone, Copy)]
struct Choice {
    limit: u32,
    at_limit: u64,
}

impl Repository {
    /// Counts in how many series each chunk occurs, and copies the chunks that the policy selects
    /// to the shared store. Private copies stay until [`repoint`](Self::repoint).
    ///
    /// Fails with `Busy` while another process changes the shared store.
    pub fn build_popular(&self, options: &PopularOptions) -> Result<PopularReport> {
        let mut edit = Edit::begin_shared(self, DEFAULT_DOMAIN)?;
        let census = Census::new(self, &options.spool, options.memory_bytes)?;
        let builder = Builder { census, options };
        let report = builder.build(&mut edit)?;
        edit.finish()?;
        Ok(report)
    }
}

struct Builder<'a> {
    census: Census<'a>,
    options: &'a PopularOptions,
}

impl Builder<'_> {
    fn build(&self, edit: &mut Edit<'_>) -> Result<PopularReport> {
        let mut report = PopularReport::default();
        let mut owners = self.census.sorter();
        let counted = self.census.each_owner(edit, &mut |record| owners.push(record))?;
        let owners = owners.finish()?;
        report.series = to_u64(self.census.members.len());
        (report.private_slots, report.shared_slots) = counted;
        each_group(&mut owners.stream(), &mut |_, group| {
            report.unique_chunks += u64::from(group.series > 0);
            if let Some(at) = (group.series as usize).checked_sub(1) {
                let counts = &mut report.chunks_by_series;
                counts.resize(counts.len().max(at + 1), 0);
                counts[at] += 1;
            }
            Ok(())
        })?;
        let mut choice = self.choose(&mut report);
        let sources = self.sources(&owners, &mut choice, &mut report)?;
        drop(owners);
        if self.options.dry_run || sources.records() == 0 {
            return Ok(report);
        }
        self.copy(edit, &sources, choice.at_limit, &mut report)?;
        Ok(report)
    }

    /// Finds where the line is drawn: the most popular first, as many as the policy allows.
    fn choose(&self, report: &mut PopularReport) -> Choice {
        let mut left = match self.options.policy {
            SharePolicy::Duplicates => u64::MAX,
            SharePolicy::Popular(share) => quota(report.unique_chunks, share),
        };
        let counts: Vec<(u32, u64)> =
            (1..).zip(report.chunks_by_series.iter().copied()).skip(1).collect();
        let mut choice = Choice { limit: u32::MAX, at_limit: 0 };
        for (series, chunks) in counts.into_iter().rev() {
            if left == 0 {
                break;
            }
            let taken = left.min(chunks);
            left -= taken;
            report.chosen_chunks += taken;
            report.series_min = series;
            choice = Choice { limit: series, at_limit: taken };
        }
        choice
    }

    /// Where the chosen chunks that have to be copied are, in the order of their places. The
    /// payload says which of them are at the limit; of those, what is shared already comes before
    /// all others.
    fn sources(
        &self,
        owners: &Sorted,
        choice: &mut Choice,
        report: &mut PopularReport,
    ) -> Result<Sorted> {
        let mut sources = self.census.sorter();
        each_group(&mut owners.stream(), &mut |_, group| {
            if group.series < choice.limit.max(2) {
                return Ok(());
            }
            let is_at_limit = group.series == choice.limit;
            if group.is_present && !(is_at_limit && choice.at_limit == 0) {
                report.present_chunks += 1;
                choice.at_limit -= u64::from(is_at_limit);
            }
            let at_limit = [u8::from(is_at_limit); 12];
            match group.source.filter(|_| !group.is_present) {
                Some(owner) => sources.push(by_place(owner, at_limit)),
                None => Ok(()),
            }
        })?;
        sources.finish()
    }

    /// Copies chunks to the shared store, and commits them with their index.
    fn copy(
        &self,
        edit: &mut Edit<'_>,
        sources: &Sorted,
        mut at_limit: u64,
        report: &mut PopularReport,
    ) -> Result<()> {
        let mut source = Source::new(self.census.repository);
        let mut stream = sources.stream();
        let ((), stored_bytes) = self.census.add_to_store(edit, |additions, edit| {
            while let Some(record) = stream.next()? {
                if record.payload[0] != 0 {
                    if at_limit == 0 {
                        continue;
                    }
                    at_limit -= 1;
                }
                let place = place_of(&record);
                let head = &self.census.members[place.series as usize].head;
                let Some((fingerprint, chunk)) = source.read(head, place)? else { continue };
                additions.add(chunk, fingerprint)?;
                report.copied_chunks += 1;
                report.copied_bytes += to_u64(chunk.len());
                if report.copied_chunks.is_multiple_of(1024) {
                    edit.keep()?;
                    let (done, all) = (report.copied_bytes, report.copied_chunks);
                    let total = done / all * report.copied_chunks_max();
                    let progress = Progress::bytes(Activity::CopyPopular, done, Some(total));
                    self.census.objects().context.report(progress);
                }
            }
            Ok(())
        })?;
        report.stored_bytes += stored_bytes;
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a count need not be exact, and is between 0 and the count"
)]
fn quota(unique: u64, share: f64) -> u64 {
    (unique as f64 * share.clamp(0.0, 1.0)).round() as u64
}
