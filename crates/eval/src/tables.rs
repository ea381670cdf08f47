//! All tables and plots of the first three papers, in the order of the page.

use std::path::Path;
use std::time::Instant;

use crate::availability::Layout;
use crate::buffers::{Measured, Simulated};
use crate::deletion::{self, Costs};
use crate::generate::{Shape, generate};
use crate::schemes::Outcomes;
use crate::trace::Trace;
use crate::{
    Result, Tables, availability, buffers, coverage, distribution, exchange, measure, memory,
    network, replication, schemes, segment_time, sensitivity, spans,
};
use silt_report::Table;

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
    let shape = options.shape.shape();
    let generated = generate(&shape);
    let machines = format!("{} generated machines", generated.machines.len());
    let outcomes = efficiency(&mut page, &machines, "", &generated)?;
    if let Some(file) = &options.trace {
        let recorded = Trace::read(file)?;
        let machines = format!("{} recorded machines", recorded.machines.len());
        efficiency(&mut page, &machines, "-recorded", &recorded)?;
    }
    // Many traces, which are smaller.
    let machines = options.shape.machines.min(32);
    let base = Shape { machines, segments: 6, days: 6, ..shape };
    page.add("sensitivity", &sensitivity::table(&base)?)?;
    let layout = Layout::scaled(&generated, &outcomes);
    page.add("availability", &availability::table(&layout))?;
    page.plot("availability", &availability::copies_plot(&layout))?;
    let placed = availability::counted(&generated, &outcomes.blocks, 100, options.trials);
    page.add("availability-counted", &placed)?;
    page.add("blocks", &replication::blocks())?;
    rounds(&mut page, options)?;
    deletions(&mut page, options)?;
    Ok(std::fs::write(options.out.join("RESULTS.md"), page.text)?)
}

/// The tables of 000 over a trace. `kind` is what their names end in.
fn efficiency(page: &mut Page<'_>, machines: &str, kind: &str, trace: &Trace) -> Result<Outcomes> {
    let found = measure::measure(trace);
    let name = if kind.is_empty() { "the generated trace" } else { "the recorded trace" };
    page.add(&format!("statistics{kind}"), &measure::table(name, &found))?;
    page.both(&format!("frequency{kind}"), distribution::frequency(machines, trace))?;
    let outcomes = schemes::run_all(trace)?;
    let mut table = schemes::table(machines, trace, &outcomes);
    if !kind.is_empty() {
        table.note("The published figures come from other machines, and many more of them.");
    }
    page.add(&format!("efficiency{kind}"), &table)?;
    page.both(&format!("coverage{kind}"), coverage::table(machines, trace, &outcomes))?;
    page.both(&format!("memory{kind}"), memory::table(machines, trace, &outcomes))?;
    page.add(&format!("copies{kind}"), &replication::cost(machines, trace, &outcomes))?;
    page.both(&format!("segment-time{kind}"), segment_time::table(machines, trace)?)?;
    Ok(outcomes)
}

/// The tables of 001 and of the rounds of 002.
fn rounds(page: &mut Page<'_>, options: &Tables) -> Result<()> {
    let folder = std::env::temp_dir();
    let simulated = Simulated { scale: options.scale, hosts: options.hosts, folder: &folder };
    page.add("exchange", &exchange::table(options.scale, options.hosts, &folder)?)?;
    page.both("figure-3", buffers::memory(&simulated)?)?;
    for (name, table, svg) in buffers::figures(&simulated)? {
        page.both(name, (table, svg))?;
    }
    page.both("span-by-hosts", buffers::span_by_hosts(&simulated)?)?;
    let shape = options.shape.shape();
    let measured: Measured = network::cpu(&generate(&Shape { machines: 16, days: 2, ..shape }))?;
    page.add("resources", &buffers::resources(&measured))?;
    let (table, exchanged) = network::table(&shape, &options.exchange_hosts)?;
    page.add("network", &table)?;
    page.both("network-cluster", network::cluster(&exchanged))?;
    let all = exchanged.of_cluster(spans::PAPER.hosts);
    let [resources, hours] = spans::comparison(all);
    page.add("ways", &resources)?;
    page.add("ways-hours", &hours)?;
    page.add("rounds", &spans::rounds_by_memory())?;
    page.both("sizes", distribution::sizes())?;
    page.add("schedules", &spans::schedules())
}

/// The tables of deletion.
fn deletions(page: &mut Page<'_>, options: &Tables) -> Result<()> {
    let (table, svg, many) = deletion::leaks(options.deletion_segments)?;
    page.both("leaks", (table, svg))?;
    page.add("repair", &deletion::intervals(&many))?;
    page.add("vectors", &deletion::vectors())?;
    let shape = options.shape.shape();
    let segments = options.deletion_segments / 4;
    let costs: Costs = deletion::costs(&generate(&Shape { machines: 8, segments, ..shape }))?;
    page.add("deletion", &deletion::times(&costs))?;
    page.both("deletion-cluster", deletion::cluster(&costs))
}
