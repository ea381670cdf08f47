//! What the paper claims, and what this run says of it: every figure is computed from the outcomes.

use crate::bases::Added;
use crate::tables::{Run, saved};
use silt_report::{Table, number};

/// The least and the greatest of some values, as text.
fn range(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::MAX, f64::min);
    let high = values.iter().copied().fold(f64::MIN, f64::max);
    match values.len() {
        0 => "no run".to_owned(),
        1 => number(low),
        _ => format!("{} to {}", number(low), number(high)),
    }
}

/// Whether something holds on all sets, on some or on none.
fn verdict(holds: &[bool]) -> String {
    let count = holds.iter().filter(|holds| **holds).count();
    match count {
        0 => "does not hold".to_owned(),
        _ if count == holds.len() => "holds".to_owned(),
        _ => format!("holds on {count} of {} sets", holds.len()),
    }
}

/// Values of all sets, by two schemes or one twice.
fn of(runs: &[Run], keys: (&str, &str), value: impl Fn(&Outcomes<'_>) -> f64) -> Vec<f64> {
    let pair =
        |run: &Run| Some(value(&Outcomes { ours: run.get(keys.0)?, other: run.get(keys.1)? }));
    runs.iter().filter_map(pair).collect()
}

/// Two schemes on one set.
struct Outcomes<'r> {
    ours: &'r crate::ways::Outcome,
    other: &'r crate::ways::Outcome,
}

/// How much faster ours is.
fn rate(it: &Outcomes<'_>) -> f64 {
    it.other.seconds / it.ours.seconds.max(1e-9)
}

/// How many times the other's bytes with zstd are ours.
fn bytes(it: &Outcomes<'_>) -> f64 {
    it.other.compressed as f64 / it.ours.compressed.max(1) as f64
}

/// Memory, of the other's.
fn memory(it: &Outcomes<'_>) -> f64 {
    let bytes = |memory: Option<usize>| memory.unwrap_or(0) as f64;
    bytes(it.ours.memory) / bytes(it.other.memory).max(1.0)
}

fn above(values: &[f64], limit: f64) -> Vec<bool> {
    values.iter().map(|value| *value > limit).collect()
}

fn below(values: &[f64], limit: f64) -> Vec<bool> {
    values.iter().map(|value| *value < limit).collect()
}

/// The claims of the paper, each with what this run says.
pub fn table(runs: &[Run], added: &[Added]) -> Table {
    let mut table = Table::new(
        "What the paper claims, and what holds here",
        &["claim", "published", "here, over the sets", "verdict", "why"],
    );
    let mut row = |claim: &str, published: &str, values: &[f64], holds: &[bool], why: &str| {
        let cells = [claim, published, &range(values), &verdict(holds), why];
        table.row(cells.map(str::to_owned).to_vec());
    };
    let deltas: Vec<f64> = added.iter().map(|added| added.deltas).collect();
    row(
        "top-k finds more bases than one base: more deltas, %",
        "more, no number",
        &deltas,
        &above(&deltas, 0.0),
        "only of several bases is there one that the source has, too; with few sources, little",
    );
    let shares: Vec<f64> = added.iter().map(|added| added.bytes).collect();
    row(
        "and so less is sent: of the bytes with k = 1, %",
        "less, no number",
        &shares,
        &below(&shares, 100.0),
        "as above; names of bases are counted downwards and not here",
    );
    sent(runs, &mut row);
    rates(runs, &mut row);
    let memory = of(runs, ("neptune", "endre"), memory);
    row(
        "Neptune's look-ups need less memory: of EndRE's table",
        "0.14 to 0.19",
        &memory,
        &below(&memory, 0.2),
        "far less: EndRE has an entry for each sample, and an eighth of the groups is in memory",
    );
    let reduced = of(runs, ("neptune", "full"), |it| {
        it.other.logical as f64 / it.ours.compressed.max(1) as f64
    });
    row(
        "286.27 Mb/s on a link of 2 Mb/s: logical bytes, of those sent",
        "143",
        &reduced,
        &above(&reduced, 100.0),
        "99.3 % would not be sent; the paper's own 92.7 % filtered make at most 13.7 times",
    );
    table.note(
        "Each figure is computed by the command from this run. Where a claim does not hold here, \
         the data may be why: the published sets have no bytes, and how they were given some is \
         not said.",
    );
    table
}

/// The claims on what is sent.
fn sent(runs: &[Run], row: &mut impl FnMut(&str, &str, &[f64], &[bool], &str)) {
    let ratio = of(runs, ("neptune", "sidc"), bytes);
    row(
        "Neptune sends a fifth of SIDC's bytes: SIDC's bytes, of ours",
        "5.00",
        &ratio,
        &above(&ratio, 4.0),
        "a chunk that resembles nothing is sent by both; what SIDC lacks are few bases, and groups \
         lose some",
    );
    let saves = |it: &Outcomes<'_>| saved(it.ours.sent, it.ours.logical) * 100.0;
    let filtered = of(runs, ("neptune", "neptune"), |it| it.ours.filtered.unwrap_or(0.0) * 100.0);
    row(
        "chunks that are duplicates or have a base, %",
        "92.7",
        &filtered,
        &above(&filtered, 90.0),
        "depends on the data: on what is new, which nobody filters",
    );
    let endre = of(runs, ("endre", "endre"), saves);
    row(
        "EndRE removes only whole duplicates, as CBD does: bytes not sent, %",
        "22.6",
        &endre,
        &below(&endre, 30.0),
        "EndRE compares bytes and extends matches, so it finds what is alike inside of chunks; \
         that needs all data in its cache",
    );
}

/// The claims on rates.
fn rates(runs: &[Run], row: &mut impl FnMut(&str, &str, &[f64], &[bool], &str)) {
    let values = of(runs, ("neptune", "endre"), rate);
    row(
        "Neptune processes faster than EndRE: its rate, of EndRE's",
        "1.76",
        &values,
        &above(&values, 1.0),
        "maxima over all windows cost more than samples; counted without features, it is faster",
    );
    let values = of(runs, ("neptune", "cbd"), rate);
    row(
        "and faster than CBD",
        "2.66",
        &values,
        &above(&values, 1.0),
        "CBD needs no sketches; both cut and fingerprint",
    );
    let values = of(runs, ("product", "cbd"), rate);
    row(
        "the same with Siltstone's sketches",
        "-",
        &values,
        &above(&values, 1.0),
        "sampled windows: most of the cost of sketches is gone, but not all",
    );
    let search = of(runs, ("neptune", "neptune-whole"), |it| {
        it.other.search_seconds / it.ours.search_seconds.max(1e-9)
    });
    row(
        "groups make look-ups fast: their rate, of that without groups",
        "why it is faster",
        &search,
        &above(&search, 1.0),
        "a hash table of everything takes as long as one of a group, and finding the group is more \
         work; groups save memory, not time, while tables are in memory",
    );
}
