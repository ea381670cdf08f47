//! Directories of this machine: walking them, reading their metadata, and recreating them.
//!
//! [`Walk`] visits a directory tree in the order of names and reads the metadata of every entry.
//! [`Rules`] select the entries that it leaves out. [`Trust`] decides whether a file is unchanged
//! since an earlier backup. [`Maker`] recreates a tree from names and metadata; [`TarWriter`] and
//! [`ZipWriter`] write it as an archive. A backup reads a [`TreeSource`]: a walk, or a tree from
//! elsewhere; if it has to read the tree twice, a [`TreeOrigin`]. Nothing here knows about
//! repositories.
//!
//! Every file is opened relative to the descriptor of its directory, one name at a time. Paths may
//! therefore have any length, and directories may be renamed meanwhile.

mod acl;
mod archive;
mod attributes;
mod descent;
mod file;
mod kind;
mod listed;
mod make;
mod mounts;
mod names;
mod notices;
mod origin;
mod owners;
mod path_rules;
mod patterns;
mod rules;
mod source;
mod status;
mod unchanged;
mod walk;

pub use acl::{ACCESS_ACL, AclOwner, DEFAULT_ACL, acl_owners, acl_text, mode_acl_text};
pub use archive::{ArchiveEntry, TarWriter, ZipWriter};
pub use file::OpenFile;
pub use kind::{MAGIC_BYTES, kind_of};
pub use listed::PathList;
pub use make::{
    Existing, FAILURES_MAX, Failure, FileStep, MakeOptions, Maker, Missing, NewFile, OtherNames,
    OwnerChoice, PresentFile, Report, XattrChoice,
};
pub use mounts::{FileSystemTraits, file_system_traits};
pub use notices::{LeftOut, Omission, Unreliable};
pub use origin::{LocalTree, TreeOrigin};
pub use owners::{OwnerMap, Owners};
pub use path_rules::{Choice, PathMatcher, PathRules};
pub use patterns::{PATTERN_BYTES_MAX, PATTERNS_MAX};
pub use rules::{Marker, Reason, Rules};
pub use source::{FileSource, TreeSource};
pub use unchanged::{GRANULARITY_SECONDS, Trust};
pub use walk::{DEPTH_MAX, Found, Step, Walk};
