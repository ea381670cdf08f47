//! The source's state machine, with a replica that changes, leaves out, repeats and makes up
//! answers.
//!
//! The first byte chooses a replica. The others say what it answers. At the end of the input, it
//! goes on as it should.
#![no_main]

mod two_sites;

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use silt_backup::ReplicaPeer;
use silt_format::replica::{KnownSnapshot, Origin, ReplicaMessage, SourceMessage, Span};
use silt_format::{Error, ErrorKind, Id, RepositoryId, Result};
use silt_replicate::{FrameUse, Replica, ReplicateOptions, Source};

use two_sites::{Input, assert_whole, options, sites, snapshots};

/// Messages of one input.
const MESSAGES_MAX: usize = 2000;

struct Peer<'d> {
    source: Source<'static>,
    input: Input<'d>,
    /// Answers that go unchanged.
    honest: u8,
    /// Answers that wait until the source has nothing to say.
    answers: VecDeque<ReplicaMessage>,
    last: Option<ReplicaMessage>,
    messages: usize,
}

impl ReplicaPeer for Peer<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        let over = |why: &str| Error::new(ErrorKind::Interrupted, why);
        loop {
            self.messages += 1;
            if self.messages > MESSAGES_MAX {
                return Err(over("the input is too long"));
            }
            while let Some(answer) = self.answers.pop_front() {
                self.answer(answer)?;
            }
            if let Some(message) = self.source.produce()? {
                let sent = SourceMessage::decode(&message.encode()).unwrap();
                assert_eq!(sent, message);
                return Ok(message);
            }
            // The source waits for an answer that the input has lost.
            if self.input.is_over() {
                return Err(over("both ends wait"));
            }
            let message = self.made_up();
            self.say(message)?;
        }
    }
}

impl Peer<'_> {
    /// Answers with this, or something else.
    fn answer(&mut self, answer: ReplicaMessage) -> Result<()> {
        if self.honest > 0 || self.input.is_over() {
            self.honest = self.honest.saturating_sub(1);
            return self.say(answer);
        }
        match self.input.byte() {
            count @ 0..128 => {
                self.honest = count % 32;
                self.say(answer)
            }
            128..160 => {
                let mut message = answer.encode();
                for _ in 0..=self.input.byte() % 4 {
                    let at = usize::try_from(self.input.number()).unwrap_or(0) % message.len();
                    message[at] ^= self.input.byte();
                }
                self.say(ReplicaMessage::decode(&message)?)
            }
            160..176 => {
                let message = ReplicaMessage::decode(self.input.bytes())?;
                self.say(message)
            }
            176..192 => Ok(()),
            192..208 => {
                let again = self.last.clone().unwrap_or_else(|| answer.clone());
                self.say(answer)?;
                self.say(again)
            }
            _ => {
                let message = self.made_up();
                self.say(message)
            }
        }
    }

    fn say(&mut self, message: ReplicaMessage) -> Result<()> {
        self.last = Some(message.clone());
        self.source.take(message)
    }

    fn made_up(&mut self) -> ReplicaMessage {
        let input = &mut self.input;
        let origin = |input: &mut Input<'_>| Origin {
            repository: RepositoryId([input.byte() & 3; 16]),
            snapshot: Id(input.number()),
        };
        let message = match input.byte() % 7 {
            0 => {
                let known = (0..input.byte() % 4).map(|_| KnownSnapshot {
                    origin: origin(input),
                    time_ns: input.number().cast_signed(),
                    is_deleted: input.byte() % 2 == 0,
                });
                ReplicaMessage::Known(known.collect())
            }
            1 => ReplicaMessage::Ready { parent: (input.byte() % 2 == 0).then(|| origin(input)) },
            2 => ReplicaMessage::Need(spans(input)),
            3 => ReplicaMessage::Want { segment: input.number(), chunks: spans(input) },
            4 => ReplicaMessage::Placed { end: input.number() },
            5 => ReplicaMessage::Committed {
                snapshot: Id(input.number()),
                generation: input.number(),
                stored_bytes: input.number(),
            },
            _ => ReplicaMessage::Failed { kind: ErrorKind::Unavailable, message: String::new() },
        };
        // What can't be sent is not said.
        ReplicaMessage::decode(&message.encode()).unwrap_or(ReplicaMessage::Placed { end: 0 })
    }
}

/// Spans in ascending order that do not touch.
fn spans(input: &mut Input<'_>) -> Vec<Span> {
    let (mut spans, mut start) = (Vec::new(), Some(0_u64));
    for _ in 0..input.byte() % 4 {
        let first = start.and_then(|start| start.checked_add(input.number()));
        let (Some(first), count) = (first, input.number().max(1)) else { break };
        spans.push(Span { first, count });
        start = first.checked_add(count).and_then(|end| end.checked_add(1));
    }
    spans
}

fuzz_target!(|data: &[u8]| {
    let sites = sites();
    let mut input = Input(data);
    let choice = input.byte();
    let replica = sites.replica(choice);
    let mut source = Source::new(&sites.here, ReplicateOptions::default()).unwrap();
    source.set_deltas(1);
    let frames = [FrameUse::Never, FrameUse::Stored, FrameUse::Always];
    source.set_frames(frames[usize::from(choice >> 4) % 3]);
    let answers = VecDeque::new();
    let mut peer = Peer { source, input, honest: 0, answers, last: None, messages: 0 };
    let before = snapshots(&replica);
    drop(Replica::new(&replica, options()).serve(&mut peer));
    if snapshots(&replica) != before {
        assert_whole(&replica);
    }
});
