//! Groups of alike files: what they save, and what they lose.

use silt_similarity::{GroupParameters, Groups};

use crate::destination::{GROUPS, Search, WHOLE};
use crate::prepare::{Prepared, Sketches};
use crate::send::{Way, send};
use crate::set::{Attributes, DIMENSIONS};
use crate::ways::{CACHED, way};
use crate::{Result, now};
use silt_report::{Random, floor};
use silt_report::{Table, number, percent};

/// Steps of the functions that are tried.
const WIDTHS: [f64; 5] = [4.0, 8.0, 12.0, 24.0, 48.0];
/// Files of attributes alone.
const FILES: u32 = 100_000;

/// Groups off and on, by width (A3).
pub fn on_and_off(sets: &[(Prepared, Sketches)]) -> Result<Table> {
    let mut table = Table::new(
        "Groups off and on, by the width of a step (A3)",
        &[
            "set",
            "groups",
            "number",
            "searched %",
            "duplicates lost %",
            "bases lost %",
            "sent MB",
            "look-ups, µs a chunk",
            "memory MB",
            "groups read",
        ],
    );
    for (prepared, sketches) in sets {
        let whole = way("neptune-whole", prepared.chunks.len()).ok_or("no such scheme")?;
        let cached = Some((prepared.chunks.len() / CACHED).max(64));
        let mut ways = vec![("off".to_owned(), WHOLE)];
        for width in WIDTHS {
            let groups = Some(GroupParameters { width, ..GROUPS });
            let search = Search { groups, group_chunks: cached, ..WHOLE };
            ways.push((format!("width {width}"), search));
        }
        let groups = Search { groups: Some(GROUPS), cached_chunks: cached, ..WHOLE };
        ways.push((format!("width {}, cached sketches", GROUPS.width), groups));
        let ungrouped = send(prepared, Some(sketches), &whole)?;
        for (name, search) in ways {
            let sent = send(prepared, Some(sketches), &Way { search, ..whole })?;
            // Chunks that are neither duplicates nor have a base are what grouping lost of either.
            let filtered = |based, duplicates| (based + duplicates) as f64;
            let base = filtered(ungrouped.based, ungrouped.duplicates);
            let lost = base - filtered(sent.based, sent.duplicates);
            let seconds = sent.find + sent.rank;
            table.row(vec![
                prepared.name.clone(),
                name,
                sent.groups.to_string(),
                percent(sent.scope),
                percent(sent.lost as f64 / ungrouped.duplicates.max(1) as f64),
                percent(lost / ungrouped.based.max(1) as f64),
                number(sent.plain() as f64 / 1e6),
                number(seconds / sent.chunks.max(1) as f64 * 1e6),
                number(sent.memory as f64 / 1e6),
                sent.loads.to_string(),
            ]);
        }
    }
    table.note(format!(
        "All columns are outputs. Searched: what a file is compared with, of the chunks at the \
         destination. Duplicates lost are of those that a whole index finds; bases lost are \
         chunks that are filtered without groups and raw with them, of those with a delta without \
         groups; fewer than none if a group finds bases that an index of everything, which keeps \
         the newest four of a super-feature, has forgotten. Widths are inputs: {} tables of {} \
         functions; the paper gives none of them. The \
         groups used last are in memory, with an eighth of the chunks; without groups, and with \
         cached sketches in place of an index, all fingerprints are.",
        GROUPS.tables, GROUPS.functions
    ));
    Ok(table)
}

/// Groups of many files by attributes alone: memory, and time to find a file's group.
pub fn many_files() -> Table {
    let mut table = Table::new(
        "Groups of 100,000 files by attributes alone",
        &["width", "groups", "in the largest %", "found for a file", "memory MB", "µs a file"],
    );
    for width in WIDTHS {
        let mut random = Random(11);
        let vectors: Vec<[f64; DIMENSIONS]> = (0..FILES)
            .map(|_| {
                let written = random.unit() * 36.0;
                let attributes = Attributes {
                    size: floor(1024.0 * (random.unit() * 10.0).exp2()),
                    created: written * random.unit(),
                    written,
                    kind: random.below(24) as u64,
                    owner: random.below(236) as u64,
                };
                attributes.vector()
            })
            .collect();
        let mut groups = Groups::new(DIMENSIONS, GroupParameters { width, ..GROUPS });
        let (mut sizes, mut found): (Vec<u32>, usize) = (Vec::new(), 0);
        let start = now();
        for vector in &vectors {
            let alike = groups.alike(vector);
            found += alike.len();
            if let Some(group) = alike.first() {
                sizes[*group as usize] += 1;
            } else {
                groups.add(u32::try_from(sizes.len()).unwrap_or(u32::MAX), vector);
                sizes.push(1);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let files = f64::from(FILES);
        table.row(vec![
            number(width),
            sizes.len().to_string(),
            percent(f64::from(sizes.iter().copied().max().unwrap_or(0)) / files),
            number(found as f64 / files),
            number(groups.bytes() as f64 / 1e6),
            number(seconds / files * 1e6),
        ]);
    }
    table.note(
        "Outputs, of attributes drawn evenly: 24 kinds, 236 owners, 36 intervals, sizes from 1 KiB \
         to 1 MiB. A file that is like no other begins a group.",
    );
    table
}
