//! Arguments of the commands that packages and shells call.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct Complete {
    /// The shell.
    pub shell: clap_complete::Shell,
    /// The number of the word to complete; the program is word 0.
    pub index: usize,
    /// The words of the command line.
    #[arg(last = true)]
    pub words: Vec<OsString>,
}

#[derive(Args)]
pub struct Manual {
    /// The folder.
    pub folder: PathBuf,
    /// The date on the pages, such as 2026-11-23.
    #[arg(long, value_name = "DAY")]
    pub date: Option<String>,
}
