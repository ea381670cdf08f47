//! The command line of file trees.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// The heading of options for file trees.
pub const FILE_TREES: &str = "File trees";

/// What of a file tree is backed up.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TreeArgs {
    /// Leave out entries of a directory tree that match this pattern, in the syntax of gitignore;
    /// may be given several times. A pattern that begins with `!` includes entries again.
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub exclude: Vec<String>,
    /// Like --exclude, but ignore the case of letters.
    #[arg(long, value_name = "PATTERN", help_heading = FILE_TREES)]
    pub iexclude: Vec<String>,
    /// Leave out what matches a pattern in this file, one pattern per line.
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
    /// Leave out what is mounted below the directory.
    #[arg(long, short = 'x', help_heading = FILE_TREES)]
    pub one_file_system: bool,
    /// Read all files, even those whose metadata did not change.
    #[arg(long, help_heading = FILE_TREES)]
    pub reread: bool,
    /// Do not compare inode numbers. They are ignored on FUSE, NFS and SMB anyway.
    #[arg(long, help_heading = FILE_TREES)]
    pub ignore_inode: bool,
    /// Do not compare change times.
    #[arg(long, help_heading = FILE_TREES)]
    pub ignore_ctime: bool,
}

/// How a file tree is restored.
#[derive(Args)]
pub struct TreeRestoreArgs {
    /// With --in-place: remove everything from the target that is not in the snapshot.
    #[arg(long, requires = "in_place", help_heading = FILE_TREES)]
    pub delete: bool,
    /// Who owns restored files: the original owners by number or by name, or the user who restores.
    #[arg(long, value_enum, default_value_t = Owners::Numbers, help_heading = FILE_TREES)]
    pub owners: Owners,
    /// Which extended attributes are restored.
    #[arg(long, value_enum, default_value_t = Xattrs::All, help_heading = FILE_TREES)]
    pub xattrs: Xattrs,
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
    /// SNAPSHOT lists its volumes, SNAPSHOT:/PATH a directory of its file tree, and
    /// SNAPSHOT:VOLUME/PATH one of several trees.
    pub snapshot: String,
    /// Show mode, owner, size and time.
    #[arg(long, short)]
    pub long: bool,
    /// List directories below, too.
    #[arg(long, short = 'R')]
    pub recursive: bool,
}

#[derive(Args)]
pub struct Cat {
    /// SNAPSHOT:/PATH, or SNAPSHOT:VOLUME/PATH.
    #[arg(required = true, value_name = "SNAPSHOT:/PATH")]
    pub files: Vec<String>,
}
