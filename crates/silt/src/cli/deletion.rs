//! The arguments of the commands that delete and reclaim.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Delete {
    /// Ids, SERIES@latest or SERIES@2026-11-20.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
    /// Find out exactly what is dead, by reading all recipes of the series.
    #[arg(long)]
    pub exact: bool,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct SomeSnapshots {
    /// Ids, SERIES@latest or SERIES@2026-11-20.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

#[derive(Args)]
pub struct Undelete {
    /// The first digits of the ids of deleted snapshots; `silt snapshots --deleted` lists them.
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}

#[derive(Args, Default)]
pub struct RetentionRules {
    /// Keep the N newest snapshots; -1 for all, as with the other counts.
    #[arg(long, short = 'l', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_last: Option<u32>,
    /// Keep the newest snapshot of each of the N last hours that have one.
    #[arg(long, short = 'H', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_hourly: Option<u32>,
    /// Keep the newest snapshot of each of the N last days that have one.
    #[arg(long, short = 'd', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_daily: Option<u32>,
    /// Keep the newest snapshot of each of the N last weeks that have one.
    #[arg(long, short = 'w', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_weekly: Option<u32>,
    /// Keep the newest snapshot of each of the N last months that have one.
    #[arg(long, short = 'm', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_monthly: Option<u32>,
    /// Keep the newest snapshot of each of the N last years that have one.
    #[arg(long, short = 'y', value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub keep_yearly: Option<u32>,
    /// Keep all snapshots that are at most so much older than the newest, such as 1y5m7d2h.
    #[arg(long, value_name = "PERIOD")]
    pub keep_within: Option<String>,
    /// Keep all snapshots with this label; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub keep_tag: Vec<String>,
    /// Delete nothing that the repository has held for less than this, such as 3d, whatever time
    /// the snapshot claims: what a host floods the series with then pushes nothing good out.
    #[arg(long, value_name = "PERIOD")]
    pub min_age: Option<String>,
}

#[derive(Args)]
pub struct Forget {
    /// Only these series.
    pub series: Vec<String>,
    #[command(flatten)]
    pub keep: RetentionRules,
    /// What snapshots are taken together: series, host, tags, and several of them with commas.
    #[arg(long, default_value = "series", value_delimiter = ',', value_name = "WHAT")]
    pub group_by: Vec<Group>,
    /// Reclaim the space afterwards. What was deleted just now stays for `silt undelete`, for as
    /// long as the series' policy says, else for a day.
    #[arg(long)]
    pub reclaim: bool,
    /// How long deleted snapshots can be brought back, such as 7d; 0 frees their space at once.
    #[arg(long, value_name = "PERIOD", requires = "reclaim")]
    pub keep_deleted: Option<String>,
    /// Delete more than half of a series' snapshots without asking.
    #[arg(long)]
    pub yes: bool,
    /// Let a series be left without any snapshot.
    #[arg(long)]
    pub allow_empty: bool,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// The series
    Series,
    /// The host that made the snapshot
    Host,
    /// The labels
    Tags,
}

#[derive(Args)]
pub struct Reclaim {
    /// Only these series.
    pub series: Vec<String>,
    /// Rewrite containers of which at least so many percent are dead.
    #[arg(long, default_value_t = 20.0, value_name = "PERCENT")]
    pub min_dead: f64,
    /// Find out exactly what is dead, whatever the forecast; else only when it passes 1 percent of
    /// what the series stores.
    #[arg(long, alias = "repair")]
    pub sweep: bool,
    /// How long what an interrupted backup has uploaded is kept for the next one, such as 24h.
    #[arg(long, default_value = "24h", value_name = "PERIOD")]
    pub grace: String,
    /// How long deleted snapshots can be brought back, such as 7d; by default as the series' policy
    /// says, else not at all.
    #[arg(long, value_name = "PERIOD")]
    pub keep_deleted: Option<String>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Sweep {
    /// Only these series.
    pub series: Vec<String>,
    /// Take the containers in at least so many phases, each of which reads all recipes: less
    /// memory, more time. --memory asks for as many as it needs.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub phases: u64,
    /// Find out, and note nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand)]
pub enum Policy {
    /// Show the policies of all or some series
    #[command(after_help = "Examples:\n  silt policy show\n  silt policy show web1 --json")]
    Show {
        /// Only these series.
        series: Vec<String>,
    },
    /// Store a series' policy, instead of the one it has
    #[command(after_help = "Examples:
  silt policy set web1 --keep-daily 7 --keep-weekly 4 --keep-monthly 12
  silt policy set web1 --keep-within 30d --min-age 3d --keep-deleted 7d")]
    Set(SetPolicy),
    /// Remove a series' policy
    #[command(after_help = "Examples:\n  silt policy remove web1")]
    Remove {
        /// The series.
        series: String,
    },
}

#[derive(Args)]
pub struct SetPolicy {
    /// The series.
    pub series: String,
    #[command(flatten)]
    pub keep: RetentionRules,
    /// How long deleted snapshots can be brought back, such as 7d.
    #[arg(long, value_name = "PERIOD")]
    pub keep_deleted: Option<String>,
}

/// A number of snapshots; -1 and `unlimited` stand for all.
fn count(text: &str) -> Result<u32, String> {
    match text {
        "-1" | "unlimited" => Ok(u32::MAX),
        _ => text.parse().map_err(|_| format!("'{text}' is no number; use 7, or -1 for all")),
    }
}
