//! Sets that are read: versions of a tree, and disks day by day.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use silt_source::{SourceOptions, open_source};

use crate::Result;
use crate::generate::SOURCES;
use crate::segments::for_each_segment;
use crate::set::{Attributes, Version};
use silt_report::draw;

/// Bytes of a file at most; larger ones are left out.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Segments of a disk that count as of one owner.
const NEAR_SEGMENTS: u64 = 16;

/// A number for a text.
fn number(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| draw(hash ^ u64::from(byte)))
}

/// The regular files below a folder, by their paths in it, in the order of names.
fn walk(root: &Path, folder: &Path, into: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(root, &entry.path(), into)?;
        } else if kind.is_file() && entry.metadata()?.len() <= FILE_BYTES_MAX {
            let name = entry.path().strip_prefix(root)?.to_string_lossy().into_owned();
            into.push((name, entry.path()));
        }
    }
    Ok(())
}

/// Reads folders, each a version of one tree, the oldest first, until `bytes` of a version are
/// read. A file has the number of its path.
pub fn trees(
    folders: &[PathBuf],
    bytes: u64,
    into: &mut dyn FnMut(Version) -> Result<()>,
) -> Result<()> {
    let mut numbers: HashMap<String, u32> = HashMap::new();
    for (round, folder) in (0_u32..).zip(folders) {
        let (mut files, mut read) = (Vec::new(), 0);
        walk(folder, folder, &mut files)?;
        files.sort();
        for (name, path) in files {
            let content = std::fs::read(&path)?;
            read += content.len() as u64;
            if read > bytes {
                break;
            }
            let next = u32::try_from(numbers.len())?;
            let file = *numbers.entry(name.clone()).or_insert(next);
            let (folder, rest) = name.rsplit_once('/').unwrap_or(("", &name));
            let attributes = Attributes {
                size: content.len(),
                created: 0.0,
                written: f64::from(round),
                kind: number(rest.rsplit_once('.').map_or("", |(_, kind)| kind)),
                owner: number(folder),
            };
            let (source, vector) = (file % SOURCES, attributes.vector());
            into(Version { file, round, source, vector, bytes: content })?;
        }
    }
    Ok(())
}

/// Reads disks called `VM.dayN.raw`, day by day, segment by segment, without zeros; as many
/// machines as have `bytes` on their first days, and at least one. Each machine is a source.
pub fn disks(
    folder: &Path,
    bytes: u64,
    into: &mut dyn FnMut(Version) -> Result<()>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        names.extend(name.to_string_lossy().strip_suffix(".day0.raw").map(str::to_owned));
    }
    names.sort();
    let (mut chosen, mut total) = (Vec::new(), 0);
    for round in 0_u32.. {
        let mut has_day = false;
        for (machine, name) in names.iter().enumerate() {
            let file = folder.join(format!("{name}.day{round}.raw"));
            let is_chosen = if round == 0 { total < bytes } else { chosen.contains(name) };
            if !is_chosen || !file.exists() {
                continue;
            }
            has_day = true;
            if round == 0 {
                chosen.push(name.clone());
            }
            let source = open_source(&file, &SourceOptions::default())?;
            let machine = u32::try_from(machine)?;
            for_each_segment(&*source, &mut |place, content| {
                total += content.len() as u64;
                let attributes = Attributes {
                    size: content.len(),
                    created: 0.0,
                    written: f64::from(round),
                    kind: u64::from(machine),
                    owner: place / NEAR_SEGMENTS,
                };
                let file = machine << 20 | u32::try_from(place)?;
                let vector = attributes.vector();
                into(Version { file, round, source: machine, vector, bytes: content.to_vec() })
            })?;
        }
        if !has_day {
            break;
        }
    }
    if chosen.is_empty() {
        return Err(format!("{} holds no disks called VM.day0.raw", folder.display()).into());
    }
    Ok(chosen)
}
