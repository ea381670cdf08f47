//! The schemes on public traces and on real files: what `--trace` and `--files` add.

use std::path::PathBuf;

use silt_report::{Result, Table, number};
use silt_routing::{Application, Cutter, Grain, Piece, PrintSet};

use super::fsl::{self, Item};
use super::real::{Part, Snapshot};
use super::tables::HANDPRINT;
use super::ways::{Fed, Outcome, Way, run_fed};

/// Snapshots of one or several systems, in the order in which they are backed up.
pub struct Trace {
    title: &'static str,
    /// By system.
    systems: Vec<Vec<Source>>,
    logical: u64,
    exact: u64,
    kinds: usize,
}

/// A snapshot.
enum Source {
    /// A file of a public trace, read anew for each scheme.
    Public(PathBuf),
    Real(Snapshot),
}

impl Source {
    fn each(&self, each: &mut dyn FnMut(Part)) -> Result<()> {
        match self {
            Self::Real(snapshot) => snapshot.each(each),
            Self::Public(path) => {
                fsl::read(path, &mut |item| {
                    each(match item {
                        Item::File(name) => Part::File(application(name)),
                        Item::Chunk(chunk) => Part::Chunk(chunk),
                    });
                })?;
            }
        }
        Ok(())
    }
}

impl Trace {
    /// Public traces: files, or folders whose files are backed up in the order of their names.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut systems = Vec::new();
        for path in paths {
            let mut files = vec![path.clone()];
            if path.is_dir() {
                let entries = std::fs::read_dir(path)?;
                files = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
                files.sort();
            }
            systems.push(files.into_iter().map(Source::Public).collect());
        }
        Self::of("Public traces", systems)
    }

    /// Real directories and disk images: of each system its snapshots, separated by commas.
    pub fn read(systems: &[String]) -> Result<Self> {
        let snapshots = |system: &String| {
            system.split(',').map(|path| Snapshot::read(path.as_ref()).map(Source::Real)).collect()
        };
        let systems = systems.iter().map(snapshots).collect::<Result<_>>()?;
        Self::of("Real files", systems)
    }

    fn of(title: &'static str, systems: Vec<Vec<Source>>) -> Result<Self> {
        // Chunks that two applications have count twice: schemes that tell them apart store both.
        let (mut seen, mut kinds, mut kind) = (PrintSet::default(), PrintSet::default(), 0);
        let (mut logical, mut exact) = (0, 0);
        for source in systems.iter().flatten() {
            source.each(&mut |part| match part {
                Part::File(application) => kind = application.0,
                Part::Chunk(chunk) => {
                    kinds.insert(kind.into());
                    logical += u64::from(chunk.bytes);
                    exact += if seen.insert(chunk.print) { u64::from(chunk.bytes) } else { 0 };
                }
            })?;
        }
        if logical == 0 {
            return Err("there are no chunks".into());
        }
        Ok(Self { title, systems, logical, exact, kinds: kinds.len() })
    }

    /// Feeds the pieces of a scheme: systems by turns, a snapshot at a time. An application of a
    /// system is a stream.
    fn feed(&self, grain: Grain, each: &mut dyn FnMut(Piece)) -> Result<()> {
        let rounds = self.systems.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            for (system, snapshots) in (0..).zip(&self.systems) {
                let Some(source) = snapshots.get(round) else { continue };
                feed_one(source, system, grain, each)?;
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

fn feed_one(source: &Source, system: u32, grain: Grain, each: &mut dyn FnMut(Piece)) -> Result<()> {
    let mut cutters: Vec<Cutter> = Vec::new();
    let mut current = 0;
    source.each(&mut |part| match part {
        Part::File(application) => {
            if let Some(cutter) = cutters.get_mut(current) {
                cutter.end_file().into_iter().for_each(&mut *each);
            }
            current = application.0.into();
            for kind in cutters.len()..=current {
                let kind = u16::try_from(kind).unwrap_or(0);
                let stream = system << 8 | u32::from(kind);
                cutters.push(Cutter::new(grain, Application(kind), stream));
            }
        }
        Part::Chunk(chunk) => {
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
    let mut table = Table::new(trace.title, &columns);
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
         in {} applications. NDR is relative to one node \
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
    /// Two versions of a directory with a disk image and text, and a disk image by itself.
    #[test]
    fn schemes_run_on_real_files() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let data = |seed: u8| -> Vec<u8> {
            let numbers = (0_u64..307_200).map(|at| silt_routing::mix(at << 8 | u64::from(seed)));
            numbers.flat_map(u64::to_le_bytes).collect()
        };
        let text = "the same line\n".repeat(900) + &"another line\n".repeat(900);
        for (version, disk) in [("one", data(1)), ("two", [data(1), data(2)].concat())] {
            let root = folder.path().join(version);
            std::fs::create_dir(&root)?;
            std::fs::write(root.join("vm.raw"), disk)?;
            std::fs::write(root.join("notes.txt"), &text)?;
        }
        std::fs::write(folder.path().join("alone"), [data(2), vec![0; 1 << 20]].concat())?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let systems = [format!("{},{}", path("one"), path("two")), path("alone")];
        let trace = Trace::read(&systems)?;
        let (disk, text) = (600 * 4096, text.len() as u64);
        assert_eq!((trace.logical, trace.kinds), (4 * disk + 2 * text, 2));
        // Text repeats itself.
        assert!(trace.exact > 2 * disk && trace.exact <= 2 * disk + text, "{}", trace.exact);
        for (way, least) in [(Way::AppDedupe, 0.65), (Way::Sigma, 0.65), (Way::ExactDht, 1.0)] {
            let outcome = run(&trace, way, 2)?;
            assert_eq!(outcome.logical, trace.logical);
            // At worst, the disk image by itself is stored again.
            let ndr = outcome.ndr();
            assert!(ndr > least - 1e-9 && ndr < 1.0 + 1e-9, "{}: {ndr}", way.name());
        }
        assert!(table(&trace, &[1])?.markdown().contains("Real files"));
        assert!(Trace::read(&[path("missing")]).is_err());
        Ok(())
    }
}
