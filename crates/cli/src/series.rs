//! The arguments of the commands that change what series and snapshots are called.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Rename {
    /// The series.
    pub series: String,
    /// The name to show from now on.
    #[arg(value_name = "NEW")]
    pub new: String,
}

#[derive(Args)]
pub struct Remove {
    /// The series.
    pub series: String,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand)]
pub enum Tag {
    /// Add tags to snapshots
    #[command(after_help = "Examples:
  silt tag add web1@latest before-upgrade
  silt tag add -s 3f9a01bc -s web1@2026-11-20 before-upgrade tested")]
    Add(TagChange),
    /// Remove tags from snapshots
    #[command(after_help = "Examples:\n  silt tag remove web1@latest before-upgrade")]
    Remove(TagChange),
}

#[derive(Args)]
pub struct TagChange {
    /// A snapshot (id, SERIES@latest or SERIES@2026-11-20), then tags. With --snapshot, only tags.
    #[arg(required = true, value_name = "SNAPSHOT|TAG")]
    pub words: Vec<String>,
    /// A snapshot; may be given several times.
    #[arg(short, long = "snapshot", value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}
