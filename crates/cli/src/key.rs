//! The arguments of the commands for keys.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use silt_format::KdfCost;
use silt_terminal::failure::Failure;

#[derive(Subcommand)]
pub enum Key {
    /// List the repository's keys; * marks the one in use
    #[command(after_help = "Examples:\n  silt key list\n  silt key list --json")]
    List,
    /// Add a password with full rights, or a write-only one for a host that only backs up
    #[command(after_help = "Examples:
  silt key add
  silt key add --label 'office safe' --new-password-file /root/second
  silt key add --write-only --series web1 --new-password-file web1.password
  silt key add --write-only --series 'db-*,web1' --new-password-file db.password")]
    Add(NewKey),
    /// Remove a key, and with it its password
    #[command(after_help = "Examples:\n  silt key remove 3f9a01bc")]
    Remove {
        /// The first digits of the key's id.
        id: String,
    },
    /// Replace the password in use
    #[command(after_help = "Examples:
  silt key passwd
  silt key passwd --new-password-file /root/next")]
    Passwd(NewPassword),
}

#[derive(Args)]
pub struct NewKey {
    /// Make a key that backs up and deduplicates, and can neither read data nor delete anything.
    #[arg(long)]
    pub write_only: bool,
    /// The series that the key may write: names, or prefixes followed by '*', separated by commas;
    /// '*' means every series. --write-only requires it. Objects that the key signs for other
    /// series are refused.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub series: Vec<String>,
    /// Make a write-only key whose series share no chunks with others. Its host cannot test what
    /// other series hold.
    #[arg(long, requires = "write_only")]
    pub no_share: bool,
    /// What the key is for; `silt key list` shows it.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    #[command(flatten)]
    pub password: NewPassword,
}

#[derive(Args)]
pub struct NewPassword {
    /// Read the new password from the first line of this file (or SILT_NEW_PASSWORD, or a prompt).
    #[arg(long, value_name = "FILE")]
    pub new_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub cost: Cost,
}

#[derive(Args)]
pub struct Cost {
    /// Memory for key derivation (Argon2id), in MiB, 8 to 1024.
    #[arg(long, default_value_t = 32, value_name = "MIB")]
    pub kdf_memory: u32,
    /// Passes of key derivation over that memory, 1 to 64.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub kdf_passes: u32,
}

impl Cost {
    /// Converts the cost to the format's.
    pub fn to_kdf(&self) -> Result<KdfCost, Failure> {
        let memory_kib = self.kdf_memory.saturating_mul(1024);
        let lanes = KdfCost::default().lanes;
        let cost = KdfCost { memory_kib, passes: self.kdf_passes, lanes };
        cost.validate().map_err(|error| Failure::Usage(error.to_string()))
    }
}
