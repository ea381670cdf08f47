//! Scanning a volume without storing anything: what of it is new to its series?

use silt_format::number::to_u64;
use silt_format::{Fingerprint, Result, SEGMENT_BYTES};
use silt_source::{ChangedMap, VolumeSource};

use super::feed::Feed;
use super::pipeline::Pipeline;
use super::scan::{Scanned, SegmentDraft};
use super::session::{BackupSession, check_name, jobs};
use crate::env::Progress;

/// What a survey of a volume has found.
pub(crate) struct Survey {
    /// Which segments the backup has to read, if it has a parent to take the others from.
    pub(crate) changed: Option<ChangedMap>,
}

/// Takes a chunk that no level has found: its fingerprint, where it begins in the volume, its bytes.
pub(crate) type NewChunk<'a> = dyn FnMut(&Fingerprint, u64, usize) -> Result<()> + 'a;

impl BackupSession<'_> {
    /// Scans a volume and calls `each` with every chunk that neither its series nor the shared store
    /// has. The session must not be used for the backup itself.
    pub(crate) fn survey(
        &mut self,
        name: &str,
        source: &dyn VolumeSource,
        each: &mut NewChunk<'_>,
    ) -> Result<Survey> {
        check_name("volume", name)?;
        let chunking = self.options.chunking.unwrap_or(self.repository.config.chunking);
        let scanner = self.scanner(name, chunking)?;
        let jobs = self.budget.workers(jobs(self.options.jobs));
        let pipeline = Pipeline::new(
            Feed::new(source, None),
            source,
            &scanner,
            &self.repository.objects,
            self.repository.config.zstd_level,
            jobs + self.budget.spare_buffers(),
        );
        let size = source.info().size;
        let (mut segment, mut changed) = (0_u64, Vec::new());
        pipeline.run(jobs, |pipeline| {
            while let Some(outcome) = pipeline.next()? {
                self.lease.keep()?;
                self.context.check_interrupted()?;
                match outcome.scanned {
                    Scanned::Zeros { segments, .. } => {
                        changed.extend(segment..segment + segments);
                        segment += segments;
                    }
                    Scanned::Clean { segments, .. } => segment += segments,
                    Scanned::Same { .. } => segment += 1,
                    Scanned::Draft(mut draft) => {
                        changed.push(segment);
                        self.look_up(&mut draft, segment * to_u64(SEGMENT_BYTES), each)?;
                        pipeline.recycle(draft.data);
                        segment += 1;
                    }
                }
                let done_bytes = segment * to_u64(SEGMENT_BYTES);
                let total_bytes = size.unwrap_or(0);
                let progress = Progress { done_bytes, total_bytes, ..Progress::default() };
                self.context.observer.progress("scan", progress);
            }
            Ok(())
        })?;
        let parent = self.parent().and_then(|parent| {
            parent.volumes.iter().find(|volume| volume.name == name).map(|volume| volume.bytes)
        });
        let changed = match size {
            Some(size) if parent == Some(size) => {
                Some(ChangedMap::of_grains(size, to_u64(SEGMENT_BYTES), &changed)?)
            }
            _ => None,
        };
        Ok(Survey { changed })
    }

    /// Asks the levels for the chunks of a segment that begins at `offset`.
    fn look_up(
        &mut self,
        draft: &mut SegmentDraft,
        offset: u64,
        each: &mut NewChunk<'_>,
    ) -> Result<()> {
        let mut detection = match self.detection.take() {
            Some(detection) => detection,
            None => self.begin_detection()?,
        };
        for level in &mut detection.levels {
            level.resolve(draft, &mut self.known, &self.packs)?;
        }
        self.detection = Some(detection);
        for chunk in draft.chunks.iter().filter(|chunk| chunk.found.is_none()) {
            each(&chunk.fingerprint, offset + to_u64(chunk.range.start), chunk.range.len())?;
        }
        Ok(())
    }
}
