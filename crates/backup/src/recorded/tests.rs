//! Records of scans: what is written is read, and what they say is not believed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use silt_format::number::to_usize;
use silt_format::{BLOCK_BYTES as BLOCK, Config, SEGMENT_BYTES};
use silt_repository::env::Context;
use silt_repository::event::Silent;
use silt_repository::find::{Selector, When};
use silt_repository::open::Protection;
use silt_repository::system::SystemEnv;
use silt_repository::{Repository, VolumeReader};
use silt_source::{Extent, ExtentKind, SourceFormat, SourceInfo};
use silt_storage::MemoryStorage;

use super::super::hint::Hint;
use super::super::survey::{NewData, SurveySession};
use super::*;
use crate::{BackupOptions, BackupSession};

fn repository() -> Repository {
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let (storage, config) = (Arc::new(MemoryStorage::new()), Config::default());
    Repository::init(storage, context, config, &Protection::None, None).unwrap()
}

fn records(repository: &Repository) -> TemporaryFile {
    TemporaryFile::new(&repository.objects, &std::env::temp_dir())
}

fn chunk(number: usize, found: Option<(Reference, Level)>) -> DraftChunk {
    let range = number * BLOCK..(number + 1) * BLOCK;
    let fingerprint = silt_format::fingerprint(&[1; 32], &number.to_le_bytes());
    DraftChunk { range, fingerprint, found, is_read: true, node: 0 }
}

#[test]
fn what_was_recorded_is_read_in_order_whatever_is_asked_for() {
    let repository = repository();
    let mut file = records(&repository);
    let (zero, known) = ((Reference::ZERO, Level::Zero), (Reference::new(0, 1, 1), Level::Similar));
    let shared = (Reference::new(1, 1, 1), Level::Shared);
    let chunks: Vec<_> = [Some(zero), Some(known), Some(shared), None]
        .into_iter()
        .cycle()
        .take(512)
        .enumerate()
        .map(|(number, found)| chunk(number, found))
        .collect();
    // Two volumes in one file, of several blocks each.
    let scans = [0, 1].map(|volume| {
        let mut recorder = ScanRecorder::new(&mut file);
        for index in (0..60).map(|number| 10 + 3 * number) {
            recorder
                .add(index, SegmentDigest { kind: volume, bytes: [volume; 16] }, &chunks)
                .unwrap();
            recorder.zeros(index + 1).unwrap();
        }
        recorder.finish().unwrap()
    });
    for (volume, scan) in (0..).zip(&scans) {
        assert!(scan.0.blocks.len() > 3, "{:?}", scan.0.blocks);
        let mut segments = scan.segments();
        assert!(segments.take(9).unwrap().is_none());
        for index in [10, 11, 13, 100, 188] {
            let found = segments.take(index).unwrap().unwrap();
            assert_eq!((found.index, found.is_zero()), (index, index % 3 == 2));
            if !found.is_zero() {
                assert_eq!(found.digest, SegmentDigest { kind: volume, bytes: [volume; 16] });
                assert_eq!(found.chunks.len(), 512);
                let seen = [Seen::Zero, Seen::InSeries, Seen::New, Seen::New];
                for ((found, chunk), seen) in
                    found.chunks.iter().zip(&chunks).zip(seen.iter().cycle())
                {
                    assert_eq!((found.length, found.seen), (4096, *seen));
                    assert_eq!(found.fingerprint, chunk.fingerprint);
                }
            }
            assert!(segments.take(index).unwrap().is_none(), "it was taken");
        }
        assert!(segments.take(1000).unwrap().is_none());
    }
    assert!(RecordedScan(Blocks::default()).segments().take(0).unwrap().is_none());
}

/// A volume of blocks that all differ.
struct Disk(Vec<u8>);

impl Disk {
    fn new(first: u32, segments: usize) -> Self {
        let numbers = (first..).take(segments * SEGMENT_BYTES / BLOCK);
        Self(numbers.flat_map(|number| number.to_le_bytes().repeat(BLOCK / 4)).collect())
    }
}

impl VolumeSource for Disk {
    fn info(&self) -> SourceInfo {
        let size = Some(to_u64(self.0.len()));
        SourceInfo {
            description: "a disk".to_owned(),
            format: SourceFormat::Raw,
            size,
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { offset, length: to_u64(self.0.len()) - offset, kind: ExtentKind::Data })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let start = to_usize(offset);
        buf.copy_from_slice(&self.0[start..start + buf.len()]);
        Ok(buf.len())
    }
}

/// Records a survey, and says of every chunk that the series has it.
struct Lies<'f>(ScanRecorder<'f>);

impl NewData for Lies<'_> {
    fn chunk(&mut self, _: &Fingerprint, _: u64, _: usize) -> Result<()> {
        Ok(())
    }
    fn zeros(&mut self, index: u64) -> Result<()> {
        self.0.zeros(index)
    }
    fn segment(&mut self, draft: &SegmentDraft, _: bool) -> Result<()> {
        let mut chunks = draft.chunks.clone();
        chunks.iter_mut().for_each(|c| c.found = Some((Reference::ZERO, Level::SameOffset)));
        self.0.add(draft.index, draft.digest, &chunks)
    }
}

fn restored(repository: &Repository) -> Vec<u8> {
    let found = repository.find(&Selector::Time(Some("vm".to_owned()), When::Latest)).unwrap();
    let volume = found.volumes().next().unwrap();
    let mut bytes = vec![0; to_usize(volume.volume().bytes)];
    let reader = VolumeReader::open(repository, volume, 0).unwrap();
    assert_eq!(reader.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Chunks that a scan has found may be lost before the backup: its segments are read as a whole
/// then.
#[test]
fn a_record_that_promises_too_much_costs_a_second_look_and_no_data() {
    let repository = repository();
    let mut file = records(&repository);
    for first in [1, 100_000] {
        let disk = Disk::new(first, 3);
        let mut lies = Lies(ScanRecorder::new(&mut file));
        let scan = BackupSession::begin(&repository, "vm", BackupOptions::default()).unwrap();
        let mut scan = SurveySession::from(scan);
        let mut survey = scan.survey("disk", &disk, &mut lies, &mut |_| {}).unwrap();
        drop(scan);
        survey.recorded = Some(lies.0.finish().unwrap());
        let mut session =
            BackupSession::begin(&repository, "vm", BackupOptions::default()).unwrap();
        let hint = Hint::Survey(&survey);
        session.add_volume_by("disk", &disk, hint, &mut |_| {}).unwrap();
        let report = session.finish().unwrap();
        let new_bytes = report.snapshot.volumes[0].levels.get(Level::New);
        assert_eq!(new_bytes, to_u64(disk.0.len()), "{report:?}");
        assert!(restored(&repository) == disk.0);
    }
}
