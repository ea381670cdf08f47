//! The arguments of replication.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use silt_terminal::window::{self, Window};

use crate::key::Cost;

/// Parses an address to listen on.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| "use an IP address of this machine and a port, as in 0.0.0.0:7420".to_owned();
    text.parse().map_err(wrong)
}

#[derive(Args)]
pub struct Replicate {
    /// The series to replicate, also as 'db-*'; all by default.
    pub series: Vec<String>,
    /// Name in the profile (all by default), folder or bucket, tcp://HOST:PORT,
    /// ssh://[USER@]HOST[:PORT]/PATH or exec:COMMAND.
    #[arg(long, value_name = "DEST")]
    pub to: Option<String>,
    /// Make the replica first if there is none, with a password of its own.
    #[arg(long, requires = "to")]
    pub init: bool,
    /// Make it append-only: deleting there takes the password of an administrator.
    #[arg(long, requires = "init")]
    pub append_only: bool,
    /// Read and store anew what a repository with another secret lacks.
    #[arg(long, conflicts_with = "init")]
    pub foreign: bool,
    /// Put this in front of the names of series at the replica.
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Replicate only snapshots with this tag; repeatable.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Only the newest N missing snapshots of each series; others never.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Print which snapshots would be sent, and send nothing.
    #[arg(short = 'n', long, conflicts_with = "init")]
    pub dry_run: bool,
    /// Send only at this time of the day, such as 22:00-06:00.
    #[arg(long, value_name = "TIMES", value_parser = window::parse)]
    pub window: Option<Window>,
    /// Stop showing this replica in `silt status`; send nothing.
    #[arg(long, conflicts_with_all = ["init", "dry_run"], requires = "to")]
    pub forget: bool,
    /// Zstd level, 1 to 19; by default as needed.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: Option<i32>,
    /// Deltas from similar data: auto (default) or off.
    #[arg(long, value_name = "WHEN", hide_possible_values = true)]
    pub delta: Option<DeltaWhen>,
    /// Read the replica's password from the first line of this file.
    #[arg(long, value_name = "FILE")]
    pub to_password_file: Option<PathBuf>,
    /// The program to run on the other machine; `silt` by default.
    #[arg(long, value_name = "PATH")]
    pub remote_program: Option<String>,
    #[command(flatten)]
    pub cost: Cost,
}

/// When chunks go as deltas.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeltaWhen {
    Auto,
    Off,
}

#[derive(Args)]
pub struct ServeReplica {
    /// Listen on a TCP address with TLS: only who has the repository's secret is let in. By default
    /// serve one connection on standard input and output.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Allow at most this many connections at once.
    #[arg(long, default_value_t = 16, value_name = "N", requires = "listen",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections_max: u16,
    /// Store new data that comes as deltas as such: auto (default) or off.
    #[arg(long, value_name = "WHEN", hide_possible_values = true)]
    pub delta: Option<DeltaWhen>,
    /// If there is no repository, make a replica when a source asks for one.
    #[arg(long, conflicts_with = "listen")]
    pub init: bool,
}
