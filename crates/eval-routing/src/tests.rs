//! What holds of the streams, and the changes that must turn the tables red.

use super::feed::{Chunking, Data};
use super::sets::PROFILES;
use super::ways::{Fed, Outcome, Setting, Way, exact, run, run_fed};
use super::{ablation, balls, change, claims};
use silt_routing::{Answers, Chunk, Grain, Piece, Router, Stateful, mix};

const CHUNKING: Chunking = Chunking::Units(4);

fn outcome(way: Way, nodes: usize) -> Outcome {
    let data = Data::all(7, 400e6 * nodes as f64);
    let setting = Setting { nodes, chunking: CHUNKING, handprint: 8 };
    run(way, &data, setting, exact(&data, CHUNKING))
}

#[test]
fn streams_are_near_the_published_ratios_and_always_the_same() {
    let data = Data::all(7, 3e9);
    for (set, profile) in PROFILES.iter().enumerate() {
        let one = Data { sets: vec![set], ..data.clone() };
        let mut bytes = 0;
        data.chunks(set, CHUNKING, &mut |chunk| bytes += u64::from(chunk.bytes));
        assert_eq!(bytes, data.stream(set, CHUNKING).bytes(), "{}", profile.name);
        let ratio = bytes as f64 / exact(&one, CHUNKING) as f64;
        let published: f64 = profile.published.split(' ').next().unwrap().parse().unwrap();
        assert!((0.8..1.2).contains(&(ratio / published)), "{}: {ratio}", profile.name);
        // Smaller chunks find no less.
        assert!(exact(&one, Chunking::Units(1)) <= exact(&one, Chunking::Units(8)));
    }
}

#[test]
fn one_node_without_limits_is_the_oracle() {
    let outcome = outcome(Way::ExactDht, 1);
    assert_eq!(outcome.stored(), outcome.exact);
    assert!((outcome.nedr() - 1.0).abs() < 1e-12 && outcome.skew() < 1e-12);
    assert!((outcome.looked_up() - 1.0).abs() < 1e-12);
}

/// What is asked of the published scheme.
fn holds(outcome: &Outcome) -> bool {
    outcome.nedr() >= 0.85 && outcome.skew() <= 0.3 && outcome.looked_up() <= 1.26
}

#[test]
fn appdedupe_finds_nearly_all_and_its_mutations_do_not() {
    let honest = outcome(Way::AppDedupe, 4);
    assert!(holds(&honest), "{} {} {}", honest.nedr(), honest.skew(), honest.looked_up());
    // One representative that is said to be eight is told from eight.
    for mutation in [Way::NodeZero, Way::NoHandprint, Way::OneRepresentative] {
        let mutated = outcome(mutation, 4);
        assert!(!holds(&mutated), "{}: {} {}", mutation.name(), mutated.nedr(), mutated.skew());
    }
}

/// What a scheme's router is given or answers, falsified.
#[derive(Clone, Copy, Debug)]
enum Mutation {
    /// Pieces go to nodes by turns.
    Turns,
    /// The first node gets all.
    FirstNode,
    /// The router sees the same chunks in every piece.
    Blind,
    /// No node is said to know anything.
    Deaf,
}

struct Mutant(Box<dyn Router>, Mutation, u64);

/// Nodes whose answers are withheld.
struct Silent<'a>(&'a dyn Answers);

impl Answers for Silent<'_> {
    fn nodes(&self) -> usize {
        self.0.nodes()
    }
    fn used_bytes(&self, node: usize) -> u64 {
        self.0.used_bytes(node)
    }
    fn similar(&self, _: usize, _: silt_routing::Application, _: &[u64]) -> usize {
        0
    }
    fn known(&self, _: usize, _: &[u64]) -> usize {
        0
    }
}

impl Router for Mutant {
    fn grain(&self) -> Grain {
        self.0.grain()
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        self.2 += 1;
        let nodes = answers.nodes();
        match self.1 {
            Mutation::Turns => usize::try_from(mix(self.2) % nodes as u64).unwrap(),
            Mutation::FirstNode => 0,
            Mutation::Blind => {
                let chunks = (0..8).map(|print| Chunk { print, bytes: 4096 }).collect();
                self.0.route(&Piece { chunks, ..piece.clone() }, answers)
            }
            Mutation::Deaf => self.0.route(piece, &Silent(answers)),
        }
    }
}

/// AppDedupe's NEDR is published as at most 1.727 times that of Extreme Binning.
const EXTREME_NDR_MIN: f64 = 1.0 / 1.727;
/// The deviation from the mean, of the mean, if one of four nodes has everything: √3.
const ALL_IN_ONE_OF_FOUR: f64 = 1.732_050_807_568_877_2;

/// Each scheme has bounds that it keeps, and that none of its mutations does.
#[test]
fn every_scheme_is_told_from_its_mutations() {
    let nodes = 4;
    let data = Data::all(7, 400e6 * f64::from(4_u8)).with_files();
    let exact = exact(&data, CHUNKING);
    let feed = |way: Way, router: &mut dyn Router| {
        let fed = Fed { way, nodes, exact, options: way.options(8) };
        run_fed(fed, router, &mut |grain, each| data.feed(CHUNKING, grain, each))
    };
    // The least NDR and the most DS.
    let schemes = [
        (Way::AppDedupe, 0.9, 0.4, &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind][..]),
        (Way::Sigma, 0.88, 0.1, &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind]),
        (Way::Stateful, 0.85, 0.1, &[Mutation::Turns, Mutation::FirstNode, Mutation::Deaf]),
        (Way::Produck, 0.6, 0.4, &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind]),
        (Way::Stateless, 0.75, 0.4, &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind]),
        (
            Way::ExtremeBinning,
            EXTREME_NDR_MIN,
            0.9 * ALL_IN_ONE_OF_FOUR,
            &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind],
        ),
        (Way::AppAware, 0.99, 2.5, &[Mutation::Turns, Mutation::FirstNode]),
        (Way::ExactDht, 0.99, 0.05, &[Mutation::Turns, Mutation::FirstNode, Mutation::Blind]),
    ];
    let mut wrong = Vec::new();
    for (way, ndr_min, skew_max, mutations) in schemes {
        let keeps = |it: &Outcome| it.ndr() >= ndr_min && it.skew() <= skew_max;
        let honest = feed(way, &mut *way.router(100, 8));
        let said = |it: &Outcome| format!("{}: {:.3} {:.3}", way.name(), it.ndr(), it.skew());
        if !keeps(&honest) {
            wrong.push(format!("{} is not enough", said(&honest)));
        }
        for mutation in mutations {
            let mutated = feed(way, &mut Mutant(way.router(100, 8), *mutation, 0));
            if keeps(&mutated) {
                wrong.push(format!("{} with {mutation:?} is enough", said(&mutated)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A sample that is empty asks nobody, and finds less.
#[test]
fn stateful_routing_without_a_sample_is_noticed() {
    let data = Data::all(7, 1600e6);
    let exact = exact(&data, CHUNKING);
    let feed = |sample_bits| {
        let mut router = Stateful { sample_bits, ..Stateful::default() };
        let (way, options) = (Way::Stateful, Way::Stateful.options(8));
        run_fed(Fed { way, nodes: 4, exact, options }, &mut router, &mut |grain, each| {
            data.feed(CHUNKING, grain, each);
        })
    };
    let (sampled, blind) = (feed(3), feed(40));
    assert!(sampled.ndr() > blind.ndr() + 0.1, "{} {}", sampled.ndr(), blind.ndr());
    assert!((sampled.looked_up() - 1.5).abs() < 0.05 && blind.looked_up() < 1.01);
}

/// A rule that is changed changes something, and without a change nothing does.
#[test]
fn changes_of_rules_are_told_apart() {
    let outcomes: Vec<Outcome> =
        change::Change::ALL.map(|change| outcome(Way::Changed(change), 8)).into();
    let honest = outcome(Way::AppDedupe, 8);
    let told = |it: &Outcome| (it.used.clone(), it.looked_up, it.entries, it.index_bytes);
    let is_same = |it: &Outcome| told(it) == told(&honest);
    let same: Vec<_> = outcomes.iter().filter(|it| is_same(it)).map(|it| it.way).collect();
    assert!(same.len() <= 2, "{same:?}");
    let best = outcomes.last().unwrap();
    assert!(best.ndr() > honest.ndr(), "{} {}", best.ndr(), honest.ndr());
    let text = ablation::table(&outcomes, 8).markdown();
    assert!(text.contains("full index"), "{text}");
}

#[test]
fn claims_that_do_not_hold_are_said_not_to() {
    let mut outcomes = vec![outcome(Way::AppDedupe, 4), outcome(Way::Stateless, 4)];
    let line = |outcomes: &[Outcome]| {
        let text = claims::table(outcomes, &[]).markdown();
        text.lines().find(|line| line.contains("EMC stateless's")).unwrap().to_owned()
    };
    assert!(line(&outcomes).ends_with("| holds |"), "{}", line(&outcomes));
    // The names are exchanged.
    (outcomes[0].way, outcomes[1].way) = (Way::Stateless, Way::AppDedupe);
    assert!(line(&outcomes).ends_with("| does not hold |"), "{}", line(&outcomes));
}

#[test]
fn more_choices_balance_better() {
    let skew = |choices| balls::random(128, 4, choices, 256, 1);
    let (one, two, eight) = (skew(1), skew(2), skew(8));
    assert!(one > 1.5 && two < one / 2.0 && eight < two / 2.0, "{one} {two} {eight}");
}
