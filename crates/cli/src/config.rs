//! The arguments of `silt config`.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration file
    #[command(after_help = "Examples:
  silt config check
  silt config check --config silt.toml --profile offsite")]
    Check,
    /// Show the settings in effect, and where each comes from
    #[command(after_help = "Examples:\n  silt config show --profile offsite")]
    Show,
}
