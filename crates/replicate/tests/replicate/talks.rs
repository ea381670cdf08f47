//! Replications that others disturb, and ends that are far ahead of each other.

use std::collections::VecDeque;
use std::sync::Arc;

use silt_backup::ReplicaPeer;
use silt_format::replica::{ReplicaMessage, SourceMessage};
use silt_format::{ErrorKind, Result};
use silt_replicate::{Outcome, Replica, ReplicateOptions, Source, replicate_watched};
use silt_storage::MemoryStorage;
use siltstone::{
    BackupOptions, Config, DeleteMethod, Protection, ReclaimOptions, Repository, Taken,
};

use crate::kit::*;

fn at(seconds: i64) -> BackupOptions {
    let taken = Taken { time_ns: Some(seconds * 1_000_000_000), ..Taken::default() };
    BackupOptions { taken, ..BackupOptions::default() }
}

fn forget(site: &Site, which: usize) {
    let head = site.repository.heads(&["web1".to_owned()]).unwrap().remove(0);
    let id = head.snapshots[which].id;
    site.repository.delete("web1", &[id], DeleteMethod::Exact).unwrap();
    let options =
        ReclaimOptions { grace_s: 0, keep_deleted_s: Some(0), ..ReclaimOptions::default() };
    site.repository.reclaim("web1", &options).unwrap();
}

fn count(site: &Site) -> usize {
    site.repository.heads(&["web1".to_owned()]).unwrap()[0].snapshots.len()
}

#[test]
fn of_two_replications_at_once_one_sends_each_snapshot() {
    let here = site();
    for second in 0..3 {
        back_up_with(&here, "web1", &noise(second, SEGMENT), at(1000 + second.cast_signed()));
    }
    let there = replica_of(&here);
    let mut begun = 0;
    let report = replicate_watched(
        &here.repository,
        &there.repository,
        ReplicateOptions::default(),
        BackupOptions::default(),
        &mut |message| {
            if matches!(message, SourceMessage::Begin(_)) {
                begun += 1;
                if begun == 2 {
                    // The first has been sent, the other two are sent by somebody else.
                    assert_eq!(send(&here, &there).snapshots.len(), 2);
                }
            }
            Ok(())
        },
    );
    let report = report.unwrap();
    let outcomes: Vec<_> = report.snapshots.iter().map(|snapshot| &snapshot.outcome).collect();
    assert!(matches!(outcomes[0], Outcome::Sent(_)), "{outcomes:?}");
    let said = ["series 'web1' has got a snapshot", "it waits for an older snapshot"];
    assert_eq!(outcomes.len(), 3);
    for (outcome, said) in outcomes[1..].iter().zip(said) {
        let Outcome::Failed(ErrorKind::Busy, why) = outcome else { panic!("{outcomes:?}") };
        assert!(why.contains(said), "{why}");
    }
    assert_eq!(count(&there), 3);
    assert_eq!(send(&here, &there).snapshots.len(), 0);
    check(&there);
}

#[test]
fn what_the_replica_forgot_stays_away_even_if_the_newest_common_one_is_gone_here() {
    let here = site();
    for second in 0..3 {
        back_up_with(&here, "web1", &noise(second, SEGMENT), at(1000 + second.cast_signed()));
    }
    let there = replica_of(&here);
    assert_eq!(send(&here, &there).snapshots.len(), 3);
    forget(&there, 1);
    forget(&here, 2);
    assert_eq!(send(&here, &there).snapshots.len(), 0);
    back_up_with(&here, "web1", &noise(9, SEGMENT), at(2000));
    assert_eq!(send(&here, &there).snapshots.len(), 1);
    assert_eq!(count(&there), 3);
}

#[test]
fn later_backups_at_the_replica_keep_no_snapshot_away() {
    let here = site();
    back_up_with(&here, "web1", &noise(1, SEGMENT), at(1000));
    let relay = replica_of(&here);
    let there = replica_of(&here);
    for (from, to) in [(&here, &relay), (&relay, &there)] {
        assert_eq!(send(from, to).snapshots.len(), 1);
    }
    back_up_with(&there, "web1", &noise(2, SEGMENT), at(5000));
    back_up_with(&here, "web1", &noise(3, SEGMENT), at(2000));
    assert_eq!(send(&here, &relay).snapshots.len(), 1);
    // The only one that they had in common is gone at the relay, where none was backed up.
    forget(&relay, 0);
    let report = send(&relay, &there);
    assert_eq!((report.snapshots.len(), report.refused.len()), (1, 0), "{report:?}");
    forget(&here, 0);
    back_up_with(&here, "web1", &noise(4, SEGMENT), at(3000));
    forget(&here, 0);
    let report = send(&here, &there);
    assert_eq!((report.snapshots.len(), report.refused.len()), (1, 0), "{report:?}");
}

/// The source says all that it can before it hears anything.
struct Eager<'r> {
    source: Source<'r>,
    said: VecDeque<SourceMessage>,
    answers: VecDeque<ReplicaMessage>,
    late: usize,
}

impl ReplicaPeer for Eager<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        loop {
            while self.said.back() != Some(&SourceMessage::Bye)
                && let Some(message) = self.source.produce()?
            {
                self.said.push_back(message);
            }
            if let Some(message) = self.said.pop_front() {
                return Ok(message);
            }
            let waits = || silt_format::Error::invalid("both ends wait");
            let answer = self.answers.pop_front().ok_or_else(waits)?;
            self.late += usize::from(!self.answers.is_empty());
            self.source.take(answer)?;
        }
    }
}

/// Answers to what was said before the source gave up are not taken for those to the next snapshot.
#[test]
fn a_snapshot_is_given_up_while_answers_are_on_their_way() {
    let (mut given_up, mut late) = (0, 0);
    for damaged in 0..12 {
        let storage = Arc::new(MemoryStorage::new());
        let config = Config { container_bytes: 1 << 20, ..Config::default() };
        let repository =
            Repository::init(storage.clone(), context(), config, &Protection::None, None);
        let here = Site { repository: repository.unwrap(), storage: storage.clone() };
        back_up_with(&here, "web1", &noise(1, 4 * SEGMENT), at(1000));
        let containers = silt_storage::list_all(&*storage, "containers/", None);
        let all: Vec<_> = containers.map(|item| item.unwrap().0).collect();
        let Some(key) = all.get(damaged) else { break };
        storage.damage(key, |bytes| bytes[300] ^= 1).unwrap();
        back_up_with(&here, "web2", &noise(2, 2 * SEGMENT), at(1001));
        let there = replica_of(&here);
        let reopened = Repository::open(storage, context(), || Ok(Vec::new())).unwrap();
        let source = Source::new(&reopened, ReplicateOptions::default()).unwrap();
        let mut eager = Eager { source, said: VecDeque::new(), answers: VecDeque::new(), late: 0 };
        let served = Replica::new(&there.repository, BackupOptions::default()).serve(&mut eager);
        assert_eq!(served.unwrap(), 1);
        late += eager.late;
        let report = eager.source.into_report();
        for snapshot in &report.snapshots {
            match &snapshot.outcome {
                Outcome::Sent(_) => assert_eq!(snapshot.series, "web2"),
                Outcome::Failed(ErrorKind::Corrupt, why) => {
                    assert!(why.contains("containers/"), "{why}");
                    given_up += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(read(&there, "web2", "root") == noise(2, 2 * SEGMENT));
        check(&there);
    }
    assert!(given_up > 2 && late > 0, "{given_up} {late}");
}
