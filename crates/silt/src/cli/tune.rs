//! The command line of `silt tune`.

use std::path::PathBuf;

use clap::Args;

use super::TreeArgs;

/// `silt tune`.
#[derive(Args)]
pub struct Tune {
    /// A directory whose files are like those that are backed up.
    pub path: PathBuf,
    /// How much of each kind of files is measured.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub limit: String,
    /// Draw bytes saved per second over chunk sizes into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Let later backups of this series cut files as proposed.
    #[arg(long, value_name = "SERIES")]
    pub apply: Option<String>,
    /// Let later backups of this series cut files by default again, and measure nothing.
    #[arg(long, value_name = "SERIES", conflicts_with_all = ["apply", "plot"])]
    pub reset: Option<String>,
    #[command(flatten)]
    pub tree: TreeArgs,
}
