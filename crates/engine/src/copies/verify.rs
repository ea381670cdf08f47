//! Verifies every block of an object, whatever its kind.

use std::sync::Arc;

use silt_format::number::to_u64;
use silt_format::{Error, HEADER_BYTES, Header, ObjectKind, Result, RunDirectory, names};
use silt_repository::chunks::open_container;
use silt_repository::container_reader::ContainerReader;
use silt_repository::objects::{Address, Objects, OpenObject, Scratch};
use silt_repository::root::open_config;
use silt_storage::{Key, MemoryStorage, PutMode, Storage};

use crate::repository::Repository;

impl Repository {
    /// Fails with `Corrupt` unless `bytes` are the object that `name` names, with every seal
    /// unbroken.
    ///
    /// Wrapped keys are verified as far as can be without their password: by their label.
    pub(super) fn verify_object(&self, key: &Key, bytes: &[u8]) -> Result<()> {
        let header = Header::decode(bytes)?;
        let name = key.as_str();
        if names::of_header(&header).is_some_and(|expected| expected != name) {
            return Err(Error::corrupt(format!("{name} holds another object")));
        }
        if header.repository != self.objects.repository {
            return Err(Error::corrupt(format!("{name} belongs to another repository")));
        }
        // The readers that all others use, on a storage that has this object alone.
        let storage = MemoryStorage::new();
        storage.put(key, &[bytes], PutMode::Create)?;
        let objects = self.objects.with_storage(Arc::new(storage));
        let Header { kind, series, number, part, tag, .. } = header;
        let address = Address { kind, series, number, part, tag };
        match kind {
            ObjectKind::Config => {
                open_config(&*objects.storage, name, &mut self.known_secret(), &mut None).map(drop)
            }
            ObjectKind::Key | ObjectKind::WriteKey => {
                silt_format::WrappedKey::label(bytes, &objects.keys).map(drop)
            }
            ObjectKind::Authority => Ok(()),
            ObjectKind::Container => verify_container(&objects, address),
            ObjectKind::Recipes | ObjectKind::Summary => {
                let (object, blocks) = objects.read_blocks(name, address)?;
                let ranges = blocks.iter().map(|block| (block.offset, block.sealed_bytes));
                verify_blocks(&objects, &object, ranges)
            }
            ObjectKind::Run => verify_run(&objects, name, address),
            ObjectKind::Series
            | ObjectKind::Head
            | ObjectKind::Snapshot
            | ObjectKind::Check
            | ObjectKind::Lease
            | ObjectKind::DeadList
            | ObjectKind::Places
            | ObjectKind::Writers
            | ObjectKind::Mark
            | ObjectKind::Message => objects.get(name, address).map(drop),
        }
    }
}

fn verify_container(objects: &Objects, address: Address) -> Result<()> {
    let number = silt_format::number::to_u32(usize::try_from(address.number).unwrap_or(usize::MAX));
    let container = open_container(objects, address.series, number, address.tag)?;
    objects.require_beginning(&container.object)?;
    let mut reader = ContainerReader::new(objects);
    reader.expect(&container, |_| true);
    (0..silt_format::number::to_u16(container.directory.frames.len()))
        .try_for_each(|frame| reader.frame(&container, frame).map(drop))
}

fn verify_run(objects: &Objects, name: &str, address: Address) -> Result<()> {
    let (object, directory) = objects.read_directory(name, address, |raw| {
        let directory = RunDirectory::decode(raw)?;
        let end = directory.end().unwrap_or(to_u64(HEADER_BYTES));
        Ok((directory, end))
    })?;
    let blocks = directory.blocks.iter().map(|block| (block.offset, block.sealed_bytes));
    let filter = directory.filter.map(|filter| (filter.offset, filter.sealed_bytes));
    verify_blocks(objects, &object, blocks.chain(filter))
}

/// Opens every block; their positions are their offsets. The beginning is verified, too.
fn verify_blocks(
    objects: &Objects,
    object: &OpenObject,
    ranges: impl Iterator<Item = (u32, u32)>,
) -> Result<()> {
    objects.require_beginning(object)?;
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    for range in ranges {
        objects.read_block(object, range, u64::from(range.0), &mut scratch, &mut raw)?;
    }
    Ok(())
}
