//! Says which ext2, ext3 or ext4 file system a volume of the latest snapshot of a series holds, out
//! of the repository: nothing is restored.
//!
//! `cargo run -p siltstone --example superblock -- REPOSITORY SERIES VOLUME`; the repository is in
//! a folder, its password in SILT_PASSWORD.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example is a program")]

use std::sync::Arc;

use siltstone::storage::LocalStorage;
use siltstone::{Error, Repository, Result, Selector, SystemEnv, VolumeReader, When};

/// Where the superblock is, and how it begins to be one: struct ext4_super_block of the kernel.
const SUPERBLOCK: u64 = 1024;
const MAGIC: [u8; 2] = [0x53, 0xef];

/// The label and size of the file system that a volume begins with.
pub fn describe(reader: &VolumeReader) -> Result<String> {
    let mut block = [0; 1024];
    reader.read_at(SUPERBLOCK, &mut block)?;
    if block[56..58] != MAGIC {
        return Err(Error::invalid("there is no ext file system at the volume's beginning"));
    }
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| block[at + byte]));
    let name = String::from_utf8_lossy(&block[120..136]);
    let (blocks, block_bytes) = (u64::from(number(4)), 1024_u64 << number(24));
    let mib = (blocks * block_bytes) >> 20;
    Ok(format!("'{}', {mib} MiB in {blocks} blocks", name.trim_end_matches('\0')))
}

/// The same of a volume of the latest snapshot of a series.
pub fn run(repository: &str, series: &str, volume: &str, password: &str) -> Result<String> {
    let storage = Arc::new(LocalStorage::open(repository)?);
    let repository =
        Repository::open(storage, SystemEnv::context(), || Ok(password.as_bytes().to_vec()))?;
    let found = repository.find(&Selector::Time(Some(series.to_owned()), When::Latest))?;
    describe(&VolumeReader::open(&repository, found.volume(volume)?, 0)?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [repository, series, volume] = arguments.as_slice() else {
        return Err(Error::invalid("usage: superblock REPOSITORY SERIES VOLUME"));
    };
    let password = std::env::var("SILT_PASSWORD").unwrap_or_default();
    println!("{}", run(repository, series, volume, &password)?);
    Ok(())
}
