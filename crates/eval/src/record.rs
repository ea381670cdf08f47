//! Recording a trace from disks in one folder, called `VM.dayN.raw`.

use std::collections::BTreeMap;
use std::path::Path;

use silt_chunking::{Fingerprinter, is_zero};
use silt_format::{BLOCK_BYTES, SEGMENT_BYTES};
use silt_source::{ExtentKind, SourceOptions, VolumeSource, open_source};

use crate::Result;
use crate::trace::{Day, Machine, Print, Segment, Trace};

/// Reads every day of the machines named, or of all that have a day 0.
pub fn record(folder: &Path, names: &[String]) -> Result<Trace> {
    let mut names = names.to_vec();
    if names.is_empty() {
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            names.extend(name.strip_suffix(".day0.raw").map(str::to_owned));
        }
        names.sort();
    }
    if names.is_empty() {
        return Err(format!("{} holds no disks called VM.day0.raw", folder.display()).into());
    }
    let mut trace = Trace::default();
    for name in names {
        let mut machine = Machine { name: name.clone(), days: Vec::new() };
        let mut disk: BTreeMap<u32, Segment> = BTreeMap::new();
        for number in 0.. {
            let file = folder.join(format!("{name}.day{number}.raw"));
            if !file.exists() {
                break;
            }
            let source = open_source(&file, &SourceOptions::default())?;
            let today = segments(&*source)?;
            let mut day = Day::default();
            for (place, segment) in &today {
                if disk.get(place) != Some(segment) {
                    day.changed.insert(*place, segment.clone());
                }
            }
            let gone = disk.keys().filter(|place| !today.contains_key(place));
            day.changed.extend(gone.map(|place| (*place, Segment::default())));
            disk = today;
            machine.days.push(day);
        }
        if machine.days.is_empty() {
            return Err(format!("there is no {name}.day0.raw in {}", folder.display()).into());
        }
        trace.machines.push(machine);
    }
    Ok(trace)
}

/// The fingerprints of all segments that are not zeros.
fn segments(source: &dyn VolumeSource) -> Result<BTreeMap<u32, Segment>> {
    let fingerprinter = Fingerprinter::new([3; 32]);
    let bytes = source.info().size.unwrap_or(0);
    let mut all = BTreeMap::new();
    let mut buffer = vec![0; SEGMENT_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let extent = source.extent_at(offset)?;
        let end = (extent.offset + extent.length).min(bytes);
        let segment_bytes = u64::try_from(SEGMENT_BYTES)?;
        let place = offset / segment_bytes;
        if extent.kind != ExtentKind::Data && end >= (place + 1) * segment_bytes {
            offset = end / segment_bytes * segment_bytes;
            continue;
        }
        let start = place * segment_bytes;
        let length = usize::try_from((bytes - start).min(segment_bytes))?;
        source.read_at(start, &mut buffer[..length])?;
        let print = |chunk: &[u8]| -> Print {
            if is_zero(chunk) {
                return 0;
            }
            let bytes = fingerprinter.fingerprint(chunk).0;
            bytes[..8].iter().fold(0, |print, byte| print << 8 | u64::from(*byte)).max(1)
        };
        let prints: Segment = buffer[..length].chunks(BLOCK_BYTES).map(print).collect();
        if prints.iter().any(|print| *print != 0) {
            all.insert(u32::try_from(place)?, prints);
        }
        offset = start + segment_bytes;
    }
    Ok(all)
}
