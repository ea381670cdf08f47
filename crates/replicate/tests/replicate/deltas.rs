//! Chunks that go as deltas, and deltas that are wrong.

use std::collections::VecDeque;

use silt_backup::ReplicaPeer;
use silt_format::replica::{ChunkDelta, DeltaBase, ReplicaMessage, SourceMessage};
use silt_format::{ErrorKind, Result};
use silt_replicate::{DeltaUse, Outcome, Replica, ReplicateOptions, ReplicateReport, Source};
use siltstone::BackupOptions;
use siltstone::storage::{ByteRange, PutMode, Storage};

use crate::kit::*;

/// What a test does to a message.
type Change<'c> = &'c mut dyn FnMut(SourceMessage) -> SourceMessage;

/// A source whose messages are changed on their way.
struct Changed<'r, 'c> {
    source: Source<'r>,
    answers: VecDeque<ReplicaMessage>,
    change: Change<'c>,
}

impl ReplicaPeer for Changed<'_, '_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        while let Some(answer) = self.answers.pop_front() {
            self.source.take(answer)?;
        }
        let message = self.source.produce()?.unwrap();
        SourceMessage::decode(&(self.change)(message).encode())
    }
}

fn replicated(here: &Site, there: &Site, delta: DeltaUse, change: Change<'_>) -> ReplicateReport {
    let options = ReplicateOptions { delta, ..ReplicateOptions::default() };
    let mut source = Source::new(&here.repository, options).unwrap();
    source.set_deltas(3);
    let mut peer = Changed { source, answers: VecDeque::new(), change };
    Replica::new(&there.repository, BackupOptions::default()).serve(&mut peer).unwrap();
    peer.source.into_report()
}

/// A disk, and what became of it: all chunks are changed a little, and are elsewhere.
fn disks() -> (Vec<u8>, Vec<u8>) {
    let old = noise(1, SEGMENT + 500_000);
    let mut new = old.clone();
    new.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
    new.rotate_left(300 * 4096);
    (old, new)
}

/// Two sites that have the old disk, of which one has the new one, too.
fn sites() -> (Site, Site, Vec<u8>) {
    let (old, new) = disks();
    let here = site();
    back_up(&here, "web1", &[("root", &old)]);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    back_up(&here, "web1", &[("root", &new)]);
    (here, there, new)
}

fn deltas_and_data(delta: DeltaUse) -> (usize, usize, ReplicateReport) {
    let (here, there, new) = sites();
    let (mut deltas, mut data) = (0, 0);
    let report = replicated(&here, &there, delta, &mut |message| {
        match &message {
            SourceMessage::Delta(delta) => deltas += delta.frame.len(),
            SourceMessage::Data(bytes) => data += bytes.len(),
            _ => {}
        }
        message
    });
    assert!(report.is_complete());
    assert!(read(&there, "web1", "root") == new);
    check(&there);
    (deltas, data, report)
}

#[test]
fn what_resembles_the_parent_goes_as_deltas() {
    let (deltas, data, report) = deltas_and_data(DeltaUse::Auto);
    let size = SEGMENT + 500_000;
    assert_eq!(data, 0);
    assert!((1..size / 20).contains(&deltas), "{deltas}");
    assert_eq!(report.snapshots[0].delta_bytes, report.snapshots[0].sent_bytes);
    assert_eq!(report.snapshots[0].sent_bytes, size as u64);
}

#[test]
fn deltas_can_be_turned_off() {
    let (deltas, data, report) = deltas_and_data(DeltaUse::Off);
    assert_eq!((deltas, data), (0, SEGMENT + 500_000));
    assert_eq!(report.snapshots[0].delta_bytes, 0);
}

#[test]
fn a_connection_sends_deltas_and_counts_them() {
    let (here, there, new) = sites();
    let (sent, served) = send_over(&here, &there, |stream| Box::new(stream));
    let (report, traffic) = sent.unwrap();
    assert_eq!(served.unwrap(), 1);
    assert!(report.is_complete() && traffic.sent.chunks == 0, "{traffic:?}");
    assert!((1..100_000).contains(&traffic.sent.deltas), "{traffic:?}");
    assert!(read(&there, "web1", "root") == new);
}

#[test]
fn what_resembles_nothing_goes_as_it_is() {
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, SEGMENT))]);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    back_up(&here, "web1", &[("root", &noise(2, SEGMENT))]);
    let report = replicated(&here, &there, DeltaUse::Auto, &mut |message| {
        assert!(!matches!(message, SourceMessage::Delta(_)));
        message
    });
    assert!(report.is_complete());
}

/// Deltas that are wrong in one way each: the chunks are asked for again as they are.
#[test]
fn what_a_wrong_delta_brings_is_asked_for_again() {
    let wrongs: [fn(&mut ChunkDelta); 5] = [
        |delta| delta.bases[0].offset ^= 4096,
        |delta| delta.bases.truncate(delta.bases.len() - 1),
        |delta| delta.frame.truncate(delta.frame.len() - 1),
        |delta| delta.frame.clear(),
        // It decodes to more than was claimed, as one that expands does.
        |delta| delta.frame = zstd::bulk::compress(&vec![7; 64 << 20], 1).unwrap(),
    ];
    for (number, wrong) in wrongs.iter().enumerate() {
        let (here, there, new) = sites();
        let (mut deltas, mut data) = (0, 0);
        let report = replicated(&here, &there, DeltaUse::Auto, &mut |mut message| {
            match &mut message {
                SourceMessage::Delta(delta) => {
                    deltas += 1;
                    // At least one base is left.
                    if delta.bases.len() == 1 {
                        delta.bases.push(DeltaBase { offset: 0, length: 1 });
                    }
                    wrong(delta);
                }
                SourceMessage::Data(bytes) => data += bytes.len(),
                _ => {}
            }
            message
        });
        assert!(report.is_complete(), "{number}: {report:?}");
        assert!(deltas > 0 && data > 100_000, "{number}: {deltas}, {data}");
        assert!(read(&there, "web1", "root") == new);
        check(&there);
    }
}

/// What is asked for again must be right.
#[test]
fn chunks_that_are_wrong_twice_are_refused() {
    let (here, there, _) = sites();
    let report = replicated(&here, &there, DeltaUse::Auto, &mut |mut message| {
        match &mut message {
            SourceMessage::Delta(delta) => delta.frame.clear(),
            SourceMessage::Data(bytes) => bytes[0] ^= 1,
            _ => {}
        }
        message
    });
    assert!(matches!(report.snapshots[0].outcome, Outcome::Failed(ErrorKind::Corrupt, _)));
    assert!(read(&there, "web1", "root") == disks().0);
}

#[test]
fn deltas_that_break_the_protocol_are_refused() {
    let wrongs: [fn(&mut ChunkDelta); 4] = [
        |delta| delta.bases[0].offset = (SEGMENT + 500_000) as u64,
        |delta| delta.bases[0].offset = u64::MAX - (1 << 20),
        |delta| delta.bytes -= 1,
        |delta| delta.bytes = 4 << 20,
    ];
    for (number, wrong) in wrongs.iter().enumerate() {
        let (here, there, _) = sites();
        let report = replicated(&here, &there, DeltaUse::Auto, &mut |mut message| {
            if let SourceMessage::Delta(delta) = &mut message {
                wrong(delta);
            }
            message
        });
        let outcome = &report.snapshots[0].outcome;
        assert!(matches!(outcome, Outcome::Failed(ErrorKind::Invalid, _)), "{number}: {outcome:?}");
        assert!(read(&there, "web1", "root") == disks().0);
        check(&there);
    }
}

#[test]
fn a_delta_needs_a_parent() {
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, SEGMENT))]);
    let there = replica_of(&here);
    let report = replicated(&here, &there, DeltaUse::Auto, &mut |message| match message {
        SourceMessage::Data(bytes) => {
            let frame = zstd::bulk::compress(&bytes, 1).unwrap();
            let bases = vec![DeltaBase { offset: 0, length: 1 }];
            let bytes = u32::try_from(bytes.len()).unwrap();
            SourceMessage::Delta(ChunkDelta { bytes, bases, frame })
        }
        other => other,
    });
    assert!(matches!(report.snapshots[0].outcome, Outcome::Failed(ErrorKind::Invalid, _)));
}

/// Flips a bit of every container.
fn damage(site: &Site) {
    let page = site.storage.list("containers", None).unwrap();
    for (key, _) in page.objects {
        let mut bytes = Vec::new();
        site.storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        for at in (1000..bytes.len()).step_by(50_000) {
            bytes[at] ^= 1;
        }
        site.storage.delete(std::slice::from_ref(&key)).unwrap();
        site.storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }
}

#[test]
fn a_base_that_is_damaged_at_the_replica_costs_bytes_and_nothing_else() {
    let (here, there, new) = sites();
    damage(&there);
    let (mut deltas, mut data) = (0, 0);
    let report = replicated(&here, &there, DeltaUse::Auto, &mut |message| {
        deltas += usize::from(matches!(message, SourceMessage::Delta(_)));
        data += usize::from(matches!(message, SourceMessage::Data(_)));
        message
    });
    assert!(report.is_complete(), "{report:?}");
    assert!(deltas > 0 && data > 0, "{deltas}, {data}");
    assert!(read(&there, "web1", "root") == new);
}

#[test]
fn a_base_that_is_damaged_at_the_source_is_none() {
    let (old, new) = disks();
    let here = site();
    back_up(&here, "web1", &[("root", &old)]);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    damage(&here);
    back_up(&here, "web1", &[("root", &new)]);
    let report = replicated(&here, &there, DeltaUse::Auto, &mut |message| message);
    assert!(report.is_complete(), "{report:?}");
    assert!(read(&there, "web1", "root") == new);
    check(&there);
}
