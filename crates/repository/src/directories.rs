//! The directories of objects with many blocks, at their ends.

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::{
    BLOCK_OVERHEAD_BYTES, BlockEntry, BlockReader, BlockWriter, DIRECTORY_POSITION, Error,
    FOOTER_BYTES, Footer, HEADER_BYTES, Header, Result, ResultExt, Sealer, decode_blocks,
};
use silt_storage::{ByteRange, READ_BYTES_MAX, TAIL_BYTES};

use crate::objects::{Address, Objects, OpenObject, key};

/// The first bytes of an object.
const BEGINNING: ByteRange = ByteRange::Bounded { offset: 0, length: HEADER_BYTES as u64 };

impl Objects {
    /// Opens an object with many blocks by its beginning.
    pub fn open(&self, name: &str, address: Address) -> Result<OpenObject> {
        let opened =
            self.read(name, BEGINNING, &mut Vec::new(), |bytes| self.check_header(bytes, address));
        let (header, sealer) = opened.context(|| format!("read {} {name}", address.kind))?;
        Ok(OpenObject { name: name.to_owned(), kind: address.kind, header, sealer })
    }

    /// Opens an object with many blocks by its end, and reads its directory: one request, unless
    /// the directory is long or an older program wrote the object. `decode` returns the directory
    /// and the end of the last block, where the directory must begin.
    pub fn read_directory<T>(
        &self,
        name: &str,
        address: Address,
        decode: impl Fn(&[u8]) -> Result<(T, u64)>,
    ) -> Result<(OpenObject, T)> {
        let (mut bytes, mut tail_bytes) = (Vec::new(), TAIL_BYTES);
        loop {
            // Header and directory are opened together, so that those of two copies do not mix.
            let opened = self.read(name, ByteRange::Tail(tail_bytes), &mut bytes, |tail| {
                self.open_tail((name, address), (tail, tail_bytes), &decode)
            });
            match opened.context(|| format!("read the directory of {} {name}", address.kind))? {
                Tail::Opened(object, directory) => return Ok((object, directory)),
                Tail::Longer(wanted_bytes) => tail_bytes = wanted_bytes,
            }
        }
    }

    /// Opens an object by its last bytes, of which `tail_bytes` were asked for.
    fn open_tail<T>(
        &self,
        (name, address): (&str, Address),
        (tail, tail_bytes): (&mut Vec<u8>, u64),
        decode: &impl Fn(&[u8]) -> Result<(T, u64)>,
    ) -> Result<Tail<T>> {
        let footer_at = tail.len().checked_sub(FOOTER_BYTES).ok_or_else(too_short)?;
        let footer = Footer::decode(&tail[footer_at..])?;
        let wanted_bytes = u64::from(footer.directory_bytes) + to_u64(footer.end_bytes());
        let Some(start) = tail.len().checked_sub(to_usize(wanted_bytes)) else {
            return match wanted_bytes {
                longer if longer > tail_bytes && longer <= READ_BYTES_MAX => {
                    Ok(Tail::Longer(longer))
                }
                _ => Err(too_short()),
            };
        };
        let directory_end = tail.len() - footer.end_bytes();
        let object = if footer.has_header {
            let (header, sealer) = self.check_header(&tail[directory_end..footer_at], address)?;
            OpenObject { name: name.to_owned(), kind: address.kind, header, sealer }
        } else {
            self.open(name, address)?
        };
        let mut raw = Vec::new();
        let sealed = &mut tail[start..directory_end];
        BlockReader::default().read(&object.sealer, DIRECTORY_POSITION, sealed, &mut raw)?;
        let (directory, end) = decode(&raw)?;
        if end != footer.directory_offset {
            return Err(Error::corrupt("the footer gives a wrong start of the directory"));
        }
        Ok(Tail::Opened(object, directory))
    }

    /// Reads the directory of a recipe pack or of a part of a summary vector.
    pub fn read_blocks(
        &self,
        name: &str,
        address: Address,
    ) -> Result<(OpenObject, Vec<BlockEntry>)> {
        self.read_directory(name, address, |raw| {
            let blocks = decode_blocks(raw)?;
            let end = blocks.last().map_or(to_u64(HEADER_BYTES), |block| {
                u64::from(block.offset) + u64::from(block.sealed_bytes)
            });
            Ok((blocks, end))
        })
    }

    /// Fails with `Corrupt` unless an object begins, in the storage and not in a cache, with the
    /// header by which it was opened: who opens objects by their ends would not notice that a
    /// beginning is damaged.
    pub fn require_beginning(&self, object: &OpenObject) -> Result<()> {
        self.storage.forget(&key(&object.name)?);
        let compared = self.read(&object.name, BEGINNING, &mut Vec::new(), |bytes| {
            if *bytes == object.header.encode() {
                return Ok(());
            }
            Err(Error::corrupt("its header and the copy at its end differ"))
        });
        compared.context(|| format!("read {} {}", object.kind, object.name))
    }
}

/// What the last bytes of an object with many blocks came to.
enum Tail<T> {
    /// The object and its directory.
    Opened(OpenObject, T),
    /// The directory begins so many bytes before the end.
    Longer(u64),
}

fn too_short() -> Error {
    Error::corrupt("the object ends before its directory")
}

/// The end of an object with many blocks, whose header and blocks take `body_bytes`: its directory,
/// a copy of its header, and its footer.
pub fn close_object(
    writer: &mut BlockWriter,
    (header, sealer): (&Header, &Sealer),
    body_bytes: usize,
    directory: &[u8],
) -> Vec<u8> {
    let ends = HEADER_BYTES + FOOTER_BYTES;
    let mut end = Vec::with_capacity(directory.len() + BLOCK_OVERHEAD_BYTES + ends);
    let length = writer.append(sealer, DIRECTORY_POSITION, directory, &mut end);
    let (directory_offset, directory_bytes) = (to_u64(body_bytes), to_u32(length));
    end.extend_from_slice(&header.encode());
    end.extend_from_slice(&Footer { directory_offset, directory_bytes, has_header: true }.encode());
    end
}
