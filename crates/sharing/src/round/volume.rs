//! A volume of a round: scanned, read again where it becomes shared, and backed up.

use std::path::Path;

use silt_backup::{
    BackupSession, FilePiece, Hint, NewData, NewFiles, ScanRecorder, SegmentDraft, Survey,
    SurveySession, TreeOptions, TreeSurvey,
};
use silt_format::number::to_u32;
use silt_format::{Fingerprint, Record, Result};
use silt_repository::event::Progress;
use silt_repository::temporary::TemporaryFile;
use silt_runs::Sorter;
use silt_source::VolumeSource;
use silt_tree::{LocalTree, TreeOrigin};

use super::files::{NewFileData, PieceRecorder};
use super::place::NewChunk;
use super::spool::SpoolWriter;

/// The size of a tree is not known before it is walked: more than any session ahead is worth.
const TREE_BYTES: u64 = 1 << 40;

/// What a round backs up as one volume.
pub enum RoundVolume<'a> {
    /// A disk of known size.
    Disk(Box<dyn VolumeSource + 'a>),
    /// A file tree, and how it is backed up. It is walked again if it changes during the round.
    Tree(Box<dyn TreeOrigin + 'a>, TreeOptions),
}

impl RoundVolume<'_> {
    /// Returns the volume of a directory of this machine.
    pub fn of_directory(root: &Path, options: TreeOptions) -> Self {
        Self::Tree(Box::new(LocalTree::new(root, &options.rules)), options)
    }

    /// Whether it is a disk that can be read only once.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Disk(source) if source.info().size.is_none())
    }
}

impl<'a> From<Box<dyn VolumeSource + 'a>> for RoundVolume<'a> {
    fn from(source: Box<dyn VolumeSource + 'a>) -> Self {
        Self::Disk(source)
    }
}

/// What of a volume is new, as far as it was scanned.
enum Found {
    Nothing,
    OnDisk(Survey),
    InFiles(TreeSurvey, NewFileData),
}

/// The temporary files of a round's records: of what scans have found, and of where new data is in
/// files.
pub(super) struct Records {
    pub(super) scans: TemporaryFile,
    pub(super) pieces: TemporaryFile,
}

/// A volume of a round: where to read it, and what the scan has found.
pub(super) struct Volume<'a> {
    pub(super) name: String,
    source: RoundVolume<'a>,
    found: Found,
}

/// The scan of a volume: where its results go, and how many there are.
pub(super) struct Scan<'s> {
    pub(super) member: u16,
    pub(super) volume: u8,
    /// Takes a record of each chunk that is new.
    pub(super) requests: &'s mut Sorter,
    /// Takes the segments of a disk that are new, if there is room for them.
    pub(super) spool: Option<SpoolWriter>,
    pub(super) requested_chunks: u64,
    pub(super) spooled_bytes: u64,
}

impl Scan<'_> {
    fn request(&mut self, fingerprint: &Fingerprint, offset: u64, bytes: usize) -> Result<()> {
        self.requested_chunks += 1;
        let (member, volume, chunk_bytes) = (self.member, self.volume, to_u32(bytes));
        let place = NewChunk { member, volume, offset, chunk_bytes };
        self.requests.push(Record { fingerprint: *fingerprint, payload: place.encode() })
    }
}

/// What the scan of a disk gives out.
struct FoundOnDisk<'s, 'r> {
    scan: &'s mut Scan<'r>,
    recorder: ScanRecorder<'s>,
}

impl NewData for FoundOnDisk<'_, '_> {
    fn chunk(&mut self, fingerprint: &Fingerprint, offset: u64, bytes: usize) -> Result<()> {
        self.scan.request(fingerprint, offset, bytes)
    }

    fn zeros(&mut self, index: u64) -> Result<()> {
        self.recorder.zeros(index)
    }

    fn segment(&mut self, draft: &SegmentDraft, is_whole: bool) -> Result<()> {
        if let Some(spool) = &mut self.scan.spool {
            spool.push(draft.index, &draft.data)?;
            self.scan.spooled_bytes = spool.bytes();
        }
        if is_whole { self.recorder.push(draft) } else { Ok(()) }
    }
}

/// What the scan of a tree gives out.
struct FoundInFiles<'s, 'r> {
    scan: &'s mut Scan<'r>,
    recorder: PieceRecorder<'s>,
}

impl NewFiles for FoundInFiles<'_, '_> {
    fn chunk(&mut self, fingerprint: &Fingerprint, address: u64, bytes: usize) -> Result<()> {
        self.scan.request(fingerprint, address, bytes)
    }

    fn piece(&mut self, piece: &FilePiece<'_>) -> Result<()> {
        self.recorder.push(piece)
    }
}

impl<'a> Volume<'a> {
    pub(super) fn new((name, source): (String, RoundVolume<'a>)) -> Self {
        Self { name, source, found: Found::Nothing }
    }

    /// About how many bytes there are to read.
    pub(super) fn bytes(&self) -> u64 {
        match &self.source {
            RoundVolume::Disk(source) => source.info().size.unwrap_or(0),
            RoundVolume::Tree(..) => TREE_BYTES,
        }
    }

    /// Whether the volume itself is not needed any more.
    pub(super) fn is_spooled(&self) -> bool {
        matches!(&self.found, Found::OnDisk(survey) if survey.is_spooled)
    }

    /// Whether a spool can hold what is new of it.
    pub(super) fn can_be_spooled(&self) -> bool {
        matches!(self.source, RoundVolume::Disk(_))
    }

    /// Scans the volume; `records` take what the round needs to know of it later. Once a spool
    /// holds all that is new, the round reads it in place of the disk.
    pub(super) fn survey(
        &mut self,
        session: &mut SurveySession<'_>,
        scan: &mut Scan<'_>,
        records: &mut Records,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        match &mut self.source {
            RoundVolume::Disk(source) => {
                let mut found =
                    FoundOnDisk { scan, recorder: ScanRecorder::new(&mut records.scans) };
                let mut survey = session.survey(&self.name, &**source, &mut found, watch)?;
                survey.recorded = Some(found.recorder.finish()?);
                if survey.is_complete
                    && let Some(spool) = scan.spool.take()
                {
                    let unreadable = std::mem::take(&mut survey.unreadable);
                    *source = Box::new(spool.finish(source.info(), unreadable));
                    survey.is_spooled = true;
                }
                self.found = Found::OnDisk(survey);
            }
            RoundVolume::Tree(tree, options) => {
                let recorder = PieceRecorder::new(&mut records.pieces);
                let mut found = FoundInFiles { scan, recorder };
                let to: (&mut dyn NewFiles, _) = (&mut found, &mut records.scans);
                let survey = session.survey_tree(&self.name, tree.walk()?, options, to, watch)?;
                self.found = Found::InFiles(survey, found.recorder.finish()?);
            }
        }
        Ok(())
    }

    /// Reads new data again, from the offset of a request on. Returns how many bytes were read;
    /// some of them may be others than before.
    pub(super) fn read_again(&self, offset: u64, data: &mut [u8]) -> Result<usize> {
        match (&self.source, &self.found) {
            (RoundVolume::Disk(source), _) => source.read_at(offset, data),
            (RoundVolume::Tree(tree, _), Found::InFiles(_, files)) => {
                files.read(&**tree, offset, data)?;
                Ok(data.len())
            }
            (RoundVolume::Tree(..), _) => Ok(0),
        }
    }

    /// Backs the volume up.
    pub(super) fn back_up(
        &self,
        session: &mut BackupSession<'_>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        match &self.source {
            RoundVolume::Disk(source) => {
                let hint = match &self.found {
                    Found::OnDisk(survey) => Hint::Survey(survey),
                    _ => Hint::None,
                };
                session.add_volume_by(&self.name, &**source, hint, watch)?;
            }
            RoundVolume::Tree(tree, options) => {
                let description = tree.description();
                if let Found::InFiles(survey, files) = &self.found {
                    let read = |at, data: &mut [u8]| files.read(&**tree, at, data);
                    let named = (&*self.name, &*description);
                    if session.add_surveyed_tree(named, survey, &read, watch)? {
                        return Ok(());
                    }
                }
                let source = (&*description, tree.walk()?);
                session.add_tree_by(&self.name, source, options, watch)?;
            }
        }
        Ok(())
    }
}
