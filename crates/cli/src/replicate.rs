//! The arguments of replication.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::key::Cost;

#[derive(Args)]
pub struct Replicate {
    /// The series to replicate; all by default.
    pub series: Vec<String>,
    /// Where the replica is: a folder or bucket, ssh://[USER@]HOST[:PORT]/PATH, tcp://HOST:PORT of
    /// `silt serve replica`, or exec:COMMAND that runs that server.
    #[arg(long, value_name = "DEST")]
    pub to: String,
    /// Make a missing replica in a folder or bucket; it has its own password.
    #[arg(long)]
    pub init: bool,
    /// Put this in front of the names of series at the replica.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Replicate only snapshots with this tag; repeatable.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Replicate only the newest N of each series' missing snapshots.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,
    /// Print which snapshots would be sent, and send nothing.
    #[arg(short = 'n', long, conflicts_with = "init")]
    pub dry_run: bool,
    /// Zstd level, 1 to 19, of what is sent.
    #[arg(long, value_name = "LEVEL", default_value_t = 9,
        value_parser = clap::value_parser!(i32).range(1..=19))]
    pub compression: i32,
    /// Read the replica's password from the first line of this file.
    #[arg(long, value_name = "FILE")]
    pub to_password_file: Option<PathBuf>,
    /// The program to run on the other machine.
    #[arg(long, value_name = "PATH", default_value = "silt")]
    pub remote_program: String,
    #[command(flatten)]
    pub cost: Cost,
}

#[derive(Args)]
pub struct ServeReplica {
    /// Listen on a TCP address with TLS: only who has the repository's secret is let in. By default
    /// serve one connection on standard input and output.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Allow at most this many connections at once.
    #[arg(long, default_value_t = 16, value_name = "N", requires = "listen",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections_max: u16,
}
