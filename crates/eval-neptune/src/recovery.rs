//! Figure 10: how long versions take to decode, over the number of files.

use std::collections::BTreeMap;

use silt_similarity::{Chain, ChainParameters, XdeltaCoder};

use crate::prepare::Prepared;
use crate::{Result, now};
use silt_report::{Line, Table, number, plot_values};

/// Numbers of files that are restored.
const FILES: [usize; 6] = [100, 200, 400, 600, 800, 1000];
/// Limits of a delta's size, as a share of its version's.
const SHARES: [f64; 5] = [0.05, 0.1, 0.25, 0.75, 1.0];
/// Limits of versions behind a whole one.
const DISTANCES: [usize; 4] = [2, 4, 8, 64];
/// What the paper says of 1,000 files, in seconds.
const PUBLISHED: f64 = 1.0;

/// The chains of the files that have most versions, and how many bytes their last versions have.
fn chains(prepared: &Prepared, parameters: ChainParameters) -> Result<Vec<(Chain, u64)>> {
    let mut versions: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (place, version) in prepared.versions.iter().enumerate() {
        versions.entry(version.file).or_default().push(place);
    }
    let mut files: Vec<Vec<usize>> = versions.into_values().collect();
    files.sort_by_key(|versions| std::cmp::Reverse(versions.len()));
    files.truncate(FILES[FILES.len() - 1]);
    let mut coder = XdeltaCoder::new(Some(crate::send::LEVEL));
    let mut chains = Vec::new();
    for versions in files {
        let (mut chain, mut bytes) = (Chain::new(parameters), 0);
        for place in versions {
            let version = prepared.version(&prepared.versions[place]);
            bytes = version.len() as u64;
            chain.push(&mut coder, &version)?;
        }
        chains.push((chain, bytes));
    }
    Ok(chains)
}

/// Decodes the last versions of so many files. Returns seconds, objects read at most for one, and
/// megabytes.
fn restore(chains: &[(Chain, u64)], files: usize) -> Result<(f64, usize, f64)> {
    let mut coder = XdeltaCoder::new(Some(crate::send::LEVEL));
    let (mut most, mut bytes, start) = (0, 0, now());
    for place in 0..files {
        let (chain, version) = &chains[place % chains.len()];
        let (_, objects) = chain.restore(&mut coder, chain.len() - 1)?;
        most = most.max(objects);
        bytes += version;
    }
    Ok((start.elapsed().as_secs_f64(), most, bytes as f64 / 1e6))
}

/// When a shortcut chain begins anew: each limit alone, from tight to loose. Compared with the
/// limits of figure 10.
pub fn limits<'p>(sets: impl Iterator<Item = &'p Prepared>) -> Result<Table> {
    let mut table = Table::new(
        "When a shortcut chain begins anew",
        &[
            "set",
            "versions behind a whole one, at most",
            "size of a delta, % of its version, at most",
            "versions",
            "whole %",
            "stored MB",
            "of figure 10's limits %",
        ],
    );
    let usual = ChainParameters::default();
    for prepared in sets {
        let mut by_usual = None;
        let shares = SHARES.map(|share_max| ChainParameters { share_max, ..usual });
        let distances = DISTANCES.map(|distance_max| ChainParameters { distance_max, ..usual });
        for parameters in [usual].into_iter().chain(shares).chain(distances) {
            let chains = chains(prepared, parameters)?;
            let sum = |of: fn(&Chain) -> usize| chains.iter().map(|it| of(&it.0)).sum::<usize>();
            let (versions, wholes, stored) =
                (sum(Chain::len), sum(Chain::wholes), sum(Chain::bytes));
            let by_usual = *by_usual.get_or_insert(stored);
            table.row(vec![
                prepared.name.clone(),
                parameters.distance_max.to_string(),
                number(parameters.share_max * 100.0),
                versions.to_string(),
                number(wholes as f64 / versions.max(1) as f64 * 100.0),
                number(stored as f64 / 1e6),
                number(stored as f64 / by_usual.max(1) as f64 * 100.0),
            ]);
        }
    }
    table.note(
        "Outputs. The first row of each set has the limits of figure 10, which were chosen before \
         this table was. Whole versions are not compressed; files are those of figure 10.",
    );
    Ok(table)
}

/// Figure 10, with the chain that restores from neighbour to neighbour beside the shortcut's.
pub fn table(prepared: &Prepared) -> Result<(Table, String)> {
    let mut table = Table::new(
        &format!("Figure 10: decoding the last versions, {}", prepared.name),
        &["chain", "files", "seconds", "ms a file", "objects for one, at most", "MB", "stored MB"],
    );
    let mut lines = Vec::new();
    for (name, is_shortcut) in [("shortcut", true), ("adjacent", false)] {
        let parameters = ChainParameters { is_shortcut, ..ChainParameters::default() };
        let chains = chains(prepared, parameters)?;
        let stored: usize = chains.iter().map(|(chain, _)| chain.bytes()).sum();
        let mut line = Line { name: name.to_owned(), points: vec![], is_published: false };
        for files in FILES {
            let (seconds, objects, bytes) = restore(&chains, files)?;
            line.points.push((files as f64, seconds));
            table.row(vec![
                name.to_owned(),
                files.to_string(),
                number(seconds),
                number(seconds / files as f64 * 1e3),
                objects.to_string(),
                number(bytes),
                number(stored as f64 / 1e6),
            ]);
        }
        lines.push(line);
    }
    let (files, seconds) = (FILES[FILES.len() - 1], PUBLISHED);
    let published = vec![(files as f64, seconds)];
    lines.push(Line { name: "published".to_owned(), points: published, is_published: true });
    table.row(vec![
        "published".into(),
        files.to_string(),
        "about 1".into(),
        "1".into(),
        "2".into(),
        "not given".into(),
        "not given".into(),
    ]);
    table.note(
        "Outputs, one thread, objects in memory, the files with most versions first; if there are \
         fewer, they take turns. A chain begins anew after 16 versions, or if a delta has half of \
         its version's bytes; the paper gives neither.",
    );
    let names = ("files", "seconds");
    Ok((table, plot_values("Figure 10: recovery time", names, 0.0, &lines)))
}
