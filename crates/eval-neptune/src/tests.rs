use silt_similarity::SketchParameters;

use crate::Result;
use crate::cluster;
use crate::destination::{GROUPS, Search, WHOLE};
use crate::endre::{self, Match};
use crate::generate::{PROFILES, generate};
use crate::prepare::{Prepared, Preparing, Sketches};
use crate::send::{Choice, Coder, Sent, Way, send};
use crate::set::DIMENSIONS;

const WAY: Way = Way {
    search: WHOLE,
    bases: 4,
    choice: Choice::MostEqual,
    coder: Coder::Xdelta,
    kept_rounds: None,
    encodes: true,
};

fn prepared(profile: usize) -> Result<(Prepared, Sketches)> {
    let profile = &PROFILES[profile];
    let mut preparing = Preparing::new(profile.name)?;
    generate(profile, 1, 6 << 20, &mut |version| preparing.add(&version))?;
    let prepared = preparing.finish();
    let sketches = prepared.sketch(SketchParameters::NEPTUNE);
    Ok((prepared, sketches))
}

fn sent((prepared, sketches): &(Prepared, Sketches), way: Way) -> Result<Sent> {
    send(prepared, Some(sketches), &way)
}

#[test]
fn the_same_seed_gives_the_same_bytes() -> Result<()> {
    let (one, other) = (prepared(0)?.0, prepared(0)?.0);
    assert_eq!(one.chunks.len(), other.chunks.len());
    let alike = |(a, b): (&super::prepare::Chunk, &super::prepare::Chunk)| a.print == b.print;
    assert!(one.chunks.iter().zip(&other.chunks).all(alike));
    let rounds: Vec<u32> = one.versions.iter().map(|version| version.round).collect();
    assert!(rounds.is_sorted() && rounds.last() == Some(&PROFILES[0].rounds));
    Ok(())
}

/// What is counted adds up, and no byte of a missing chunk is left out.
#[test]
fn deltas_and_chunks_account_for_everything_missing() -> Result<()> {
    let set = prepared(1)?;
    let none = sent(&set, Way { bases: 0, ..WAY })?;
    assert_eq!(none.logical, set.0.sent_bytes());
    assert_eq!(none.raw, none.missing_bytes);
    assert_eq!(none.duplicate_bytes + none.missing_bytes, none.logical);
    assert_eq!((none.based, none.deltas, none.lost), (0, 0, 0));
    let four = sent(&set, WAY)?;
    assert_eq!(four.missing_bytes, none.missing_bytes);
    assert!(four.based > 0 && four.plain() < none.plain() * 9 / 10);
    assert!(four.compressed() < none.compressed());
    Ok(())
}

/// One base that is passed off as four fails here: only of several is there more often one that
/// the source has, too.
#[test]
fn four_bases_find_more_than_one() -> Result<()> {
    let set = prepared(3)?;
    let with = |bases| sent(&set, Way { bases, ..WAY });
    let (one, four) = (with(1)?, with(4)?);
    assert!(four.based > one.based, "{} and {}", four.based, one.based);
    assert!(four.plain() < one.plain(), "{} and {}", four.plain(), one.plain());
    assert!(four.down > one.down);
    Ok(())
}

/// A base that is drawn at random fails here: it saves next to nothing.
#[test]
fn a_base_that_resembles_saves_what_a_random_one_does_not() -> Result<()> {
    let set = prepared(1)?;
    let random = sent(&set, Way { choice: Choice::Random, ..WAY })?;
    let best = sent(&set, WAY)?;
    assert!(best.plain() * 10 < random.plain() * 9, "{} and {}", best.plain(), random.plain());
    let random = random.compressed();
    assert!(best.compressed() * 10 < random * 9, "{} and {random}", best.compressed());
    let shortest = sent(&set, Way { choice: Choice::Shortest, ..WAY })?;
    assert!(shortest.deltas + shortest.raw <= best.deltas + best.raw);
    Ok(())
}

/// Groups that do not depend on the files fail here: either they compare with everything, or they
/// lose what is there.
#[test]
fn groups_search_little_and_lose_little() -> Result<()> {
    let mut set = prepared(1)?;
    let groups = Some(GROUPS);
    let grouped = Way { search: Search { groups, ..WHOLE }, ..WAY };
    let is_good = |sent: &Sent| sent.scope < 0.25 && sent.lost * 4 < sent.duplicates;
    let real = sent(&set, grouped)?;
    assert!(is_good(&real), "{real:?}");
    let whole = sent(&set, WAY)?;
    assert!(real.groups > 10 && whole.groups == 1);
    for version in &mut set.0.versions {
        version.vector = [0.0; DIMENSIONS];
    }
    let all_alike = sent(&set, grouped)?;
    assert!(!is_good(&all_alike) && all_alike.groups == 1, "{all_alike:?}");
    let mut random = silt_report::Random(3);
    for version in &mut set.0.versions {
        version.vector = std::array::from_fn(|_| random.unit() * 200.0);
    }
    let none_alike = sent(&set, grouped)?;
    assert!(!is_good(&none_alike), "{none_alike:?}");
    Ok(())
}

/// A source that has forgotten a chunk cannot use it as a base, and a cache that sees few
/// containers finds less than an index of all.
#[test]
fn what_one_end_lacks_is_no_base() -> Result<()> {
    let set = prepared(1)?;
    let all = sent(&set, WAY)?;
    let forgotten = sent(&set, Way { kept_rounds: Some(0), ..WAY })?;
    assert!(forgotten.based < all.based, "{} and {}", forgotten.based, all.based);
    let cached = Search { cached_chunks: Some(64), container_bytes: 1 << 18, ..WHOLE };
    let cached = sent(&set, Way { search: cached, ..WAY })?;
    assert!(cached.based < all.based && cached.memory < all.memory, "{cached:?}");
    Ok(())
}

/// The paper's table of marked bytes: a longer period marks fewer, and finds less.
#[test]
fn a_longer_period_finds_less() -> Result<()> {
    let (prepared, _) = prepared(1)?;
    let with = |period| endre::send(&prepared, Match::Max, usize::MAX, move |_| period);
    let (short, long) = (with(32)?, with(512)?);
    assert!(short.matched > long.matched && short.entries > 3 * long.entries);
    assert_eq!(short.logical, prepared.sent_bytes());
    let chunks = endre::send(&prepared, Match::Chunk, usize::MAX, |_| 64)?;
    assert!(chunks.matched < with(64)?.matched, "matches are extended");
    assert!(chunks.matched > chunks.logical / 10);
    let small = endre::send(&prepared, Match::Max, 1 << 20, |_| 64)?;
    let whole = with(64)?;
    let counts = (small.matched, whole.matched, small.entries, whole.entries);
    let is_less = small.matched * 2 < whole.matched && small.entries * 2 < whole.entries;
    assert!(is_less, "{counts:?}");
    let periods = [(64, 0.9), (64, 0.5), (64, 0.1), (512, 1.0), (32, 0.0)];
    let next = periods.map(|(period, load)| endre::next_period(period, load));
    assert_eq!(next, [128, 64, 32, 512, 32]);
    Ok(())
}

/// Deduplication inside nodes is exact, so what is lost is what other nodes have.
#[test]
fn a_cluster_loses_what_other_nodes_have() -> Result<()> {
    let set = prepared(1)?;
    let (routed, exact) = (cluster::send(&set.0)?, sent(&set, Way { bases: 0, ..WAY })?);
    assert_eq!(routed.logical, exact.logical);
    assert!(routed.duplicates <= exact.duplicates && routed.duplicates * 4 > exact.duplicates);
    assert!(routed.raw >= exact.raw && routed.lost > 0);
    Ok(())
}
