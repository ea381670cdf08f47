//! What deltas save on real data, and how fast similar chunks are found: by schemes of sketches,
//! numbers of bases, and coders.
//!
//! Chunks of one file are those that both ends have; of the other, those that it lacks are sent.

use std::collections::HashSet;
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use silt_chunking::{Chunker, Fingerprinter, is_zero};
use silt_format::{Chunking, Fingerprint, SEGMENT_BYTES};
use silt_similarity::{
    Candidate, DeltaCoder, PREFIX_BYTES_MAX, PrefixCoder, Scheme, SketchIndex, SketchParameters,
    Sketcher, XdeltaCoder,
};

use crate::{DeltasOptions, Result};

/// Size of the window of the stream that deltas are compared with, as a power of two.
const WINDOW_LOG: u32 = 23;
/// Bytes before and behind a base that belong to it, too.
const AROUND: usize = 2048;

/// How bases are found.
struct Way {
    name: &'static str,
    /// `None` for the same place.
    parameters: Option<SketchParameters>,
    bases: usize,
}

fn ways() -> Vec<Way> {
    let own = |super_features, features| SketchParameters {
        scheme: Scheme::Odess,
        super_features,
        features,
        sampling_bits: 5,
    };
    let by = |name, parameters, bases| Way { name, parameters: Some(parameters), bases };
    vec![
        Way { name: "same place", parameters: None, bases: 1 },
        by("Rabin 3x4 (Neptune)", SketchParameters::NEPTUNE, 1),
        by("Rabin 3x4, k = 4", SketchParameters::NEPTUNE, 4),
        by("Odess 3x4", SketchParameters::ODESS, 1),
        by("Odess 3x4, k = 4", SketchParameters::ODESS, 4),
        by("Odess 4x2, 1/32", own(4, 2), 1),
        by("Odess 4x1, 1/32", own(4, 1), 1),
        by("Odess 4x1, 1/32, k = 2 (default)", SketchParameters::default(), 2),
        by("Odess 4x1, 1/32, k = 4", own(4, 1), 4),
    ]
}

struct Data {
    old: Vec<u8>,
    new: Vec<u8>,
    /// Chunks of the old file that are not zeros.
    chunks: Vec<Range<usize>>,
    /// Chunks of the new one that are lacking.
    lacking: Vec<Range<usize>>,
}

fn read(options: &DeltasOptions) -> Result<Data> {
    let (old, new) = (std::fs::read(&options.old)?, std::fs::read(&options.new)?);
    let chunking = match options.cdc_bytes {
        None => Chunking::Fixed { bytes: 4096 },
        Some(avg) => Chunking::FastCdc { min: avg / 4, avg, max: avg * 8 },
    };
    let chunker = Chunker::new(chunking)?;
    let cut = |data: &[u8]| {
        let (mut all, mut lengths, mut end) = (Vec::new(), Vec::new(), 0);
        for segment in data.chunks(SEGMENT_BYTES) {
            lengths.clear();
            chunker.cut(segment, &mut lengths);
            for length in &lengths {
                let start = end;
                end += *length as usize;
                all.push(start..end);
            }
        }
        all.retain(|range: &Range<usize>| !is_zero(&data[range.clone()]));
        all
    };
    let (chunks, mut lacking) = (cut(&old), cut(&new));
    let fingerprinter = Fingerprinter::new([7; 32]);
    let mut known: HashSet<Fingerprint> = HashSet::new();
    known.extend(chunks.iter().map(|range| fingerprinter.fingerprint(&old[range.clone()])));
    lacking.retain(|range| known.insert(fingerprinter.fingerprint(&new[range.clone()])));
    Ok(Data { old, new, chunks, lacking })
}

/// Bytes of all lacking chunks as one stream, which is flushed as a connection does.
fn stream_bytes(data: &Data, options: &DeltasOptions) -> Result<usize> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), options.level)?;
    encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(WINDOW_LOG))?;
    let mut bytes = 0;
    for chunk in &data.lacking {
        encoder.write_all(&data.new[chunk.clone()])?;
        bytes += chunk.len();
        if bytes >= options.group_bytes {
            encoder.flush()?;
            bytes = 0;
        }
    }
    Ok(encoder.finish()?.len())
}

/// Sketches all chunks that both ends have. Returns the index and the rate in MB/s.
fn sketched(data: &Data, sketcher: &Sketcher) -> (SketchIndex, f64) {
    let mut index = SketchIndex::new(data.chunks.len(), sketcher.parameters().super_features);
    let (began, mut bytes) = (Instant::now(), 0);
    for chunk in &data.chunks {
        bytes += chunk.len();
        if let Some(sketch) = sketcher.sketch(&data.old[chunk.clone()]) {
            index.add(&sketch, chunk.start as u64);
        }
    }
    (index, bytes as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// The bases of chunks, one after the other.
fn base_of(data: &Data, mut spans: Vec<Range<usize>>) -> Vec<u8> {
    spans.sort_unstable_by_key(|span| (span.start, span.end));
    let (mut base, mut end) = (Vec::new(), 0);
    for span in spans {
        let (start, stop) = (span.start.max(end), span.end.min(data.old.len()));
        if start < stop {
            base.extend_from_slice(&data.old[start..stop]);
            end = stop;
        }
    }
    base.truncate(PREFIX_BYTES_MAX);
    base
}

/// What one way and one coder make of the lacking chunks: bytes, share of chunks with a base, and
/// the coder's rate in MB/s. Every delta is decoded again.
fn encoded(
    data: &Data,
    options: &DeltasOptions,
    bases: &mut dyn FnMut(&Range<usize>) -> Vec<Range<usize>>,
    coder: &mut dyn DeltaCoder,
) -> Result<(usize, f64, f64)> {
    let (mut bytes, mut based, mut all, mut seconds) = (0, 0, 0, 0.0);
    let mut chunks = data.lacking.iter();
    loop {
        let (mut target, mut spans) = (Vec::new(), Vec::new());
        for chunk in chunks.by_ref() {
            let found = bases(chunk);
            based += usize::from(!found.is_empty());
            spans.extend(found);
            target.extend_from_slice(&data.new[chunk.clone()]);
            if target.len() >= options.group_bytes {
                break;
            }
        }
        if target.is_empty() {
            let share = based as f64 / data.lacking.len().max(1) as f64;
            return Ok((bytes, share, all as f64 / 1e6 / f64::max(seconds, 1e-9)));
        }
        let base = base_of(data, spans);
        let (began, mut delta) = (Instant::now(), Vec::new());
        coder.encode(&base, &target, &mut delta)?;
        seconds += began.elapsed().as_secs_f64();
        (bytes, all) = (bytes + delta.len(), all + target.len());
        let mut back = vec![0; target.len()];
        coder.decode(&base, &delta, &mut back)?;
        if back != target {
            return Err("a delta does not decode to its target".into());
        }
    }
}

/// Fingerprints, sketches and looks up all chunks of the new file in two threads: MB/s.
fn processed(data: &Data) -> f64 {
    let sketcher = Sketcher::new(SketchParameters::default());
    let (index, _) = sketched(data, &sketcher);
    let (sketcher, index) = (&sketcher, &index);
    let parts: Vec<_> = data.chunks.chunks(data.chunks.len().div_ceil(2).max(1)).collect();
    let bytes: usize = data.chunks.iter().map(Range::len).sum();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || {
                let fingerprinter = Fingerprinter::new([7; 32]);
                let (mut found, mut prints) = (Vec::new(), Vec::new());
                for batch in part.chunks(64) {
                    fingerprinter.fingerprint_many(&data.old, batch, &mut prints);
                    for chunk in batch {
                        if let Some(sketch) = sketcher.sketch(&data.old[chunk.clone()]) {
                            index.candidates(&sketch, 2, &mut found);
                        }
                    }
                }
            });
        }
    });
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

pub fn run(options: &DeltasOptions) -> Result<()> {
    let data = read(options)?;
    let total: usize = data.lacking.iter().map(Range::len).sum();
    let stream = stream_bytes(&data, options)?;
    println!("{} lacking chunks, {total} bytes; as a zstd stream {stream}", data.lacking.len());
    println!("fingerprint, sketch and look up, two threads: {:.0} MB/s\n", processed(&data));
    println!("| bases by | coder | sketches, MB/s | with a base | MB/s | bytes | of the stream |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    for way in ways() {
        let sketcher = way.parameters.map(Sketcher::new);
        let (index, rate) = match &sketcher {
            Some(sketcher) => sketched(&data, sketcher),
            None => (SketchIndex::new(0, 1), 0.0),
        };
        let mut found: Vec<Candidate> = Vec::new();
        let mut bases = |chunk: &Range<usize>| {
            let Some(sketcher) = &sketcher else { return vec![chunk.clone()] };
            let Some(sketch) = sketcher.sketch(&data.new[chunk.clone()]) else { return Vec::new() };
            index.candidates(&sketch, way.bases, &mut found);
            let span = |candidate: &Candidate| {
                let start = usize::try_from(candidate.base).unwrap_or(usize::MAX);
                start.saturating_sub(AROUND)..start.saturating_add(chunk.len() + AROUND)
            };
            found.iter().map(span).collect()
        };
        let mut coders: [(&str, Box<dyn DeltaCoder>); 2] = [
            ("zstd prefix", Box::new(PrefixCoder::new(options.level))),
            ("Xdelta, zstd", Box::new(XdeltaCoder::new(Some(options.level)))),
        ];
        for (name, coder) in &mut coders {
            let (bytes, share, speed) = encoded(&data, options, &mut bases, coder.as_mut())?;
            let of_stream = bytes as f64 / stream.max(1) as f64;
            println!(
                "| {} | {name} | {rate:.0} | {:.1} % | {speed:.0} | {bytes} | {of_stream:.3} |",
                way.name,
                share * 100.0
            );
        }
    }
    Ok(())
}
