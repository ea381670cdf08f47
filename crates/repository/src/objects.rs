//! Sealed objects in storage: writing whole ones, reading them back verified.

use crate::event::Warning;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::names::Numbered;
use silt_format::number::to_u64;
use silt_format::{
    Advice, BlockReader, BlockWriter, Error, ErrorKind, HEADER_BYTES, Header, HeaderRest, Keyring,
    ObjectKind, ObjectTag, RepositoryId, Result, ResultExt, SealScheme, Sealer, SeriesId, Signer,
};
use silt_storage::ahead::{Ahead, Blocks, Parts};
use silt_storage::{ByteRange, Key, PutMode, Storage};

use crate::believed::Believed;
use crate::buffers::Buffers;
use crate::env::Context;
use crate::room::Room;
use crate::seen::Seen;
use crate::upload_queue::SharedUploader;

const METADATA_LEVEL: i32 = 1;

/// The identity that the object of a name must have.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Its kind.
    pub kind: ObjectKind,
    /// The series that it belongs to, or [`SeriesId::NONE`].
    pub series: SeriesId,
    /// Its number, as the name has it.
    pub number: u64,
    /// Which part of a list, a vector or a run it is.
    pub part: u32,
    /// The tag of a container or recipe pack.
    pub tag: ObjectTag,
}

impl Address {
    /// An object that is not divided into parts.
    pub fn new(kind: ObjectKind, series: SeriesId, number: u64) -> Self {
        Self::of_part(kind, series, number, 0)
    }

    /// A part of a summary vector, a dead list or a run.
    pub fn of_part(kind: ObjectKind, series: SeriesId, number: u64, part: u32) -> Self {
        Self { kind, series, number, part, tag: ObjectTag::NONE }
    }

    /// A container or a recipe pack.
    pub fn tagged(kind: ObjectKind, series: SeriesId, number: u32, tag: ObjectTag) -> Self {
        Self { kind, series, number: u64::from(number), part: 0, tag }
    }
}

/// An object whose header was checked, for reading its blocks.
pub struct OpenObject {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Its header, from its beginning or its end.
    pub header: Header,
    /// The sealer that opens its blocks.
    pub sealer: Sealer,
}

/// The objects of one repository.
pub struct Objects {
    /// The storage of the objects: all places as one.
    pub storage: Arc<dyn Storage>,
    /// The repository that they belong to.
    pub repository: RepositoryId,
    /// How objects are sealed.
    pub scheme: SealScheme,
    /// The keys that this process holds.
    pub keys: Keyring,
    /// The signing key of this process.
    pub signer: Arc<Signer>,
    /// The trusted signers.
    pub believed: Arc<Believed>,
    /// The newest states seen in storage.
    pub seen: Arc<Seen>,
    /// Time, chance and messages.
    pub context: Context,
    /// The number of the list of places that `storage` was opened by, 0 for none.
    pub places: u64,
    /// Places that lack that list, and those that have it.
    pub lacking: Arc<Mutex<Lacking>>,
    /// Whether something was done with them already, so that the places may have changed since.
    pub is_used: AtomicBool,
    /// Time of the last check of the lists of places and writers.
    pub looked_ns: AtomicI64,
    /// The threads that upload containers.
    pub uploader: SharedUploader,
    /// Buffers that backups fill, reused between volumes.
    pub buffers: Arc<Buffers>,
    /// The memory that operations share which work on several series at once.
    pub room: Arc<Room>,
    /// Containers and recipe packs that were examined because they could not be read.
    pub examined: Arc<Mutex<HashSet<(ObjectKind, SeriesId, u32)>>>,
}

/// Places of the newest list that have an older one.
#[derive(Default)]
pub struct Lacking {
    /// These places.
    pub places: Vec<Arc<dyn Storage>>,
    /// The places from which the newest list can be read. One that was removed may be the only one.
    pub holders: Vec<Arc<dyn Storage>>,
}

/// Buffers and zstd context that one thread reads with.
#[derive(Default)]
pub struct Scratch {
    reader: BlockReader,
    sealed: Vec<u8>,
    ahead: Ahead,
}

impl Scratch {
    /// Shares the parts that are read ahead with other readers.
    pub fn share(&mut self, parts: &Arc<Parts>) {
        self.ahead.share(parts);
    }
}

/// The storage key of a name that this program made.
pub fn key(name: &str) -> Result<Key> {
    Key::new(name)
}

impl Objects {
    /// The same repository's objects in another storage.
    #[must_use]
    pub fn with_storage(&self, storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            places: self.places,
            lacking: Arc::clone(&self.lacking),
            is_used: AtomicBool::default(),
            looked_ns: AtomicI64::new(self.context.env.now_ns()),
            repository: self.repository,
            scheme: self.scheme,
            keys: self.keys.clone(),
            signer: Arc::clone(&self.signer),
            believed: Arc::clone(&self.believed),
            seen: Arc::clone(&self.seen),
            context: self.context.clone(),
            uploader: SharedUploader::default(),
            buffers: Arc::default(),
            room: Arc::clone(&self.room),
            examined: Arc::default(),
        }
    }

    /// The same objects for an operation of its own; buffers and upload threads are shared.
    #[must_use]
    pub fn with_context(&self, context: Context) -> Self {
        Self {
            context,
            uploader: self.uploader.clone(),
            buffers: Arc::clone(&self.buffers),
            examined: Arc::clone(&self.examined),
            ..self.with_storage(Arc::clone(&self.storage))
        }
    }

    /// The same objects for a part of an operation, beside others.
    #[must_use]
    pub fn beside(&self, context: Context) -> Self {
        let looked_ns = AtomicI64::new(self.looked_ns.load(Ordering::SeqCst));
        // The places may have changed since the others began.
        Self { is_used: AtomicBool::new(true), looked_ns, ..self.with_context(context) }
    }

    /// A header with fresh salt for the object at `address`.
    pub fn new_header(&self, address: Address) -> Header {
        Header {
            kind: address.kind,
            scheme: self.scheme,
            repository: self.repository,
            series: address.series,
            part: address.part,
            number: address.number,
            tag: address.tag,
            salt: self.context.random(),
            rest: HeaderRest::default(),
        }
    }

    /// Returns the sealer of an object with this header.
    pub fn sealer(&self, header: &Header) -> Sealer {
        self.keys.sealer(header)
    }

    /// Begins a container: returns its header and its sealer.
    pub fn begin_container(&self, address: Address) -> Result<(Header, Sealer)> {
        self.keys.begin_container(self.new_header(address), self.context.random())
    }

    /// Writes an object of one block, durable on return, and returns its size.
    pub fn put(&self, name: &str, address: Address, plain: &[u8]) -> Result<u64> {
        let object = self.sealed(address, plain)?;
        self.put_pieces(name, address.kind, &[object.into()])
    }

    /// Writes an object of one block that a power failure may take away again.
    pub fn put_transient(&self, name: &str, address: Address, plain: &[u8]) -> Result<()> {
        let object = self.sealed(address, plain)?;
        self.storage
            .put(&key(name)?, &[&object], PutMode::CreateTransient)
            .context(|| format!("write {} {name}", address.kind))
    }

    /// An object of one block, signed if it is of a kind that is.
    pub fn sealed(&self, address: Address, plain: &[u8]) -> Result<Vec<u8>> {
        self.sealed_by(&self.signer, address, plain)
    }

    /// The same, signed by `signer`.
    pub fn sealed_by(&self, signer: &Signer, address: Address, plain: &[u8]) -> Result<Vec<u8>> {
        let header = self.new_header(address);
        let mut object = header.encode().to_vec();
        let sealer = self.sealer(&header);
        let mut plain = std::borrow::Cow::Borrowed(plain);
        if address.kind.is_signed() {
            signer.sign(&header, plain.to_mut())?;
        }
        BlockWriter::new(METADATA_LEVEL)?.append(&sealer, 0, &plain, &mut object);
        Ok(object)
    }

    /// Writes an object from its pieces, durable on return, and returns its size.
    pub fn put_pieces(&self, name: &str, kind: ObjectKind, pieces: &[Bytes]) -> Result<u64> {
        self.storage
            .put_bytes(&key(name)?, pieces, PutMode::Create)
            .context(|| format!("write {kind} {name}"))?;
        Ok(pieces.iter().map(|piece| to_u64(piece.len())).sum())
    }

    /// Reads a range of an object and returns the result of `take`. If objects have copies, tries
    /// each until one is intact.
    pub fn read<T>(
        &self,
        name: &str,
        range: ByteRange,
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(&mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let key = key(name)?;
        let copies = self.storage.copies(&key);
        if copies == 1 {
            self.storage.get(&key, range, buffer)?;
            return match take(buffer) {
                // The cached object may be damaged, and the stored one intact.
                Err(error) if is_damage(&error) && self.storage.forget(&key) => {
                    self.storage.get(&key, range, buffer)?;
                    take(buffer)
                }
                taken => taken,
            };
        }
        let mut failure: Option<Error> = None;
        for copy in 0..copies {
            let mut read = || {
                self.storage.get_from(copy, &key, range, buffer)?;
                take(buffer)
            };
            let taken = match read() {
                Err(error) if is_damage(&error) && self.storage.forget(&key) => read(),
                taken => taken,
            };
            match taken {
                Ok(value) => {
                    if let Some(error) = failure.filter(|_| copy > 0) {
                        let warning = Warning::after(&error, "another copy was read");
                        self.context.warn(warning.with_advice(Advice::HealPlaces));
                    }
                    return Ok(value);
                }
                Err(error) if is_damage(&error) || error.kind() == ErrorKind::Unavailable => {
                    failure.get_or_insert(error.context(format!("copy {} of {name}", copy + 1)));
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| Error::corrupt(format!("there is no copy of {name}"))))
    }

    /// Whether bytes are the intact one-block object at `address`.
    pub fn is_whole(&self, bytes: &[u8], address: Address) -> bool {
        let mut bytes = bytes.to_vec();
        let opened = self.check_header(&bytes, address).and_then(|(_, sealer)| {
            let sealed = bytes.get_mut(HEADER_BYTES..).unwrap_or_default();
            BlockReader::default().read(&sealer, 0, sealed, &mut Vec::new())
        });
        opened.is_ok()
    }

    /// Reads an object of one block. An object of a signed kind must be signed by a known key.
    pub fn get(&self, name: &str, address: Address) -> Result<Vec<u8>> {
        if address.kind.is_signed() {
            let read = self.get_signed(name, address).map(|(plain, _)| plain);
            return read.context(|| format!("read {} {name}", address.kind));
        }
        self.read(name, ByteRange::Full, &mut Vec::new(), |bytes| {
            let (_, sealer) = self.check_header(bytes, address)?;
            let mut raw = Vec::new();
            BlockReader::default().read(&sealer, 0, &mut bytes[HEADER_BYTES..], &mut raw)?;
            Ok(raw)
        })
        .context(|| format!("read {} {name}", address.kind))
    }

    /// The header and the sealer of an object whose bytes begin with `bytes`, if it is the one at
    /// `address`.
    pub fn check_header(&self, bytes: &[u8], address: Address) -> Result<(Header, Sealer)> {
        let header = Header::decode(bytes)?;
        if header.repository != self.repository {
            return Err(Error::corrupt("it belongs to another repository"));
        }
        let found = (header.kind, header.series, header.number, header.part, header.tag);
        if found != (address.kind, address.series, address.number, address.part, address.tag) {
            return Err(Error::corrupt(format!(
                "it holds another object: {} {} of series {}, part {}, tag {}",
                header.kind, header.number, header.series, header.part, header.tag
            )));
        }
        let is_sealed_to_key = header.kind == ObjectKind::Container
            && (header.scheme, self.scheme) == (SealScheme::SealedToKey, SealScheme::Aes256Gcm);
        if header.scheme != self.scheme && !is_sealed_to_key {
            return Err(Error::corrupt("its encryption is not that of the repository"));
        }
        Ok((header, self.keys.sealer(&header)))
    }

    /// Announces the blocks that will be read with `scratch`. If that saves time, adjacent ones are
    /// read together.
    pub fn expect<'o>(&self, objects: impl Iterator<Item = Blocks<'o>>, scratch: &mut Scratch) {
        scratch.ahead.expect(&self.storage, objects);
    }

    /// Reads all announced blocks now, for the readers that share `scratch`.
    pub fn fetch(&self, scratch: &Scratch) {
        scratch.ahead.fetch(&self.storage);
    }

    /// Replaces `raw` by the block at `position` of `object`, stored in `length` bytes at `offset`.
    pub fn read_block(
        &self,
        object: &OpenObject,
        (offset, length): (u32, u32),
        position: u64,
        scratch: &mut Scratch,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let read = |reader: &mut BlockReader, sealed: &mut [u8]| {
            reader.read(&object.sealer, position, sealed, raw)
        };
        self.read_block_by(object, (offset, length), scratch, read)
    }

    /// Replaces `raw` by the block at `position` of `object` that was read before; overwrites
    /// `sealed`.
    pub fn open_block(
        &self,
        object: &OpenObject,
        sealed: &mut [u8],
        position: u64,
        scratch: &mut Scratch,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        scratch.reader.read(&object.sealer, position, sealed, raw)
    }

    /// Replaces `packed` by the same block, opened and not decompressed.
    pub fn read_packed_block(
        &self,
        object: &OpenObject,
        (offset, length): (u32, u32),
        position: u64,
        scratch: &mut Scratch,
        packed: &mut Vec<u8>,
    ) -> Result<()> {
        let read = |_: &mut BlockReader, sealed: &mut [u8]| {
            let opened = object.sealer.open(position, sealed)?;
            packed.clear();
            packed.extend_from_slice(opened);
            Ok(())
        };
        self.read_block_by(object, (offset, length), scratch, read)
    }

    fn read_block_by(
        &self,
        object: &OpenObject,
        (offset, length): (u32, u32),
        scratch: &mut Scratch,
        mut read: impl FnMut(&mut BlockReader, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let what = || {
            format!(
                "read bytes {offset}..{} of {} {}",
                u64::from(offset) + u64::from(length),
                object.kind,
                object.name
            )
        };
        let range = ByteRange::Bounded { offset: u64::from(offset), length: u64::from(length) };
        let Scratch { reader, sealed, ahead } = scratch;
        let block = u64::from(offset)..u64::from(offset) + u64::from(length);
        if ahead.block(&self.storage, &object.name, &block, sealed) && read(reader, sealed).is_ok()
        {
            return Ok(());
        }
        self.read(&object.name, range, sealed, |sealed| read(reader, sealed)).context(what)
    }

    /// Whether there is an object of this name.
    pub fn exists(&self, name: &str) -> Result<bool> {
        match self.storage.head(&key(name)?) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes objects; absent ones are fine.
    pub fn delete(&self, names: &[String]) -> Result<()> {
        let keys = names.iter().map(|name| key(name)).collect::<Result<Vec<_>>>()?;
        self.storage.delete(&keys)
    }

    /// Whether there is an object below `prefix`.
    pub fn has_any(&self, prefix: &str) -> Result<bool> {
        Ok(!self.storage.list(prefix, None)?.objects.is_empty())
    }

    /// The number and name of a series' newest object of a kind. Objects with other names are
    /// ignored: a host that may only create objects must not be able to hide one.
    pub fn newest_of(&self, kind: Numbered, series: SeriesId) -> Result<Option<(u64, String)>> {
        for item in silt_storage::list_all(&*self.storage, kind.prefix(series), None) {
            let (name, _) = item?;
            if let Some(number) = kind.number_of(series, name.as_str()) {
                return Ok(Some((number, name.as_str().to_owned())));
            }
        }
        Ok(None)
    }

    /// The same without the number.
    pub fn newest_name(&self, kind: Numbered, series: SeriesId) -> Result<Option<String>> {
        Ok(self.newest_of(kind, series)?.map(|(_, name)| name))
    }

    /// Every name below `prefix` with its size, in order, in pages; `after` is left out.
    pub fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<impl Iterator<Item = Result<(String, u64)>> + '_> {
        let after = after.map(key).transpose()?;
        let all = silt_storage::list_all(&*self.storage, prefix, after);
        Ok(all.map(|item| item.map(|(name, bytes)| (name.as_str().to_owned(), bytes))))
    }
}

/// Whether an error means that an object is damaged or missing, rather than an I/O failure.
///
/// An unknown version counts as damage: in a repository whose configuration this version reads,
/// damage is the more likely cause.
pub fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}
