//! The arguments of the commands for rounds.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Rounds {
    /// Print which series would be backed up together, and how long each stage should take
    #[command(after_help = "Examples:
  silt rounds plan fleet.toml --rounds 4
  silt rounds plan fleet.toml --time-limit 2h --spool --json")]
    Plan(Plan),
}

#[derive(Args)]
pub struct Plan {
    /// The fleet file, as for `silt backup --fleet`.
    pub fleet: PathBuf,
    #[command(flatten)]
    pub choice: Choice,
}

#[derive(Args)]
#[command(next_help_heading = "Rounds")]
pub struct Choice {
    /// Number of rounds. With more rounds, each volume is needed for a shorter time, but the whole
    /// backup takes longer.
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Use as many rounds as should fit into this time, such as 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", conflicts_with = "rounds")]
    pub time_limit: Option<String>,
    /// Copy changed data to a temporary file, so that each volume is read once and released after
    /// the scan. Without it, changed parts of volumes are read twice.
    #[arg(long)]
    pub spool: bool,
    /// A folder for temporary files: about 32 bytes per stored chunk, and the spool.
    #[arg(long, value_name = "FOLDER")]
    pub temp: Option<PathBuf>,
    /// Expected speed of reading volumes, in MiB per second.
    #[arg(long, default_value_t = 2500, value_name = "MIB",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub scan_rate: u32,
    /// Expected speed of compressing and writing new data, in MiB per second.
    #[arg(long, default_value_t = 400, value_name = "MIB",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub store_rate: u32,
}
