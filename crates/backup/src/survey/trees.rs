//! Scans a file tree without storing anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::number::to_u64;
use silt_format::{Error, FIRST_NODE, Fingerprint, Level, Result, SEGMENT_BYTES};
use silt_repository::event::{Activity, Progress};
use silt_repository::temporary::TemporaryFile;
use silt_tree::TreeSource;

use super::SurveySession;
use crate::draft::DraftChunk;
use crate::recorded::{TreeRecorder, TreeSurvey};
use crate::scan::{Scanned, TreeSegment};
use crate::session::{TreeBefore, WARNINGS_MAX, check_name};
use crate::tree::{FilePiece, Pieces, TreeFeed, TreeOptions};

/// Receives the results of a survey of a file tree.
pub trait NewFiles {
    /// Receives a chunk that no level has found: its fingerprint, its address, and its size.
    /// Addresses are those of the [pieces](Self::piece).
    fn chunk(&mut self, fingerprint: &Fingerprint, address: u64, bytes: usize) -> Result<()>;
    /// Receives a part of a file in a segment that has such chunks, or some that only storage nodes
    /// have: the backup reads these again. Parts come in the order of addresses.
    fn piece(&mut self, piece: &FilePiece<'_>) -> Result<()>;
}

/// Whether the backup reads a chunk again, unless the shared store has it by then.
fn is_read_again(chunk: &DraftChunk) -> bool {
    match chunk.found {
        None => true,
        Some((place, level)) => level == Level::Shared && place.store() >= FIRST_NODE,
    }
}

impl SurveySession<'_> {
    /// Scans a file tree as a backup would, and passes on every chunk that neither its series nor
    /// the shared store has. Does not read unchanged files, as far as `options` trust the
    /// metadata. `records` takes what a backup needs to do without walking the tree again. `watch`
    /// receives the progress of every step.
    pub fn survey_tree(
        &mut self,
        name: &str,
        source: Box<dyn TreeSource + '_>,
        options: &TreeOptions,
        (found, records): (&mut dyn NewFiles, &mut TemporaryFile),
        watch: &mut dyn FnMut(Progress),
    ) -> Result<TreeSurvey> {
        check_name("volume", name)?;
        let TreeBefore { old, known, expected_bytes } = self.0.tree_before(name);
        let (scanner, cutter) = (self.0.scanner_of_tree()?, self.0.cutter()?);
        let (context, owners) = (self.0.context.clone(), source.owners());
        let feed = TreeFeed::new(context, source, options, known, &old, cutter.clone());
        let seen_bytes = feed.seen_bytes();
        let objects = Arc::clone(&self.0.repository.objects);
        let pipeline = self.0.tree_pipeline((feed, &old, cutter), &scanner, &objects);
        let (mut pieces, mut address, mut bytes) = (Pieces::default(), 0_u64, 0);
        let (mut recorder, mut warnings) = (TreeRecorder::new(records), Vec::new());
        pipeline.run(|pipeline| {
            while let Some(outcome) = pipeline.next()? {
                self.0.lease.keep()?;
                self.0.context.check_interrupted()?;
                let room = (WARNINGS_MAX + 1).saturating_sub(warnings.len());
                warnings.extend(outcome.warnings.into_iter().take(room));
                let Scanned::Tree(events, mut segment) = outcome.scanned else {
                    return Err(Error::invalid("a disk instead of a tree"));
                };
                let mut wanted = None;
                if let TreeSegment::Draft(draft) = &mut segment {
                    let mut each = |new: &_, at, bytes| found.chunk(new, at, bytes);
                    self.look_up(draft, address, &mut each)?;
                    wanted = draft.chunks.iter().any(is_read_again).then_some(address);
                }
                bytes = seen_bytes.load(Ordering::Relaxed);
                recorder.push(&events, &segment, (address, bytes))?;
                pieces.take(events, wanted, &mut |piece| found.piece(piece))?;
                if wanted.is_some() {
                    address += to_u64(SEGMENT_BYTES);
                }
                if let TreeSegment::Draft(draft) = segment {
                    pipeline.recycle(draft.data);
                }
                let total = expected_bytes.map(|expected| expected.max(bytes));
                let progress = Progress::bytes(Activity::Scan, bytes, total);
                self.0.context.report(progress);
                watch(progress);
            }
            Ok(())
        })?;
        let parent = self.0.parent().map(|parent| parent.id);
        let (left_out, parts) = (pipeline.left_out(), recorder.finish()?);
        Ok(TreeSurvey { parent, owners, left_out, warnings, bytes, parts })
    }
}
