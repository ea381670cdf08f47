//! The options that every command has.

use std::path::PathBuf;

use clap::Args;
use silt_terminal::rate::{self, Rate};
use silt_terminal::snapshot_name;

/// The heading of the options that only repositories in buckets need.
pub const BUCKETS: &str = "Options for buckets";

#[derive(Args)]
pub struct Global {
    /// Location of the repository: a folder, or s3://BUCKET/PREFIX (see `silt help buckets`).
    #[arg(
        short,
        long,
        alias = "repository",
        global = true,
        env = "SILT_REPOSITORY",
        value_name = "PATH"
    )]
    pub repo: Option<String>,
    /// Read settings from this file: profiles of repository, password, limits, retention and
    /// series. By default $XDG_CONFIG_HOME/silt/silt.toml, or else /etc/silt/silt.toml.
    #[arg(long, global = true, env = "SILT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Use this profile of the configuration file.
    #[arg(long, global = true, env = "SILT_PROFILE", value_name = "NAME")]
    pub profile: Option<String>,
    /// Read the password from the first line of this file, or of the systemd credential NAME if it
    /// is credential:NAME.
    #[arg(long, global = true, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Read the administrator's password of an append-only repository from the first line of this
    /// file.
    #[arg(long, global = true, value_name = "FILE")]
    pub admin_password_file: Option<PathBuf>,
    /// Print JSON lines, each with a "message_type".
    #[arg(long, global = true)]
    pub json: bool,
    /// On success, print only what you asked for, such as a list. Warnings and errors still go to
    /// standard error.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print on standard error which repository and key are used, and how long the command took.
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Append all messages to this file, with the time, also those that --quiet suppresses.
    #[arg(long, global = true, env = "SILT_LOG_FILE", value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Number of threads; 0 means one per core, and for backups two more, for file trees one more.
    /// --memory limits them: four at 64 MiB, one more for each 12 MiB.
    #[arg(short, long, global = true, default_value_t = 0, value_name = "N")]
    pub jobs: usize,
    /// Memory for the buffers of a backup or restore, in MiB, at least 24. Key derivation needs its
    /// own memory before that and frees it.
    #[arg(long, global = true, default_value_t = 64, value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(24..=1 << 20))]
    pub memory: u64,
    /// Read at most this much per second: from sources in a backup, otherwise from the repository.
    /// A number is in MiB/s; 200k is in KiB/s, 1.5m in MiB/s, 10mbit in millions of bits per
    /// second.
    #[arg(long, global = true, value_name = "RATE", value_parser = rate::parse)]
    pub limit_read: Option<Rate>,
    /// Write at most this much per second: to the target in a restore, to the line or the replica
    /// in a replication, otherwise to the repository.
    #[arg(long, global = true, value_name = "RATE", value_parser = rate::parse)]
    pub limit_write: Option<Rate>,
    /// Send at most this many requests to an object store in parallel. By default, commands on many
    /// series send 32, and a backup uploads 4 objects, of which more than two need more memory
    /// (`--memory`). With 1, series are processed one after the other.
    // No `env`: an option behind a location comes first, and its variable is read there.
    #[arg(long, global = true, value_name = "COUNT", help_heading = BUCKETS)]
    pub connections: Option<usize>,
    /// Print the cost of the requests to buckets at these prices, in dollars per million requests
    /// and per GB received, such as put=5,list=5,get=0.4,received=0.09.
    #[arg(long, global = true, env = "SILT_S3_PRICES", value_name = "PRICES",
        help_heading = BUCKETS)]
    pub s3_prices: Option<String>,
    /// Folder of the cache for repositories in object stores; by default `silt` in the user's cache
    /// folder. It can be deleted at any time.
    #[arg(long, global = true, env = "SILT_CACHE_DIR", value_name = "FOLDER",
        help_heading = BUCKETS)]
    pub cache_dir: Option<PathBuf>,
    /// Cache at most this many MiB per repository.
    #[arg(long, global = true, env = "SILT_CACHE_SIZE", value_name = "MIB",
        help_heading = BUCKETS)]
    pub cache_size: Option<u64>,
    /// Do not use the cache.
    #[arg(long, global = true, env = "SILT_NO_CACHE", help_heading = BUCKETS,
        value_parser = clap::builder::FalseyValueParser::new())]
    pub no_cache: bool,
    /// Accept a repository that is older than the one this machine saw last, because you rolled it
    /// back. The machine records the newest commit of each series below $XDG_STATE_HOME/silt.
    #[arg(long, global = true)]
    pub accept_older: bool,
    #[arg(long, global = true, hide = true, env = "XDG_CACHE_HOME")]
    pub cache_home: Option<PathBuf>,
    #[arg(long, global = true, hide = true, env = "XDG_CONFIG_HOME")]
    pub config_home: Option<PathBuf>,
    /// The profile's command that prints the password.
    #[arg(skip)]
    pub password_command: Option<String>,
    #[arg(long, global = true, hide = true, env = "XDG_STATE_HOME")]
    pub state_home: Option<PathBuf>,
    #[arg(long, global = true, hide = true, env = "HOME")]
    pub home: Option<PathBuf>,
    /// Wait up to this long, such as 10m or 2h, for another process that works on the same series.
    #[arg(long, global = true, value_name = "TIME", value_parser = snapshot_name::wait)]
    pub wait: Option<u64>,
    /// Lower the program's priority by N steps, up to 19. The default is 19 for reclaim, sweep and
    /// popular, and 0 for other commands.
    #[arg(long, global = true, value_name = "STEPS",
        value_parser = clap::value_parser!(i32).range(0..=19))]
    pub nice: Option<i32>,
}
