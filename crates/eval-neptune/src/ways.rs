//! Every scheme on one set, each alone, with what it sent, took and needed in memory.

use silt_similarity::SketchParameters;

use crate::Result;
use crate::destination::{GROUPS, Search, WHOLE};
use crate::endre::Match;
use crate::prepare::{Prepared, Sketches};
use crate::send::{Choice, Coder, Sent, Way, send};
use crate::{cluster, endre, outside};

/// Names of the schemes on the command line, and in tables.
pub const NAMES: [(&str, &str); 13] = [
    ("full", "full replication"),
    ("dedup", "deduplication alone, exact"),
    ("endre", "EndRE, Max-Match, a period of 64"),
    ("endre-small", "EndRE, Max-Match, an eighth of the data cached"),
    ("endre-chunks", "EndRE, Chunk-Match, a period of 64"),
    ("endre-adaptive", "EndRE, Max-Match, adaptive period"),
    ("cbd", "cluster-based deduplication, 16 nodes"),
    ("sidc", "SIDC: cached sketches, one base"),
    ("standard", "standard delta: all sketches, one base"),
    ("neptune", "Neptune: groups, top-4"),
    ("neptune-whole", "Neptune without groups, top-4"),
    ("product", "Siltstone's sketches and coder, two bases"),
    ("outside", ""),
];
/// Of the chunks of a set, one in so many is in SIDC's cache of sketches, and in Neptune's groups
/// in memory.
pub const CACHED: usize = 8;
/// Loads of the processor in turns of three rounds, for the adaptive period.
const LOADS: [f64; 9] = [0.3, 0.5, 0.6, 0.9, 0.9, 0.9, 0.5, 0.3, 0.3];
const PERIOD: usize = 64;

/// What a scheme did after round 0.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub key: &'static str,
    pub name: String,
    pub logical: u64,
    /// Chunks that are duplicates or have a base, of all; of schemes that know chunks.
    pub filtered: Option<f64>,
    /// Bytes to the destination, and with the rest compressed.
    pub sent: u64,
    pub compressed: u64,
    /// Seconds of finding duplicates, with cutting and fingerprints or samples.
    pub dedup_seconds: f64,
    /// The same with sketches and bases, and that without cutting, fingerprints and sketches.
    pub seconds: f64,
    pub search_seconds: f64,
    /// Of what duplicates and bases are found by, in bytes.
    pub memory: Option<usize>,
    /// Duplicates that were not found.
    pub lost: Option<u64>,
    /// Why there are no figures.
    pub missing: Option<String>,
}

/// The way of each scheme that is a way of sending.
pub fn way(key: &str, chunks: usize) -> Option<Way> {
    let cached = Some((chunks / CACHED).max(64));
    let plain = Way {
        search: WHOLE,
        bases: 1,
        choice: Choice::MostEqual,
        coder: Coder::Xdelta,
        kept_rounds: None,
        encodes: true,
    };
    let grouped = Search { groups: Some(GROUPS), group_chunks: cached, ..WHOLE };
    Some(match key {
        "dedup" => Way { bases: 0, ..plain },
        "standard" => plain,
        "sidc" => Way { search: Search { cached_chunks: cached, ..WHOLE }, ..plain },
        "neptune" => Way { search: grouped, bases: 4, ..plain },
        "neptune-whole" => Way { bases: 4, ..plain },
        "product" => Way { bases: 2, choice: Choice::Joined, coder: Coder::Prefix, ..plain },
        _ => return None,
    })
}

/// Runs the schemes named.
pub fn run(prepared: &Prepared, sketches: &Sketches, keys: &[String]) -> Result<Vec<Outcome>> {
    let mut all = Vec::new();
    for (key, name) in NAMES {
        if !keys.is_empty() && !keys.iter().any(|wanted| wanted == key) {
            continue;
        }
        let outcome = match key {
            "full" => full(prepared)?,
            "endre" => by_samples(prepared, Match::Max, usize::MAX, |_| PERIOD)?,
            "endre-small" => {
                let eighth = usize::try_from(prepared.bytes)? / CACHED;
                by_samples(prepared, Match::Max, eighth, |_| PERIOD)?
            }
            "endre-chunks" => by_samples(prepared, Match::Chunk, usize::MAX, |_| PERIOD)?,
            "endre-adaptive" => by_samples(prepared, Match::Max, usize::MAX, adapted)?,
            "cbd" => routed(prepared)?,
            "outside" => {
                all.extend(outside::run(prepared).into_iter().map(|outside| {
                    let (sent, missing) = match outside.sent {
                        Ok(sent) => (sent, None),
                        Err(why) => (0, Some(why)),
                    };
                    let logical = prepared.sent_bytes();
                    let (name, compressed) = (outside.name.to_owned(), sent);
                    Outcome { key, name, logical, sent, compressed, missing, ..Outcome::default() }
                }));
                continue;
            }
            "product" => {
                let sketches = prepared.sketch(SketchParameters::default());
                by_chunks(prepared, &sketches, key)?
            }
            _ => by_chunks(prepared, sketches, key)?,
        };
        all.push(Outcome { key, name: name.to_owned(), ..outcome });
    }
    Ok(all)
}

/// The period of a round: the load of each round before has changed it.
fn adapted(round: u32) -> usize {
    let loads = LOADS.iter().cycle().take(round as usize);
    loads.fold(PERIOD, |period, load| endre::next_period(period, *load))
}

fn full(prepared: &Prepared) -> Result<Outcome> {
    let (logical, mut compressed) = (prepared.sent_bytes(), 0);
    for version in prepared.versions.iter().filter(|version| version.round > 0) {
        let bytes = prepared.version(version);
        compressed += zstd::bulk::compress(&bytes, crate::send::LEVEL)?.len() as u64;
    }
    Ok(Outcome { logical, sent: logical, compressed, ..Outcome::default() })
}

fn by_samples(
    prepared: &Prepared,
    by: Match,
    cache: usize,
    period: impl Fn(u32) -> usize,
) -> Result<Outcome> {
    let found = endre::send(prepared, by, cache, period)?;
    Ok(Outcome {
        logical: found.logical,
        sent: found.sent,
        compressed: found.packed,
        dedup_seconds: found.sample + found.search,
        seconds: found.sample + found.search,
        search_seconds: found.search,
        memory: Some(found.table_bytes),
        ..Outcome::default()
    })
}

fn routed(prepared: &Prepared) -> Result<Outcome> {
    let routed = cluster::send(prepared)?;
    let cut = prepared.seconds / prepared.bytes.max(1) as f64 * routed.logical as f64;
    Ok(Outcome {
        logical: routed.logical,
        filtered: Some(routed.duplicates as f64 / routed.chunks.max(1) as f64),
        sent: routed.sent,
        compressed: routed.packed,
        dedup_seconds: cut + routed.search,
        seconds: cut + routed.search,
        search_seconds: routed.search,
        memory: Some(routed.memory),
        lost: Some(routed.lost),
        ..Outcome::default()
    })
}

fn by_chunks(prepared: &Prepared, sketches: &Sketches, key: &str) -> Result<Outcome> {
    let way = way(key, prepared.chunks.len()).ok_or("no such scheme")?;
    let sent = send(prepared, Some(sketches), &way)?;
    Ok(outcome(prepared, sketches, &sent))
}

/// An outcome of what was counted.
pub fn outcome(prepared: &Prepared, sketches: &Sketches, sent: &Sent) -> Outcome {
    let cut = prepared.seconds / prepared.bytes.max(1) as f64 * sent.logical as f64;
    let sketched = if sent.looked_for > 0 { sent.missing_bytes as f64 } else { 0.0 };
    let sketch = sketches.seconds_per_byte * sketched;
    Outcome {
        logical: sent.logical,
        filtered: Some((sent.duplicates + sent.based) as f64 / sent.chunks.max(1) as f64),
        sent: sent.plain(),
        compressed: sent.compressed(),
        dedup_seconds: cut + sent.find,
        seconds: cut + sent.find + sketch + sent.rank,
        search_seconds: sent.find + sent.rank,
        memory: Some(sent.memory),
        lost: Some(sent.lost),
        ..Outcome::default()
    }
}
