//! The arguments of `silt agent` and `silt cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use silt_terminal::snapshot_name;

#[derive(Subcommand)]
pub enum Agent {
    /// Back up the series of the profile when they are due, until the process is stopped
    #[command(after_help = "Examples:
  silt agent run --config /etc/silt/silt.toml
  silt agent run --config agent.toml --json

Each backup is a process of its own: `silt backup SERIES --due-since TIME`. What failed is tried
again after 1, 2, 4 ... at most 60 minutes. A backup that was missed while the machine was off is
made up for, once. On SIGTERM, backups end where they are, and the next start goes on from there.
The table [agent] is described in `silt help agents`.")]
    Run(AgentRun),
    /// Check the table [agent], and show when each task is due
    #[command(after_help = "Examples:
  silt agent check-config
  silt agent check-config --config agent.toml --json")]
    CheckConfig,
    /// Show the next times of calendar expressions, such as Mon..Fri 22:30
    #[command(after_help = "Examples:
  silt agent calendar daily
  silt agent calendar 'Mon..Fri 22:30' '*-*~01 03:00 Europe/Berlin' --count 3

The language is that of systemd.time(7). A time that is skipped when clocks are set forward counts
at that moment.")]
    Calendar(Calendar),
}

#[derive(Args)]
pub struct AgentRun {
    #[arg(long, hide = true, env = "NOTIFY_SOCKET")]
    pub notify_socket: Option<String>,
    #[arg(long, hide = true, env = "WATCHDOG_USEC")]
    pub watchdog_usec: Option<u64>,
    #[arg(long, hide = true, env = "WATCHDOG_PID")]
    pub watchdog_pid: Option<u32>,
}

#[derive(Args)]
pub struct Calendar {
    /// Calendar expressions, such as daily, hourly, 'Sat 03:00' or '*-*-01 04:30'.
    #[arg(required = true, value_name = "EXPRESSION")]
    pub expressions: Vec<String>,
    /// Number of times to show.
    #[arg(long, default_value_t = 5, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
}

#[derive(Subcommand)]
pub enum Cluster {
    /// Show the tasks of all agents: last backup, next time, progress, errors
    #[command(after_help = "Examples:
  silt cluster status
  silt cluster status --overdue-after 2h --json
  silt cluster status --ignore lab-*

Exit status 20 if a task is overdue, or a series of the repository is listed by no agent that is
there. A series that nobody is to back up any more can be removed (`silt remove`) or ignored.")]
    Status(ClusterStatus),
    /// List the agents that are there
    #[command(after_help = "Examples:\n  silt cluster agents\n  silt cluster agents --json")]
    Agents(BusOptions),
    /// Have series backed up now, each by the agent that lists it
    #[command(after_help = "Examples:
  silt cluster backup web1 db1
  silt cluster backup web1 --follow
  silt cluster backup shared-vm --agent host2 --follow --json

With --follow, the exit status is that of the backup: 0, 3 if it was made with a warning, 1 if it
failed (the agent tries again), 11 if another process is at work, 130 if it was cancelled.")]
    Backup(ClusterBackup),
    /// Back up the series of all hosts together, so that what they have in common is stored once
    #[command(after_help = "Examples:
  silt cluster round
  silt cluster round --agents host1,host2 --parts 4
  silt cluster round --dry-run --json

Each host scans its series, and writes the fingerprints of what is new to them to the repository.
The hosts compare these, each a part; what two series have is stored once, by one host. Then each
series is backed up as usual. A host that is lost misses the round, and nobody else does: exit
status 1. Streams take no part.")]
    Round(ClusterRound),
    /// Cancel the running backup of a series
    #[command(after_help = "Examples:
  silt cluster cancel web1

The backup is made when it is due the next time. What was uploaded is used then.")]
    Cancel(ClusterCancel),
}

#[derive(Args)]
pub struct ClusterStatus {
    /// A task is overdue if it was to begin longer ago than this and does not run.
    #[arg(long, default_value = "1h", value_name = "TIME",
        value_parser = snapshot_name::wait)]
    pub overdue_after: u64,
    /// Series that need no agent: a name, or a beginning followed by *. May be given several times.
    #[arg(long, value_name = "SERIES")]
    pub ignore: Vec<String>,
    #[command(flatten)]
    pub bus: BusOptions,
}

#[derive(Args)]
pub struct ClusterBackup {
    /// The series.
    #[arg(required = true)]
    pub series: Vec<String>,
    /// The agent, if several list the series.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Begin even if the agent has as many runs as it may have at once.
    #[arg(long)]
    pub now: bool,
    /// Wait for the end, and show progress.
    #[arg(long)]
    pub follow: bool,
    #[command(flatten)]
    pub bus: BusOptions,
}

#[derive(Args)]
pub struct ClusterRound {
    /// The agents that take part; by default all that are there and allow it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub agents: Vec<String>,
    /// In how many parts. With more, volumes are needed for a shorter time, but all takes longer.
    /// By default as [agent] says (round-parts), or 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub parts: Option<u16>,
    /// In as many parts as should fit into this time, such as 6h.
    #[arg(long, value_name = "TIME", conflicts_with = "parts")]
    pub time_limit: Option<String>,
    /// Expected speed of reading volumes, in MiB per second; by default as measured, or 2500.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub scan_rate: Option<u32>,
    /// Expected speed of storing new data, in MiB per second; by default as measured, or 400.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub store_rate: Option<u32>,
    /// Leave out a host that does not answer for this long.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = snapshot_name::wait)]
    pub patience: u64,
    /// Show who would take part, and in which parts.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub bus: BusOptions,
}

#[derive(Args)]
pub struct ClusterCancel {
    /// The series.
    pub series: String,
    /// The agent; by default all that list the series.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    #[command(flatten)]
    pub bus: BusOptions,
}

/// How the bus is reached, instead of `[agent.bus]`.
#[derive(Args, Default)]
#[command(next_help_heading = "Bus, by default that of [agent.bus]")]
pub struct BusOptions {
    /// A server of the bus, such as nats://bus1:4222. May be given several times.
    #[arg(long, value_name = "URL")]
    pub bus_server: Vec<String>,
    /// The user to log in as.
    #[arg(long, value_name = "NAME", requires = "bus_password_file")]
    pub bus_user: Option<String>,
    /// A file with the user's password in its first line.
    #[arg(long, value_name = "FILE", requires = "bus_user")]
    pub bus_password_file: Option<PathBuf>,
    /// Certificates that servers are verified by, as PEM.
    #[arg(long, value_name = "FILE")]
    pub bus_certificates: Option<PathBuf>,
    /// The certificate to show to servers, as PEM.
    #[arg(long, value_name = "FILE", requires = "bus_key")]
    pub bus_certificate: Option<PathBuf>,
    /// Its private key, as PEM.
    #[arg(long, value_name = "FILE", requires = "bus_certificate")]
    pub bus_key: Option<PathBuf>,
    /// Begin with TLS at once, for servers with handshake_first.
    #[arg(long)]
    pub bus_tls_first: bool,
}
