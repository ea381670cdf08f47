//! The command line of `silt files`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Files {
    /// SNAPSHOT, or SNAPSHOT:VOLUME if the snapshot has several volumes.
    pub snapshot: String,
    /// The number of the partition, as Linux counts; needed if several partitions can be read.
    #[arg(long, global = true, value_name = "NUMBER")]
    pub partition: Option<u32>,
    #[command(subcommand)]
    pub command: FilesCommand,
}

#[derive(Subcommand)]
pub enum FilesCommand {
    /// List a directory. Without a path: the partitions, or the root directory if there is only one
    Ls {
        /// A path from the root of the file system.
        path: Option<OsString>,
    },
    /// Write files to standard output
    Cat {
        /// Paths from the root of the file system. Symbolic links are followed within the image.
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
    /// Copy a file, or a directory with everything in it, into a folder
    ///
    /// Permissions, times, symbolic links, hard links and holes are kept; extended attributes are
    /// not. Nothing is overwritten. Devices, pipes and sockets are left out. Exit status 5 if
    /// damaged files were left out.
    Get {
        /// A path from the root of the file system; / copies everything in it.
        path: OsString,
        /// The folder to copy into; created if it does not exist.
        folder: PathBuf,
        /// Give files the owners and setuid bits that they have in the image, by number; needs
        /// root.
        #[arg(long)]
        owners: bool,
    },
}
