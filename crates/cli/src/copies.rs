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
    /// Add a copy of the repository in another folder or bucket, and fill it
    #[command(after_help = "Examples:
  silt copies add /mnt/second/silt
  silt copies add --shared /mnt/fast/silt-shared")]
    Add {
        /// A folder that is empty or does not exist yet, or s3://BUCKET/PREFIX.
        folder: String,
        /// Keep the shared store there and nowhere else. Run it again with another folder to keep a
        /// copy of the shared store there too.
        #[arg(long)]
        shared: bool,
    },
    /// Remove a copy from the list; its files stay where they are
    #[command(after_help = "Examples:\n  silt copies remove /mnt/second/silt")]
    Remove {
        /// Its location, as `silt copies` lists it.
        folder: String,
        /// Remove it even if no complete copy is left; objects that the others lack are lost.
        #[arg(long)]
        allow_incomplete: bool,
    },
    /// Record the new location of a copy: its disk is mounted elsewhere, or its folder or bucket
    /// was renamed
    #[command(after_help = "Example:
  silt --repo /mnt/new/silt copies move /mnt/old/silt /mnt/new/silt")]
    Move {
        /// The old location, as `silt copies` lists it.
        from: String,
        /// The new location.
        to: String,
    },
    /// Copy missing objects to each copy, and replace damaged ones
    #[command(
        after_help = "Examples:\n  silt copies heal\n  silt copies heal --read-data --dry-run"
    )]
    Heal {
        /// Compare all bytes, not only names and sizes.
        #[arg(long)]
        read_data: bool,
        /// Print what would be done, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}
