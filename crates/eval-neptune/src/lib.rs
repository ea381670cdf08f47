//! Similarity replication (Neptune), and what it is compared with, on bytes.

#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an evaluation reads the clock, says how far it is, and computes shares"
)]

mod bases;
mod claims;
mod cluster;
mod destination;
mod endre;
mod generate;
mod grouping;
mod inputs;
mod outside;
mod page;
mod prepare;
mod read;
mod recovery;
mod segments;
mod send;
mod set;
mod tables;
mod ways;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use silt_similarity::SketchParameters;

use crate::prepare::{Prepared, Preparing, Sketches};
use crate::tables::Run;
use silt_report::{Page, Result};

/// What to run, and where to write it.
#[derive(Args)]
pub struct Options {
    /// The folder for NEPTUNE.md, a CSV file of each table and the plots.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Megabytes of each generated set before its first round; 0 for none.
    #[arg(long, default_value_t = 32)]
    mb: u64,
    /// Folders with the versions of one tree, the oldest first.
    #[arg(long, num_args = 2.., value_name = "DIR")]
    versions: Vec<PathBuf>,
    /// A folder with disks called VM.dayN.raw.
    #[arg(long, value_name = "DIR")]
    disks: Option<PathBuf>,
    /// Of a version of a tree, and of the disks' first days, megabytes to read.
    #[arg(long, default_value_t = 1000)]
    limit_mb: u64,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The date and machine, for the page.
    #[arg(long, value_name = "TEXT")]
    machine: Option<String>,
    /// Only what these schemes send: full, dedup, endre, endre-small, endre-chunks,
    /// endre-adaptive, cbd, sidc, standard, neptune, neptune-whole, product, outside.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    ways: Vec<String>,
}

/// The clock, which only says how long something took.
fn now() -> Instant {
    Instant::now()
}

/// A set with its sketches.
type Set = (Prepared, Sketches);

fn sketched(preparing: Preparing) -> Set {
    let prepared = preparing.finish();
    let sketches = prepared.sketch(SketchParameters::NEPTUNE);
    (prepared, sketches)
}

fn sets(options: &Options) -> Result<Vec<Set>> {
    let mut sets = Vec::new();
    for profile in generate::PROFILES.iter().filter(|_| options.mb > 0) {
        let mut preparing = Preparing::new(profile.name)?;
        let bytes = options.mb * 1_000_000;
        generate::generate(profile, options.seed, bytes, &mut |it| preparing.add(&it))?;
        sets.push(sketched(preparing));
    }
    let limit = options.limit_mb * 1_000_000;
    if !options.versions.is_empty() {
        let mut preparing = Preparing::new("versions of a tree")?;
        read::trees(&options.versions, limit, &mut |it| preparing.add(&it))?;
        sets.push(sketched(preparing));
    }
    if let Some(folder) = &options.disks {
        let mut preparing = Preparing::new("disks by day")?;
        let names = read::disks(folder, limit, &mut |it| preparing.add(&it))?;
        eprintln!("disks: {}", names.join(", "));
        sets.push(sketched(preparing));
    }
    if sets.is_empty() {
        return Err(
            "there is no set: --mb is 0, and neither --versions nor --disks is given".into()
        );
    }
    Ok(sets)
}

/// Runs everything, and writes the tables and plots.
pub fn run(options: &Options) -> Result<()> {
    let known = |key: &String| ways::NAMES.iter().any(|name| name.0 == key.as_str());
    if let Some(key) = options.ways.iter().find(|key| !known(key)) {
        return Err(format!("there is no scheme {key}").into());
    }
    std::fs::create_dir_all(&options.out)?;
    let sets = sets(options)?;
    let text = (page::HEAD, page::METHOD);
    let mut page = Page::new(&options.out, "NEPTUNE.md", text, options.machine.as_deref());
    let mut runs = Vec::new();
    for (prepared, sketches) in &sets {
        let outcomes = ways::run(prepared, sketches, &options.ways)?;
        runs.push(Run { set: prepared.name.clone(), chunks: prepared.chunks.len(), outcomes });
    }
    if !options.ways.is_empty() {
        for (number, run) in runs.iter().enumerate() {
            page.table(&format!("schemes-{number}"), &tables::schemes(run))?;
        }
        return page.write();
    }
    let curves = bases::choices(&sets)?;
    page.table("claims", &claims::table(&runs, &curves.1))?;
    page.table("parameters", &page::parameters())?;
    page.table("inputs", &inputs::sizes(sets.iter().map(|set| &set.0)))?;
    page.table("resemblance", &inputs::resemblance(sets.iter().map(|set| &set.0)))?;
    page.figure("figure-3", bases::selection(&sets)?)?;
    page.table("bases", &curves.0)?;
    page.figure("figure-4", tables::filtered(&runs))?;
    page.figure("figure-5", tables::rates(&runs))?;
    page.table("table-1", &tables::memory(&runs))?;
    page.figure("figure-7", tables::steps(&runs))?;
    page.table("ratios", &tables::ratios(&runs))?;
    for (number, run) in runs.iter().enumerate() {
        page.table(&format!("schemes-{number}"), &tables::schemes(run))?;
    }
    page.table("groups", &grouping::on_and_off(&sets)?)?;
    page.table("groups-of-many", &grouping::many_files())?;
    page.table("sensitivity", &bases::sensitivity(&sets[0].0)?)?;
    page.figure("figure-10", recovery::table(&sets[0].0)?)?;
    page.table("chains", &recovery::limits(sets.iter().map(|set| &set.0))?)?;
    page.table("missing", &page::missing())?;
    page.write()
}
