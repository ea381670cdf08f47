//! Disks are replicated.

use silt_format::replica::SourceMessage;
use silt_replicate::{Outcome, ReplicateOptions, replicate_watched};
use siltstone::{BackupOptions, Selector, When};

use crate::kit::*;

#[test]
fn snapshots_arrive_whole_and_only_what_is_missing_is_sent() {
    let here = site();
    let mut disk = noise(1, 3 * SEGMENT + 5000);
    disk[SEGMENT..SEGMENT + 300_000].fill(0);
    back_up(&here, "web1", &[("root", &disk)]);
    let there = replica_of(&here);
    let first = send(&here, &there);
    assert!(first.is_complete());
    assert_eq!(first.snapshots.len(), 1);
    assert!(read(&there, "web1", "root") == disk);

    // A chunk changes, another one moves.
    disk[10_000..10_010].fill(7);
    let moved = disk[4096..8192].to_vec();
    disk[2 * SEGMENT..2 * SEGMENT + 4096].copy_from_slice(&moved);
    back_up(&here, "web1", &[("root", &disk)]);
    let second = send(&here, &there);
    assert_eq!((second.snapshots.len(), second.present), (1, 1));
    // The moved chunk is found if its segment is found by its signatures, which the key decides.
    assert!([4096, 8192].contains(&second.snapshots[0].sent_bytes), "{second:?}");
    assert!(read(&there, "web1", "root") == disk);

    let third = send(&here, &there);
    assert_eq!((third.snapshots.len(), third.present), (0, 1));
    check(&there);
}

#[test]
fn a_chunk_that_occurs_often_is_sent_once() {
    let here = site();
    let block = noise(3, 4096);
    let disk: Vec<u8> = block.iter().copied().cycle().take(5 * SEGMENT).collect();
    back_up(&here, "web1", &[("root", &disk)]);
    let there = replica_of(&here);
    let report = send(&here, &there);
    assert_eq!(report.snapshots[0].sent_bytes, 4096);
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
}

#[test]
fn a_chunk_that_is_on_its_way_is_not_sent_twice() {
    let here = site();
    // More than is asked for at once, with a chunk of every segment in a later one.
    let mut disk = noise(4, 12 * SEGMENT);
    let unique = disk.len() - 9 * 4096;
    for segment in 3..12 {
        let earlier = disk[(segment - 3) * SEGMENT + 40_960..][..4096].to_vec();
        disk[segment * SEGMENT + 81_920..][..4096].copy_from_slice(&earlier);
    }
    back_up(&here, "web1", &[("root", &disk)]);
    let there = replica_of(&here);
    let report = send(&here, &there);
    // The table of recent chunks has a place for each of 65,536 values, and a newer chunk takes an
    // older one's: each of the nine is forgotten with a probability of about 0.1, more than five of
    // them in less than one run in ten thousand. Without the table, all nine are sent again.
    let again = report.snapshots[0].sent_bytes - u64::try_from(unique).unwrap();
    assert!(again <= 5 * 4096, "{again} bytes were sent twice");
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
}

#[test]
fn frames_pass_through_as_they_are_stored() {
    let here = site();
    let disk: Vec<u8> = (0_u32..700_000)
        .flat_map(|n| format!("{} ", u64::from(n) * u64::from(n) % 9973).into_bytes())
        .collect();
    back_up(&here, "web1", &[("root", &disk)]);
    let there = replica_of(&here);
    let (mut frames, mut data) = (0, 0);
    let watch = &mut |message: &SourceMessage| {
        frames += usize::from(matches!(message, SourceMessage::Frame(_)));
        data += usize::from(matches!(message, SourceMessage::Data(_)));
        Ok(())
    };
    let (options, backup) = (ReplicateOptions::default(), BackupOptions::default());
    let sent = replicate_watched(&here.repository, &there.repository, options, backup, watch);
    assert!(sent.unwrap().is_complete());
    assert!(frames > 10 && data == 0, "{frames} frames, {data} other messages");
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
    let stored = |site: &Site| {
        let latest = Selector::Time(Some("web1".to_owned()), When::Latest);
        site.repository.find(&latest).unwrap().snapshot.volumes[0].stored_bytes
    };
    assert_eq!(stored(&here), stored(&there), "frames are cut as at the source");
}

#[test]
fn what_identifies_a_snapshot_is_kept() {
    let here = site();
    let made = back_up(&here, "web1", &[("root", &noise(1, 10_000)), ("data", &noise(2, 20_000))]);
    let there = replica_of(&here);
    let report = send_by(
        &here,
        &there,
        ReplicateOptions { prefix: "site1-".to_owned(), ..ReplicateOptions::default() },
    );
    let Outcome::Sent(id) = &report.snapshots[0].outcome else { panic!("{report:?}") };
    let head = &there.repository.heads(&["site1-web1".to_owned()]).unwrap()[0];
    let copy = there.repository.snapshot(head.series, &head.snapshots[0]).unwrap();
    assert_eq!(copy.id, *id);
    assert_eq!(copy.time_ns, made.snapshot.time_ns);
    assert_eq!(copy.host, made.snapshot.host);
    let origin = copy.origin.unwrap();
    assert_eq!(origin.repository, here.repository.id());
    assert_eq!(origin.snapshot, made.snapshot.id);
    assert_eq!(copy.volumes.len(), 2);
}

#[test]
fn replicas_of_replicas_come_back_to_nobody_twice() {
    let first = site();
    back_up(&first, "web1", &[("root", &noise(1, SEGMENT))]);
    let second = replica_of(&first);
    let third = replica_of(&second);
    assert_eq!(send(&first, &second).snapshots.len(), 1);
    assert_eq!(send(&second, &third).snapshots.len(), 1);
    // The ring is closed, and the short way taken.
    for (from, to) in [(&third, &first), (&first, &third), (&second, &first)] {
        let report = send(from, to);
        assert_eq!((report.snapshots.len(), report.present), (0, 1));
    }
    assert!(read(&third, "web1", "root") == noise(1, SEGMENT));
}

#[test]
fn two_sources_do_not_mix_their_series() {
    let first = site();
    back_up(&first, "web1", &[("root", &noise(1, SEGMENT))]);
    let other = replica_of(&first);
    back_up(&other, "web1", &[("root", &noise(2, SEGMENT))]);
    let there = replica_of(&first);
    assert!(send(&first, &there).is_complete());
    let report = send(&other, &there);
    assert_eq!(report.refused.len(), 1);
    assert!(report.refused[0].1.contains("prefix"));
    let prefixed = ReplicateOptions { prefix: "b-".to_owned(), ..ReplicateOptions::default() };
    assert!(send_by(&other, &there, prefixed).is_complete());
    assert!(read(&there, "web1", "root") == noise(1, SEGMENT));
    assert!(read(&there, "b-web1", "root") == noise(2, SEGMENT));
    check(&there);
}

/// A backup that is dated in the future does not keep later ones from being sent, and snapshots
/// that the replica has deleted do not come back.
#[test]
fn a_wrong_clock_stops_nothing() {
    let here = site();
    let there = replica_of(&here);
    let times = [5_000_000_000, 9_000_000_000_000_000_000, 7_000_000_000];
    for (number, time_ns) in times.iter().enumerate() {
        let taken = siltstone::Taken { time_ns: Some(*time_ns), ..siltstone::Taken::default() };
        let options = BackupOptions { taken, ..BackupOptions::default() };
        back_up_with(&here, "web1", &noise(number as u64 + 1, SEGMENT), options);
        assert_eq!(send(&here, &there).snapshots.len(), 1, "{number}");
    }
    let head = there.repository.heads(&[]).unwrap().remove(0);
    let method = siltstone::DeleteMethod::Exact;
    there.repository.delete("web1", &[head.snapshots[0].id], method).unwrap();
    assert_eq!(send(&here, &there).snapshots.len(), 0);
    // Here all that both have is deleted.
    let head = here.repository.heads(&[]).unwrap().remove(0);
    let all: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
    here.repository.delete("web1", &all, method).unwrap();
    back_up(&here, "web1", &[("root", &noise(8, SEGMENT))]);
    let report = send(&here, &there);
    assert_eq!((report.snapshots.len(), report.refused.len()), (1, 0), "{report:?}");
}
