//! Figure 5.3: the skew of super-chunks that go to the least loaded of a few nodes.

use silt_routing::{Ring, mix};

use super::feed::{Chunking, Data};
use super::sets::PROFILES;
use silt_report::{Line, Table, number, plot_values};

/// Representatives that are compared.
const CHOICES: [usize; 5] = [1, 2, 4, 8, 16];
/// Places that a node has on the ring.
const TOKENS: [usize; 3] = [1, 4, 16];
/// Nodes of the published figure.
const NODES: [usize; 2] = [10, 1280];

/// The nodes of a ring, and the super-chunks that each has.
struct Balls {
    ring: Ring,
    loads: Vec<u64>,
}

impl Balls {
    fn new(nodes: usize, tokens: usize) -> Self {
        Self { ring: Ring::new(nodes, tokens), loads: vec![0; nodes] }
    }

    /// One more super-chunk for the least loaded of the nodes that these representatives name.
    fn add(&mut self, handprint: impl Iterator<Item = u64>) {
        let nodes = handprint.map(|print| self.ring.node(print));
        if let Some(node) = nodes.min_by_key(|node| self.loads[*node]) {
            self.loads[node] += 1;
        }
    }

    fn skew(&self) -> f64 {
        let sum: u64 = self.loads.iter().sum();
        let most = self.loads.iter().copied().max().unwrap_or(0);
        let least = self.loads.iter().copied().min().unwrap_or(0);
        (most - least) as f64 * self.loads.len() as f64 / sum.max(1) as f64
    }
}

/// The skew if every super-chunk is random, with this many for each node.
pub fn random(nodes: usize, tokens: usize, choices: usize, each: u64, seed: u64) -> f64 {
    let mut balls = Balls::new(nodes, tokens);
    for number in 0..nodes as u64 * each {
        let print = mix(seed ^ mix(number));
        balls.add((0..choices as u64).map(|choice| mix(print ^ choice)));
    }
    balls.skew()
}

/// The skew of a set's super-chunks.
fn of_set(set: usize, nodes: usize, each: u64, seed: u64) -> Vec<f64> {
    let data = Data::one(set, seed, ((nodes as u64 * each) << 20) as f64);
    let mut all: Vec<Balls> = CHOICES.iter().map(|_| Balls::new(nodes, 4)).collect();
    data.feed(Chunking::Units(4), silt_routing::Grain::Bytes(1 << 20), &mut |piece| {
        let handprint = piece.handprint(CHOICES[CHOICES.len() - 1]);
        for (balls, choices) in all.iter_mut().zip(CHOICES) {
            balls.add(handprint.iter().take(choices).map(|print| mix(*print)));
        }
    });
    all.iter().map(Balls::skew).collect()
}

/// The figure's two parts, with `each` super-chunks for a node, of sets at most 64.
pub fn table(each: u64, seed: u64) -> (Table, String) {
    let columns = ["data", "nodes", "places a node", "k = 1", "k = 2", "k = 4", "k = 8", "k = 16"];
    let mut table = Table::new("Figure 5.3: DS over the handprint", &columns);
    let mut lines = Vec::new();
    let mut row = |data: &str, nodes: usize, tokens: usize, skews: &[f64]| {
        let mut cells = vec![data.to_owned(), nodes.to_string(), tokens.to_string()];
        cells.extend(skews.iter().map(|skew| number(*skew)));
        table.row(cells);
    };
    for nodes in NODES {
        for tokens in TOKENS {
            let skews = CHOICES.map(|choices| random(nodes, tokens, choices, each, seed));
            row("random", nodes, tokens, &skews);
            lines.push(Line {
                name: format!("{nodes} nodes, {tokens} places"),
                points: CHOICES.iter().map(|k| *k as f64).zip(skews).collect(),
                is_published: false,
            });
        }
        for set in [0, 1, 5] {
            row(PROFILES[set].name, nodes, 4, &of_set(set, nodes, each.min(64), seed));
        }
    }
    table.note(format!(
        "All skews are outputs. Random: {each} super-chunks for each node (published: 65,536); \
         sets: {} for each, every super-chunk counted, also duplicates. A super-chunk goes to the \
         least loaded of the nodes that its k representatives name on a ring. How many places a \
         node has there is not published; that k = 4 keeps DS below 1 needs a few.",
        each.min(64)
    ));
    let names = ("representatives", "(max - min) / mean");
    (table, plot_values("Figure 5.3: skew of random super-chunks", names, 0.0, &lines))
}
