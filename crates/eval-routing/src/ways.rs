//! The schemes by name, and what becomes of a set under one of them.

use silt_routing::{
    AppAware, AppDedupe, Cluster, Director, Domains, ExactDht, ExtremeBinning, Grain, Lookup, Node,
    NodeOptions, Piece, PrintSet, Produck, Questions, Router, Sigma, Stateful, Stateless,
};

use super::change::{self, Change};
use super::feed::{Chunking, Data};

/// The slack of the director, as a share of what a node stores on average, in 1,024 parts. A node
/// with a few super-chunks more than others is not overloaded.
const SLACK: u64 = 16;

/// Bytes that a node may have more than 1.05 times the mean, if nodes have so many super-chunks.
pub fn slack_bytes(super_chunks: u64) -> u64 {
    (super_chunks * SLACK / 1024).max(1) << 20
}

/// A scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    AppDedupe,
    Sigma,
    Stateful,
    Produck,
    Stateless,
    ExtremeBinning,
    AppAware,
    ExactDht,
    /// Controls that every table must tell from the rest.
    NodeZero,
    NoHandprint,
    /// One representative, whatever the handprint is said to be.
    OneRepresentative,
    /// AppDedupe with one rule changed.
    Changed(Change),
}

impl Way {
    /// The schemes that the paper compares.
    pub const COMPARED: [Self; 6] = [
        Self::AppDedupe,
        Self::Sigma,
        Self::Stateful,
        Self::Produck,
        Self::Stateless,
        Self::ExtremeBinning,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AppDedupe => "AppDedupe",
            Self::Sigma => "Sigma-Dedupe",
            Self::Stateful => "EMC stateful",
            Self::Produck => "Produck",
            Self::Stateless => "EMC stateless",
            Self::ExtremeBinning => "Extreme Binning",
            Self::AppAware => "AppAware",
            Self::ExactDht => "DHT of chunks",
            Self::NodeZero => "control: always the first node",
            Self::NoHandprint => "control: AppDedupe without a handprint",
            Self::OneRepresentative => "control: AppDedupe with one representative",
            Self::Changed(change) => change.name(),
        }
    }

    /// The chunks that the scheme is published with.
    pub fn own_chunking(self) -> Chunking {
        match self {
            Self::AppDedupe => Chunking::Own,
            Self::Produck => Chunking::Units(1),
            _ => Chunking::Units(4),
        }
    }

    pub fn router(self, super_chunks: u64, handprint: usize) -> Box<dyn Router> {
        let appdedupe = |handprint| appdedupe(super_chunks, handprint);
        match self {
            Self::AppDedupe => Box::new(appdedupe(handprint)),
            Self::NoHandprint => Box::new(appdedupe(0)),
            Self::OneRepresentative => Box::new(appdedupe(1)),
            Self::Changed(it) => change::router(it, appdedupe(handprint)),
            Self::Sigma => Box::new(Sigma { handprint, ..Sigma::default() }),
            Self::Stateful => Box::new(Stateful::default()),
            Self::Produck => Box::new(Produck::default()),
            Self::Stateless => Box::new(Stateless::default()),
            Self::ExtremeBinning => Box::new(ExtremeBinning),
            Self::AppAware => Box::new(AppAware),
            Self::ExactDht => Box::new(ExactDht),
            Self::NodeZero => Box::new(NodeZero),
        }
    }

    pub fn options(self, handprint: usize) -> NodeOptions {
        let (lookup, domains) = match self {
            Self::Changed(it) => {
                return change::options(it, Self::AppDedupe.options(handprint));
            }
            Self::AppDedupe | Self::NoHandprint | Self::OneRepresentative => {
                (Lookup::Approximate, Domains::PerApplication)
            }
            Self::Sigma => (Lookup::Approximate, Domains::One),
            Self::ExtremeBinning => (Lookup::Bins, Domains::One),
            _ => (Lookup::Full, Domains::One),
        };
        let handprint = match self {
            Self::NoHandprint => 0,
            Self::OneRepresentative => 1,
            _ => handprint,
        };
        NodeOptions { lookup, domains, handprint, ..NodeOptions::default() }
    }
}

/// AppDedupe as it is evaluated, for nodes with so many super-chunks.
pub fn appdedupe(super_chunks: u64, handprint: usize) -> AppDedupe {
    let director = Director::new(1.05, slack_bytes(super_chunks));
    AppDedupe { director, handprint, ..AppDedupe::default() }
}

struct NodeZero;

impl Router for NodeZero {
    fn grain(&self) -> Grain {
        Grain::Bytes(1 << 20)
    }

    fn route(&mut self, _: &Piece, _: &dyn silt_routing::Answers) -> usize {
        0
    }
}

/// What became of some sets on some nodes.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub way: Way,
    pub nodes: usize,
    pub chunks: u64,
    pub logical: u64,
    /// Bytes that exact deduplication on one node stores, of the same chunks.
    pub exact: u64,
    /// Bytes that each node stores.
    pub used: Vec<u64>,
    pub questions: Questions,
    /// Fingerprints that nodes looked up to store.
    pub looked_up: u64,
    /// Entries and bytes of the indexes in memory.
    pub entries: u64,
    pub index_bytes: u64,
}

impl Outcome {
    pub fn stored(&self) -> u64 {
        self.used.iter().sum()
    }

    fn mean(&self) -> f64 {
        (self.stored() as f64 / self.used.len() as f64).max(1.0)
    }

    /// The ratio of deduplication, of that of one node (formula 8).
    pub fn ndr(&self) -> f64 {
        self.exact as f64 / self.stored().max(1) as f64
    }

    /// The same, less for nodes that are used unequally (formula 9); the deviation is that of all
    /// nodes, not of a sample.
    pub fn nedr(&self) -> f64 {
        let mean = self.mean();
        let squares = self.used.iter().map(|used| (*used as f64 - mean).powi(2));
        let deviation = (squares.sum::<f64>() / self.used.len() as f64).sqrt();
        self.ndr() * mean / (mean + deviation)
    }

    /// The difference between the most and the least used node, of the mean (formula 10).
    pub fn skew(&self) -> f64 {
        let most = self.used.iter().copied().max().unwrap_or(0);
        let least = self.used.iter().copied().min().unwrap_or(0);
        (most - least) as f64 / self.mean()
    }

    /// Fingerprints that were looked up before and after routing, of the chunks.
    pub fn looked_up(&self) -> f64 {
        (self.looked_up + self.questions.prints) as f64 / self.chunks.max(1) as f64
    }

    /// The share of the duplicate bytes that was found.
    pub fn found(&self) -> f64 {
        let duplicates = self.logical.saturating_sub(self.exact).max(1);
        self.logical.saturating_sub(self.stored()) as f64 / duplicates as f64
    }
}

/// Bytes of the different chunks of some sets.
pub fn exact(data: &Data, chunking: Chunking) -> u64 {
    let mut bytes = 0;
    for &set in &data.sets {
        let mut seen = PrintSet::default();
        data.chunks(set, chunking, &mut |chunk| {
            bytes += if seen.insert(chunk.print) { u64::from(chunk.bytes) } else { 0 };
        });
    }
    bytes
}

/// How a scheme is run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub nodes: usize,
    pub chunking: Chunking,
    /// Representatives of a super-chunk.
    pub handprint: usize,
}

/// Runs a scheme on the product's nodes. `exact` is what one node stores of the same chunks.
pub fn run(way: Way, data: &Data, setting: Setting, exact: u64) -> Outcome {
    let Setting { nodes, chunking, handprint } = setting;
    let super_chunks = (exact / nodes as u64) >> 20;
    let mut router = way.router(super_chunks, handprint);
    let fed = Fed { way, nodes, exact, options: way.options(handprint) };
    run_fed(fed, &mut *router, &mut |grain, each| data.feed(chunking, grain, each))
}

/// What a run is told of its data and its nodes.
#[derive(Clone, Copy)]
pub struct Fed {
    /// How the outcome is called.
    pub way: Way,
    pub nodes: usize,
    /// See [`Outcome::exact`].
    pub exact: u64,
    pub options: NodeOptions,
}

/// Calls a function with all pieces.
pub type Feed<'f> = dyn FnMut(Grain, &mut dyn FnMut(Piece)) + 'f;

/// Runs a router over what `feed` gives.
pub fn run_fed(fed: Fed, router: &mut dyn Router, feed: &mut Feed<'_>) -> Outcome {
    let Fed { way, nodes, exact, options } = fed;
    let cluster = Cluster::new(nodes, options);
    let (mut chunks, mut logical) = (0, 0);
    feed(router.grain(), &mut |piece| {
        chunks += piece.chunks.len() as u64;
        logical += piece.bytes();
        cluster.back_up(router, &piece);
    });
    let of_all = |value: fn(&Node) -> u64| cluster.all().iter().map(value).sum();
    Outcome {
        way,
        nodes,
        chunks,
        logical,
        exact,
        used: cluster.all().iter().map(Node::used_bytes).collect(),
        questions: cluster.questions(),
        looked_up: of_all(Node::looked_up),
        entries: of_all(Node::entries),
        index_bytes: of_all(Node::index_bytes),
    }
}
