//! What holds of the streams, and the changes that must turn the tables red.

use super::feed::{Chunking, Data};
use super::sets::PROFILES;
use super::ways::{Outcome, Setting, Way, exact, run};
use super::{balls, claims};

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
    for mutation in [Way::NodeZero, Way::NoHandprint] {
        let mutated = outcome(mutation, 4);
        assert!(!holds(&mutated), "{}: {} {}", mutation.name(), mutated.nedr(), mutated.skew());
    }
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
