//! The arguments of the commands for the shared store.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Popular {
    /// Count in how many series each chunk occurs, and print what sharing would save
    #[command(after_help = "Examples:\n  silt popular plan\n  silt popular plan --share 8 --json")]
    Plan(Choice),
    /// Copy the most popular chunks to the shared store, and replace private copies by links
    #[command(after_help = "Examples:
  silt popular build --share 2
  silt popular build --duplicates
  silt popular build --share 4 --no-repoint")]
    Build(Build),
}

#[derive(Args)]
pub struct Choice {
    /// Share the chunks that most series have, at most this percentage of all distinct chunks.
    #[arg(long, default_value_t = 2.0, value_name = "PERCENT")]
    pub share: f64,
    /// Share all chunks that two or more series have.
    #[arg(long, conflicts_with = "share")]
    pub duplicates: bool,
    /// A folder for temporary files, about 32 bytes per stored chunk.
    #[arg(long, value_name = "FOLDER")]
    pub temp: Option<PathBuf>,
}

#[derive(Args)]
pub struct Build {
    #[command(flatten)]
    pub choice: Choice,
    /// Keep private copies as they are; later backups still use the shared ones.
    #[arg(long)]
    pub no_repoint: bool,
}
