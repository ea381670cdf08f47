//! Routing between storage nodes (AppDedupe), and what it is compared with, on generated streams.

#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an evaluation reads the clock, says how far it is, and computes shares"
)]

mod ablation;
mod balls;
mod change;
mod claims;
mod feed;
mod fsl;
mod paper;
mod parallel;
mod real;
mod resume;
mod served;
mod sets;
mod tables;
mod traced;
mod ways;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use self::feed::{Chunking, Data};
use self::resume::Resumed;
use self::tables::HANDPRINT;
use self::ways::{Outcome, Setting, Way};
use silt_report::{Page, Result, Table};

pub use self::served::{MemberOptions, run as run_member};

/// Logical bytes of the generated sets, of their different ones, roughly: how much to generate.
const RATIO: f64 = 2.8;
/// Rules are changed one at a time with this many nodes at most.
const ABLATION_NODES_MAX: usize = 32;

/// The first lines.
const HEAD: &str = "# Evaluation: routing between storage nodes

This page compares routing by application (AppDedupe, paper 003) with what it was compared with,
beside the published figures. One command makes it:
";

/// How figures are made.
const METHOD: &str = "## Method

Routers, directors and nodes are those of `silt-routing`; this command makes streams, feeds them and
counts. Nodes are in one process, but for the table that says otherwise: there are no messages that
could be late, and no times of a network. Seven clients, one for each set, read at the same time.
Streams consist of fingerprints and are drawn from a seed. Their amount grows with the number of
nodes, so that each node has as many super-chunks. *Input* was chosen before any run; all columns
that do not say otherwise are *output*; nothing is fitted to a published output.

";

/// At least 1,000 are to be measured of each node.
const SUPER_CHUNKS: u64 = 1150;

/// Numbers of nodes for real files, which are too few for more.
const REAL_NODES: [usize; 3] = [1, 3, 8];

/// The options of the command.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The folder for APPDEDUPE.md, a CSV file of each table and the plots.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Numbers of nodes.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "N")]
    nodes: Vec<usize>,
    /// Up to 128 nodes, and 65,536 random super-chunks for each of 1,280. Takes about 20 minutes; a
    /// run that was interrupted goes on where it was.
    #[arg(long, conflicts_with_all = ["nodes", "super_chunks", "random"])]
    full: bool,
    /// Different super-chunks of 1 MiB for each node, about: sets are drawn, and have up to a tenth
    /// fewer.
    #[arg(long, default_value_t = SUPER_CHUNKS, value_name = "N")]
    super_chunks: u64,
    /// Random super-chunks for each node in figure 5.3.
    #[arg(long, default_value_t = 512, value_name = "N")]
    random: u64,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Snapshots of public traces in the format of `fs-hasher` (File systems and Storage Lab), or
    /// folders with those of a system in the order of their names.
    #[arg(long = "trace", value_name = "PATH")]
    traces: Vec<PathBuf>,
    /// Directories or disk images of a system, as its snapshots in their order, separated by
    /// commas. They are cut as the product cuts them. Once for each system.
    #[arg(long = "files", value_name = "PATH,...")]
    files: Vec<String>,
    /// Only these parts, by the names of their CSV files, such as ablation or figure-5.4.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// The date and machine, for the page.
    #[arg(long, value_name = "TEXT")]
    machine: Option<String>,
}

impl Options {
    /// What `--full` stands for.
    fn expanded(&self) -> Self {
        if !self.full {
            return self.clone();
        }
        let nodes = (0..8).map(|power| 1 << power).collect();
        Self { nodes, super_chunks: SUPER_CHUNKS, random: 65_536, ..self.clone() }
    }

    fn data(&self, nodes: usize) -> Data {
        Data::all(self.seed, (self.super_chunks << 20) as f64 * nodes as f64 * RATIO)
    }
}

/// Runs schemes with each number of nodes, all with chunks of `chunking`, or with their own.
fn over_nodes(
    (options, resumed): (&Options, &mut Resumed),
    nodes: &[usize],
    ways: &[Way],
    chunking: Option<Chunking>,
    files: bool,
) -> Result<Vec<Outcome>> {
    let (mut outcomes, mut known) = (Vec::new(), BTreeMap::new());
    for &way in ways {
        for &nodes in nodes {
            let all = options.data(nodes);
            let data = if files { all.with_files() } else { all };
            let chunking = chunking.unwrap_or(way.own_chunking());
            let setting = Setting { nodes, chunking, handprint: HANDPRINT };
            let name = format!("{way:?} {nodes} {chunking:?} {files}");
            outcomes.push(resumed.outcome(&name, way, || {
                let exact = || ways::exact(&data, chunking);
                ways::run(
                    way,
                    &data,
                    setting,
                    *known.entry((nodes, chunking)).or_insert_with(exact),
                )
            })?);
            eprintln!("{}, {nodes} nodes", way.name());
        }
    }
    Ok(outcomes)
}

/// The parts of a run: those that are wanted, those that an interrupted run has left, and the page.
struct Parts<'o> {
    options: &'o Options,
    resumed: Resumed,
    page: Page,
}

impl<'o> Parts<'o> {
    fn begin(options: &'o Options) -> Result<Self> {
        let machine = options.machine.as_deref();
        let page = Page::new(&options.out, "APPDEDUPE.md", (HEAD, METHOD), machine);
        // Another program may do something else.
        let program = std::env::current_exe()?.metadata()?;
        let same_run = format!(
            "{:?} {} {} {} {:?} {:?} {} {:?}",
            options.nodes,
            options.super_chunks,
            options.random,
            options.seed,
            options.traces,
            options.files,
            program.len(),
            program.modified()?
        );
        let resumed = Resumed::open(&options.out, &same_run)?;
        Ok(Self { options, resumed, page })
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.options.only.is_empty() || self.options.only.iter().any(|only| only == name)
    }

    fn table(&mut self, name: &str, make: impl FnOnce() -> Result<Table>) -> Result<()> {
        if !self.is_wanted(name) {
            return Ok(());
        }
        let table = self.resumed.table(name, make)?;
        eprintln!("{name}");
        self.page.table(name, &table)
    }

    fn figure(&mut self, name: &str, make: impl FnOnce() -> (Table, String)) -> Result<()> {
        if !self.is_wanted(name) {
            return Ok(());
        }
        let figure = self.resumed.figure(name, || Ok(make()))?;
        eprintln!("{name}");
        self.page.figure(name, figure)
    }

    /// Outcomes of schemes, if one of these parts is wanted.
    fn outcomes(
        &mut self,
        parts: &[&str],
        nodes: &[usize],
        ways: &[Way],
        chunking: Option<Chunking>,
        files: bool,
    ) -> Result<Vec<Outcome>> {
        if !parts.iter().any(|part| self.is_wanted(part)) {
            return Ok(Vec::new());
        }
        over_nodes((self.options, &mut self.resumed), nodes, ways, chunking, files)
    }
}

/// Runs everything, and writes the tables and plots.
pub fn run(options: &Options) -> Result<()> {
    let options = &options.expanded();
    if options.nodes.contains(&0) || options.nodes.is_empty() || options.super_chunks == 0 {
        return Err("a cluster has a node, and a node has super-chunks".into());
    }
    std::fs::create_dir_all(&options.out)?;
    let mut parts = Parts::begin(options)?;
    let (same, all) = (Some(Chunking::Units(4)), Way::COMPARED);
    let with_bounds: Vec<Way> =
        all.into_iter().filter(|way| *way != Way::ExtremeBinning).chain([Way::ExactDht]).collect();
    let of = ["claims", "figure-5.5", "figure-5.6"];
    let outcomes = parts.outcomes(&of, &options.nodes, &with_bounds, same, false)?;
    let most = options.nodes.iter().copied().max().unwrap_or(1);
    let of = ["claims", "figure-5.5-files"];
    let files = parts.outcomes(&of, &[most], &all, same, true)?;
    parts.table("claims", || Ok(claims::table(&outcomes, &files)))?;
    parts.table("table-5.1", || Ok(tables::sets(&options.data(most.min(8)))))?;
    parts.figure("figure-5.1", || parallel::table(&options.data(4)))?;
    parts.table("table-5.2", || Ok(tables::memory(&options.data(1))))?;
    parts.figure("figure-5.3", || balls::table(options.random, options.seed))?;
    let few = options.super_chunks.min(200);
    parts.figure("figure-5.4", || tables::handprints(options.seed, few))?;
    parts.table("table-5.3", || Ok(tables::three_nodes(&options.data(3))))?;
    parts.table("table-5.3-processes", || served::table(&options.data(3)))?;
    let title = "Figures 5.5 and 5.6: all sets but for Extreme Binning, chunks of 4 KiB";
    let (table, effective, asked) = tables::over_nodes(&outcomes, title);
    parts.figure("figure-5.5", || (table, effective))?;
    if parts.is_wanted("figure-5.6") {
        parts.page.plot("figure-5.6", "Figure 5.6: fingerprints looked up", &asked)?;
    }
    let title = "The same with Extreme Binning, on the five sets with files, most nodes";
    parts.table("figure-5.5-files", || Ok(tables::over_nodes(&files, title).0))?;
    rest(parts, most)
}

/// What explains the figures, and what the paper does not have.
fn rest(mut parts: Parts<'_>, most: usize) -> Result<()> {
    let options = parts.options;
    let ways = [Way::AppDedupe, Way::Produck];
    let own = parts.outcomes(&["figure-5.5-own"], &[most], &ways, None, false)?;
    let title = "The same with each scheme's own chunks, most nodes";
    parts.table("figure-5.5-own", || Ok(tables::over_nodes(&own, title).0))?;
    let some = most.min(ABLATION_NODES_MAX);
    let ways: Vec<Way> = [Way::AppDedupe, Way::Sigma, Way::Stateful]
        .into_iter()
        .chain(change::Change::ALL.map(Way::Changed))
        .collect();
    let same = Some(Chunking::Units(4));
    let changed = parts.outcomes(&["ablation"], &[some], &ways, same, false)?;
    parts.table("ablation", || Ok(ablation::table(&changed, some)))?;
    let few = most.min(16);
    parts.table("alignment", || Ok(tables::alignment(&options.data(few), few)))?;
    if !options.traces.is_empty() {
        let few: Vec<usize> = options.nodes.iter().copied().filter(|it| *it <= 8).collect();
        let trace = |few: &[usize]| traced::table(&traced::Trace::open(&options.traces)?, few);
        parts.table("traces", || trace(&few))?;
    }
    if !options.files.is_empty() {
        let read = || traced::table(&traced::Trace::read(&options.files)?, &REAL_NODES);
        parts.table("files", read)?;
    }
    parts.table("parameters", || Ok(paper::parameters(options)))?;
    parts.table("slips", || Ok(paper::slips()))?;
    parts.table("missing", || Ok(paper::missing()))?;
    parts.page.write()?;
    // A run of all parts does not repeat what one of some has made.
    if options.only.is_empty() { parts.resumed.end() } else { Ok(()) }
}
