//! The tables and figures that compare schemes: figures 4 to 7 and table I of the paper.

use crate::ways::Outcome;
use silt_report::{Table, bars, number, percent};

/// The outcomes of one set.
pub struct Run {
    pub set: String,
    /// Different chunks.
    pub chunks: usize,
    pub outcomes: Vec<Outcome>,
}

impl Run {
    pub fn get(&self, key: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.key == key)
    }
}

/// A share that is saved, from 0 to 1.
pub fn saved(sent: u64, logical: u64) -> f64 {
    1.0 - sent as f64 / logical.max(1) as f64
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn cell(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Everything that each scheme sent (all columns are outputs).
pub fn schemes(run: &Run) -> Table {
    let mut table = Table::new(
        &format!("Bytes sent by each scheme, {}", run.set),
        &[
            "scheme",
            "sent MB",
            "not sent %",
            "with zstd, MB",
            "not sent %",
            "filtered chunks %",
            "duplicates lost",
            "table MB",
        ],
    );
    for outcome in &run.outcomes {
        let Outcome { logical, sent, compressed, .. } = *outcome;
        if let Some(why) = &outcome.missing {
            let mut row = vec![outcome.name.clone(), why.clone()];
            row.resize(8, "-".to_owned());
            table.row(row);
            continue;
        }
        table.row(vec![
            outcome.name.clone(),
            number(sent as f64 / 1e6),
            percent(saved(sent, logical)),
            number(compressed as f64 / 1e6),
            percent(saved(compressed, logical)),
            cell(outcome.filtered, percent),
            cell(outcome.lost.map(|lost| lost as f64), number),
            cell(outcome.memory.map(|bytes| bytes as f64 / 1e6), number),
        ]);
    }
    table.note("All columns are outputs. Bytes are those to the destination, after round 0.");
    table
}

/// The schemes of figures 4 to 6 and table I, with their published means.
const COMPARED: [(&str, &str); 3] = [("endre", "EndRE"), ("cbd", "CBD"), ("neptune", "Neptune")];

/// Figure 4: what is filtered.
pub fn filtered(runs: &[Run]) -> (Table, String) {
    let mut table = Table::new(
        "Figure 4: filtered data",
        &[
            "scheme",
            "set",
            "chunks with a base or a duplicate % (output)",
            "bytes not sent % (output)",
            "published mean %",
        ],
    );
    let published = ["22.6", "22.6", "92.7", "-"];
    let mut groups = Vec::new();
    for run in runs {
        let values = COMPARED
            .iter()
            .map(|(key, _)| run.get(key).map_or(0.0, |it| saved(it.sent, it.logical) * 100.0));
        groups.push((run.set.clone(), values.collect()));
    }
    for ((key, name), published) in COMPARED.iter().zip(published) {
        let of = || runs.iter().filter_map(|run| Some((run, run.get(key)?)));
        for (run, outcome) in of() {
            table.row(vec![
                (*name).to_owned(),
                run.set.clone(),
                cell(outcome.filtered, percent),
                percent(saved(outcome.sent, outcome.logical)),
                String::new(),
            ]);
        }
        table.row(vec![
            (*name).to_owned(),
            "mean".to_owned(),
            cell(mean(of().filter_map(|(_, it)| it.filtered)), percent),
            cell(mean(of().map(|(_, it)| saved(it.sent, it.logical))), percent),
            published.to_owned(),
        ]);
    }
    table.note(
        "The paper counts chunks with a base as filtered, though their deltas are sent. EndRE \
         knows no chunks. Siltstone: its own sketches and coder, without groups. The share of \
         exact duplicates is an input of the generated sets, so the \
         rows of EndRE and CBD on them say nothing about the published 22.6 %.",
    );
    let names: Vec<&str> = COMPARED.iter().map(|it| it.1).collect();
    (table, bars("Figure 4: bytes not sent", "%", &names, &groups))
}

/// Figures 5 and 6: rates and times on one thread.
pub fn rates(runs: &[Run]) -> (Table, String) {
    let mut table = Table::new(
        "Figures 5 and 6: processing rate and time, one thread",
        &[
            "scheme",
            "set",
            "GB/s with features (output)",
            "GB/s of look-ups alone (output)",
            "s a GB of deduplication (output)",
            "duplicates lost (output)",
            "published GB/s",
        ],
    );
    let published = ["1.85", "1.22", "3.25", "-"];
    let rate = |it: &Outcome, seconds: f64| it.logical as f64 / 1e9 / seconds.max(1e-9);
    let mut groups = Vec::new();
    for run in runs {
        let values =
            COMPARED.iter().map(|(key, _)| run.get(key).map_or(0.0, |it| rate(it, it.seconds)));
        groups.push((run.set.clone(), values.collect()));
    }
    for ((key, name), published) in COMPARED.iter().zip(published) {
        let of = || runs.iter().filter_map(|run| Some((run, run.get(key)?)));
        for (run, it) in of() {
            table.row(vec![
                (*name).to_owned(),
                run.set.clone(),
                number(rate(it, it.seconds)),
                number(rate(it, it.search_seconds)),
                number(it.dedup_seconds / (it.logical as f64 / 1e9)),
                cell(it.lost.map(|lost| lost as f64), number),
                String::new(),
            ]);
        }
        table.row(vec![
            (*name).to_owned(),
            "mean".to_owned(),
            cell(mean(of().map(|(_, it)| rate(it, it.seconds))), number),
            cell(mean(of().map(|(_, it)| rate(it, it.search_seconds))), number),
            cell(mean(of().map(|(_, it)| it.dedup_seconds / (it.logical as f64 / 1e9))), number),
            String::new(),
            published.to_owned(),
        ]);
    }
    table.note(
        "With features: cutting, fingerprints, samples and sketches count, those of the paper's \
         own scheme over all windows. The published rate is that at which features are processed, \
         on eight cores, and does not say whether computing them counts. Everything is in memory \
         here: what a disk would add to a table that does not fit is not simulated. Figure 6 has \
         no published numbers.",
    );
    let names: Vec<&str> = COMPARED.iter().map(|it| it.1).collect();
    (table, bars("Figure 5: processing rate with features", "GB/s", &names, &groups))
}

/// Bytes of EndRE's table for each new chunk, at least, as the paper says.
const PUBLISHED_CHUNK_BYTES: usize = 32;

/// Table I: memory of what look-ups need.
pub fn memory(runs: &[Run]) -> Table {
    let mut table = Table::new(
        "Table I: memory of look-ups, of EndRE's (outputs)",
        &[
            "set",
            "EndRE MB",
            "CBD",
            "Neptune",
            "Neptune, all groups",
            "32 bytes a chunk, MB",
            "CBD of that",
            "Neptune of that",
        ],
    );
    for run in runs {
        let bytes = |key: &str| run.get(key)?.memory.map(|bytes| bytes as f64);
        let Some(endre) = bytes("endre") else { continue };
        let by_chunk = (run.chunks * PUBLISHED_CHUNK_BYTES) as f64;
        let of = |key: &str, whole: f64| cell(bytes(key).map(|it| it / whole), number);
        table.row(vec![
            run.set.clone(),
            number(endre / 1e6),
            of("cbd", endre),
            of("neptune", endre),
            of("neptune-whole", endre),
            number(by_chunk / 1e6),
            of("cbd", by_chunk),
            of("neptune", by_chunk),
        ]);
    }
    let published = [
        ("published, Google", "0.56", "0.15"),
        ("published, LANL", "0.82", "0.19"),
        ("published, HP", "0.73", "0.14"),
        ("published, MSN", "0.61", "0.18"),
    ];
    for (name, cbd, neptune) in published {
        let cells = [name, "1", cbd, neptune, "", "", cbd, neptune];
        table.row(cells.map(str::to_owned).to_vec());
    }
    table.note(
        "Sizes of the structures: EndRE's table of fingerprints (a period of 64, 9 bytes a slot; \
         its cache of data is not counted); CBD's routing state, Bloom filter, and an eighth of \
         the fingerprints; Neptune's groups, Bloom filter, and the groups used last with an eighth \
         of the chunks (an input, as CBD's eighth: the paper gives neither), and all groups. EndRE \
         has an entry for each sample, about a hundred in a chunk of 8 KiB; the paper's remark of \
         at least 32 bytes a new chunk is the other denominator. At 1 TB of different \
         chunks of 4 KiB, which is 7,812 MB by that, the processes of `silt replicate` take at \
         most 104 MiB (source) and 109 MiB (replica), all memory counted, 0.0140 and 0.0146 of \
         that: measured by `silt-bench replicate-memory`, not by this command.",
    );
    table
}

/// Figure 7: what each step adds.
pub fn steps(runs: &[Run]) -> (Table, String) {
    let mut table = Table::new(
        "Figure 7: bytes not sent by steps, %",
        &[
            "set",
            "deduplication",
            "+ delta, one base",
            "+ top-4",
            "+ zstd",
            "top-4 in groups, zstd",
        ],
    );
    let mut groups = Vec::new();
    for run in runs {
        let saved = |key: &str, is_packed: bool| {
            let it = run.get(key)?;
            Some(saved(if is_packed { it.compressed } else { it.sent }, it.logical))
        };
        let values = [
            saved("dedup", false),
            saved("standard", false),
            saved("neptune-whole", false),
            saved("neptune-whole", true),
            saved("neptune", true),
        ];
        let cells = values.iter().map(|value| cell(*value, percent));
        table.row(std::iter::once(run.set.clone()).chain(cells).collect());
        let values = values[..4].iter().map(|value| value.unwrap_or(0.0) * 100.0).collect();
        groups.push((run.set.clone(), values));
    }
    let empty = || "no number".to_owned();
    let published = vec!["published mean".to_owned(), "15.7".into(), "33.9".into(), empty()];
    table.row([published, vec![empty(), empty()]].concat());
    table.note(
        "Outputs, but for deduplication of the generated sets, which follows the share of copies. \
         The published 33.9 is the sum of 15.7 and the 18.2 that standard delta adds. \
         L4: such shares mean 1.5 times the throughput of the link, and 92.7 % filtered at most \
         13.7 times; figure 8 claims 143 times. The paper's figures contradict one another.",
    );
    let parts = ["deduplication", "+ delta, one base", "+ top-4", "+ zstd"];
    (table, bars("Figure 7: bytes not sent", "%", &parts, &groups))
}

/// What the sent bytes mean for a link: the ratios of figure 8 that bytes can test.
pub fn ratios(runs: &[Run]) -> Table {
    let mut table = Table::new(
        "Ratios of figure 8 by bytes",
        &["set", "full to SIDC", "SIDC to Neptune", "full to Neptune", "standard to top-4"],
    );
    for run in runs {
        let bytes = |key: &str, is_full: bool| {
            let it = run.get(key)?;
            Some(if is_full { it.logical } else { it.compressed } as f64)
        };
        let ratio = |a: Option<f64>, b: Option<f64>| cell(a.zip(b).map(|(a, b)| a / b), number);
        let (full, sidc) = (bytes("full", true), bytes("sidc", false));
        let (neptune, standard) = (bytes("neptune", false), bytes("standard", false));
        table.row(vec![
            run.set.clone(),
            ratio(full, sidc),
            ratio(sidc, neptune),
            ratio(full, neptune),
            ratio(standard, bytes("neptune-whole", false)),
        ]);
    }
    let published = ["published (Mb/s of a 2 Mb/s link)", "36.5", "5.00", "182", "-"];
    table.row(published.map(str::to_owned).to_vec());
    table.note(
        "L3: figure 8 counts logical bytes in a second, 57.26 / 1.57 and 286.27 / 57.26; the \
         introduction defines effective throughput the other way round, by bytes that are not \
         redundant. By that definition no scheme exceeds the link. Here bytes with zstd after \
         round 0 are compared; the link itself is not part of this command.",
    );
    table
}
