//! A forger: whoever has stolen a host has exactly its keys, and may put any object anywhere.

use std::sync::Arc;

use silt_format::{
    BlockEntry, BlockKind, BlockReader, BlockRef, BlockWriter, DIRECTORY_POSITION, Footer,
    HEADER_BYTES, Header, HostKeys, Id, ObjectKind, SeriesId, encode_blocks, names, number,
};
use silt_storage::{ByteRange, Key, MemoryStorage, PutMode, Storage, list_all};

/// What was stolen of one host.
pub struct Forger {
    /// Its keys.
    pub host: HostKeys,
    /// The id of the key that holds them.
    pub id: Id,
    /// A header as the repository's objects have it.
    pub header: Header,
}

pub fn read(storage: &MemoryStorage, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    storage.get(&Key::new(name).unwrap(), ByteRange::Full, &mut bytes).ok().map(|()| bytes)
}

pub fn all_names(storage: &MemoryStorage, prefix: &str) -> Vec<String> {
    list_all(storage as &dyn Storage, prefix, None)
        .map(|item| item.unwrap().0.as_str().to_owned())
        .collect()
}

/// Puts an object, in place of another if that is there.
pub fn replace(storage: &MemoryStorage, name: &str, bytes: &[u8]) {
    let key = Key::new(name).unwrap();
    storage.delete(std::slice::from_ref(&key)).unwrap();
    storage.put(&key, &[bytes], PutMode::Create).unwrap();
}

impl Forger {
    /// Steals the key that `password` opens.
    pub fn steal(storage: &Arc<MemoryStorage>, password: &[u8]) -> Self {
        let config = read(storage, names::CONFIG).unwrap();
        let mut keys = all_names(storage, names::KEYS).into_iter();
        let opened = keys.find_map(|name| {
            let host = HostKeys::open(&read(storage, &name)?, password).ok()?;
            Some((host, names::key_id(&name)?))
        });
        let (host, id) = opened.unwrap();
        Self { host, id, header: Header::decode(&config).unwrap() }
    }

    /// The header of an object.
    pub fn address(&self, kind: ObjectKind, series: SeriesId, number: u64) -> Header {
        Header { kind, series, number, salt: [7; 24], ..self.header }
    }

    /// An object of one block, signed with the stolen key in the name of `claims`.
    pub fn object(&self, header: &Header, plain: &[u8], claims: Id) -> Vec<u8> {
        let mut plain = plain.to_vec();
        if header.kind.is_signed() {
            self.host.signer(claims).sign(header, &mut plain).unwrap();
        }
        self.unsigned(header, &plain)
    }

    /// An object of one block with no signature but what `plain` may end in.
    pub fn unsigned(&self, header: &Header, plain: &[u8]) -> Vec<u8> {
        let mut object = header.encode().to_vec();
        let sealer = self.host.keys.sealer(header);
        BlockWriter::new(1).unwrap().append(&sealer, 0, plain, &mut object);
        object
    }

    /// What an object of one block holds, with its signature.
    pub fn open(&self, object: &[u8]) -> Option<(Header, Vec<u8>)> {
        let header = Header::decode(object).ok()?;
        let (mut raw, mut sealed) = (Vec::new(), object[HEADER_BYTES..].to_vec());
        let sealer = self.host.keys.sealer(&header);
        BlockReader::default().read(&sealer, 0, &mut sealed, &mut raw).ok()?;
        Some((header, raw))
    }
}

impl Forger {
    /// A recipe pack with these blocks, and the references to them.
    pub fn pack(
        &self,
        header: &Header,
        blocks: &[(BlockKind, Vec<u8>)],
    ) -> (Vec<u8>, Vec<BlockRef>) {
        let (keys, mut object) = (&self.host.keys, header.encode().to_vec());
        let (sealer, mut writer) = (keys.sealer(header), BlockWriter::new(1).unwrap());
        let (mut entries, mut references) = (Vec::new(), Vec::new());
        for (kind, plain) in blocks {
            let offset = number::to_u32(object.len());
            let sealed = writer.append(&sealer, u64::from(offset), plain, &mut object);
            let length = number::to_u32(sealed);
            entries.push(BlockEntry { kind: *kind, offset, sealed_bytes: length });
            let (pack, hash) = (
                u32::try_from(header.number).unwrap_or(0),
                keys.content_hash((*kind).into(), plain),
            );
            references.push(BlockRef { pack, offset, length, hash });
        }
        let directory_offset = number::to_u64(object.len());
        let directory = encode_blocks(&entries);
        let sealed = writer.append(&sealer, DIRECTORY_POSITION, &directory, &mut object);
        let directory_bytes = number::to_u32(sealed);
        let footer = Footer { directory_offset, directory_bytes, has_header: false };
        object.extend_from_slice(&footer.encode());
        (object, references)
    }

    /// The block of a recipe pack that is referred to.
    pub fn block(&self, pack: &[u8], block: BlockRef) -> Vec<u8> {
        let sealer = self.host.keys.sealer(&Header::decode(pack).unwrap());
        let from = block.offset as usize;
        let mut sealed = pack[from..from + block.length as usize].to_vec();
        let mut raw = Vec::new();
        let position = u64::from(block.offset);
        BlockReader::default().read(&sealer, position, &mut sealed, &mut raw).unwrap();
        raw
    }
}
