//! What goes in: sizes, exact duplicates and resemblance of each set.

use std::collections::HashSet;

use silt_similarity::SketchParameters;

use crate::destination::{Destination, WHOLE};
use crate::prepare::Prepared;
use silt_report::floor;
use silt_report::{Table, number, percent};

/// Chunks of a set whose resemblance is counted.
const SAMPLED: usize = 500;
/// Bytes of a window.
const WINDOW: usize = 32;

/// The sizes of sets and their exact duplicates.
pub fn sizes<'p>(sets: impl Iterator<Item = &'p Prepared>) -> Table {
    let mut table = Table::new(
        "Sets (input)",
        &[
            "set",
            "rounds",
            "versions",
            "MB",
            "after round 0, MB",
            "chunks that round 0 or a round before has %",
            "KB a chunk",
        ],
    );
    for set in sets {
        let (mut seen, mut chunks, mut duplicates) = (HashSet::new(), 0_u64, 0_u64);
        for version in &set.versions {
            for chunk in &version.chunks {
                let is_new = seen.insert(*chunk);
                chunks += u64::from(version.round > 0);
                duplicates += u64::from(version.round > 0 && !is_new);
            }
        }
        let unique: usize = set.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        table.row(vec![
            set.name.clone(),
            set.versions.last().map_or(0, |version| version.round).to_string(),
            set.versions.len().to_string(),
            number(set.bytes as f64 / 1e6),
            number(set.sent_bytes() as f64 / 1e6),
            percent(duplicates as f64 / chunks.max(1) as f64),
            number(unique as f64 / 1e3 / set.chunks.len().max(1) as f64),
        ]);
    }
    table.note(
        "Published: 22.6 % exact duplicates on average; of the generated sets' writes, 22.6 % are \
         copies. The published sets are lists of attributes; where their bytes came from is not \
         said. These stand in for one each and are named after what they are.",
    );
    table
}

/// The hashes of a chunk's windows, one in sixteen of them.
fn windows(bytes: &[u8]) -> HashSet<u64> {
    let hash = |window: &[u8]| {
        window.iter().fold(0, |hash, byte| silt_report::draw(hash ^ u64::from(*byte)))
    };
    bytes.windows(WINDOW).map(hash).filter(|hash| hash % 16 == 0).collect()
}

/// Tenths of resemblance: of missing chunks, with the best base that a loose sketch finds.
pub fn resemblance<'p>(sets: impl Iterator<Item = &'p Prepared>) -> Table {
    let tenths: Vec<String> =
        (0..10).map(|tenth| format!("{:.1}", f64::from(tenth) / 10.0)).collect();
    let mut columns = vec!["set", "missing chunks"];
    columns.extend(tenths.iter().map(String::as_str));
    let mut table =
        Table::new("Resemblance of missing chunks to their best base (input)", &columns);
    for set in sets {
        let sketches = set.sketch(SketchParameters::default());
        let mut destination = Destination::new(set, Some(&sketches), WHOLE);
        let (mut pairs, mut missing) = (Vec::new(), 0);
        for version in &set.versions {
            for chunk in &version.chunks {
                if destination.has(*chunk) {
                    continue;
                }
                if version.round > 0 {
                    missing += 1;
                    let sketch = sketches.of[*chunk as usize];
                    let found = sketch.map(|it| destination.candidates(&[0], &it, 4));
                    pairs.push((*chunk, found.unwrap_or_default()));
                }
                destination.store(&[0], *chunk);
            }
        }
        let step = (pairs.len() / SAMPLED).max(1);
        let (mut counts, mut sampled) = ([0_u32; 10], 0_u32);
        for (chunk, found) in pairs.iter().step_by(step) {
            let target = windows(set.chunk(*chunk));
            let resemblance = |base: u64| {
                let base = u32::try_from(base).map_or(HashSet::new(), |it| windows(set.chunk(it)));
                let both = base.intersection(&target).count() as f64;
                both / (base.union(&target).count() as f64).max(1.0)
            };
            let best = found.iter().map(|it| resemblance(it.base)).fold(0.0, f64::max);
            counts[floor(best * 10.0).min(9)] += 1;
            sampled += 1;
        }
        let shares = counts.map(|count| percent(f64::from(count) / f64::from(sampled.max(1))));
        table.row([vec![set.name.clone(), missing.to_string()], shares.to_vec()].concat());
    }
    table.note(format!(
        "Percent of the chunks by tenths; 0.0 includes those without any base. Resemblance is \
         counted on windows of {WINDOW} bytes, of up to {SAMPLED} chunks of a set, with the best \
         of four bases. Not published."
    ));
    table
}
