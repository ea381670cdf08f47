//! A replica that has the secret and does not keep to the protocol.

use std::collections::BTreeSet;

use silt_format::replica::{KnownSnapshot, Origin, ReplicaMessage, SourceMessage, Span};
use silt_format::{ErrorKind, Id, RepositoryId};
use silt_replicate::{Outcome, ReplicateOptions, Source};

use crate::hostile_sources::Dice;
use crate::kit::*;

/// Messages that an honest replica needs at most for what is replicated here.
const ROUNDS: usize = 2000;

fn source_site() -> Site {
    let here = site();
    let mut disk = noise(1, 3 * SEGMENT + 5000);
    for _ in 0..2 {
        back_up(&here, "web1", &[("root", &disk), ("data", &noise(9, 70_000))]);
        disk[SEGMENT..SEGMENT + 9000].fill(5);
        disk[2 * SEGMENT..].iter_mut().step_by(9000).for_each(|byte| *byte ^= 1);
    }
    here
}

fn spans(dice: &mut Dice, near: u64) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut first = if dice.below(2) == 0 { 0 } else { dice.number(near) };
    for _ in 0..dice.below(4) {
        let count = 1 + dice.roll() % 3;
        if first.checked_add(count + 1).is_none() {
            break;
        }
        spans.push(Span { first, count });
        first += count + 1;
    }
    spans
}

fn origin(dice: &mut Dice) -> Origin {
    Origin {
        repository: RepositoryId([dice.roll().to_le_bytes()[0] & 3; 16]),
        snapshot: Id(dice.roll()),
    }
}

/// An answer that fits the message, or any other.
fn answer(dice: &mut Dice, to: &SourceMessage) -> ReplicaMessage {
    let is_fitting = dice.below(12) > 0;
    match to {
        SourceMessage::Ask { .. } if is_fitting => ReplicaMessage::Known(
            (0..dice.below(3) * dice.below(2))
                .map(|_| KnownSnapshot {
                    origin: origin(dice),
                    time_ns: dice.number(1).cast_signed(),
                    is_deleted: dice.below(2) == 0,
                })
                .collect(),
        ),
        SourceMessage::Begin(_) if is_fitting => ReplicaMessage::Ready { parent: None },
        SourceMessage::Segments(all) if is_fitting => {
            ReplicaMessage::Need(vec![Span { first: 0, count: all.len() as u64 }])
        }
        SourceMessage::Chunks { segment, .. } if is_fitting => {
            let chunks = if dice.below(3) == 0 { spans(dice, 2) } else { Vec::new() };
            ReplicaMessage::Want { segment: *segment, chunks }
        }
        SourceMessage::End if is_fitting => ReplicaMessage::Placed { end: [1, 4][dice.below(2)] },
        SourceMessage::Commit if is_fitting => {
            ReplicaMessage::Committed { snapshot: Id(1), generation: 1, stored_bytes: 1 }
        }
        _ => match dice.below(8) {
            0 => ReplicaMessage::Known(Vec::new()),
            1 => ReplicaMessage::Ready { parent: Some(origin(dice)) },
            2 => ReplicaMessage::Need(spans(dice, 4)),
            3 => ReplicaMessage::Want { segment: dice.number(2), chunks: spans(dice, 500) },
            4 => ReplicaMessage::Placed { end: dice.number(3) },
            5 => ReplicaMessage::Committed {
                snapshot: Id(dice.roll()),
                generation: dice.roll(),
                stored_bytes: u64::MAX,
            },
            6 => ReplicaMessage::Failed {
                kind: ErrorKind::Unavailable,
                message: "storage is full".to_owned(),
            },
            _ => ReplicaMessage::Need(vec![Span { first: 0, count: u64::MAX >> 1 }]),
        },
    }
}

#[test]
fn a_hostile_replica_ends_a_source_with_the_right_error() {
    let here = source_site();
    let (mut breaches, mut refused, mut committed, mut said) = (BTreeSet::new(), 0, 0, 0);
    let mut deltas = 0;
    for seed in 0..600 {
        let mut dice = Dice(seed);
        let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
        source.set_deltas(1);
        let mut sent_bytes = 0;
        'talk: for round in 0.. {
            assert!(round < ROUNDS, "seed {seed}: a source listens to nonsense for ever");
            let mut last = SourceMessage::Abort;
            let mut produced = 0;
            loop {
                match source.produce() {
                    Ok(None) => break,
                    Ok(Some(SourceMessage::Bye)) => break 'talk,
                    Ok(Some(message)) => {
                        if let SourceMessage::Data(bytes) = &message {
                            sent_bytes += bytes.len();
                        }
                        if let SourceMessage::Delta(delta) = &message {
                            sent_bytes += delta.bytes as usize;
                            deltas += 1;
                        }
                        last = message;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Invalid, "seed {seed}: {error}");
                        breaches.insert(text_of(&error));
                        break 'talk;
                    }
                }
                produced += 1;
                said += 1;
                assert!(produced < 1000, "seed {seed}");
                if dice.below(3) > 0 {
                    break;
                }
            }
            let message = answer(&mut dice, &last);
            let message = ReplicaMessage::decode(&message.encode()).unwrap();
            if let Err(error) = source.take(message) {
                assert_eq!(error.kind(), ErrorKind::Invalid, "seed {seed}: {error}");
                breaches.insert(text_of(&error));
                break;
            }
        }
        assert!(sent_bytes < 4 * (4 * SEGMENT), "seed {seed}: {sent_bytes}");
        for snapshot in &source.report().snapshots {
            match &snapshot.outcome {
                Outcome::Sent(_) => committed += 1,
                Outcome::Failed(ErrorKind::Unavailable, why) => {
                    let is_first = why == "storage is full";
                    assert!(is_first || why.starts_with("it waits for an older snapshot"), "{why}");
                    refused += 1;
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    let reached = (breaches.len(), refused, committed, deltas);
    assert!(breaches.len() > 10 && refused > 10 && said > 2000, "{reached:?} {breaches:#?}");
}

fn text_of(error: &silt_format::Error) -> String {
    error.to_string().chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Brings a source to its first recipe, and returns its segment.
fn listed(source: &mut Source<'_>) -> u64 {
    loop {
        let answer = match source.produce().unwrap() {
            Some(SourceMessage::Ask { .. }) => ReplicaMessage::Known(Vec::new()),
            Some(SourceMessage::Begin(_)) => ReplicaMessage::Ready { parent: None },
            Some(SourceMessage::Segments(_)) => {
                ReplicaMessage::Need(vec![Span { first: 0, count: 1 }])
            }
            Some(SourceMessage::Chunks { segment, .. }) => return segment,
            _ => continue,
        };
        source.take(answer).unwrap();
    }
}

#[test]
fn a_replica_that_asks_for_ever_is_refused() {
    let here = source_site();
    let whole = vec![Span { first: 0, count: 20 }];
    for chunks in [Vec::new(), whole] {
        let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
        let segment = listed(&mut source);
        let wants = (0..).find_map(|number| {
            let want = ReplicaMessage::Want { segment, chunks: chunks.clone() };
            let ended = source.take(want).err().map(|error| (number, error));
            while ended.is_none() && source.produce().unwrap().is_some() {}
            ended
        });
        let (number, error) = wants.unwrap();
        assert_eq!((number, error.kind()), (2, ErrorKind::Invalid), "{error}");
    }
    // Segments of an earlier description, and no progress.
    let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
    listed(&mut source);
    let again = ReplicaMessage::Need(vec![Span { first: 0, count: 1 }]);
    assert_eq!(source.take(again).unwrap_err().kind(), ErrorKind::Invalid);
    let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
    listed(&mut source);
    source.take(ReplicaMessage::Placed { end: 1 }).unwrap();
    let again = source.take(ReplicaMessage::Placed { end: 1 });
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn long_lists_of_foreign_snapshots_are_taken() {
    let here = source_site();
    let mut dice = Dice(5);
    let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
    source.produce().unwrap();
    let known = (0..silt_format::replica::KNOWN_SNAPSHOTS_MAX).map(|number| KnownSnapshot {
        origin: origin(&mut dice),
        time_ns: if number % 2 == 0 { i64::MAX } else { i64::MIN },
        is_deleted: number % 3 == 0,
    });
    let message = ReplicaMessage::Known(known.collect());
    source.take(ReplicaMessage::decode(&message.encode()).unwrap()).unwrap();
    assert_eq!(source.produce().unwrap(), Some(SourceMessage::Bye));
    let report = source.into_report();
    assert!(report.refused[0].1.contains("snapshots of another source"), "{report:?}");
}
