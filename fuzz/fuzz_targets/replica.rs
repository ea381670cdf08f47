//! The replica's state machine, with a source that changes, leaves out, repeats and makes up
//! messages.
//!
//! The first byte chooses a replica. The others say what the source sends: its own messages, these
//! with bytes changed, and others. At the end of the input, it goes on as it should.
#![no_main]

mod two_sites;

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use silt_backup::ReplicaPeer;
use silt_format::replica::{
    ChunkDelta, DeltaBase, Described, ReplicaMessage, SourceMessage, TreeStep,
};
use silt_format::{BlockWriter, Error, ErrorKind, Result};
use silt_replicate::{FrameUse, Replica, ReplicateOptions, Source};

use two_sites::{Input, assert_whole, options, sites, snapshots};

/// Messages of one input.
const MESSAGES_MAX: usize = 2000;
/// Messages that can be repeated.
const KEPT_MAX: usize = 8;

struct Peer<'d> {
    source: Source<'static>,
    input: Input<'d>,
    answers: VecDeque<ReplicaMessage>,
    /// Messages of the source that go unchanged.
    honest: u8,
    said: VecDeque<Vec<u8>>,
    messages: usize,
}

impl ReplicaPeer for Peer<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        let sent = ReplicaMessage::decode(&message.encode()).unwrap();
        assert_eq!(sent, message);
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        self.messages += 1;
        if self.messages > MESSAGES_MAX {
            return Err(Error::new(ErrorKind::Interrupted, "the input is too long"));
        }
        let message = self.next();
        if self.said.len() == KEPT_MAX {
            self.said.pop_front();
        }
        self.said.push_back(message.clone());
        // As a connection does: a message that can't be decoded ends it.
        SourceMessage::decode(&message)
    }
}

impl Peer<'_> {
    /// The source's own next message; the end of the connection if it knows none.
    fn own(&mut self) -> SourceMessage {
        while let Some(answer) = self.answers.pop_front() {
            if self.source.take(answer).is_err() {
                return SourceMessage::Bye;
            }
        }
        self.source.produce().ok().flatten().unwrap_or(SourceMessage::Bye)
    }

    fn next(&mut self) -> Vec<u8> {
        if self.honest > 0 || self.input.is_over() {
            self.honest = self.honest.saturating_sub(1);
            return self.own().encode();
        }
        match self.input.byte() {
            count @ 0..128 => {
                self.honest = count % 32;
                self.own().encode()
            }
            128..160 => {
                let mut message = self.own().encode();
                for _ in 0..=self.input.byte() % 4 {
                    let at = usize::try_from(self.input.number()).unwrap_or(0) % message.len();
                    message[at] ^= self.input.byte();
                }
                message
            }
            160..176 => {
                let mut message = self.own().encode();
                let (from, bytes) = (self.input.number(), self.input.bytes());
                let from = usize::try_from(from).unwrap_or(0) % message.len();
                let end = (from + bytes.len()).min(message.len());
                message.splice(from..end, bytes.iter().copied());
                message
            }
            176..192 => {
                drop(self.own());
                self.own().encode()
            }
            192..208 => {
                let place = usize::from(self.input.byte()) % self.said.len().max(1);
                let repeated = self.said.get(place).cloned();
                repeated.unwrap_or_else(|| self.own().encode())
            }
            208..224 => self.input.bytes().to_vec(),
            224..240 => self.made_up().encode(),
            _ => {
                drop(self.own());
                self.made_up().encode()
            }
        }
    }

    fn made_up(&mut self) -> SourceMessage {
        let input = &mut self.input;
        match input.byte() % 11 {
            0 => SourceMessage::Segments(vec![Described::Zeros(input.number())]),
            1 => SourceMessage::Segments(vec![Described::Parent(input.number())]),
            2 => SourceMessage::Data(vec![input.byte(); usize::from(input.byte()) << 4]),
            3 => {
                let mut block = Vec::new();
                let raw = vec![input.byte(); 1 + (usize::from(input.byte()) << 4)];
                BlockWriter::new(1).unwrap().pack(&raw, &mut block);
                SourceMessage::Frame(block)
            }
            4 => SourceMessage::Steps(vec![TreeStep::Leave; usize::from(input.byte() % 8)]),
            5 => {
                let (first, last) = (input.bytes().to_vec(), input.bytes().to_vec());
                SourceMessage::Steps(vec![TreeStep::SameRange(first, last)])
            }
            6 => SourceMessage::End,
            7 => SourceMessage::Commit,
            8 => SourceMessage::Abort,
            9 => {
                let base = DeltaBase { offset: input.number(), length: u32::from(input.byte()) };
                let bytes = u32::from(input.byte()) << 8;
                let (bases, frame) = (vec![base; 2], input.bytes().to_vec());
                SourceMessage::Delta(ChunkDelta { bytes, bases, frame })
            }
            _ => SourceMessage::Ask { series: "web1".to_owned() },
        }
    }
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
    let (answers, said) = (VecDeque::new(), VecDeque::new());
    let mut peer = Peer { source, input, answers, honest: 0, said, messages: 0 };
    let before = snapshots(&replica);
    drop(Replica::new(&replica, options()).serve(&mut peer));
    if snapshots(&replica) != before {
        assert_whole(&replica);
    }
});
