//! Scans a volume without storing anything, to find the data that is new to its series.

mod trees;

pub use trees::NewFiles;

use silt_format::number::to_u64;
use silt_format::{ALONE, ByteSpan, Error, Fingerprint, Id, Result, SEGMENT_BYTES};
use silt_repository::event::{Activity, Progress};
use silt_source::{ChangedMap, VolumeSource};

use super::feed::Feed;
use super::hint::Hint;
use super::memo::Memo;
use super::pipeline::Pipeline;
use super::recorded::RecordedScan;
use super::scan::{Scanned, SegmentDraft};
use super::session::{BackupSession, check_name, scan_jobs};

/// The result of a survey of a volume.
#[derive(Default)]
pub struct Survey {
    /// The snapshot that the volume was compared with.
    pub parent: Option<Id>,
    /// The segments that differ from the parent; `None` if it does not have this volume with this
    /// size.
    pub changed: Option<ChangedMap>,
    /// Whether a backup has to read only the segments that [`NewData`] has received.
    pub is_complete: bool,
    /// Whether the backup can read only those segments, because the volume was released.
    pub is_spooled: bool,
    /// Ranges that could not be read.
    pub unreadable: Vec<ByteSpan>,
    /// The results for the segments that differ from the parent, if the caller has recorded them.
    pub recorded: Option<RecordedScan>,
    /// Number of segments that were read, but not digested.
    pub recognized_segments: u64,
}

/// Receives the results of a survey.
pub trait NewData {
    /// Receives a chunk that no level has found: its fingerprint, its offset in the volume, and its
    /// size.
    fn chunk(&mut self, fingerprint: &Fingerprint, offset: u64, bytes: usize) -> Result<()>;
    /// Receives the number of a segment of zeros that had to be read.
    fn zeros(&mut self, index: u64) -> Result<()>;
    /// Receives a segment that differs from the parent, and whether all of it could be read.
    fn segment(&mut self, draft: &SegmentDraft, is_whole: bool) -> Result<()>;
}

/// A session that scans volumes and stores nothing. The tables of the session refer to chunks that
/// were not stored, so no backup may use them.
pub struct SurveySession<'r>(BackupSession<'r>);

impl<'r> From<BackupSession<'r>> for SurveySession<'r> {
    fn from(mut session: BackupSession<'r>) -> Self {
        session.nodes.is_survey = true;
        Self(session)
    }
}

impl SurveySession<'_> {
    /// Whether the series shares nothing with others, so that no other can use what is found.
    pub fn is_alone(&self) -> bool {
        self.0.head().domain == ALONE
    }

    /// Scans a volume. Passes on every chunk that neither its series nor the shared store has, and
    /// every segment that differs from the parent. `watch` receives the progress of every step.
    pub fn survey(
        &mut self,
        name: &str,
        source: &dyn VolumeSource,
        found: &mut dyn NewData,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Survey> {
        check_name("volume", name)?;
        let chunking = self.0.options.chunking.unwrap_or(self.0.repository.config.chunking);
        let scanner = self.0.scanner_of_disk(name, chunking, Hint::None)?;
        let size = source.info().size;
        let workers = self.0.context.workers(self.0.budget.workers(scan_jobs(self.0.options.jobs)));
        let pipeline = Pipeline::new(
            Feed::new(source, None, None),
            source,
            &scanner,
            &self.0.repository.objects.buffers,
            self.0.repository.config.zstd_level,
            workers,
            self.0.budget.segment_buffers(workers),
        );
        let (mut segment, mut changed, mut unreadable) = (0_u64, Vec::new(), Vec::new());
        // Segments equal to the parent's are not passed on, so the map must contain them.
        let parent_bytes = self.0.parent_volume(name).map(|volume| volume.bytes);
        let is_comparable = size.is_some() && parent_bytes == size && self.0.avoided.is_empty();
        let mut is_complete = is_comparable || parent_bytes.is_none();
        let mut notes = scanner.memo.as_ref().map(Memo::notes);
        self.0.context.report(Progress::bytes(Activity::Scan, 0, size));
        pipeline.run(|pipeline| {
            while let Some(outcome) = pipeline.next()? {
                self.0.lease.keep()?;
                self.0.context.check_interrupted()?;
                outcome.note_in(notes.as_mut());
                match outcome.scanned {
                    Scanned::Zeros { segments, .. } => {
                        if segments == 1 && outcome.unreadable.is_empty() {
                            found.zeros(segment)?;
                        }
                        changed.extend(segment..segment + segments);
                        segment += segments;
                    }
                    Scanned::Clean { segments, .. } => segment += segments,
                    Scanned::Same { .. } => {
                        is_complete &= outcome.unreadable.is_empty();
                        changed.extend((!outcome.unreadable.is_empty()).then_some(segment));
                        segment += 1;
                    }
                    Scanned::Tree(..) | Scanned::Changed => {
                        return Err(Error::invalid("a tree instead of a disk"));
                    }
                    Scanned::Draft(mut draft) => {
                        changed.push(segment);
                        let offset = segment * to_u64(SEGMENT_BYTES);
                        let mut each = |new: &_, at, bytes| found.chunk(new, at, bytes);
                        self.look_up(&mut draft, offset, &mut each)?;
                        found.segment(&draft, outcome.unreadable.is_empty())?;
                        pipeline.recycle(draft.data);
                        segment += 1;
                    }
                }
                unreadable.extend(outcome.unreadable);
                let done = segment * to_u64(SEGMENT_BYTES);
                let progress = Progress::bytes(Activity::Scan, done, size);
                self.0.context.report(progress);
                watch(progress);
            }
            Ok(())
        })?;
        let map = |size| ChangedMap::of_grains(size, to_u64(SEGMENT_BYTES), &changed);
        let changed = size.filter(|_| is_comparable).map(map).transpose()?;
        let recognized_segments = notes.map_or(0, |notes| notes.finish(&self.0.context));
        let parent = self.0.parent().map(|parent| parent.id);
        let unsaid = Survey::default();
        Ok(Survey { parent, changed, is_complete, unreadable, recognized_segments, ..unsaid })
    }

    /// Asks the levels for the chunks of a segment that begins at `offset`. Passes on those that
    /// are new: fingerprint, offset and size.
    fn look_up(
        &mut self,
        draft: &mut SegmentDraft,
        offset: u64,
        each: &mut dyn FnMut(&Fingerprint, u64, usize) -> Result<()>,
    ) -> Result<()> {
        self.0.resolve(draft)?;
        for chunk in draft.chunks.iter().filter(|chunk| chunk.found.is_none()) {
            let start = offset + to_u64(chunk.range.start);
            each(&chunk.fingerprint, start, chunk.range.len())?;
        }
        Ok(())
    }
}
