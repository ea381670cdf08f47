//! The arguments of the command for storage nodes.

use clap::{Args, Subcommand};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Node {
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
}

#[derive(Subcommand)]
pub enum NodeCommand {
    /// List the nodes: where they are, what they hold, and which backups write to them
    #[command(after_help = "Examples:\n  silt node list\n  silt node list --json")]
    List,
    /// Add a node: backups write new chunks to it from now on
    #[command(after_help = "Examples:
  silt node add n1 /mnt/disk1/silt
  silt node add n2 s3://node2/silt

Every host that backs up or restores must reach the location under this name. The node's store is
there alone: `silt node copy` adds a second place.")]
    Add {
        /// Its name.
        name: String,
        /// A folder that is empty or does not exist yet, or s3://BUCKET/PREFIX.
        location: String,
    },
    /// Keep the store of a node at another place too
    #[command(after_help = "Examples:\n  silt node copy n1 s3://copies/n1")]
    Copy {
        /// Its name.
        name: String,
        /// An empty location.
        location: String,
    },
    /// Copy the store of a node to another place, and then use that place alone
    #[command(after_help = "Examples:
  silt node drain n1 s3://node4/silt

Snapshots stay as they are. The old place is not used any more; its files stay there. After an
interruption, run the same command again.")]
    Drain {
        /// Its name.
        name: String,
        /// An empty location.
        location: String,
    },
    /// Write no new chunks to a node; what it holds stays in use
    #[command(after_help = "Examples:\n  silt node close n1")]
    Close {
        /// Its name.
        name: String,
    },
    /// Write new chunks to a closed node again
    #[command(after_help = "Examples:\n  silt node open n1")]
    Open {
        /// Its name.
        name: String,
    },
}
