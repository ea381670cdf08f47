//! What holds of the schemes, and the changes that must break it.

use crate::*;

const NODES: usize = 4;

/// Super-chunks of several versions of files; a run of 16 chunks changes with a probability of 5 %.
/// Of the applications, the first has most data.
fn trace(grain: Grain) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for version in 0..5_u64 {
        for application in 0..4_u16 {
            let mut cutter = Cutter::new(grain, Application(application), application.into());
            for run in 0..if application == 0 { 2400 } else { 800 } {
                let place = u64::from(application) << 32 | run;
                let is_changed = |version: &u64| mix(place << 8 | version).is_multiple_of(20);
                let last = (1..=version).rev().find(is_changed).unwrap_or(0);
                for part in 0..16 {
                    let print = mix(mix(place << 16 | last << 8 | part));
                    pieces.extend(cutter.push(Chunk { print, bytes: 4096 }));
                }
            }
            pieces.extend(cutter.end());
        }
    }
    pieces
}

struct Outcome {
    /// Unique bytes over stored bytes.
    found: f64,
    /// (max - min) / mean of what nodes have stored.
    skew: f64,
    /// Fingerprints looked up, over chunks.
    asked: f64,
}

fn run(router: &mut dyn Router, options: NodeOptions) -> Outcome {
    let (cluster, alone) = (Cluster::new(NODES, options), Node::new(full()));
    let mut chunks = 0;
    for piece in trace(router.grain()) {
        chunks += piece.chunks.len();
        alone.store(&piece);
        cluster.back_up(router, &piece);
    }
    let used: Vec<f64> = cluster.all().iter().map(|node| node.used_bytes() as f64).collect();
    let (sum, most) = (used.iter().sum::<f64>(), used.iter().copied().fold(0.0, f64::max));
    let least = used.iter().copied().fold(f64::MAX, f64::min);
    let looked_up: u64 = cluster.all().iter().map(Node::looked_up).sum();
    Outcome {
        found: alone.used_bytes() as f64 / sum,
        skew: (most - least) / (sum / NODES as f64),
        asked: (looked_up + cluster.questions().prints) as f64 / chunks as f64,
    }
}

/// A guard, no measure: slack and bounds were chosen for the little data of these tests.
fn appdedupe() -> AppDedupe {
    AppDedupe { director: Director::new(1.05, 1 << 20), ..AppDedupe::default() }
}

fn full() -> NodeOptions {
    NodeOptions { lookup: Lookup::Full, ..NodeOptions::default() }
}

/// What is asked of AppDedupe: it finds nearly all, and balances.
fn holds(outcome: &Outcome) -> bool {
    outcome.found >= 0.93 && outcome.skew <= 0.1 && outcome.asked <= 1.26
}

#[test]
fn appdedupe_finds_nearly_all_and_balances() {
    for lookup in [Lookup::Approximate, Lookup::Exact] {
        let options = NodeOptions { lookup, ..NodeOptions::default() };
        let Outcome { found, skew, asked } = run(&mut appdedupe(), options);
        assert!(holds(&Outcome { found, skew, asked }), "{lookup:?}: {found} {skew} {asked}");
    }
}

struct Random(u64);

impl Router for Random {
    fn grain(&self) -> Grain {
        Grain::Bytes(1 << 20)
    }

    fn route(&mut self, _: &Piece, answers: &dyn Answers) -> usize {
        self.0 += 1;
        usize::try_from(mix(self.0) % answers.nodes() as u64).unwrap()
    }
}

#[test]
fn a_random_node_loses_duplicates() {
    let outcome = run(&mut Random(1), NodeOptions::default());
    assert!(!holds(&outcome) && outcome.found < 0.8, "{}", outcome.found);
}

/// AppDedupe whose handprint is the same whatever the content is.
struct Blind(AppDedupe);

impl Router for Blind {
    fn grain(&self) -> Grain {
        self.0.grain()
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let chunks = (0..8).map(|print| Chunk { print, bytes: 4096 }).collect();
        self.0.route(&Piece { chunks, ..piece.clone() }, answers)
    }
}

#[test]
fn a_handprint_without_content_loses_duplicates() {
    let outcome = run(&mut Blind(appdedupe()), NodeOptions::default());
    assert!(!holds(&outcome) && outcome.found < 0.9, "{}", outcome.found);
}

#[test]
fn without_load_the_balance_is_lost() {
    let mut router = AppDedupe { is_weighted: false, ..appdedupe() };
    let with = run(&mut appdedupe(), NodeOptions::default());
    let without = run(&mut router, NodeOptions::default());
    assert!(without.skew > 2.0 * with.skew, "{} {}", without.skew, with.skew);
}

#[test]
fn a_node_counts_what_it_has_looked_up() {
    let pieces = trace(Grain::Bytes(1 << 20));
    let exact = Node::new(NodeOptions { lookup: Lookup::Exact, ..NodeOptions::default() });
    let (mut seen, mut handprints) = (PrintSet::default(), PrintSet::default());
    let mut assumed = 0;
    for piece in &pieces {
        let is_new = |chunk: &&Chunk| seen.insert(chunk.print ^ u64::from(piece.application.0));
        let new: u64 = piece.chunks.iter().filter(is_new).map(|chunk| u64::from(chunk.bytes)).sum();
        let stored = exact.store(piece);
        assert_eq!(stored.new_bytes, new);
        assert_eq!(stored.looked_up, piece.chunks.len() as u64);
        let is_similar =
            piece.handprint(8).into_iter().filter(|rep| !handprints.insert(*rep)).count();
        assumed += if is_similar > 0 { 0 } else { piece.bytes() };
    }
    assert!(assumed < exact.used_bytes() * 9 / 10, "duplicates by resemblance are too many");
}

#[test]
fn a_cache_of_one_container_loses_what_two_find() {
    let count = |cache_containers| {
        let node = Node::new(NodeOptions { cache_containers, ..NodeOptions::default() });
        for piece in trace(Grain::Bytes(1 << 20)) {
            node.store(&piece);
        }
        node.used_bytes()
    };
    assert!(count(1) > count(64));
}

/// New data changes its node seldom if runs are allowed, and finds and balances as well.
#[test]
fn neighbours_stay_on_a_node_for_as_long_as_runs_allow() {
    let of = |run_bytes: u64| {
        let mut router = AppDedupe { run_bytes, ..appdedupe() };
        let (cluster, mut last, mut changes) = (Cluster::new(NODES, NodeOptions::default()), 0, 0);
        let pieces = trace(Grain::Bytes(1 << 20));
        for piece in &pieces[..pieces.len() / 5] {
            let (node, _) = cluster.back_up(&mut router, piece);
            changes += usize::from(node != last);
            last = node;
        }
        let outcome = run(&mut AppDedupe { run_bytes, ..appdedupe() }, NodeOptions::default());
        (changes, outcome)
    };
    let ((changes, without), (fewer, with)) = (of(0), of(16 << 20));
    assert!(fewer < changes / 4, "{fewer} {changes}");
    assert!(with.found > without.found - 0.02, "{} {}", with.found, without.found);
    assert!(with.skew < 0.35, "{} {}", with.skew, without.skew);
}

/// Nodes that resemble everything, or nothing, equally.
struct Alike {
    used_bytes: [u64; 3],
    found: [usize; 3],
}

impl Answers for Alike {
    fn nodes(&self) -> usize {
        self.found.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.used_bytes[node]
    }

    fn similar(&self, node: usize, _application: Application, _handprint: &[Print]) -> usize {
        self.found[node]
    }

    fn known(&self, node: usize, _sample: &[Print]) -> usize {
        self.found[node]
    }
}

#[test]
fn what_several_nodes_have_is_followed_in_one_of_them() {
    // Its handprint names all three nodes.
    let prints = |stream: u64| (0..64).map(move |number| mix(stream * 64 + number));
    let chunks = prints(1).map(|print| Chunk { print, bytes: 4096 }).collect();
    let piece = Piece { chunks, ..Piece::default() };
    let route_of = |held: usize, run_bytes: u64, used_bytes: [u64; 3], found: [usize; 3]| {
        let mut router = AppDedupe { run_bytes, held, last: Some(1), ..AppDedupe::default() };
        router.director = Director::new(1.05, 1 << 40);
        let nodes = (0..3).collect();
        router.director.assign(piece.application, nodes);
        router.route(&piece, &Alike { used_bytes, found })
    };
    let route = |run_bytes, used_bytes, found| route_of(8, run_bytes, used_bytes, found);
    let (run, all) = (1000, [8, 8, 8]);
    assert_eq!(route(run, [5000, 5900, 5000], all), 1);
    assert_eq!(route(0, [5000, 5900, 5000], all), 0, "as in the paper");
    assert_eq!(route(run, [5000, 8999, 5001], all), 1, "what is known adds nothing to its load");
    assert_eq!(route(run, [5000, 9001, 5001], all), 0, "it has four runs more");
    assert_eq!(route(run, [5000, 5900, 5001], [5, 5, 5]), 1);
    assert_eq!(route(run, [5000, 6001, 5001], [5, 5, 5]), 0, "it gets much, and has one run more");
    assert_eq!(route(run, [5000, 5900, 5000], [8, 7, 8]), 0, "others resemble it more");
    assert_eq!(route(run, [5000, 5900, 5000], [0, 0, 0]), 1);
    assert_eq!(route(run, [5000, 6001, 5001], [0, 0, 0]), 0, "it has one run more");
    // Nodes that hold four each: which of them it has is chance.
    let route = |used_bytes, found| route_of(4, run, used_bytes, found);
    assert_eq!(route([5000, 5000, 5000], [4, 2, 4]), 1);
    assert_eq!(route([5000, 5000, 5000], [4, 1, 3]), 0, "another has clearly more");
    assert_eq!(route([5000, 5000, 5000], [2, 0, 1]), 0, "it has none");
    assert_eq!(route([5000, 8999, 5001], [4, 3, 3]), 1, "most of what can be found is known");
    assert_eq!(route([5000, 6001, 5001], [4, 2, 3]), 0, "it gets much, and has one run more");
}

/// With few nodes: a handprint may name some of them only.
#[test]
fn a_run_does_not_end_because_a_handprint_does_not_name_its_node() {
    let mut is_named = [0; 2];
    for stream in 0..200 {
        let prints = (0..64).map(|number| mix(stream * 64 + number));
        let chunks = prints.map(|print| Chunk { print, bytes: 4096 }).collect();
        let piece = Piece { chunks, ..Piece::default() };
        let route = |run_bytes: u64| {
            let mut router = AppDedupe { run_bytes, last: Some(1), ..AppDedupe::default() };
            router.director = Director::new(1.05, 1 << 40);
            router.director.assign(piece.application, (0..3).collect());
            router.route(&piece, &Alike { used_bytes: [5000, 4900, 5000], found: [8, 8, 8] })
        };
        assert_eq!(route(1000), 1, "{stream}");
        // Without runs, the least loaded one of those that are named.
        is_named[usize::from(route(0) == 1)] += 1;
    }
    assert!(is_named[0] > 2, "{is_named:?}");
}

#[test]
fn whole_applications_lose_nothing_and_are_worst_balanced() {
    let outcome = run(&mut AppAware, full());
    assert!(outcome.found > 0.999 && outcome.skew > 0.9, "{} {}", outcome.found, outcome.skew);
}

#[test]
fn chunks_by_hash_lose_nothing_and_are_balanced() {
    let outcome = run(&mut ExactDht, full());
    assert!(outcome.found > 0.999 && outcome.skew < 0.1, "{} {}", outcome.found, outcome.skew);
}

#[test]
fn every_scheme_asks_as_much_as_is_published() {
    let asked = |router: &mut dyn Router| run(router, full()).asked;
    assert!((asked(&mut Stateless::default()) - 1.0).abs() < 1e-9);
    // 1 + N / 2^B
    assert!((asked(&mut Stateful::default()) - 1.5).abs() < 0.05);
    let sigma = run(&mut Sigma::default(), NodeOptions::default()).asked;
    assert!(sigma > 1.0 && sigma <= 1.26, "{sigma}");
}

#[test]
fn produck_and_stateful_find_more_than_a_random_node() {
    let random = run(&mut Random(1), full()).found;
    let small = 1 << 20;
    let mut produck = Produck::default();
    (produck.super_chunk_bytes, produck.bucket_bytes) = (small, small);
    let (produck, stateful) = (run(&mut produck, full()), run(&mut Stateful::default(), full()));
    assert!(produck.found > random + 0.1, "{} {random}", produck.found);
    assert!(stateful.found > random + 0.1, "{} {random}", stateful.found);
}

#[test]
fn extreme_binning_finds_whole_files() {
    let node = Node::new(NodeOptions { lookup: Lookup::Bins, ..NodeOptions::default() });
    let chunks: Vec<Chunk> = (0..9).map(|print| Chunk { print, bytes: 1 }).collect();
    let file = Piece { chunks: chunks.clone(), ..Piece::default() };
    assert_eq!(node.store(&file).new_bytes, 9);
    assert_eq!(node.store(&file), Stored { looked_up: 9, ..Stored::default() });
    let mut changed = file.clone();
    changed.chunks.push(Chunk { print: 100, bytes: 1 });
    assert_eq!(node.store(&changed).new_bytes, 1);
    changed.chunks.remove(0);
    assert_eq!(node.store(&changed).new_bytes, 9, "another representative is another bin");
    assert_eq!(node.entries(), 2);
}

#[test]
fn placements_are_pinned() {
    let nodes: Vec<usize> = (0..100).collect();
    let moved = |placement: Placement| {
        let is_moved = |print: &u64| {
            placement.node(mix(*print), &nodes) != placement.node(mix(*print), &nodes[..99])
        };
        (0..10_000).filter(is_moved).count()
    };
    assert!((50..200).contains(&moved(Placement::Rendezvous)));
    assert!(moved(Placement::Modulo) > 9000);
    assert_eq!(Placement::Modulo.node(1, &[]), None);
    let ring = Ring::new(10, 16);
    assert!((0..10).all(|node| (0..1000).any(|print| ring.node(mix(print)) == node)));
}

#[test]
fn handprints_are_the_least() {
    assert_eq!(handprint([5, 3, 9, 3, 1].into_iter(), 3), [1, 3, 5]);
    assert_eq!(handprint([5].into_iter(), 0), Vec::<u64>::new());
}

/// With every fingerprint in the index, all but nothing is missed; with fewer, more is, and the
/// index has as many entries less.
#[test]
fn a_sampled_index_finds_less_with_fewer_entries() {
    let of = |rate| {
        let lookup = Lookup::Sampled(rate);
        let node =
            Node::new(NodeOptions { lookup, domains: Domains::One, ..NodeOptions::default() });
        let alone = Node::new(full());
        for piece in trace(Grain::Bytes(1 << 20)) {
            node.store(&piece);
            alone.store(&piece);
        }
        let unique = alone.used_bytes() / 4096;
        let (stored, entries) = (node.used_bytes() / 4096, node.entries());
        (stored as f64 / unique as f64, (rate * entries) as f64 / unique as f64)
    };
    let (every, few, fewer) = (of(1), of(16), of(256));
    assert!(every.0 < 1.01 && (every.1 - 1.0).abs() < 1e-9, "{every:?}");
    assert!(few.0 > every.0 && fewer.0 > few.0 * 1.05, "{few:?} {fewer:?}");
    assert!((few.1 - 1.0).abs() < 0.1 && (fewer.1 - 1.0).abs() < 0.3, "{few:?} {fewer:?}");
}
