//! The arguments of the command for storage nodes.

use clap::{Args, Subcommand};

use crate::agent::BusOptions;

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
    /// Answer look-ups of backups for nodes, from memory, until the process is stopped
    #[command(after_help = "Examples:
  silt node run n1 --bus-server nats://bus1:4222
  silt node run n1 n2 --config /etc/silt/silt.toml
  silt node run n1 --approximate --json

Runs on the host whose disk or bucket the node is, so that backups need not read the node's index
over the network. Backups with ask-nodes = true in [agent] ask it by [agent.bus], and read the index
themselves if nobody answers. It writes nothing; several may answer for a node.")]
    Run(NodeRun),
    /// Take a node out of the repository that has no chunks, or is lost
    #[command(after_help = "Examples:
  silt node remove n1           # n1 has no chunks
  silt node remove n1 --lost    # its disk is broken, and there is no copy of it

The node's name becomes free. With --lost, snapshots that need chunks of the node can't be restored
completely any more, even if it comes back; `silt check` then lists them, and the next backup of
each series stores again what it needs. It is refused while the node's chunks can be reached: move
these with `silt node drain`.")]
    Remove {
        /// Its name.
        name: String,
        /// Give up chunks that only it had.
        #[arg(long)]
        lost: bool,
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

#[derive(Args)]
pub struct NodeRun {
    /// Names of nodes.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Most memory for parts of each node's index, in MiB. Large nodes use less of it, at least a
    /// quarter: there are 56 bytes for each MiB of chunks besides.
    #[arg(long, default_value_t = 32, value_name = "MIB",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub index_memory: u32,
    /// Look only around the representatives of super-chunks: faster, and misses a few chunks.
    #[arg(long)]
    pub approximate: bool,
    #[command(flatten)]
    pub bus: BusOptions,
}
