//! Routing between storage nodes (AppDedupe), and what it is compared with, on generated streams.

#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an evaluation reads the clock, says how far it is, and computes shares"
)]

mod balls;
mod claims;
mod feed;
mod parallel;
mod resume;
mod served;
mod sets;
mod tables;
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
    /// Different super-chunks of 1 MiB for each node.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    super_chunks: u64,
    /// Random super-chunks for each node in figure 5.3.
    #[arg(long, default_value_t = 512, value_name = "N")]
    random: u64,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
        Self { nodes, super_chunks: 1000, random: 65_536, ..self.clone() }
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

/// Runs everything, and writes the tables and plots.
pub fn run(options: &Options) -> Result<()> {
    let options = &options.expanded();
    if options.nodes.contains(&0) || options.nodes.is_empty() || options.super_chunks == 0 {
        return Err("a cluster has a node, and a node has super-chunks".into());
    }
    std::fs::create_dir_all(&options.out)?;
    let mut page =
        Page::new(&options.out, "APPDEDUPE.md", (HEAD, METHOD), options.machine.as_deref());
    let (same, all) = (Some(Chunking::Units(4)), Way::COMPARED);
    let with_bounds: Vec<Way> =
        all.into_iter().filter(|way| *way != Way::ExtremeBinning).chain([Way::ExactDht]).collect();
    // Another program may do something else.
    let program = std::env::current_exe()?.metadata()?;
    let same_run = format!(
        "{:?} {} {} {} {:?}",
        options.nodes,
        options.super_chunks,
        options.seed,
        program.len(),
        program.modified()?
    );
    let mut resumed = Resumed::open(&options.out, &same_run)?;
    let outcomes = over_nodes((options, &mut resumed), &options.nodes, &with_bounds, same, false)?;
    let most: Vec<usize> = options.nodes.iter().copied().max().into_iter().collect();
    let files = over_nodes((options, &mut resumed), &most, &all, same, true)?;
    page.table("claims", &claims::table(&outcomes, &files))?;
    page.table("table-5.1", &tables::sets(&options.data(most[0].min(8))))?;
    page.figure("figure-5.1", parallel::table(&options.data(4)))?;
    page.table("table-5.2", &tables::memory(&options.data(1)))?;
    page.figure("figure-5.3", balls::table(options.random, options.seed))?;
    page.figure("figure-5.4", tables::handprints(options.seed, options.super_chunks.min(200)))?;
    page.table("table-5.3", &tables::three_nodes(&options.data(3)))?;
    page.table("table-5.3-processes", &served::table(&options.data(3))?)?;
    let title = "Figures 5.5 and 5.6: all sets but for Extreme Binning, chunks of 4 KiB";
    let (table, effective, asked) = tables::over_nodes(&outcomes, title);
    page.figure("figure-5.5", (table, effective))?;
    page.plot("figure-5.6", "Figure 5.6: fingerprints looked up", &asked)?;
    let title = "The same with Extreme Binning, on the five sets with files, most nodes";
    page.table("figure-5.5-files", &tables::over_nodes(&files, title).0)?;
    let ways = [Way::AppDedupe, Way::Produck];
    let own = over_nodes((options, &mut resumed), &most, &ways, None, false)?;
    let title = "The same with each scheme's own chunks, most nodes";
    page.table("figure-5.5-own", &tables::over_nodes(&own, title).0)?;
    page.table("alignment", &tables::alignment(&options.data(most[0].min(16)), most[0].min(16)))?;
    page.table("parameters", &parameters(options))?;
    page.table("missing", &missing())?;
    page.write()?;
    resumed.end()
}

/// What was chosen where the paper gives nothing.
fn parameters(options: &Options) -> Table {
    let mut table = Table::new("Parameters (input)", &["parameter", "here", "published"]);
    let node = silt_routing::NodeOptions::default();
    let rows: BTreeMap<&str, (String, &str)> = [
        ("super-chunk", ("1 MiB of one stream; Produck 15 MiB".to_owned(), "1 MB")),
        ("handprint", (HANDPRINT.to_string(), "8")),
        ("container", (format!("{} chunks", node.container_chunks), "not given")),
        ("cache of a lock", (format!("{} containers", node.cache_containers), "not given")),
        ("overloaded", ("5 % and 16/1024 above the mean".to_owned(), "not given")),
        ("candidates", ("rendezvous hashing; Sigma: modulo".to_owned(), "consistent hashing")),
        ("EMC stateful", ("1 fingerprint in 8, 1.05, 1.5".to_owned(), "as remembered")),
        ("different super-chunks a node", (options.super_chunks.to_string(), "not given")),
    ]
    .into();
    for (name, (here, published)) in rows {
        table.row(vec![name.to_owned(), here, published.to_owned()]);
    }
    table
}

/// What the paper shows and this command does not.
fn missing() -> Table {
    let mut table = Table::new("Not in this command", &["published", "why"]);
    let rows = [
        (
            "figure 5.2: bytes saved a second over the size of chunks",
            "needs bytes: `silt tune PATH` measures it of real files",
        ),
        ("figure 5.5 for each set alone", "not run; the sets can be told apart in table 5.2"),
        (
            "content-defined chunks of the sets",
            "these are fingerprints; without bytes there is nothing to cut",
        ),
    ];
    for (published, why) in rows {
        table.row(vec![published.to_owned(), why.to_owned()]);
    }
    table
}
