//! Backs up what a program has in its memory, and reads a part of it back.
//!
//! `cargo run -p siltstone --example custom_source -- FOLDER`; the folder must not exist or be
//! empty.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;

use siltstone::source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use siltstone::storage::LocalStorage;
use siltstone::{
    BackupOptions, Config, Protection, Repository, Result, Selector, SystemEnv, VolumeReader, When,
};

/// A disk of 64 MiB, of which only every eighth MiB holds something.
struct Calendar;

const MIB: u64 = 1 << 20;

impl VolumeSource for Calendar {
    fn info(&self) -> SourceInfo {
        let (description, format) = ("a calendar".to_owned(), SourceFormat::Raw);
        SourceInfo { description, format, size: Some(64 * MIB), backing: Vec::new() }
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let is_data = (offset / MIB).is_multiple_of(8);
        let kind = if is_data { ExtentKind::Data } else { ExtentKind::Zero };
        Ok(Extent { offset, length: MIB - offset % MIB, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let length = buf.len().min(usize::try_from(64 * MIB - offset).unwrap_or(usize::MAX));
        for (at, byte) in (offset..).zip(&mut buf[..length]) {
            *byte = if (at / MIB).is_multiple_of(8) {
                u8::try_from(at / MIB).unwrap_or(0) + 1
            } else {
                0
            };
        }
        Ok(length)
    }
}

/// Makes a repository in `folder`.
pub fn run(folder: &std::path::Path) -> Result<()> {
    let (storage, context) = (Arc::new(LocalStorage::create(folder)?), SystemEnv::context());
    let repository =
        Repository::init(storage, context, Config::default(), &Protection::None, None)?;
    let mut backup = repository.backup("calendar", BackupOptions::default())?;
    backup.add_volume("disk", &Calendar, None)?;
    let snapshot = backup.finish()?.snapshot;

    let found = repository.find(&Selector::Time(Some("calendar".to_owned()), When::Latest))?;
    let reader = VolumeReader::open(&repository, found.volume("disk")?, 0)?;
    let mut bytes = [0; 4];
    reader.read_at(40 * MIB - 2, &mut bytes)?;
    assert_eq!(bytes, [0, 0, 41, 41]);
    println!("{}: bytes around 40 MiB are {bytes:?}", snapshot.id);
    Ok(())
}

fn main() -> Result<()> {
    run(std::path::Path::new(&std::env::args().nth(1).unwrap_or_else(|| "calendar".to_owned())))
}
