//! The command line of file trees.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::volume_args::PatternText;

/// The heading of options for file trees.
pub const FILE_TREES: &str = "File trees";

/// What of a file tree is backed up.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TreeArgs {
    /// Back up only the files and directories listed in this file, one path per line, or on
    /// standard input if it is `-`; with all that is below them. Paths are relative to the
    /// directory that is backed up, or absolute. Lines that begin with `#` are ignored.
    #[arg(long, value_name = "FILE", help_heading = FILE_TREES)]
    pub files_from: Vec<PathBuf>,
    /// Like --files-from, but each path ends with a zero byte, as `find -print0` writes them.
    #[arg(long, visible_alias = "files-from0", value_name = "FILE", help_heading = FILE_TREES)]
    pub files_from_raw: Vec<PathBuf>,
    /// Leave out entries that match this pattern (gitignore); may be given several times. A pattern
    /// with a slash starts at the directory that is backed up. `!` includes entries again.
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub exclude: Vec<PatternText>,
    /// Like --exclude, but ignore the case of letters.
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub iexclude: Vec<PatternText>,
    /// Leave out entries that match a pattern in this file, one pattern per line.
    #[arg(long, value_name = "FILE", help_heading = FILE_TREES)]
    pub exclude_file: Vec<PathBuf>,
    /// Leave out the content of directories that are caches (CACHEDIR.TAG).
    #[arg(long, help_heading = FILE_TREES)]
    pub exclude_caches: bool,
    /// Leave out the content of directories with a file of this name; with NAME:HEADER only if the
    /// file begins with HEADER.
    #[arg(long, value_name = "NAME", help_heading = FILE_TREES)]
    pub exclude_if_present: Vec<String>,
    /// Leave out files larger than this.
    #[arg(long, value_name = "SIZE", help_heading = FILE_TREES)]
    pub exclude_larger_than: Option<String>,
    /// Leave out files with the flag `nodump`.
    #[arg(long, help_heading = FILE_TREES)]
    pub exclude_nodump: bool,
    /// Leave out the content of other file systems that are mounted below the directory.
    #[arg(long, short = 'x', help_heading = FILE_TREES)]
    pub one_file_system: bool,
    /// Read all files, even unchanged ones.
    #[arg(long, help_heading = FILE_TREES)]
    pub reread: bool,
    /// Do not compare inode numbers. They are ignored on FUSE, SMB, 9p, FAT and overlayfs anyway.
    #[arg(long, help_heading = FILE_TREES)]
    pub ignore_inode: bool,
    /// Do not compare change times. They are ignored on FUSE, NFS, SMB, 9p and FAT anyway.
    #[arg(long, help_heading = FILE_TREES)]
    pub ignore_ctime: bool,
}

/// How a file tree is restored.
#[derive(Args)]
pub struct TreeRestoreArgs {
    /// With --in-place: remove entries that are not in the snapshot.
    #[arg(long, requires = "in_place", help_heading = FILE_TREES)]
    pub delete: bool,
    /// Owners of restored files: the original ones by number or by name, or you.
    #[arg(long, value_enum, default_value_t = Owners::Numbers, help_heading = FILE_TREES)]
    pub owners: Owners,
    /// Extended attributes.
    #[arg(long, value_enum, default_value_t = Xattrs::All, help_heading = FILE_TREES)]
    pub xattrs: Xattrs,
    /// Restore only entries that match this pattern (gitignore).
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub include: Vec<OsString>,
    /// Leave out entries that match this pattern; --delete keeps them.
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub exclude: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Owners {
    Numbers,
    Names,
    Me,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Xattrs {
    All,
    User,
    None,
}

#[derive(Args)]
pub struct Ls {
    /// SNAPSHOT lists its volumes, SNAPSHOT:/PATH a directory of its only file tree, and
    /// SNAPSHOT:VOLUME/PATH a directory of one of several.
    pub snapshot: OsString,
    /// Show mode, owner, size and time; a + behind the mode stands for an ACL.
    #[arg(long, short)]
    pub long: bool,
    /// List subdirectories, too.
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Show owners and ACLs as getfacl does, for `setfacl --restore`.
    #[arg(long, conflicts_with = "long")]
    pub acl: bool,
}

#[derive(Args)]
pub struct Cat {
    /// SNAPSHOT:/PATH, or SNAPSHOT:VOLUME/PATH.
    #[arg(required = true, value_name = "SNAPSHOT:/PATH")]
    pub files: Vec<OsString>,
}

#[derive(Args)]
pub struct Find {
    /// SNAPSHOT, SNAPSHOT:/PATH or SNAPSHOT:VOLUME/PATH; or SERIES, SERIES:/PATH or
    /// SERIES:VOLUME/PATH to search all snapshots of a series.
    #[arg(value_name = "SNAPSHOT|SERIES")]
    pub place: OsString,
    /// Entries whose name matches this pattern, or one of several. A pattern with a slash is
    /// compared with the whole path, as in .gitignore.
    #[arg(long, value_name = "GLOB")]
    pub name: Vec<OsString>,
    /// Like --name, but ignore the case of letters.
    #[arg(long, value_name = "GLOB")]
    pub iname: Vec<OsString>,
    /// Entries of these types: f, d, l, p, s, c, b as in find(1).
    #[arg(long = "type", value_name = "TYPES", value_delimiter = ',')]
    pub types: Vec<char>,
    /// Entries modified since this time, or within this period, such as 7d.
    #[arg(long, value_name = "TIME|PERIOD")]
    pub newer_than: Option<String>,
    /// Entries modified before this time, or longer ago than this period.
    #[arg(long, value_name = "TIME|PERIOD")]
    pub older_than: Option<String>,
    /// Files larger than this, such as 10MiB.
    #[arg(long, value_name = "SIZE")]
    pub larger_than: Option<String>,
    /// Files smaller than this.
    #[arg(long, value_name = "SIZE")]
    pub smaller_than: Option<String>,
    /// Entries of this owner: a number, or the name on the host that was backed up.
    #[arg(long, value_name = "USER")]
    pub owner: Option<String>,
    /// Show mode, owner, size and time.
    #[arg(long, short)]
    pub long: bool,
}

#[derive(Args)]
pub struct Versions {
    /// SERIES:/PATH, or SERIES:VOLUME/PATH, of a file or a directory.
    #[arg(value_name = "SERIES:/PATH")]
    pub place: OsString,
    /// Also begin a new version when only attributes, such as permissions, have changed.
    #[arg(long)]
    pub attributes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Archive {
    /// Tar (pax) with extended attributes, hard links and holes
    Tar,
    /// Zip: files, directories and symbolic links
    Zip,
}

#[derive(Args)]
pub struct Dump {
    /// SNAPSHOT, SNAPSHOT:/PATH or SNAPSHOT:VOLUME/PATH.
    pub snapshot: OsString,
    /// The format of the archive.
    #[arg(long, value_enum, default_value_t = Archive::Tar)]
    pub format: Archive,
    /// Write to this file instead of standard output; it must not exist.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
