//! The Siltstone program as a library.
//!
//! A program with further kinds of storage calls [`main_with`] from a crate of its own, so `silt`
//! itself does not depend on their clients.

mod commands;
mod noted;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::FromArgMatches;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use silt_cli as cli;
pub use silt_location::StorageKind;
use silt_terminal::{
    advice, confirm, failure, output, progress, rate, secrets, snapshot_name, window,
};

#[global_allocator]
static ALLOCATOR: silt_source::LargeAligned = silt_source::LargeAligned;

/// A program that is this library: `silt`, or one with further kinds of storage.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name under which it is started.
    pub name: &'static str,
    /// The kinds of storage that it has in addition to those of this library.
    pub kinds: &'static [StorageKind],
}

/// Parses the command line, runs the command, and returns the exit status.
///
/// Reads the environment, takes over the signals of the process, and prints to standard output and
/// standard error. The process has this library's allocator.
pub fn main_with(program: &Program) -> ExitCode {
    silt_source::keep_heap_small();
    let command = cli::command().name(program.name);
    let parsed = command.try_get_matches();
    let parsed =
        parsed.and_then(|matches| cli::Cli::from_arg_matches(&matches).map(|cli| (cli, matches)));
    let (mut cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are no errors; clap prints each where it belongs.
            let code = if error.use_stderr() { 2 } else { 0 };
            // The parser has failed, so it can't say whether messages are for a program.
            if code == 2 && std::env::args_os().any(|argument| argument == "--json") {
                output::error(true, error.render().to_string().trim_end(), code);
            } else {
                let _ = error.print();
            }
            return ExitCode::from(code);
        }
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    // A terminal that is closed is no reason to leave things half done, either.
    let signals = [SIGINT, SIGTERM, SIGHUP];
    for signal in signals {
        // A second signal ends the process at once, as people expect of Ctrl-C.
        let again =
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted));
        let first = signal_hook::flag::register(signal, Arc::clone(&interrupted));
        if again.and(first).is_err() {
            output::error(cli.global.json, "signals cannot be caught", 1);
        }
    }
    let code = match commands::run(program, &mut cli, &matches, interrupted) {
        Ok(code) => code,
        Err(failure) => {
            let code = failure.exit_code();
            output::error(cli.global.json, &failure.to_string(), code);
            code
        }
    };
    match output::failure() {
        Some(error) if code == 0 => {
            let message = format!("the output is incomplete: standard output: {error}");
            output::error(cli.global.json, &message, 1);
            ExitCode::from(1)
        }
        _ => ExitCode::from(code),
    }
}
