//! All tables and plots of the first three papers, in the order of the page.

use std::path::Path;
use std::time::Instant;

use crate::availability::Layout;
use crate::buffers::Simulated;
use crate::claims::{self, Claims};
use crate::deletion::{self, Costs};
use crate::generate::{Shape, generate};
use crate::schemes::Outcomes;
use crate::trace::Trace;
use crate::{
    Result, Tables, availability, buffers, correlated, coverage, distribution, exchange, fiu,
    measure, memory, network, replication, schemes, segment_time, sensitivity, spans,
};
use silt_report::{Axis, Table};

/// Hosts of the cluster on which blocks are placed (000).
const HOSTS: usize = 100;

/// What was written so far.
struct Page<'o> {
    folder: &'o Path,
    text: String,
    begin: Instant,
}

impl Page<'_> {
    fn add(&mut self, name: &str, table: &Table) -> Result<()> {
        println!("{}", table.markdown());
        eprintln!("{name}: {:.0} s", self.begin.elapsed().as_secs_f64());
        self.text.push_str(&table.markdown());
        table.write_csv(self.folder, name)
    }

    fn plot(&self, name: &str, svg: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.join(format!("{name}.svg")), svg)?)
    }

    /// A table and bars of some of its columns; the first `names` cells of a row name its bars.
    fn bars(
        &mut self,
        name: &str,
        table: &Table,
        (unit, names, axis): (&str, usize, Axis),
        columns: &[&str],
    ) -> Result<()> {
        self.add(name, table)?;
        self.plot(name, &table.bars(unit, names, axis, columns))
    }

    /// A table and lines of some of its columns, one for each value of the column `series`.
    fn lines(
        &mut self,
        name: &str,
        table: &Table,
        (x, y, series): (&str, &str, Option<&str>),
        columns: &[&str],
    ) -> Result<()> {
        self.add(name, table)?;
        self.plot(name, &table.lines((x, y), series, columns))
    }

    fn both(&mut self, name: &str, (table, svg): (Table, String)) -> Result<()> {
        self.add(name, &table)?;
        self.plot(name, &svg)
    }
}

/// Writes everything to the folder.
pub fn run(options: &Tables) -> Result<()> {
    std::fs::create_dir_all(&options.out)?;
    let text = "# Evaluation\n\nThe schemes of the papers that Siltstone is built on, run by \
                Siltstone where it has them, beside the published figures.\n\n"
        .to_owned();
    let mut page = Page { folder: &options.out, text, begin: crate::now() };
    if options.rounds_only {
        rounds(&mut page, options)?;
        return Ok(std::fs::write(options.out.join("RESULTS.md"), page.text)?);
    }
    let shape = options.shape.shape();
    let generated = generate(&shape);
    let machines = format!("{} generated machines", generated.machines.len());
    let outcomes = efficiency(&mut page, &machines, "", &generated)?;
    let mut recorded = None;
    if let Some(file) = &options.trace {
        let trace = Trace::read(file)?;
        let machines = format!("{} recorded machines", trace.machines.len());
        let outcomes = efficiency(&mut page, &machines, "-recorded", &trace)?;
        recorded = Some((machines, trace, outcomes));
    }
    block_traces(&mut page, options, (&generated, recorded.as_ref().map(|found| &found.1)))?;
    // Many traces, which are smaller.
    let fewer = options.shape.machines.min(32);
    let base = Shape { machines: fewer, segments: 6, days: 6, ..shape };
    let columns = sensitivity::NAMES;
    let axis = ("efficiency %", 2, Axis::Linear);
    page.bars("sensitivity", &sensitivity::table(&base)?, axis, &columns)?;
    let layout = Layout::scaled(&generated, &outcomes);
    page.add("availability", &availability::table(&layout))?;
    page.plot("availability", &availability::copies_plot(&layout))?;
    survival(&mut page, (&machines, "", &generated), &outcomes, options.trials)?;
    if let Some((machines, trace, outcomes)) = &recorded {
        survival(&mut page, (machines, "-recorded", trace), outcomes, options.trials)?;
    }
    page.both("blocks", replication::blocks())?;
    rounds(&mut page, options)?;
    deletions(&mut page, options)?;
    Ok(std::fs::write(options.out.join("RESULTS.md"), page.text)?)
}

/// The tables of 000 over a trace. `kind` is what their names end in.
fn efficiency(page: &mut Page<'_>, machines: &str, kind: &str, trace: &Trace) -> Result<Outcomes> {
    let found = measure::measure(trace);
    let name = if kind.is_empty() { "the generated trace" } else { "the recorded trace" };
    page.both(&format!("statistics{kind}"), measure::table(name, &found))?;
    page.both(&format!("frequency{kind}"), distribution::frequency(machines, trace))?;
    let outcomes = schemes::run_all(trace)?;
    let mut table = schemes::table(machines, trace, &outcomes);
    if !kind.is_empty() {
        table.note("The published figures come from other machines, and many more of them.");
    }
    let columns = ["efficiency %", "published efficiency % (output)"];
    page.bars(&format!("efficiency{kind}"), &table, ("efficiency %", 1, Axis::Linear), &columns)?;
    page.both(&format!("coverage{kind}"), coverage::table(machines, trace, &outcomes))?;
    page.both(&format!("memory{kind}"), memory::table(machines, trace, &outcomes))?;
    let copies = replication::cost(machines, trace, &outcomes);
    let columns = ["more than with 3 copies %", "published % (output)"];
    let axes = ("copies of popular data", "more disk space than with 3 copies, %", None);
    page.lines(&format!("copies{kind}"), &copies, axes, &columns)?;
    page.both(&format!("segment-time{kind}"), segment_time::table(machines, trace)?)?;
    Ok(outcomes)
}

/// The statistics of public block traces, beside those of the traces that everything ran on.
fn block_traces(
    page: &mut Page<'_>,
    options: &Tables,
    (generated, recorded): (&Trace, Option<&Trace>),
) -> Result<()> {
    let mut others = vec![("generated".to_owned(), measure::measure(generated))];
    others.extend(recorded.map(|trace| ("recorded".to_owned(), measure::measure(trace))));
    let table = fiu::compare(&others, &options.fiu)?;
    let axis = ("% and segments", 1, Axis::Linear);
    page.bars("block-traces", &table, axis, &fiu::SHOWN)
}

/// The blocks of a trace's last snapshots, lost with hosts one by one and in groups.
fn survival(
    page: &mut Page<'_>,
    (machines, kind, trace): (&str, &str, &Trace),
    outcomes: &Outcomes,
    trials: usize,
) -> Result<()> {
    let of = (machines, trace);
    let placed = availability::counted(of, &outcomes.blocks, HOSTS, trials);
    let axes = ("failed of 100 hosts", "snapshots that survive, %", Some("block"));
    let columns = ["mixed, placed", "own stores, placed"];
    page.lines(&format!("availability-counted{kind}"), &placed, axes, &columns)?;
    let groups = correlated::table(of, &outcomes.blocks, HOSTS, trials);
    let columns = correlated::SHOWN;
    let axis = ("snapshots that survive, %", 3, Axis::Linear);
    page.bars(&format!("availability-groups{kind}"), &groups, axis, &columns)
}

/// The tables of 001 and of the rounds of 002.
fn rounds(page: &mut Page<'_>, options: &Tables) -> Result<()> {
    let folder = std::env::temp_dir();
    let shape = options.shape.shape();
    let claims = Claims::new(&shape, options.claim_segments)?;
    let (counted, answered) = network::table(&shape, &options.exchange_hosts)?;
    let exchanged = exchange::table(options.scale, options.hosts, (&claims, &answered, &folder))?;
    let columns = ["hours", "published hours (output)"];
    page.lines("exchange", &exchanged, ("partitions", "hours", Some("way")), &columns)?;
    let prints = &claims.prints()?;
    let simulated =
        Simulated { scale: options.scale, hosts: options.hosts, prints, folder: &folder };
    page.both("figure-3", buffers::memory(&simulated, (&claims, &answered))?)?;
    for (name, table, svg) in buffers::figures(&simulated)? {
        page.both(name, (table, svg))?;
    }
    page.both("span-by-hosts", buffers::span_by_hosts(&simulated)?)?;
    let measured = network::cpu(&generate(&Shape { machines: 16, days: 2, ..shape }))?;
    let columns = ["here", "published (output)"];
    let axis = ("in the unit of the row", 1, Axis::Logarithmic);
    let all = claims.of_cluster(spans::PAPER.hosts, &answered)?;
    let of_host = all[0] / spans::PAPER.hosts as f64;
    page.bars("resources", &buffers::resources(&measured, of_host), axis, &columns)?;
    page.lines("network", &counted, ("hosts", "bytes", None), &network::COLUMNS)?;
    page.both("network-cluster", claims::cluster(&answered, &claims)?)?;
    let [resources, hours] = spans::comparison([all[0], all[1] + all[2]]);
    let axis = |unit| (unit, 1, Axis::Logarithmic);
    let columns = spans::RESOURCES.map(|column| [column, spans::PUBLISHED]);
    page.bars("ways", &resources, axis("in the unit of the legend"), columns.as_flattened())?;
    let columns = spans::HOURS.map(|column| [column, spans::PUBLISHED]);
    page.bars("ways-hours", &hours, axis("hours"), columns.as_flattened())?;
    let axes = ("memory MB at that", "rounds", None);
    page.lines("rounds", &spans::rounds_by_memory(), axes, &["rounds"])?;
    page.both("sizes", distribution::sizes())?;
    let columns = ["hours", "hours a byte is held"];
    page.bars("schedules", &spans::schedules(), ("hours", 3, Axis::Linear), &columns)
}

/// The tables of deletion.
fn deletions(page: &mut Page<'_>, options: &Tables) -> Result<()> {
    let (table, svg, many) = deletion::leaks(options.deletion_segments)?;
    page.both("leaks", (table, svg))?;
    let columns = [
        "by the formula, 1 % misjudged",
        "published (output)",
        "with the misjudgement counted here",
    ];
    let axes = ("share %", "deletions", None);
    page.lines("repair", &deletion::intervals(&many), axes, &columns)?;
    let columns = ["MB", "published MB (output)"];
    page.bars("vectors", &deletion::vectors(), ("MB", 1, Axis::Logarithmic), &columns)?;
    let shape = options.shape.shape();
    let segments = options.deletion_segments / 4;
    let costs: Costs = deletion::costs(&generate(&Shape { machines: 8, segments, ..shape }))?;
    let columns = ["recipes and maps MB", "vectors MB", "stored marks MB", "directories MB"];
    page.bars("deletion", &deletion::times(&costs), ("MB read", 1, Axis::Linear), &columns)?;
    page.both("deletion-cluster", deletion::cluster(&costs))
}
