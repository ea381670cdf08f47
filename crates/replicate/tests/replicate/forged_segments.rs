//! Segments that a source describes with a digest that is right for what it claims, although the
//! claim is wrong.

use std::collections::VecDeque;

use silt_backup::ReplicaPeer;
use silt_chunking::{Fingerprinter, SegmentDigester};
use silt_format::replica::{Begin, Described, Origin, ReplicaMessage, SourceMessage};
use silt_format::{
    Chunking, ErrorKind, Fingerprint, Id, Recipe, RecipeChunk, Reference, Result, Signatures,
};
use silt_replicate::Replica;
use siltstone::{BackupOptions, PopularOptions, Selector, SharePolicy, When};

use crate::hostile_sources::is_sound;
use crate::kit::*;

const CUT: Chunking = Chunking::FastCdc { min: 1024, avg: 4096, max: 16384 };

/// Says this, whatever the answers are.
struct Script {
    said: VecDeque<SourceMessage>,
    answers: Vec<ReplicaMessage>,
}

impl ReplicaPeer for Script {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        let message = self.said.pop_front().unwrap_or(SourceMessage::Bye);
        SourceMessage::decode(&message.encode())
    }
}

/// Describes a volume of one segment with these chunks: length, fingerprint, whether it is zeros.
fn say(there: &Site, chunks: &[(u32, Fingerprint, bool)], data: &[u8]) -> Vec<ReplicaMessage> {
    say_to("web1", there, chunks, data)
}

fn say_to(
    to: &str,
    there: &Site,
    chunks: &[(u32, Fingerprint, bool)],
    data: &[u8],
) -> Vec<ReplicaMessage> {
    serve(there, script(to, there, chunks, data))
}

fn serve(there: &Site, said: impl IntoIterator<Item = SourceMessage>) -> Vec<ReplicaMessage> {
    let mut script = Script { said: said.into_iter().collect(), answers: Vec::new() };
    let served = Replica::new(&there.repository, BackupOptions::default()).serve(&mut script);
    served.unwrap();
    script.answers
}

fn script(
    to: &str,
    there: &Site,
    chunks: &[(u32, Fingerprint, bool)],
    data: &[u8],
) -> [SourceMessage; 7] {
    let latest = Selector::Time(Some("web1".to_owned()), When::Latest);
    let found = there.repository.find(&latest).unwrap();
    let keys = &there.repository.objects.keys;
    let (domain, series) = (found.head.domain, found.head.series);
    let fingerprinter = Fingerprinter::new(keys.fingerprint_key(domain, series));
    let digester = SegmentDigester::new(keys.segment_key(domain, series), fingerprinter);
    let chunks = chunks.iter().map(|(length, fingerprint, is_zero)| RecipeChunk {
        reference: if *is_zero { Reference::ZERO } else { Reference::new(0, 0, 1) },
        length: *length,
        fingerprint: *fingerprint,
    });
    let recipe = Recipe { chunks: chunks.collect() };
    let digest = digester.digest_recipe(&recipe, silt_format::SegmentDigest::OF_CHUNKS).unwrap();
    let mut snapshot = found.snapshot.clone();
    snapshot.volumes.truncate(1);
    (snapshot.volumes[0].bytes, snapshot.volumes[0].chunking) =
        (recipe.segment_bytes().into(), CUT);
    let origin = Origin { repository: silt_format::RepositoryId([7; 16]), snapshot: Id(3) };
    let (series, labels) = (to.to_owned(), Vec::new());
    let begin = Begin { series, domain, labels, origin, snapshot };
    [
        SourceMessage::Ask { series: to.to_owned() },
        SourceMessage::Begin(Box::new(begin)),
        SourceMessage::Segments(vec![Described::Segment(digest, Signatures([0; 8]))]),
        SourceMessage::Chunks { segment: 0, recipe: recipe.encode(CUT) },
        SourceMessage::Data(data.to_vec()),
        SourceMessage::End,
        SourceMessage::Commit,
    ]
}

fn fingerprint(there: &Site, bytes: &[u8]) -> Fingerprint {
    let latest = Selector::Time(Some("web1".to_owned()), When::Latest);
    let found = there.repository.find(&latest).unwrap();
    let keys = &there.repository.objects.keys;
    let key = keys.fingerprint_key(found.head.domain, found.head.series);
    Fingerprinter::new(key).fingerprint(bytes)
}

fn replica_with(disk: &[u8]) -> Site {
    let here = site();
    back_up(&here, "web1", &[("root", disk)]);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    there
}

/// The replica has the chunk, and it is not as long as the source says.
#[test]
fn a_chunk_is_not_known_by_its_fingerprint_alone() {
    let disk = noise(1, 3 * 4096);
    for length in [100, 4095, 4097, 9000] {
        let there = replica_with(&disk);
        let known = fingerprint(&there, &disk[..4096]);
        let answers = say(&there, &[(length, known, false)], &[]);
        assert!(matches!(answers.last(), Some(ReplicaMessage::Failed { .. })), "{answers:?}");
        is_sound(&there, "a wrong length");
        let answers = say(&there, &[(length, known, false)], &noise(4, length as usize));
        let last = answers.last();
        assert!(matches!(last, Some(ReplicaMessage::Failed { .. })), "{length}: {answers:?}");
        let Some(ReplicaMessage::Failed { kind, .. }) = last else { panic!("no failure") };
        assert_eq!(*kind, ErrorKind::Corrupt);
        is_sound(&there, "a wrong length");
    }
    // Twice in one segment, with two lengths.
    let there = replica_with(&disk);
    let new = noise(8, 5000);
    let print = fingerprint(&there, &new);
    let answers = say(&there, &[(5000, print, false), (6000, print, false)], &new);
    assert!(matches!(answers.last(), Some(ReplicaMessage::Failed { .. })), "{answers:?}");
    is_sound(&there, "two lengths");
}

/// What a source calls zeros is zeros, and the digest says so.
#[test]
fn a_chunk_that_is_called_zeros_is_restored_as_zeros() {
    let disk = noise(1, 3 * 4096);
    let there = replica_with(&disk);
    let zero = Fingerprint([0; 20]);
    let known = fingerprint(&there, &disk[..4096]);
    let answers = say(&there, &[(4096, known, false), (700, zero, true)], &[]);
    assert!(matches!(answers.last(), Some(ReplicaMessage::Committed { .. })), "{answers:?}");
    assert!(read(&there, "web1", "root") == [&disk[..4096], &[0; 700]].concat());
    // The fingerprint of zeros is no fingerprint.
    let answers = say(&there, &[(700, zero, false)], &[0; 700]);
    assert!(matches!(answers.last(), Some(ReplicaMessage::Failed { .. })), "{answers:?}");
    is_sound(&there, "zeros");
}

/// A replica whose shared store has the chunks of `disk`.
fn replica_that_shares(disk: &[u8]) -> Site {
    let here = site();
    for series in ["web1", "web2"] {
        back_up(&here, series, &[("root", disk)]);
    }
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    let spool = tempfile::tempdir().unwrap();
    let policy = SharePolicy::Duplicates;
    let spool = spool.path().to_owned();
    let options = PopularOptions { policy, spool, memory_bytes: 0, dry_run: false };
    let report = there.repository.build_popular(&options).unwrap();
    assert!(report.copied_chunks > 0, "{report:?}");
    there
}

/// The same, but only the shared store has the chunk where the source could find it.
#[test]
fn a_chunk_of_the_shared_store_is_not_known_by_its_fingerprint_alone() {
    // Disks are cut into blocks of 4 KiB.
    let disk = noise(1, 3 * 4096);
    let there = replica_that_shares(&disk);
    let known = fingerprint(&there, &disk[4096..8192]);
    let is_known = |answers: &[ReplicaMessage]| {
        answers.iter().any(|answer| match answer {
            ReplicaMessage::Want { chunks, .. } => chunks.is_empty(),
            _ => false,
        })
    };
    let answers = say_to("web3", &there, &[(4096, known, false)], &[]);
    assert!(is_known(&answers), "the shared store has the chunk: {answers:?}");
    assert!(read(&there, "web3", "root") == disk[4096..8192]);
    for (number, length) in [100, 4095, 4097, 9000].into_iter().enumerate() {
        let series = format!("other{number}");
        let answers = say_to(&series, &there, &[(length, known, false)], &[]);
        assert!(!is_known(&answers), "{length}: {answers:?}");
        assert!(matches!(answers.last(), Some(ReplicaMessage::Failed { .. })), "{answers:?}");
        let answers =
            say_to(&series, &there, &[(length, known, false)], &noise(4, length as usize));
        let last = answers.last();
        let Some(ReplicaMessage::Failed { kind, .. }) = last else { panic!("{answers:?}") };
        assert_eq!(*kind, ErrorKind::Corrupt);
    }
    is_sound(&there, "a wrong length in the shared store");
}

/// What was on its way when a snapshot was given up is asked for again by the next one.
#[test]
fn chunks_of_a_snapshot_that_was_given_up_are_asked_for_again() {
    let new = noise(8, 9000);
    for given_up in 2..6 {
        let there = replica_with(&noise(1, 3 * 4096));
        let print = fingerprint(&there, &new);
        let said = script("web1", &there, &[(9000, print, false), (9000, print, false)], &new);
        let before = said[..given_up].iter().cloned();
        let answers = serve(&there, before.chain([SourceMessage::Abort]).chain(said.clone()));
        let committed =
            |answer: &ReplicaMessage| matches!(answer, ReplicaMessage::Committed { .. });
        assert_eq!(answers.iter().filter(|answer| committed(answer)).count(), 1, "{answers:?}");
        assert!(read(&there, "web1", "root") == [&new[..], &new].concat());
        is_sound(&there, "given up");
    }
}

/// A snapshot of a key that may not remove is named to no source, so none can compare with it.
#[test]
fn segments_of_a_parent_that_was_not_named_are_refused() {
    let here = encrypted_site();
    back_up(&here, "web1", &[("root", &noise(1, 9000))]);
    let there = encrypted_replica_of(&here);
    let thief = there.write_only(b"thief", &["*"]);
    back_up(&thief, "web1", &[("root", &noise(66, 9000))]);
    let there = there.opened_by(b"all");
    let known = fingerprint(&there, &noise(66, 9000));
    let mut said = script("web1", &there, &[(9000, known, false)], &[]);
    said[2] = SourceMessage::Segments(vec![Described::Parent(1)]);
    let answers = serve(&there, [0, 1, 2, 5, 6].map(|place: usize| said[place].clone()));
    assert!(matches!(answers[1], ReplicaMessage::Ready { parent: None }), "{answers:?}");
    let Some(ReplicaMessage::Failed { kind, .. }) = answers.last() else { panic!("{answers:?}") };
    assert_eq!(*kind, ErrorKind::Invalid);
}
