//! The command line of the Siltstone program: its commands, options and pages of help, and the
//! values that the options stand for.

// A doc comment is the help of an option. On a struct it would replace the help of its command.
#![expect(missing_docs, reason = "the help of a command is on its variant, not on its arguments")]
#![allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls, reason = "help is plain text")]

mod agent;
mod completion;
mod compression;
mod config;
mod copies;
mod deletion;
mod files;
mod global;
mod help;
mod import;
mod key;
mod manual;
mod mount;
mod node;
mod popular;
mod program;
mod replicate;
mod rounds;
mod series;
mod serve;
mod tree_options;
mod trees;
mod tune;
pub mod volume_args;

pub use agent::{
    Agent, AgentRun, BusOptions, Calendar, Cluster, ClusterBackup, ClusterCancel, ClusterRound,
    ClusterStatus,
};
pub use completion::{Complete, Manual};
pub use compression::level as compression_level;
pub use config::ConfigCommand;
pub use copies::{Copies, CopiesCommand};
pub use deletion::{
    Delete, Forget, Group, Optimize, Policy, Reclaim, RetentionRules, SetPolicy, SomeSnapshots,
    Sweep, Undelete,
};
pub use files::{Files, FilesCommand};
pub use global::Global;
pub use help::{Topic, command, introduction, page, topic};
pub use import::{Import, ImportHow, ImportTar};
pub use key::{Cost, Key, NewKey, NewPassword};
pub use manual::write_manual;
pub use mount::{Mount, Unmount};
pub use node::{Node, NodeCommand, NodeRun};
pub use popular::{Build as PopularBuild, Choice as PopularChoice, Popular};
pub use program::{
    Backup, ChangedForm, Check, Cli, Command, Diff, Init, ListSnapshots, OneSnapshot, Repo,
    Restore, Rollback, Snapshots, SourceFormat, Status, TargetFormat,
};
pub use replicate::{DeltaWhen, Replicate, ServeReplica};
pub use rounds::{Choice as RoundsChoice, Plan as PlanRounds, Rounds};
pub use series::{Remove, Rename, Tag, TagChange};
pub use serve::{Serve, ServeNbd};
pub use trees::{
    Archive, Cat, Dump, Find, Ls, Owners, TreeArgs, TreeRestoreArgs, Versions, Xattrs,
};
pub use tune::Tune;
