//! The command line of `silt tune`.

use std::path::PathBuf;

use clap::Args;

use crate::trees::TreeArgs;

/// `silt tune`.
#[derive(Args)]
pub struct Tune {
    /// A directory whose files are like those that are backed up.
    pub path: PathBuf,
    /// Measure at most this much of each kind of files.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub limit: String,
    /// A folder for temporary files, about 5 % of what is measured.
    #[arg(long, value_name = "FOLDER")]
    pub temp: Option<PathBuf>,
    /// Write a plot of bytes saved per second over chunk sizes to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Use the proposed chunkings in later backups of this series.
    #[arg(long, value_name = "SERIES")]
    pub apply: Option<String>,
    /// Use the default chunkings again in later backups of this series; measure nothing.
    #[arg(long, value_name = "SERIES", conflicts_with_all = ["apply", "plot"])]
    pub reset: Option<String>,
    #[command(flatten)]
    pub tree: TreeArgs,
}
