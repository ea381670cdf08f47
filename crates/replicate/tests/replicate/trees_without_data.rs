//! A source that describes segments of files as zeros, which files never refer to.

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use silt_backup::ReplicaPeer;
use silt_format::replica::{Described, ReplicaMessage, SourceMessage, TreeStep};
use silt_format::{ErrorKind, Lease, Result};
use silt_replicate::{Outcome, Replica, ReplicateOptions, ReplicateReport, Source};
use silt_repository::env::{Context, Env, Process};
use silt_repository::event::Silent;
use siltstone::storage::MemoryStorage;
use siltstone::{BackupOptions, Config, Protection, Repository, SystemEnv};

use crate::hostile_sources::is_sound;
use crate::kit::*;
use crate::trees::{back_up_tree, entries};

/// A real source, of which one description is changed.
struct Bent<'r, 'b> {
    source: Source<'r>,
    answers: VecDeque<ReplicaMessage>,
    bend: &'b mut dyn FnMut(&mut Described),
    /// Steps as in the parent.
    same: usize,
}

impl ReplicaPeer for Bent<'_, '_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        while let Some(answer) = self.answers.pop_front() {
            self.source.take(answer)?;
        }
        let mut message = self.source.produce()?.unwrap_or(SourceMessage::Abort);
        match &mut message {
            SourceMessage::Segments(all) => all.iter_mut().for_each(&mut *self.bend),
            SourceMessage::Steps(steps) => {
                let same =
                    |step: &&TreeStep| matches!(step, TreeStep::Same(_) | TreeStep::SameRange(..));
                self.same += steps.iter().filter(same).count();
            }
            _ => {}
        }
        SourceMessage::decode(&message.encode())
    }
}

/// A clock that is fast, so that files which were just made are not taken for fresh.
struct Later(SystemEnv);

impl Env for Later {
    fn now_ns(&self) -> i64 {
        self.0.now_ns() + 3600 * 1_000_000_000
    }
    fn entropy(&self, bytes: &mut [u8]) {
        self.0.entropy(bytes);
    }
    fn process(&self) -> Process {
        self.0.process()
    }
    fn may_be_running(&self, lease: &Lease) -> bool {
        self.0.may_be_running(lease)
    }
    fn is_interrupted(&self) -> bool {
        self.0.is_interrupted()
    }
}

fn later_site() -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let env = Later(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(Arc::new(env), Arc::new(Silent));
    let (config, open) = (Config::default(), Protection::None);
    let made = Repository::init(storage.clone(), context, config, &open, None);
    Site { repository: made.unwrap(), storage }
}

/// Returns the number of steps as in the parent, too.
fn send_bent(
    here: &Site,
    there: &Site,
    bend: &mut dyn FnMut(&mut Described),
) -> (ReplicateReport, usize) {
    let source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
    let mut bent = Bent { source, answers: VecDeque::new(), bend, same: 0 };
    let options = BackupOptions::default();
    Replica::new(&there.repository, options).serve(&mut bent).unwrap();
    (bent.source.into_report(), bent.same)
}

fn is_refused(report: &ReplicateReport) -> bool {
    matches!(
        &report.snapshots.last().unwrap().outcome,
        Outcome::Failed(ErrorKind::Corrupt, why) if why.contains("has no data")
    )
}

/// Directories of small files, one of them in another, and a file of some segments.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("directory/inner");
    fs::create_dir_all(&inner).unwrap();
    for file in 0..4 {
        fs::write(inner.join(format!("file{file}")), noise(file, 3000)).unwrap();
    }
    fs::write(folder.path().join("large"), noise(77, 3 * SEGMENT)).unwrap();
    fs::write(folder.path().join("sparse"), vec![0; 2 * SEGMENT]).unwrap();
    folder
}

#[test]
fn files_in_segments_without_data_are_refused() {
    let (here, folder) = (later_site(), folder());
    back_up_tree(&here, folder.path());
    let mut segments = 0;
    for place in 0.. {
        let there = replica_of(&here);
        let mut at = 0;
        let (report, _) = send_bent(&here, &there, &mut |described| {
            if let Described::Segment(..) = described {
                if at == place {
                    *described = Described::Zeros(1);
                }
                at += 1;
            }
        });
        is_sound(&there, "a segment without data");
        if at <= place {
            assert!(report.is_complete(), "{report:?}");
            break;
        }
        assert!(is_refused(&report), "{place}: {report:?}");
        segments += 1;
    }
    assert!(segments >= 4, "{segments}");
}

/// The directories are as in the parent, and the parent's segments are not.
#[test]
fn unchanged_files_in_segments_without_data_are_refused() {
    let (here, folder) = (later_site(), folder());
    back_up_tree(&here, folder.path());
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    fs::write(folder.path().join("new"), noise(5, 3000)).unwrap();
    back_up_tree(&here, folder.path());
    let mut is_bent = false;
    let (report, same) = send_bent(&here, &there, &mut |described| {
        if let Described::Parent(count) = described {
            *described = Described::Zeros(*count);
            is_bent = true;
        }
    });
    assert!(is_bent && same > 0 && is_refused(&report), "{report:?}");
    is_sound(&there, "segments of the parent without data");
    let (report, _) = send_bent(&here, &there, &mut |_| {});
    assert!(report.is_complete(), "{report:?}");
    assert!(entries(&there) == entries(&here));
}

/// Segments whose files are gone lose their data, and the other files stay.
#[test]
fn an_honest_source_drops_segments() {
    let (here, folder) = (later_site(), folder());
    back_up_tree(&here, folder.path());
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    fs::remove_file(folder.path().join("large")).unwrap();
    for day in 0..3 {
        fs::write(folder.path().join("new"), noise(100 + day, SEGMENT)).unwrap();
        back_up_tree(&here, folder.path());
        let mut dropped = 0;
        let (report, same) = send_bent(&here, &there, &mut |described| {
            dropped += u32::from(matches!(described, Described::Zeros(_)));
        });
        assert!(report.is_complete() && dropped > 0 && same > 0, "{report:?}");
        assert!(entries(&there) == entries(&here));
        check(&there);
    }
}
