//! How many bases, and which: figure 3 and the paper's central claim.

use silt_similarity::SketchParameters;

use crate::Result;
use crate::prepare::{Prepared, Sketches};
use crate::send::{Choice, Sent, Way, send};
use crate::ways::way;
use silt_report::{Line, Table, number, percent};

/// Numbers of bases of figure 3.
const BASES_MAX: usize = 10;
/// Look-ups are timed so often; the least counts, as others use the machine, too.
const REPEATS: usize = 5;

/// The way of Neptune with other bases.
fn neptune(prepared: &Prepared, bases: usize) -> Result<Way> {
    let way = way("neptune", prepared.chunks.len()).ok_or("no such scheme")?;
    Ok(Way { bases, ..way })
}

/// Bytes saved and look-ups' seconds for each number of bases.
fn curve(prepared: &Prepared, sketches: &Sketches) -> Result<Vec<(f64, f64)>> {
    let mut times = vec![Vec::new(); BASES_MAX];
    for _ in 0..REPEATS {
        for (bases, times) in (1..).zip(&mut times) {
            let way = Way { encodes: false, ..neptune(prepared, bases)? };
            let sent = send(prepared, Some(sketches), &way)?;
            times.push(sent.rank / sent.looked_for.max(1) as f64 * 1e6);
        }
    }
    let mut points = Vec::new();
    for (bases, times) in (1..).zip(times) {
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        let sent = send(prepared, Some(sketches), &neptune(prepared, bases)?)?;
        let saved = sent.logical as f64 - (sent.plain() + sent.down) as f64;
        points.push((saved, least));
    }
    Ok(points)
}

/// Values between their least and greatest as 0 to 1.
fn normalised(values: &[f64]) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::MAX, f64::min);
    let high = values.iter().copied().fold(f64::MIN, f64::max);
    values.iter().map(|value| (value - low) / (high - low).max(1e-12)).collect()
}

/// Figure 3: bandwidth saved and latency over the number of bases.
pub fn selection(sets: &[(Prepared, Sketches)]) -> Result<(Table, String)> {
    let mut table = Table::new(
        "Figure 3: selection of k",
        &["set", "k", "saved MB", "look-up µs a chunk", "saved, 0 to 1", "latency, 0 to 1", "rate"],
    );
    let mut lines = Vec::new();
    for (prepared, sketches) in sets {
        let points = curve(prepared, sketches)?;
        let saved = normalised(&points.iter().map(|point| point.0).collect::<Vec<_>>());
        let latency = normalised(&points.iter().map(|point| point.1).collect::<Vec<_>>());
        let mut line = Line { name: prepared.name.clone(), points: vec![], is_published: false };
        for (place, (bytes, micros)) in points.iter().enumerate() {
            let rate = (latency[place] > 0.0).then(|| saved[place] / latency[place]);
            line.points.push(((place + 1) as f64, saved[place] - latency[place]));
            table.row(vec![
                prepared.name.clone(),
                (place + 1).to_string(),
                number(bytes / 1e6),
                number(*micros),
                number(saved[place]),
                number(latency[place]),
                rate.map_or_else(|| "undefined".to_owned(), number),
            ]);
        }
        line.points.iter_mut().for_each(|point| point.1 = f64::midpoint(point.1, 1.0));
        lines.push(line);
    }
    table.note(
        "All columns are outputs; bases named by the destination count against what is saved. \
         Published: k = 4, 4, 5 and 6 (LANL, HP, MSN, Google). The rate, a quotient of two values \
         between 0 and 1, has no value where latency is least. The plot shows (1 + saved - \
         latency) / 2 instead, whose maximum is a choice of k as good.",
    );
    let names = ("k", "saved against latency, 0 to 1");
    let svg = silt_report::plot_values("Figure 3: selection of k", names, 1.0, &lines);
    Ok((table, svg))
}

/// What four bases add to one, on a set: deltas in percent, and bytes with zstd of those with one.
pub struct Added {
    pub deltas: f64,
    pub bytes: f64,
}

/// What makes the base, on each set; the sources keep all that they sent, or only the last round.
pub fn choices(sets: &[(Prepared, Sketches)]) -> Result<(Table, Vec<Added>)> {
    let mut table = Table::new(
        "Which base: all sketches indexed, look-ups over everything (A2, G3)",
        &[
            "set",
            "sources keep",
            "bases",
            "chunks with a delta",
            "more than k = 1 %",
            "of those named %",
            "sent MB",
            "with zstd, MB",
            "of k = 1 %",
            "downwards MB",
        ],
    );
    let ways = [
        ("k = 1", 1, Choice::MostEqual),
        ("k = 4, most equal", 4, Choice::MostEqual),
        ("k = 5, most equal", 5, Choice::MostEqual),
        ("k = 6, most equal", 6, Choice::MostEqual),
        ("k = 4, shortest delta", 4, Choice::Shortest),
        ("k = 4, all joined", 4, Choice::Joined),
        ("control: random base", 1, Choice::Random),
    ];
    let mut added = Vec::new();
    for (prepared, sketches) in sets {
        for (kept, kept_name) in [(None, "all"), (Some(1), "one round")] {
            let mut one = Sent::default();
            for (name, bases, choice) in ways {
                let whole = way("neptune-whole", prepared.chunks.len()).ok_or("no such scheme")?;
                let way = Way { bases, choice, kept_rounds: kept, ..whole };
                let sent = send(prepared, Some(sketches), &way)?;
                if name == "k = 1" {
                    one = sent.clone();
                }
                let packed = sent.compressed() as f64 / one.compressed().max(1) as f64;
                let more = sent.based as f64 / one.based.max(1) as f64 - 1.0;
                if bases == 4 && choice == Choice::MostEqual && kept.is_none() {
                    added.push(Added { deltas: more * 100.0, bytes: packed * 100.0 });
                }
                let named = sent.based as f64 / sent.named.max(1) as f64;
                table.row(vec![
                    prepared.name.clone(),
                    kept_name.to_owned(),
                    name.to_owned(),
                    sent.based.to_string(),
                    percent(more),
                    if sent.named > 0 { percent(named) } else { "-".to_owned() },
                    number(sent.plain() as f64 / 1e6),
                    number(sent.compressed() as f64 / 1e6),
                    percent(packed),
                    number(sent.down as f64 / 1e6),
                ]);
            }
        }
    }
    table.note(
        "All columns are outputs. Several bases are worth something where the destination has \
         chunks of other sources: the best base is then often one that the source lacks. On a set \
         of one source, or where a file's own version before is always the best, k = 1 finds as \
         much. A delta is sent if it is shorter than its chunk, so the control counts deltas, \
         too, of \
         what a chunk repeats of itself: compare it with zstd, which does the same for chunks \
         without a base.",
    );
    Ok((table, added))
}

/// Features of a super-feature against super-features of a sketch, on one set.
pub fn sensitivity(prepared: &Prepared) -> Result<Table> {
    let mut table = Table::new(
        &format!("Sensitivity: features and super-features, {}", prepared.name),
        &[
            "super-features",
            "features of each",
            "chunks with a delta %",
            "delta of its chunk %",
            "sent MB",
            "index MB",
        ],
    );
    for super_features in 1..=4 {
        for features in [1, 2, 4, 8] {
            let neptune = SketchParameters::NEPTUNE;
            let sketches =
                prepared.sketch(SketchParameters { super_features, features, ..neptune });
            let way = way("neptune-whole", prepared.chunks.len()).ok_or("no such scheme")?;
            let sent = send(prepared, Some(&sketches), &way)?;
            let targets = (sent.missing_bytes - sent.raw) as f64;
            let looked_for = sent.chunks - sent.duplicates;
            table.row(vec![
                super_features.to_string(),
                features.to_string(),
                percent(sent.based as f64 / looked_for.max(1) as f64),
                percent(sent.deltas as f64 / targets.max(1.0)),
                number(sent.plain() as f64 / 1e6),
                number(sent.memory as f64 / 1e6),
            ]);
        }
    }
    table.note(
        "Outputs. The paper claims, without figures: more features, fewer matches and better \
         ones; more super-features, more matches and a larger index; four features as the best \
         compromise. Memory includes fingerprints.",
    );
    Ok(table)
}
