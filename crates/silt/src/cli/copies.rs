//! The arguments of the command for copies of a repository.

use clap::{Args, Subcommand};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Copies {
    #[command(subcommand)]
    pub command: Option<CopiesCommand>,
}

#[derive(Subcommand)]
pub enum CopiesCommand {
    /// Keep a copy of the repository in another folder or bucket from now on, and fill it
    #[command(after_help = "Examples:
  silt copies add /mnt/second/silt
  silt copies add --shared /mnt/fast/silt-shared")]
    Add {
        /// An empty folder or one that does not exist yet, or s3://BUCKET/PREFIX.
        folder: String,
        /// Keep the shared store there, and there alone; given several times, a copy in each
        /// folder.
        #[arg(long)]
        shared: bool,
    },
    /// Go on without a copy; its files stay where they are
    #[command(after_help = "Examples:\n  silt copies remove /mnt/second/silt")]
    Remove {
        /// The folder, as `silt copies` lists it.
        folder: String,
        /// Remove it even if no complete copy is left; what the others lack is lost
        #[arg(long)]
        allow_incomplete: bool,
    },
    /// Say where a copy is now that was moved: a disk is mounted elsewhere, a folder or bucket has
    /// another name
    #[command(after_help = "Example:
  silt --repo /mnt/new/silt copies move /mnt/old/silt /mnt/new/silt")]
    Move {
        /// Where it was, as `silt copies` lists it.
        from: String,
        /// Where it is.
        to: String,
    },
    /// Copy to each place what it lacks, and replace what is damaged there
    #[command(
        after_help = "Examples:\n  silt copies heal\n  silt copies heal --read-data --dry-run"
    )]
    Heal {
        /// Compare all bytes, and not only names and sizes.
        #[arg(long)]
        read_data: bool,
        /// Say what would be done, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}
