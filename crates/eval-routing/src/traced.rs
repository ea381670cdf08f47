//! The schemes on public traces: what `--trace` adds.

use std::path::{Path, PathBuf};

use silt_report::{Result, Table, number};
use silt_routing::{Application, Cutter, Grain, Piece, PrintSet};

use super::fsl::{self, Item};
use super::tables::HANDPRINT;
use super::ways::{Fed, Outcome, Way, run_fed};

/// Snapshots of one or several systems, in the order in which they are backed up.
pub struct Trace {
    /// By system: a folder, or a file by itself.
    systems: Vec<Vec<PathBuf>>,
    logical: u64,
    exact: u64,
    kinds: usize,
}

impl Trace {
    /// Reads files, or folders whose files are backed up in the order of their names.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut systems = Vec::new();
        for path in paths {
            let mut files = vec![path.clone()];
            if path.is_dir() {
                let entries = std::fs::read_dir(path)?;
                files = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
                files.sort();
            }
            systems.push(files);
        }
        let mut trace = Self { systems, logical: 0, exact: 0, kinds: 0 };
        // Chunks that two applications have count twice: schemes that tell them apart store both.
        let (mut seen, mut kinds, mut kind) = (PrintSet::default(), PrintSet::default(), 0);
        let (mut logical, mut exact) = (0, 0);
        for path in trace.systems.iter().flatten() {
            fsl::read(path, &mut |item| match item {
                Item::File(name) => kind = application(name).0,
                Item::Chunk(chunk) => {
                    kinds.insert(kind.into());
                    logical += u64::from(chunk.bytes);
                    exact += if seen.insert(chunk.print) { u64::from(chunk.bytes) } else { 0 };
                }
            })?;
        }
        (trace.logical, trace.exact, trace.kinds) = (logical, exact, kinds.len());
        if logical == 0 {
            return Err("the traces have no chunks".into());
        }
        Ok(trace)
    }

    /// Feeds the pieces of a scheme: systems by turns, a snapshot at a time. An application of a
    /// system is a stream.
    fn feed(&self, grain: Grain, each: &mut dyn FnMut(Piece)) -> Result<()> {
        let rounds = self.systems.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            for (system, files) in (0..).zip(&self.systems) {
                let Some(path) = files.get(round) else { continue };
                feed_one(path, system, grain, each)?;
            }
        }
        Ok(())
    }
}

/// The application of a file, by its name: the kinds of the product. Traces have no content.
fn application(path: &[u8]) -> Application {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    Application(u16::try_from(silt_tree::kind_of(&[], name).index()).unwrap_or(0))
}

fn feed_one(path: &Path, system: u32, grain: Grain, each: &mut dyn FnMut(Piece)) -> Result<()> {
    let mut cutters: Vec<Cutter> = Vec::new();
    let mut current = 0;
    fsl::read(path, &mut |item| match item {
        Item::File(name) => {
            if let Some(cutter) = cutters.get_mut(current) {
                cutter.end_file().into_iter().for_each(&mut *each);
            }
            current = application(name).0.into();
            for kind in cutters.len()..=current {
                let kind = u16::try_from(kind).unwrap_or(0);
                let stream = system << 8 | u32::from(kind);
                cutters.push(Cutter::new(grain, Application(kind), stream));
            }
        }
        Item::Chunk(chunk) => {
            if let Some(cutter) = cutters.get_mut(current) {
                cutter.push(chunk).into_iter().for_each(&mut *each);
            }
        }
    })?;
    cutters.iter_mut().filter_map(Cutter::end).for_each(each);
    Ok(())
}

/// A scheme on a trace.
fn run(trace: &Trace, way: Way, nodes: usize) -> Result<Outcome> {
    let mut failed = Ok(());
    let super_chunks = (trace.exact / nodes as u64) >> 20;
    let (mut router, options) = (way.router(super_chunks, HANDPRINT), way.options(HANDPRINT));
    let fed = Fed { way, nodes, exact: trace.exact, options };
    let outcome = run_fed(fed, &mut *router, &mut |grain, each| failed = trace.feed(grain, each));
    failed.map(|()| outcome)
}

/// The table, with each number of nodes.
pub fn table(trace: &Trace, nodes: &[usize]) -> Result<Table> {
    let columns =
        ["scheme", "nodes", "NDR", "NEDR", "DS", "looked up, of the chunks", "super-chunks a node"];
    let mut table = Table::new("Public traces", &columns);
    let ways = Way::COMPARED.into_iter().chain([Way::AppAware, Way::ExactDht]);
    for way in ways {
        for &nodes in nodes {
            let outcome = run(trace, way, nodes)?;
            table.row(vec![
                way.name().to_owned(),
                nodes.to_string(),
                number(outcome.ndr()),
                number(outcome.nedr()),
                number(outcome.skew()),
                number(outcome.looked_up()),
                ((trace.exact / nodes as u64) >> 20).to_string(),
            ]);
        }
    }
    table.note(format!(
        "All columns are outputs. {} snapshots of {} systems: {} GB, {} of which are different, \
         in {} applications, which are told by the names of files. NDR is relative to one node \
         without applications. With less than 1,000 different super-chunks a node, NEDR and DS \
         are noise.",
        trace.systems.iter().map(Vec::len).sum::<usize>(),
        trace.systems.len(),
        number(trace.logical as f64 / 1e9),
        number(trace.exact as f64 / 1e9),
        trace.kinds,
    ));
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsl::tests::scan;

    /// Two snapshots of a system with mail and films; the second has the same and a new mail.
    #[test]
    fn schemes_run_on_a_trace() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let chunks =
            |first: u64| (first..first + 600).map(|it| (it, 4096)).collect::<Vec<(u64, u32)>>();
        let [mail, film, new] = [1, 10_000, 20_000].map(chunks);
        let before = [("/a/one.mbox", &mail[..]), ("/a/two.mp4", &film[..])];
        let after = [before[0], before[1], ("/a/new.mbox", &new[..])];
        std::fs::write(folder.path().join("day1"), scan(7, false, &before))?;
        std::fs::write(folder.path().join("day2"), scan(7, false, &after))?;
        let trace = Trace::open(&[folder.path().to_owned()])?;
        assert_eq!((trace.exact, trace.logical), (1800 * 4096, 3000 * 4096));
        assert_eq!(trace.kinds, 2);
        for way in [Way::AppDedupe, Way::ExactDht, Way::ExtremeBinning] {
            let outcome = run(&trace, way, 2)?;
            assert_eq!((outcome.chunks, outcome.logical), (3000, trace.logical));
            assert!((outcome.ndr() - 1.0).abs() < 1e-9, "{}: {}", way.name(), outcome.ndr());
        }
        assert!(run(&trace, Way::NodeZero, 2)?.skew() > 1.9);
        assert!(table(&trace, &[1, 2])?.markdown().contains("2 snapshots of 1 systems"));
        std::fs::write(folder.path().join("day3"), b"something else")?;
        assert!(Trace::open(&[folder.path().to_owned()]).is_err());
        Ok(())
    }
}
