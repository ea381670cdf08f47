//! The command line of `silt mount`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct Mount {
    /// An empty folder.
    pub folder: PathBuf,
    /// Let other users see the folder; in file trees, permissions of files then apply. Users other
    /// than root need `user_allow_other` in /etc/fuse.conf.
    #[arg(long)]
    pub allow_other: bool,
    /// Return as soon as the folder can be used, and serve it in the background. By default, the
    /// program runs until it is interrupted or the folder is unmounted.
    #[arg(long)]
    pub background: bool,
    /// With --background, append messages to this file; without --log they are lost.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Go on by itself once the repository is open; say so on standard output.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub detached: bool,
}

#[derive(Args)]
pub struct Unmount {
    /// The folder.
    pub folder: PathBuf,
    /// Unmount even while programs use it; their next read fails.
    #[arg(long)]
    pub force: bool,
}
