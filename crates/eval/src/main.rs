//! Runs the schemes that Siltstone is built on over traces, by backing them up with Siltstone, and
//! prints what comes out beside what was published.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "an evaluation reads the clock, prints, and computes shares"
)]

mod availability;
mod buffers;
mod claims;
mod correlated;
mod coverage;
mod deletion;
mod disk;
mod distribution;
mod exchange;
mod fiu;
mod fleet;
mod generate;
mod measure;
mod memory;
mod network;
mod record;
mod replication;
mod routed;
mod scale;
mod schemes;
mod segment_time;
mod sensitivity;
mod spans;
mod tables;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use rustix::time::{ClockId, clock_gettime};

use crate::generate::{Shape, generate};
use crate::trace::Trace;

/// Errors end the program with their text; nobody tells them apart.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

#[derive(Parser)]
#[command(
    name = "silt-eval",
    about = "Run deduplication schemes on traces, beside what was published"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Record the fingerprints of disks over days
    #[command(after_help = "Examples:\n  silt-eval record --disks /vm/fleet --trace fleet.trace")]
    Record {
        /// A folder with disks called VM.dayN.raw.
        #[arg(long, value_name = "DIR")]
        disks: PathBuf,
        /// Only these machines.
        #[arg(long, value_delimiter = ',', value_name = "NAME")]
        vms: Vec<String>,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        trace: PathBuf,
    },
    /// Count the statistics of a trace that the generator takes
    #[command(after_help = "Examples:
  silt-eval measure --trace fleet.trace
  silt-eval measure --fiu homes/ --fiu mail/")]
    Measure {
        /// A file that `record` or `generate` wrote.
        #[arg(long, value_name = "FILE", required_unless_present = "fiu")]
        trace: Option<PathBuf>,
        /// A block trace in the text format of FIU's traces (SNIA, "IODedup"), or a folder with one
        /// file for each day; may be repeated, once for each host.
        #[arg(long, value_name = "PATH", conflicts_with = "trace")]
        fiu: Vec<PathBuf>,
    },
    /// Generate a trace with the published proportions
    #[command(after_help = "Examples:\n  silt-eval generate --machines 500 --trace large.trace")]
    Generate {
        #[command(flatten)]
        shape: ShapeArgs,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        trace: PathBuf,
    },
    /// Plan a cluster: memory, hours, messages, requests and dollars, by the cost model
    #[command(after_help = "Examples:
  silt-eval scale
  silt-eval scale --disks 20000 --disk-gb 100 --speed-mb 300")]
    Scale(scale::Inputs),
    /// Compare similarity replication (Neptune) with other schemes, on bytes
    #[command(after_help = "Examples:
  silt-eval neptune --out results
  silt-eval neptune --out results --disks /vm/fleet --versions linux-1 linux-2
  silt-eval neptune --out results --ways sidc,neptune")]
    Neptune(silt_eval_neptune::Options),
    /// Compare routing between storage nodes (AppDedupe) with other schemes, on generated streams
    #[command(after_help = "Examples:
  silt-eval appdedupe --out results
  silt-eval appdedupe --out results --full")]
    Appdedupe(silt_eval_routing::Options),
    /// Run a process of table 5.3, which `appdedupe` starts
    #[command(hide = true)]
    AppdedupeMember(silt_eval_routing::MemberOptions),
    /// Write all tables and plots to a folder
    #[command(after_help = "Examples:
  silt-eval tables --out results
  silt-eval tables --out results --trace fleet.trace --scale 0.02")]
    Tables(Tables),
}

#[derive(Args)]
struct ShapeArgs {
    /// How many machines.
    #[arg(long, default_value_t = 64)]
    machines: usize,
    /// Segments of 2 MiB on each disk.
    #[arg(long, default_value_t = 8)]
    segments: usize,
    /// Snapshots of each machine.
    #[arg(long, default_value_t = 10)]
    days: usize,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl ShapeArgs {
    fn shape(&self) -> Shape {
        let Self { machines, segments, days, seed } = *self;
        Shape { machines, segments, days, seed, ..Shape::default() }
    }
}

#[derive(Args)]
struct Tables {
    /// The folder for RESULTS.md, a CSV file of each table and the plots.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A recorded trace, beside the generated one.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Block traces whose statistics are printed beside those of other traces: see `measure`.
    #[arg(long, value_name = "PATH")]
    fiu: Vec<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Of the requests of the published cluster's hosts, the share that is exchanged.
    #[arg(long, default_value_t = 0.05)]
    scale: f64,
    /// Hosts that the exchange simulates.
    #[arg(long, default_value_t = 4)]
    hosts: usize,
    /// How often blocks are placed to count which snapshots survive.
    #[arg(long, default_value_t = 200)]
    trials: usize,
    /// Segments of a series whose snapshots are deleted.
    #[arg(long, default_value_t = 256)]
    deletion_segments: usize,
    /// Only the tables of 001 and of the rounds of 002.
    #[arg(long)]
    rounds_only: bool,
    /// Segments of a machine in the round whose comparing is counted.
    #[arg(long, default_value_t = 256)]
    claim_segments: usize,
    /// How many hosts take part in the rounds whose exchange is counted.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32])]
    exchange_hosts: Vec<usize>,
}

/// The clock, which only says how long something took.
fn now() -> Instant {
    Instant::now()
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Record { disks, vms, trace } => {
            record::record(&disks, &vms).and_then(|recorded| save(&recorded, &trace))
        }
        Command::Measure { trace, fiu } => measured(trace.as_deref(), &fiu),
        Command::Generate { shape, trace } => save(&generate(&shape.shape()), &trace),
        Command::Scale(inputs) => {
            println!("{}\n{}", scale::table(&inputs).markdown(), scale::limits(&inputs).markdown());
            Ok(())
        }
        Command::Neptune(options) => silt_eval_neptune::run(&options),
        Command::Appdedupe(options) => silt_eval_routing::run(&options),
        Command::AppdedupeMember(options) => silt_eval_routing::run_member(&options),
        Command::Tables(options) => tables::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("silt-eval: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the statistics of a trace, or of block traces.
fn measured(trace: Option<&Path>, block_traces: &[PathBuf]) -> Result<()> {
    let trace = if let Some(file) = trace {
        Trace::read(file)?
    } else {
        let (trace, requests) = fiu::read(block_traces)?;
        println!("{}", fiu::table("the block trace", &requests).markdown());
        trace
    };
    let found = measure::measure(&trace);
    println!("{}\n{found:#?}", measure::table("the trace", &found).0.markdown());
    Ok(())
}

fn save(trace: &Trace, file: &Path) -> Result<()> {
    trace.write(file)?;
    println!(
        "{}: {} machines, {} days, {} chunks that are not zeros",
        file.display(),
        trace.machines.len(),
        trace.days(),
        trace.raw_chunks()
    );
    Ok(())
}
