//! Replication over a stream that may end anywhere, or have somebody else at its end.

use std::io::Write;
use std::os::unix::net::UnixStream;

use silt_format::ErrorKind;
use silt_format::replica::ReplicaRole;
use silt_replicate::Connection;
use siltstone::ReclaimOptions;

use crate::kit::*;

#[test]
fn a_stream_carries_what_is_missing() {
    let here = site();
    let disk = noise(1, 3 * SEGMENT);
    back_up(&here, "web1", &[("root", &disk)]);
    back_up(&here, "web2", &[("root", &disk), ("data", &noise(2, 5000))]);
    let there = replica_of(&here);
    let (sent, served) = send_over(&here, &there, |stream| Box::new(stream));
    let (report, first) = sent.unwrap();
    assert_eq!((report.snapshots.len(), served.unwrap()), (2, 2));
    assert!(read(&there, "web1", "root") == disk);
    assert!(read(&there, "web2", "data") == noise(2, 5000));
    let (sent, served) = send_over(&here, &there, |stream| Box::new(stream));
    let (report, second) = sent.unwrap();
    assert_eq!((report.present, report.snapshots.len(), served.unwrap()), (2, 0, 0));
    let all = |traffic: silt_replicate::Traffic| traffic.sent.total() + traffic.received.total();
    assert!(all(second) * 100 < all(first), "{second:?} after {first:?}");
    let (sent, received) = (first.sent, first.received);
    let data = 3 * SEGMENT as u64 + 5000;
    assert!((data..data + data / 50).contains(&sent.chunks), "{sent:?}");
    assert!(sent.fingerprints > data / 4096 * 20 && sent.segments > 0 && sent.entries == 0);
    assert!(received.segments > 0 && received.fingerprints > 0 && received.agreement > 0);
    assert_eq!((second.sent.chunks, second.received.fingerprints), (0, 0), "nothing is lacking");
    check(&there);
}

#[test]
fn a_stream_that_is_cut_anywhere_leaves_nothing_half_done() {
    let here = site();
    let mut disk = noise(1, SEGMENT + 9000);
    back_up(&here, "web1", &[("root", &disk)]);
    disk[70_000..90_000].fill(1);
    back_up(&here, "web1", &[("root", &disk)]);
    let whole = {
        let there = replica_of(&here);
        send_over(&here, &there, |stream| Box::new(stream)).0.unwrap().1.sent.total()
    };
    let whole = usize::try_from(whole).unwrap();
    let mut cuts: Vec<usize> = (0..400).chain((400..whole).step_by(whole / 40)).collect();
    cuts.extend(whole - 200..whole);
    let there = replica_of(&here);
    for left in cuts {
        let (sent, _) = send_over(&here, &there, |stream| Box::new(Cut { stream, left }));
        // What was committed before the cut stays; the rest comes next time.
        if let Err(error) = sent {
            assert!(matches!(error.kind(), ErrorKind::Unavailable), "{left}: {error:?}");
        }
        let heads = there.repository.heads(&[]).unwrap();
        assert!(heads.iter().all(|head| head.snapshots.len() <= 2), "{left}");
        if heads.first().is_some_and(|head| head.snapshots.len() == 2) {
            break;
        }
    }
    send_over(&here, &there, |stream| Box::new(stream)).0.unwrap();
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
    there.repository.reclaim("web1", &ReclaimOptions::default()).unwrap();
    check(&there);
}

#[test]
fn somebody_with_another_secret_is_refused() {
    let (here, stranger) = (site(), site());
    back_up(&here, "web1", &[("root", &noise(1, 5000))]);
    let (sent, served) = send_over(&here, &stranger, |stream| Box::new(stream));
    for error in [sent.unwrap_err(), served.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("another secret"), "{error}");
    }
    let (sent, _) = send_over(&here, &here, |stream| Box::new(stream));
    assert!(sent.unwrap_err().to_string().contains("the same repository"));
}

#[test]
fn what_is_changed_on_its_way_is_noticed() {
    struct Flip(UnixStream, usize);
    impl Write for Flip {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut bytes = bytes.to_vec();
            if let Some(byte) = bytes.get_mut(self.1) {
                *byte ^= 1;
            }
            self.1 = self.1.wrapping_sub(bytes.len());
            self.0.write_all(&bytes)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            self.0.flush()
        }
    }
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, 50_000))]);
    let there = replica_of(&here);
    // In the length of the first record, its complement, its body, and further on.
    for at in [80, 83, 84, 87, 88, 90, 400, 30_000] {
        let (sent, served) = send_over(&here, &there, |stream| Box::new(Flip(stream, at)));
        assert!(served.is_err() && sent.is_err(), "{at}");
        assert!(there.repository.heads(&[]).unwrap().is_empty(), "{at}");
    }
}

#[test]
fn what_is_no_replica_is_told_apart_from_a_broken_line() {
    let here = site();
    let answers: [(&[u8], ErrorKind); 3] = [
        (&[b'S'; 100], ErrorKind::Invalid),
        (b"", ErrorKind::Unavailable),
        (b"SILTREPL", ErrorKind::Unavailable),
    ];
    for (answer, expected) in answers {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answer).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let writer = Box::new(ours.try_clone().unwrap());
        let stream = stream_of(ours, writer);
        let opened = Connection::open(&here.repository, ReplicaRole::Source, stream, 3);
        assert_eq!(opened.err().unwrap().kind(), expected);
    }
}
