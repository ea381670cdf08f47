//! The Siltstone program with repositories in folders of HDFS.

use std::process::ExitCode;

fn main() -> ExitCode {
    silt::main_with(&silt::Program { name: "silt-hdfs", kinds: &[silt_hdfs::HDFS] })
}
