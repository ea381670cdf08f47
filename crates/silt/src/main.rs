//! The Siltstone program.

mod advice;
mod cli;
mod commands;
mod confirm;
mod failure;
mod location;
mod noted;
mod output;
mod progress;
mod secrets;
mod snapshot_name;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap prints each where it belongs.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
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
    let code = match commands::run(&cli, interrupted) {
        Ok(code) => code,
        Err(failure) => {
            let code = failure.exit_code();
            output::error(cli.global.json, &failure.to_string(), code);
            code
        }
    };
    match output::failure() {
        Some(error) if code == 0 => {
            let message =
                format!("what was to be printed is not all there: standard output: {error}");
            output::error(cli.global.json, &message, 1);
            ExitCode::from(1)
        }
        _ => ExitCode::from(code),
    }
}
