//! The arguments of the commands that delete and reclaim.

use clap::{Args, Subcommand};
use serde::Deserialize;
use silt_format::RetentionPolicy;
use silt_terminal::failure::Failure;
use silt_terminal::snapshot_name;

use crate::compression;

#[derive(Args)]
pub struct Delete {
    /// Ids, SERIES@latest or SERIES@2026-11-20.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
    /// Find dead chunks exactly, by reading all recipes of the series.
    #[arg(long)]
    pub exact: bool,
    /// Print what would be deleted, and delete nothing.
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

#[derive(Args, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
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
    /// Keep all snapshots at most this much older than the newest, such as 1y5m7d2h (m: months).
    #[arg(long, value_name = "PERIOD")]
    pub keep_within: Option<String>,
    /// Keep all snapshots with this tag; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub keep_tag: Vec<String>,
    /// Delete no snapshot that the repository has held for less than this, such as 3d, whatever
    /// its date.
    #[arg(long, value_name = "PERIOD")]
    pub min_age: Option<String>,
}

impl RetentionRules {
    /// Returns the policy that the options give, or `None`.
    pub fn policy(&self) -> Result<Option<RetentionPolicy>, Failure> {
        let within = self.keep_within.as_deref().map(snapshot_name::parse_period).transpose()?;
        let min_age = self.min_age.as_deref().map(snapshot_name::parse_seconds).transpose()?;
        let policy = RetentionPolicy {
            last: self.keep_last.unwrap_or(0),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            monthly: self.keep_monthly.unwrap_or(0),
            yearly: self.keep_yearly.unwrap_or(0),
            within: within.unwrap_or_default(),
            tags: self.keep_tag.clone(),
            age_min_s: min_age.unwrap_or(0),
            keep_deleted_s: 0,
        };
        let says_nothing = policy.is_empty() && self.min_age.is_none();
        if policy.is_empty() && !says_nothing {
            let message = "--min-age alone is not a rule; add a --keep rule";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok((!says_nothing).then_some(policy))
    }
}

#[derive(Args)]
pub struct Forget {
    /// Only these series.
    pub series: Vec<String>,
    #[command(flatten)]
    pub keep: RetentionRules,
    /// Apply the rules to snapshots grouped by series, host or tags, or by several with commas.
    #[arg(
        long,
        default_value = "series",
        value_delimiter = ',',
        value_name = "WHAT",
        hide_possible_values = true
    )]
    pub group_by: Vec<Group>,
    /// Reclaim the space afterwards. The snapshots deleted now can be brought back for a day, or as
    /// long as the policy says.
    #[arg(long)]
    pub reclaim: bool,
    /// How long these can be brought back, such as 7d; 0 frees the space now.
    #[arg(long, value_name = "PERIOD", requires = "reclaim")]
    pub keep_deleted: Option<String>,
    /// Delete more than half of a series' snapshots without asking.
    #[arg(long)]
    pub yes: bool,
    /// Allow the rules to delete all snapshots of a series.
    #[arg(long)]
    pub allow_empty: bool,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// The series
    Series,
    /// The host that made the snapshot
    Host,
    /// The tags
    Tags,
}

#[derive(Args)]
pub struct Reclaim {
    /// Only these series.
    pub series: Vec<String>,
    /// Rewrite containers that are at least this many percent dead.
    #[arg(long, default_value_t = 20.0, value_name = "PERCENT")]
    pub min_dead: f64,
    /// Always find dead chunks exactly. By default, this is done only if a forecast says that
    /// unknown dead chunks exceed 1 percent of the stored data of the series.
    #[arg(long, alias = "repair")]
    pub sweep: bool,
    /// How long to keep the uploads of an interrupted backup for the next one, such as 24h.
    #[arg(long, default_value = "24h", value_name = "PERIOD")]
    pub grace: String,
    /// How long deleted snapshots can be brought back, such as 7d; by default as long as the
    /// series' policy says, otherwise not at all.
    #[arg(long, value_name = "PERIOD")]
    pub keep_deleted: Option<String>,
    /// Let the agents of [agent.bus] count which shared chunks series refer to.
    #[arg(long, conflicts_with = "series")]
    pub with_agents: bool,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Optimize {
    /// Only these series.
    pub series: Vec<String>,
    /// Store a chunk as a delta if that saves at least this many percent of its compressed size.
    #[arg(long, default_value_t = 25.0, value_name = "PERCENT")]
    pub min_saved: f64,
    /// Rewrite a container if that makes it smaller by at least this many percent.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub min_container: f64,
    /// How much to compress what is rewritten: a name or a zstd level as for `silt init`.
    /// Containers that become smaller by it alone are rewritten, too.
    #[arg(long, default_value = "9", value_name = "LEVEL", allow_negative_numbers = true,
        value_parser = compression::level)]
    pub compression: i32,
    /// Only store chunks as deltas; compress as backups do.
    #[arg(long, conflicts_with = "compression")]
    pub deltas_only: bool,
    /// Print what would be saved, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct Sweep {
    /// Only these series.
    pub series: Vec<String>,
    /// Process the containers in at least N phases. Each phase reads all recipes: more phases need
    /// less memory and more time. More are used if --memory requires it.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub phases: u64,
    /// Print the result, and store nothing.
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
    /// Set a series' policy, replacing the one it has
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
        _ => text.parse().map_err(|_| format!("'{text}' is not a number; use 7, or -1 for all")),
    }
}
