//! The Siltstone program.

use std::process::ExitCode;

fn main() -> ExitCode {
    silt::main_with(&silt::Program { name: "silt", kinds: &[] })
}
