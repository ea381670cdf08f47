//! The command line of `silt import`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Import {
    /// Import a tar archive as a snapshot of a file tree
    #[command(after_help = "Examples:
  tar -C /srv/home -c --xattrs --acls --sparse . | silt import tar home
  silt import tar home --file home-2019.tar.gz --time '2019-05-01 22:00' --tag old
  ssh old-host cat backup.tar.zst | silt import tar old-host:root --host old-host
  silt dump home@latest | silt -r /other/repository import tar home

Reads archives of GNU tar, bsdtar, star and POSIX, also compressed with gzip or zstd. An entry that
can't be stored, such as one with an absolute path or '..', is refused by name and the others are
imported: exit status 3. A truncated or damaged archive makes no snapshot: exit status 1.

The archive's content is first put into a sealed temporary file below $TMPDIR, which takes as much
space as the archive without its holes.")]
    Tar(ImportTar),
    /// Import the snapshots of a restic repository
    #[command(after_help = "Examples:
  silt import restic --from /backup/restic --from-password-file /root/restic --dry-run
  RESTIC_REPOSITORY=s3:... RESTIC_PASSWORD_FILE=... silt import restic --host web1
  silt import restic home --path /srv/home --root /srv/home

Makes one snapshot for each of restic's, the oldest first, with its time, host and tags. Those that
were imported before are skipped, so an interrupted import goes on where it stopped. Runs `restic
snapshots` and `restic dump`; the variables that restic reads are passed on.

`restic dump` rounds times to seconds and lists every hard link as a file of its own.")]
    Restic(ImportRestic),
    /// Import the archives of a Borg repository
    #[command(
        alias = "borg-export-tar",
        after_help = "Examples:
  silt import borg --from /backup/borg --dry-run
  BORG_REPO=ssh://... BORG_PASSPHRASE=... silt import borg --host web1
  silt import borg home --archives 'home-*' --root srv/home

Makes one snapshot for each archive, the oldest first, with its time and host and with its name as
a tag. Archives that were imported before are skipped, so an interrupted import goes on where it
stopped. Runs `borg list` and `borg export-tar` of Borg 1; the variables that Borg reads are passed
on.

`borg export-tar` rounds times to seconds and leaves out ACLs, extended attributes and flags."
    )]
    Borg(ImportBorg),
}

#[derive(Args)]
pub struct ImportTar {
    /// The series, and the name of the volume: by default that of the series' only volume, or
    /// `files`.
    #[arg(value_name = "SERIES[:VOLUME]")]
    pub series: String,
    /// Read this file instead of standard input.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The time of the snapshot; by default now.
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// The host of the snapshot; by default this one.
    #[arg(long)]
    pub host: Option<String>,
    /// A tag of the snapshot; may be given several times.
    #[arg(long)]
    pub tag: Vec<String>,
    #[command(flatten)]
    pub how: ImportHow,
}

#[derive(Args)]
pub struct ImportHow {
    /// Import only what is in this directory of the archive, as the root of the tree.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub root: OsString,
    /// Show what would be imported.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct ImportRestic {
    /// The series, and the name of the volume (by default `files`). By default each snapshot goes
    /// into the series that is called like its host.
    #[arg(value_name = "SERIES[:VOLUME]")]
    pub series: Option<String>,
    /// The repository; by default what `RESTIC_REPOSITORY` says.
    #[arg(long, value_name = "LOCATION")]
    pub from: Option<OsString>,
    /// The file with its password; by default what `RESTIC_PASSWORD_FILE` and others say.
    #[arg(long, value_name = "FILE")]
    pub from_password_file: Option<PathBuf>,
    /// Only snapshots of this host; may be given several times.
    #[arg(long)]
    pub host: Vec<String>,
    /// Only snapshots of this path; if given several times, of all of them.
    #[arg(long)]
    pub path: Vec<String>,
    /// Only snapshots with this tag, or with all of several with commas between them; if given
    /// several times, with any of them.
    #[arg(long)]
    pub tag: Vec<String>,
    #[command(flatten)]
    pub how: ImportHow,
}

#[derive(Args)]
pub struct ImportBorg {
    /// The series, and the name of the volume (by default `files`). By default each archive goes
    /// into the series that is called like its host.
    #[arg(value_name = "SERIES[:VOLUME]")]
    pub series: Option<String>,
    /// The repository; by default what `BORG_REPO` says.
    #[arg(long, value_name = "LOCATION")]
    pub from: Option<OsString>,
    /// Only archives of this host; may be given several times.
    #[arg(long)]
    pub host: Vec<String>,
    /// Only archives whose name matches this pattern.
    #[arg(long, value_name = "GLOB")]
    pub archives: Option<String>,
    #[command(flatten)]
    pub how: ImportHow,
}
