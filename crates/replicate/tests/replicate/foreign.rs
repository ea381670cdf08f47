//! Destinations with another secret, or with a key that only writes.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;

use silt_format::replica::Origin;
use silt_format::{Chunking, ErrorKind};
use silt_replicate::{Outcome, ReplicateOptions, replicate};
use siltstone::{Advice, BackupOptions, DeleteMethod, ReclaimOptions, Taken};

use crate::kit::*;
use crate::trees::{back_up_tree, entries};

fn bytes(segments: usize) -> u64 {
    (segments * SEGMENT) as u64
}

#[test]
fn a_foreign_destination_must_be_asked_for() {
    let (here, there) = (site(), encrypted_site());
    back_up(&here, "web1", &[("root", &noise(1, 5000))]);
    let options = ReplicateOptions::default;
    let sent = |to: &Site, options| {
        replicate(&here.repository, &to.repository, options, BackupOptions::default())
    };
    let error = sent(&there, options()).unwrap_err();
    assert_eq!(
        (error.kind(), error.advice()),
        (ErrorKind::Invalid, Some(&Advice::ReplicateForeign))
    );
    assert!(error.to_string().contains("another secret"), "{error}");
    let error = sent(&there.write_only(b"w", &["*"]), options()).unwrap_err();
    assert_eq!(
        (error.kind(), error.advice()),
        (ErrorKind::Denied, Some(&Advice::ReplicateForeign))
    );
    let foreign = || ReplicateOptions { foreign: true, ..options() };
    let error = sent(&here, foreign()).unwrap_err();
    assert!(error.to_string().contains("the same repository"), "{error}");
    let plan = sent(&there, ReplicateOptions { dry_run: true, ..foreign() }).unwrap();
    assert!(matches!(plan.snapshots[0].outcome, Outcome::Planned));
    assert!(there.repository.heads(&[]).unwrap().is_empty());
    // With one secret, the option changes nothing.
    let replica = replica_of(&here);
    let report = sent(&replica, foreign()).unwrap();
    assert_eq!((report.snapshots.len(), report.snapshots[0].reread_bytes), (1, 0));
}

#[test]
fn snapshots_come_over_and_what_has_not_changed_is_not_read_again() {
    let (here, there) = (site(), encrypted_site());
    let mut disk = noise(1, 7 * SEGMENT + 5000);
    disk[SEGMENT..2 * SEGMENT + 300_000].fill(0);
    let chunk = disk[..4096].to_vec();
    disk[5 * SEGMENT..5 * SEGMENT + 4096].copy_from_slice(&chunk);
    let made = back_up(&here, "web1", &[("root", &disk), ("data", &noise(2, 3000))]);
    let first = send_anew(&here, &there);
    assert!(first.is_complete(), "{first:?}");
    assert_eq!(first.snapshots[0].reread_bytes, bytes(6) + 8000);
    assert!(read(&there, "web1", "root") == disk && read(&there, "web1", "data") == noise(2, 3000));
    let head = there.repository.heads(&[]).unwrap().remove(0);
    let copy = there.repository.snapshot(head.series, &head.snapshots[0]).unwrap();
    assert_eq!(
        copy.origin,
        Some(Origin { repository: here.repository.id(), snapshot: made.snapshot.id })
    );
    let circumstances = |it: &silt_format::Snapshot| {
        (it.time_ns, it.duration_ms, it.host.clone(), it.program.clone())
    };
    assert_eq!(circumstances(&copy), circumstances(&made.snapshot));
    // The chunk that occurs twice is stored once.
    let (own, theirs) = (copy.stored_bytes(), made.snapshot.stored_bytes());
    assert!(own.abs_diff(theirs) < 10_000, "{own} and {theirs}");

    disk[6 * SEGMENT..6 * SEGMENT + 10].fill(7);
    back_up(&here, "web1", &[("root", &disk), ("data", &noise(2, 3000))]);
    let second = send_anew(&here, &there);
    assert_eq!((second.snapshots.len(), second.present), (1, 1));
    let cost = (second.snapshots[0].reread_bytes, second.snapshots[0].sent_bytes);
    assert_eq!(cost, (bytes(1), 4096));
    assert!(read(&there, "web1", "root") == disk);
    let third = send_anew(&here, &there);
    assert_eq!((third.snapshots.len(), third.present), (0, 1));
    check(&there);
}

/// The copy of a snapshot is the parent by its origin. If that is gone here or there, digests are
/// compared.
#[test]
fn without_a_common_parent_digests_are_compared() {
    let (here, there) = (site(), encrypted_site());
    let mut disk = noise(1, 4 * SEGMENT);
    let first = back_up(&here, "web1", &[("root", &disk)]);
    assert!(send_anew(&here, &there).is_complete());
    disk[..10].fill(3);
    back_up(&here, "web1", &[("root", &disk)]);
    here.repository.delete("web1", &[first.snapshot.id], DeleteMethod::Exact).unwrap();
    let options = ReclaimOptions { grace_s: 0, ..ReclaimOptions::default() };
    here.repository.reclaim("web1", &options).unwrap();
    let report = send_anew(&here, &there);
    let cost = (report.snapshots[0].reread_bytes, report.snapshots[0].sent_bytes);
    assert_eq!(cost, (bytes(4), 4096), "{report:?}");
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
}

#[test]
fn trees_come_over_identical() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("below")).unwrap();
    for file in 0..300_u64 {
        fs::write(root.join(format!("below/file{file}")), noise(file, 20_000)).unwrap();
    }
    fs::write(root.join("large"), noise(77, SEGMENT + 100_000)).unwrap();
    fs::hard_link(root.join("large"), root.join("below/also-large")).unwrap();
    symlink("large", root.join("link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("fifo")).status().unwrap().success());
    let mut xattr = Command::new("setfattr");
    xattr.args(["-n", "user.colour", "-v", "blue"]).arg(root.join("large"));
    // Without the tool or on a file system without attributes, the others are compared.
    let _ = xattr.status();
    let (here, there) = (site(), encrypted_site());
    back_up_tree(&here, root);
    assert!(send_anew(&here, &there).is_complete());
    let arrived = entries(&there);
    assert!(arrived == entries(&here));
    assert!(arrived.len() > 305, "{}", arrived.len());
    check(&there);
    fs::write(root.join("below/file7"), b"changed").unwrap();
    fs::remove_file(root.join("link")).unwrap();
    back_up_tree(&here, root);
    let report = send_anew(&here, &there);
    assert!(report.snapshots[0].reread_bytes <= bytes(1), "{report:?}");
    assert!(entries(&there) == entries(&here));
    check(&there);
}

#[test]
fn a_write_only_key_brings_what_only_others_read() {
    let here = site();
    let mut disk = noise(1, 3 * SEGMENT);
    back_up(&here, "web1", &[("root", &disk)]);
    back_up(&here, "db1", &[("root", &noise(5, 5000))]);
    let all = encrypted_site();
    let there = all.write_only(b"w", &["web1"]);
    let report = send_anew(&here, &there);
    let refused: Vec<_> = report.refused.iter().map(|(series, _)| &series[..]).collect();
    assert_eq!((report.snapshots.len(), &refused[..]), (1, &["db1"][..]), "{report:?}");
    assert!(report.refused[0].1.contains("this key may write web1"), "{report:?}");
    assert!(matches!(report.snapshots[0].outcome, Outcome::Sent(_)), "{report:?}");
    disk[SEGMENT..SEGMENT + 10].fill(9);
    back_up(&here, "web1", &[("root", &disk)]);
    let report = send_anew(&here, &all.opened_by(b"w"));
    assert_eq!((report.present, report.snapshots[0].reread_bytes), (1, bytes(1)), "{report:?}");
    let all = all.opened_by(b"all");
    assert!(read(&all, "web1", "root") == disk);
    check(&all);
    // A source whose key does not read has nothing to send.
    let error = replicate(
        &there.repository,
        &site().repository,
        ReplicateOptions { foreign: true, ..ReplicateOptions::default() },
        BackupOptions::default(),
    );
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Denied);
}

/// A stolen key of the destination makes a snapshot that claims to be the copy of the last one.
#[test]
fn a_claimed_copy_of_another_key_proves_nothing() {
    let here = encrypted_site();
    let (replica, foreign) = (encrypted_replica_of(&here), encrypted_site());
    claim_a_copy(&here, &replica, &replica.opened_by(b"all"));
    claim_a_copy(&site(), &foreign, &foreign.opened_by(b"all"));
    let foreign = encrypted_site();
    claim_a_copy(&site(), &foreign, &foreign.write_only(b"own", &["*"]));
}

fn claim_a_copy(here: &Site, all: &Site, own: &Site) {
    let mut disk = noise(1, 3 * SEGMENT);
    let made = back_up(here, "web1", &[("root", &disk)]);
    let thief = all.write_only(b"thief", &["*"]);
    let origin = Some(Origin { repository: here.repository.id(), snapshot: made.snapshot.id });
    let time_ns = Some(made.snapshot.time_ns);
    let taken = Taken { origin, time_ns, ..Taken::default() };
    let options = BackupOptions { taken, ..BackupOptions::default() };
    back_up_with(&thief, "web1", &noise(66, 3 * SEGMENT), options);
    disk[..10].fill(1);
    back_up(here, "web1", &[("root", &disk)]);
    let report = send_anew(here, own);
    assert_eq!((report.present, report.snapshots.len()), (1, 1), "{report:?}");
    let all = all.opened_by(b"all");
    assert!(read(&all, "web1", "root") == disk);
}

#[test]
fn what_is_damaged_there_is_stored_again() {
    let (here, there) = (site(), encrypted_site());
    let mut disk = noise(1, 3 * SEGMENT);
    back_up(&here, "web1", &[("root", &disk)]);
    assert!(send_anew(&here, &there).is_complete());
    let containers = silt_storage::list_all(&*there.storage, "containers/", None);
    let first = containers.map(|item| item.unwrap().0).min().unwrap();
    there.storage.damage(&first, |bytes| bytes[40_000] ^= 1).unwrap();
    let there = there.opened_by(b"all");
    let options = siltstone::CheckOptions {
        data: siltstone::DataCheck::All,
        ..siltstone::CheckOptions::default()
    };
    assert!(!there.repository.check(&options).unwrap().damage.is_empty());
    disk[2 * SEGMENT..2 * SEGMENT + 10].fill(1);
    back_up(&here, "web1", &[("root", &disk)]);
    let report = send_anew(&here, &there);
    assert!(report.is_complete(), "{report:?}");
    let reread = [bytes(2), bytes(3)];
    assert!(reread.contains(&report.snapshots[0].reread_bytes), "{report:?}");
    assert!(read(&there, "web1", "root") == disk);
}

/// What a series that shares nothing has stored is not shared there either, under any name.
#[test]
fn a_series_that_shares_nothing_stays_alone() {
    let (here, there) = (site(), encrypted_site());
    let alone = BackupOptions { no_share: true, ..BackupOptions::default() };
    back_up_with(&here, "web1", &noise(1, SEGMENT), alone);
    let prefixed = || ReplicateOptions {
        foreign: true,
        prefix: "a-".to_owned(),
        ..ReplicateOptions::default()
    };
    assert!(send_by(&here, &there, prefixed()).is_complete());
    let head = there.repository.heads(&["a-web1".to_owned()]).unwrap().remove(0);
    assert_eq!(head.domain, silt_format::ALONE);
    assert!(read(&there, "a-web1", "root") == noise(1, SEGMENT));
    assert_eq!(send_by(&here, &there, prefixed()).present, 1);
    // One that is not alone there is not mixed with it.
    back_up(&there, "b-web1", &[("root", &noise(2, 5000))]);
    let report = send_by(&here, &there, ReplicateOptions { prefix: "b-".to_owned(), ..prefixed() });
    assert!(!report.is_complete() && report.snapshots.is_empty(), "{report:?}");
    check(&there);
}

#[test]
fn every_chunking_comes_over() {
    let (here, there) = (site(), encrypted_site());
    let chunkings =
        [Chunking::Fixed { bytes: 65536 }, Chunking::FastCdc { min: 1024, avg: 4096, max: 16384 }];
    for (number, chunking) in chunkings.into_iter().enumerate() {
        let series = format!("web{number}");
        let mut disk = noise(1, 2 * SEGMENT + 777);
        disk[300_000..400_000].fill(0);
        for changed in [0, 1] {
            disk[changed * 10_000] ^= 1;
            let options = BackupOptions { chunking: Some(chunking), ..BackupOptions::default() };
            back_up_with(&here, &series, &disk, options);
            let report = send_anew(&here, &there);
            assert!(report.is_complete() && report.snapshots.len() == 1, "{report:?}");
            assert!(read(&there, &series, "root") == disk);
        }
        let head = there.repository.heads(&[series]).unwrap().remove(0);
        let copy = there.repository.snapshot(head.series, &head.snapshots[1]).unwrap();
        assert_eq!(copy.volumes[0].chunking, chunking);
        let found = copy.volumes[0].levels.get(silt_format::Level::New);
        assert!(found <= 65536, "the rest is found: {found}");
    }
    check(&there);
}
