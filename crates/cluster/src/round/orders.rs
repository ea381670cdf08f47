//! The messages between a coordinator and the hosts of a round.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use silt_format::{ContentHash, Error, Id, ObjectTag, Result, RunRef, RunUse};
use silt_runs::DurableRun;
use silt_sharing::exchange::Placed;

use super::rates::HostRates;

/// What a host is asked: how it gets on with these orders, by their names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    /// The number that the answer is sealed with.
    pub(super) nonce: u64,
    /// Rises from question to question: an older one that comes late is only answered.
    pub(super) turn: u64,
    pub(super) orders: BTreeMap<String, Order>,
    /// Orders that the host is known to have.
    #[serde(default)]
    pub(super) known: Vec<String>,
    /// The round is over for this host, once it has done what it was told.
    pub(super) is_end: bool,
}

/// How the host gets on with the orders of the question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) states: BTreeMap<String, State>,
}

/// Something that a host is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(super) enum Order {
    /// Say which series it has, and what they are expected to cost.
    Plan,
    /// Scan these series.
    Scan { series: Vec<String> },
    /// Write the requests of the scan, as host number `host`.
    Requests { host: u16 },
    /// Write which chunks these series have, by their ids.
    Owners { series: Vec<[u8; 12]> },
    /// Join requests and owners of a range of fingerprints.
    Join { first: u32, last: u32, requests: Runs, owners: Runs, hosts: u16 },
    /// Store what the answers leave to this host.
    Store { answers: Vec<Run>, host: u16, hosts: u16, numbers: Range<u32> },
    /// Back up the scanned series.
    BackUp,
    /// Count what these series refer to in a store that has used so many container numbers.
    Count { store: u16, containers: u32, series: Vec<[u8; 12]> },
}

/// How a host gets on with an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(super) enum State {
    /// It has not ended.
    Awaited,
    Done(Outcome),
    Failed {
        error: String,
    },
}

/// What an order has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(super) enum Outcome {
    Planned {
        series: Vec<PlannedSeries>,
        #[serde(default)]
        rates: HostRates,
    },
    Scanned {
        requested_chunks: u64,
    },
    Written {
        run: Run,
        bytes: u64,
    },
    Answered {
        run: Run,
        bytes: u64,
        chunks: Vec<u64>,
    },
    Placed {
        placed: PlacedText,
    },
    BackedUp {
        series: Vec<BackedUp>,
    },
    /// From the heads with these generations and writers, one for each series of the order.
    Counted {
        run: Run,
        heads: Vec<(u64, [u8; 16])>,
    },
}

/// A series of a host, and what its backup is expected to cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSeries {
    /// Its own name.
    pub series: String,
    /// Bytes that a scan reads.
    pub scan_bytes: u64,
    /// Chunks that are expected to be new to it.
    pub requests: u64,
    /// How many bytes a second its host may read, if that is limited.
    #[serde(default)]
    pub read_bytes_per_s: Option<u64>,
}

/// What has become of a series in a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackedUp {
    /// Its own name.
    pub series: String,
    /// The snapshot's id, if it was backed up.
    pub snapshot: Option<String>,
    /// The snapshot's time, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Bytes that its backup has stored.
    pub stored_bytes: u64,
    /// How long its volumes were needed, in milliseconds from the start of the scan.
    pub held_ms: u64,
    /// Why it was not backed up.
    pub error: Option<String>,
}

/// Runs that many orders name: they have them in common.
#[derive(Clone, Debug)]
pub(super) struct Runs(pub(super) Arc<Vec<Run>>);

impl Serialize for Runs {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Runs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        Ok(Self(Arc::new(Vec::deserialize(from)?)))
    }
}

/// A run of the shared store, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    id: u64,
    partition_bits: u8,
    records: u64,
    hash: [u8; 16],
}

impl From<RunRef> for Run {
    fn from(run: RunRef) -> Self {
        let RunRef { id, partition_bits, records, hash, .. } = run;
        Self { id: id.0, partition_bits, records, hash: hash.0 }
    }
}

impl Run {
    pub(super) fn read(&self) -> Result<RunRef> {
        if self.partition_bits > silt_format::PARTITION_BITS_MAX {
            return Err(wrong("a run's partitions"));
        }
        let (partition_bits, records) = (self.partition_bits, self.records);
        let (id, hash) = (Id(self.id), ContentHash(self.hash));
        Ok(RunRef { id, use_: RunUse::Owners, partition_bits, records, hash })
    }
}

pub(super) fn read_all(runs: &[Run]) -> Result<Vec<RunRef>> {
    runs.iter().map(Run::read).collect()
}

impl Outcome {
    pub(super) fn written(written: DurableRun) -> Self {
        Self::Written { run: written.run.into(), bytes: written.stored_bytes }
    }
}

/// What a host has stored, as messages say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlacedText {
    /// Numbers and tags.
    containers: Vec<(u32, u64)>,
    run: Run,
    chunks: u64,
    bytes: u64,
    stored_bytes: u64,
}

impl From<Placed> for PlacedText {
    fn from(placed: Placed) -> Self {
        let Placed { containers, run, chunks, bytes, stored_bytes } = placed;
        let containers = containers.into_iter().map(|(number, tag)| (number, tag.bits()));
        Self { containers: containers.collect(), run: run.into(), chunks, bytes, stored_bytes }
    }
}

impl PlacedText {
    pub(super) fn read(&self) -> Result<Placed> {
        let containers = self.containers.iter();
        let containers = containers.map(|(number, tag)| (*number, ObjectTag::from_bits(*tag)));
        Ok(Placed {
            containers: containers.collect(),
            run: RunRef { use_: RunUse::Shared, ..self.run.read()? },
            chunks: self.chunks,
            bytes: self.bytes,
            stored_bytes: self.stored_bytes,
        })
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("a message of a round: {what} is malformed"))
}
