//! The storage and the program on a real name node and data node of HDFS, started here.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod hadoop;
#[expect(dead_code, reason = "the tests of `silt` use all of it")]
#[path = "../../../../crates/silt/tests/e2e/kit.rs"]
mod kit;
mod program;
mod storage;

/// The program that the kit runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_silt-hdfs");
