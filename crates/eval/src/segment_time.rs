//! What a dirty segment takes with own stores and a popular set (VC), and with routing to bins
//! (SRB): milliseconds of reading and writing, network and look-up, by counted operations.

use std::sync::Arc;

use silt_format::{LevelBytes, SEGMENT_BYTES};
use silt_routing::{Cluster, Node, NodeOptions, Stateless};
use silt_storage::{MemoryStorage, Operation, RecordingStorage};
use siltstone::{DetectionOptions, SharePolicy};

use crate::Result;
use crate::fleet::Fleet;
use crate::routed::pieces;
use crate::schemes::{BINS, ONE_SIGNATURE, chunks, dirty_chunks};
use crate::spans::PAPER;
use crate::trace::Trace;
use silt_report::{Table, bars, number};

/// Bytes a second of a disk (both papers), and of the network: 8 MB/s are 6.25 % of it (001).
const DISK: f64 = 50e6;
const NETWORK: f64 = 128e6;
/// A question to another host and its answer, in seconds. Not published.
const MESSAGE_S: f64 = 0.001;
/// Bytes of a chunk, of a fingerprint that is asked for (001, u), and of a container (ours).
const CHUNK: f64 = 4096.0;
const RECORD: f64 = 40.0;
const CONTAINER: f64 = 8.0 * 1024.0 * 1024.0;
/// The share that is popular (000: sigma).
const SHARE: f64 = 0.02;

/// What was counted for one dirty segment, the mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Chunks that were stored.
    pub new: f64,
    /// Fingerprints that were sent to other hosts, in how many messages.
    pub asked: f64,
    pub messages: f64,
    /// Reads of recipes or of containers' fingerprints, each with a seek, and their bytes.
    pub reads: f64,
    pub read_bytes: f64,
    /// Metadata written, in bytes.
    pub written_bytes: f64,
    /// Places that are appended to, each with a seek.
    pub appends: f64,
    /// Whether what is read is near each other, as the recipes of one machine are, so that it can
    /// be read in order; bins are where chance has put them.
    pub is_near: bool,
}

impl Counted {
    /// Milliseconds of reading and writing, network and look-up; the last with a seek for each
    /// read, or with what is near read in order.
    pub fn milliseconds(&self, in_order: bool) -> [f64; 3] {
        let seeks = if in_order && self.is_near { 0.0 } else { self.reads };
        let disk = |bytes: f64, seeks: f64| (bytes / DISK + seeks * PAPER.seek_s) * 1e3;
        let written = self.new * CHUNK + self.written_bytes;
        [
            disk(SEGMENT_BYTES as f64 + written, self.appends),
            (self.asked * RECORD + self.new * CHUNK) / NETWORK * 1e3,
            disk(self.read_bytes, seeks) + self.messages * MESSAGE_S * 1e3,
        ]
    }
}

/// The product's backup of the last day, with a popular set of all days before.
pub fn own_stores(trace: &Trace, detection: DetectionOptions) -> Result<Counted> {
    let storage = Arc::new(RecordingStorage::new(MemoryStorage::new()));
    let mut fleet = Fleet::empty(trace, storage.clone())?;
    let last = trace.days() - 1;
    fleet.back_up_days(0..last, &|_| detection)?;
    fleet.share(SharePolicy::Popular(SHARE))?;
    fleet.levels = LevelBytes::default();
    storage.take();
    fleet.back_up_days(last..last + 1, &|_| detection)?;
    let segments = pieces(trace, last..last + 1).count() as f64;
    let mut counted = Counted { is_near: true, ..Counted::default() };
    for record in storage.take() {
        let bytes = record.outcome.map_or(0.0, |bytes| bytes as f64);
        match &record.operation {
            Operation::Get { key, .. } if key.as_str().starts_with("recipes/") => {
                counted.reads += 1.0;
                counted.read_bytes += bytes;
            }
            Operation::Put { key, .. } if key.as_str().starts_with("recipes/") => {
                counted.written_bytes += bytes;
            }
            _ => {}
        }
    }
    let new = chunks(&fleet.levels, silt_format::Level::New) as f64;
    // What no level inside the machine finds is asked for, in one message a segment.
    let shared = chunks(&fleet.levels, silt_format::Level::Shared) as f64;
    debug_assert!(dirty_chunks(&fleet.levels) as f64 >= new + shared, "levels add up");
    counted.new = new;
    counted.asked = new + shared;
    counted.messages = segments.min(counted.asked);
    counted.appends = new * CHUNK / CONTAINER;
    Ok(of_segments(counted, segments))
}

/// Routing of the last day's segments to bins that have all days before.
pub fn bins(trace: &Trace) -> Counted {
    // A bin looks in the containers that eight representatives of a segment name.
    let cluster = Cluster::new(BINS, NodeOptions::default());
    let last = trace.days() - 1;
    let mut router = Stateless::default();
    for piece in pieces(trace, 0..last) {
        cluster.back_up(&mut router, &piece);
    }
    // A bin's fingerprints are on its host's disk, not in memory.
    let index_reads = || cluster.all().iter().map(Node::index_reads).sum::<u64>();
    let before = index_reads();
    let (mut counted, mut segments) = (Counted::default(), 0.0);
    for piece in pieces(trace, last..last + 1) {
        cluster.all().iter().for_each(Node::forget_caches);
        let (_, stored) = cluster.back_up(&mut router, &piece);
        segments += 1.0;
        counted.new += stored.new_chunks as f64;
        counted.asked += piece.chunks.len() as f64;
        counted.written_bytes += piece.chunks.len() as f64 * RECORD;
        // New chunks go to the bin's own container.
        counted.appends += f64::from(u8::from(stored.new_chunks > 0));
    }
    counted.messages = segments;
    counted.reads = (index_reads() - before) as f64;
    counted.read_bytes = counted.reads * 1024.0 * RECORD;
    of_segments(counted, segments)
}

fn of_segments(all: Counted, segments: f64) -> Counted {
    let Counted { new, asked, messages, reads, read_bytes, written_bytes, appends, is_near } = all;
    let each = |sum: f64| sum / segments.max(1.0);
    Counted {
        new: each(new),
        asked: each(asked),
        messages: each(messages),
        reads: each(reads),
        read_bytes: each(read_bytes),
        written_bytes: each(written_bytes),
        appends: each(appends),
        is_near,
    }
}

const COLUMNS: [&str; 12] = [
    "scheme",
    "read and write",
    "network",
    "look-up, a seek a read",
    "look-up, recipes in order",
    "slower %, a seek a read",
    "slower %, recipes in order",
    "published slower % (output)",
    "new chunks",
    "fingerprints sent",
    "reads for look-up",
    "appends",
];

/// The table of both, with a plot.
pub fn table(machines: &str, trace: &Trace) -> Result<(Table, String)> {
    let title = format!("Milliseconds of a dirty segment, {machines}");
    let mut table = Table::new(&title, &COLUMNS);
    let found = [
        ("own stores, one signature", own_stores(trace, ONE_SIGNATURE)?, "-"),
        ("own stores, all levels", own_stores(trace, DetectionOptions::default())?, "-"),
        ("routing to bins", bins(trace), "23.9"),
    ];
    let sum = |counted: &Counted, in_order| counted.milliseconds(in_order).iter().sum::<f64>();
    let base = [false, true].map(|in_order| sum(&found[0].1, in_order));
    let mut groups = Vec::new();
    for (name, counted, published) in found {
        let parts = counted.milliseconds(false);
        let [disk, network, lookup] = parts;
        let near = counted.milliseconds(true)[2];
        let slower = [false, true]
            .map(|in_order| (sum(&counted, in_order) / base[usize::from(in_order)] - 1.0) * 100.0);
        let figures = [disk, network, lookup, near, slower[0], slower[1]].map(number);
        let counts = [counted.new, counted.asked, counted.reads, counted.appends].map(number);
        let cells = std::iter::once(name.to_owned()).chain(figures);
        table.row(cells.chain([published.to_owned()]).chain(counts).collect());
        groups.push((name.to_owned(), vec![disk, network, near]));
    }
    table.note(format!(
        "Counted on the last day's segments: of own stores by the product's backups and what its \
         storage gave out, of bins by its nodes. Inputs: 50 MB/s and 10 ms a seek of a disk, 128 \
         MB/s of the network (the papers'), 1 ms a message (ours). Reading and writing: the \
         segment, new chunks, metadata, and a seek for each place that is appended to, which is a \
         container of 8 MiB or a bin. Look-up: reads of recipes or of a bin's fingerprints, and a \
         message; recipes of one machine lie together, so that reading them in order is the other \
         bound. The plot has that. A bin finds a segment by {} representatives; with a seek for \
         each fingerprint it would be slower by far. The published milliseconds are in a file that \
         the text only names.",
        NodeOptions::default().handprint
    ));
    let parts = ["read and write", "network", "look-up"];
    Ok((table, bars(&title, "ms", &parts, &groups)))
}

#[cfg(test)]
mod tests {
    use super::{bins, own_stores};
    use crate::generate::{Shape, generate};
    use crate::schemes::ONE_SIGNATURE;

    /// The least that both must count: a segment asks for all its chunks where it is routed, and
    /// for what its machine lacks where it has its own store.
    #[test]
    fn own_stores_ask_for_what_the_machine_lacks_and_bins_for_all() -> crate::Result<()> {
        let shape = Shape { machines: 8, segments: 6, days: 3, sharing: 4.0, ..Shape::default() };
        let trace = generate(&shape);
        let (own, binned) = (own_stores(&trace, ONE_SIGNATURE)?, bins(&trace));
        assert!((500.0..=512.0).contains(&binned.asked), "{binned:?}");
        assert!(own.new <= own.asked && own.asked < binned.asked, "{own:?}");
        assert!(own.reads > 0.5 && own.read_bytes > 0.0, "the parent's recipe is read: {own:?}");
        // 2 MiB at 50 MB/s are 41.9 ms: no scheme is faster.
        assert!(own.milliseconds(true)[0] > 41.9 && binned.milliseconds(true)[0] > 41.9);
        let network = own.milliseconds(true)[1];
        let expected = (own.asked * 40.0 + own.new * 4096.0) / 128e6 * 1e3;
        assert!((network - expected).abs() < 1e-9);
        let seeks = own.milliseconds(false)[2] - own.milliseconds(true)[2];
        assert!((seeks - own.reads * 10.0).abs() < 1e-9);
        assert!((binned.milliseconds(false)[2] - binned.milliseconds(true)[2]).abs() < 1e-9);
        Ok(())
    }
}
