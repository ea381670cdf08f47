//! Requests for files and folders: look-ups, listings, reads and attributes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{EntryKind, Xattr};
use silt_format::{Error, ErrorKind};

use super::inside::Inside;
use super::protocol::{self as fuse, Reply, Request};
use super::read_ahead::OpenFile;
use super::server::{Answer, REFUSED, Refusal, Server};
use super::tree::{Key, Listing, Node};
use crate::catalog::{VolumeId, lock};

/// The inode number of a listed entry that has no node yet.
const UNKNOWN_NODE: u64 = 0xffff_ffff;
/// How long the kernel may cache a name that can disappear, in seconds.
const NAME_VALID_S: u64 = 5;
/// How long the kernel may cache a name that cannot change, in seconds.
const LASTING_VALID_S: u64 = 3600;
/// Maximum number of files and listings that are open at a time.
const HANDLES_MAX: usize = 65_536;
/// If the kernel knows this many nodes, listings of file trees contain only names, without
/// attributes. So a listing of millions of names does not take memory for each, and the kernel
/// looks up those that programs use.
const NODES_LISTED_MAX: usize = 100_000;

enum Handle {
    File(Arc<OpenFile>),
    Listing(Arc<Listing>),
}

/// The files and listings that are open.
pub struct Handles {
    open: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
}

impl Default for Handles {
    fn default() -> Self {
        Self { open: Mutex::default(), next: AtomicU64::new(1) }
    }
}

impl Handles {
    fn add(&self, handle: Handle, flags: u32, reply: &mut Reply) -> Answer {
        let mut open = lock(&self.open);
        if open.len() >= HANDLES_MAX {
            return Err(Refusal::Code(Errno::NFILE));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number, handle);
        reply.long(number).word(flags).word(0);
        Ok(())
    }

    /// Closes a file or a listing.
    pub fn close(&self, handle: u64) {
        let closed = lock(&self.open).remove(&handle);
        drop(closed);
    }

    fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Refusal> {
        match lock(&self.open).get(&handle) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Refusal::Code(Errno::BADF)),
        }
    }

    fn listing(&self, handle: u64) -> Result<Arc<Listing>, Refusal> {
        match lock(&self.open).get(&handle) {
            Some(Handle::Listing(listing)) => Ok(Arc::clone(listing)),
            _ => Err(Refusal::Code(Errno::BADF)),
        }
    }
}

fn valid_s(node: &Node) -> u64 {
    if node.is_lasting() { LASTING_VALID_S } else { NAME_VALID_S }
}

/// A part of a listing that is being written to a reply.
struct Page<'r> {
    with_attributes: bool,
    /// Maximum size of the reply's body in bytes.
    room: usize,
    reply: &'r mut Reply,
}

impl Page<'_> {
    fn has_room(&self, name: &[u8]) -> bool {
        let fixed = fuse::DIRENT_BYTES + if self.with_attributes { fuse::ENTRY_BYTES } else { 0 };
        self.reply.body_bytes() + fixed + name.len().next_multiple_of(8) <= self.room
    }
}

impl Server {
    pub fn look_up(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let folder = self.node(request.node)?;
        let name = request.name(0).ok_or(Refusal::Code(Errno::NOENT))?;
        let found = self.tree.look_up(&folder, request.node, name);
        let found = found.map_err(|error| self.refusal(&folder, error))?;
        self.entry(&found.ok_or(Refusal::Code(Errno::NOENT))?, reply);
        Ok(())
    }

    pub fn attributes(&self, number: u64, node: &Node, reply: &mut Reply) {
        node.attributes(number, self.mounted_ns, self.owner).reply(valid_s(node), reply);
    }

    /// Adds a node to the reply, and remembers that the kernel knows it. Returns its inode number.
    fn entry(&self, node: &Node, reply: &mut Reply) -> u64 {
        let number = lock(&self.nodes).remember(node.clone());
        let attributes = node.attributes(number, self.mounted_ns, self.owner);
        attributes.entry(number, valid_s(node), reply);
        attributes.inode
    }

    pub fn open(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let node = self.node(request.node)?;
        let flags = request.word(0).ok_or(REFUSED)?;
        let file = match (&node.key, &node.inside) {
            (Key::Volume(_) | Key::Inside(..), _) if flags & 3 != 0 => {
                return Err(Refusal::Code(Errno::ROFS));
            }
            (Key::Volume(id), _) => self.ahead.open(self.tree.catalog().open(id)?, None),
            (_, Some(inside)) if inside.entry.metadata.kind == EntryKind::File => {
                let volume = self.tree.open_tree(&inside.volume);
                let volume = volume.map_err(|error| self.refusal(&node, error))?;
                self.ahead.open(volume, Some(Arc::clone(inside)))
            }
            _ => return Err(Refusal::Code(Errno::ISDIR)),
        };
        // A snapshot never changes, so the kernel may keep the pages in its cache.
        self.handles.add(Handle::File(file), fuse::FOPEN_KEEP_CACHE, reply)
    }

    pub fn read(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (handle, offset) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let wanted = to_usize(u64::from(request.word(16).ok_or(REFUSED)?));
        let file = self.handles.file(handle)?;
        let wanted = wanted.min(fuse::READ_BYTES_MAX);
        let read = self.ahead.read(&file, offset, wanted, reply);
        read.map_err(|error| self.failed_read(file.volume.id(), error))
    }

    /// Warns about a failed read, and returns an I/O error. A missing object must not look like a
    /// missing file: the file exists, only its content cannot be read.
    fn failed_read(&self, id: &VolumeId, error: Error) -> Refusal {
        // Reads of a deleted snapshot fail once its space is reclaimed.
        let error = match self.tree.catalog().is_deleted(id) {
            Ok(true) => {
                let message = format!("snapshot {} was deleted", id.snapshot);
                Error::new(ErrorKind::NotFound, message).with_source(error)
            }
            _ => error,
        };
        self.code(Refusal::Error(error));
        Refusal::Code(Errno::IO)
    }

    /// Returns the refusal of a failed request for `node`. In a file tree, a directory could not be
    /// read.
    fn refusal(&self, node: &Node, error: Error) -> Refusal {
        match &node.inside {
            Some(inside) if error.kind() != ErrorKind::Busy => {
                let error = error.context(format!("read {}", inside.shown()));
                self.failed_read(&inside.volume, error)
            }
            _ => Refusal::Error(error),
        }
    }

    /// Answers `lseek` for the next data or the next hole.
    pub fn seek(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (handle, offset) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let is_data = match request.word(16).ok_or(REFUSED)? {
            fuse::SEEK_DATA => true,
            fuse::SEEK_HOLE => false,
            _ => return Err(REFUSED),
        };
        let file = self.handles.file(handle)?;
        let found = match &file.inside {
            Some(inside) => inside.next_extent(offset, is_data),
            None => next_extent(&file, offset, is_data)?,
        };
        reply.long(found.ok_or(Refusal::Code(Errno::NXIO))?);
        Ok(())
    }

    pub fn open_listing(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let folder = self.node(request.node)?;
        let listing = self.tree.list(&folder, request.node);
        let listing = listing.map_err(|error| self.refusal(&folder, error))?;
        self.handles.add(Handle::Listing(Arc::new(listing)), 0, reply)
    }

    pub fn list(&self, request: &Request<'_>, with_attributes: bool, reply: &mut Reply) -> Answer {
        let (handle, from) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let room = to_usize(u64::from(request.word(16).ok_or(REFUSED)?)).min(fuse::READ_BYTES_MAX);
        let mut page = Page { with_attributes, room, reply };
        match &*self.handles.listing(handle)? {
            Listing::Known(listing) => {
                let skipped = usize::try_from(from).unwrap_or(usize::MAX).min(listing.len());
                for (at, (name, node)) in listing.iter().enumerate().skip(skipped) {
                    if !page.has_room(name.as_bytes()) {
                        break;
                    }
                    self.add(&mut page, to_u64(at) + 1, name.as_bytes(), node);
                }
            }
            Listing::Directory(directory) => {
                let part = directory.part(from);
                let (entries, skipped) =
                    part.map_err(|error| self.failed_listing(&directory.inside, error))?;
                for (entry, next) in entries.iter().skip(skipped).zip(from.saturating_add(1)..) {
                    if !page.has_room(&entry.name) {
                        break;
                    }
                    self.add(&mut page, next, &entry.name, &directory.node(entry));
                }
            }
        }
        Ok(())
    }

    fn failed_listing(&self, inside: &Inside, error: Error) -> Refusal {
        let error = error.context(format!("list {}", inside.shown()));
        self.failed_read(&inside.volume, error)
    }

    /// Adds a name to a listing. `next` is the offset at which the listing continues.
    fn add(&self, page: &mut Page<'_>, next: u64, name: &[u8], node: &Node) {
        let (mode, mut number) = (node.mode(), UNKNOWN_NODE);
        if page.with_attributes {
            let is_untold = node.inside.is_some() && lock(&self.nodes).count() >= NODES_LISTED_MAX;
            if is_untold {
                // With node number 0, the kernel uses only the name.
                page.reply.bytes(&[0; fuse::ENTRY_BYTES]);
            } else {
                number = self.entry(node, page.reply);
            }
        }
        fuse::dirent(number, next, mode, name, page.reply);
    }

    /// Answers a request for the value of an extended attribute.
    pub fn xattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let name = request.name(8).ok_or(REFUSED)?;
        let node = self.node(request.node)?;
        let xattr = xattrs(&node).iter().find(|xattr| xattr.name == name);
        let value = &xattr.ok_or(Refusal::Code(Errno::NODATA))?.value;
        sized(value, request, reply)
    }

    /// Answers a request for the names of the extended attributes.
    pub fn xattr_names(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let node = self.node(request.node)?;
        let ended = |xattr: &Xattr| [&xattr.name[..], &[0]].concat();
        let names: Vec<u8> = xattrs(&node).iter().flat_map(ended).collect();
        sized(&names, request, reply)
    }
}

fn xattrs(node: &Node) -> &[Xattr] {
    node.inside.as_ref().map_or(&[], |inside| &inside.entry.metadata.xattrs)
}

/// Replies with bytes, or with their number if the request allows 0 bytes. Fails with `ERANGE` if
/// they do not fit.
fn sized(bytes: &[u8], request: &Request<'_>, reply: &mut Reply) -> Answer {
    let room = to_usize(u64::from(request.word(0).ok_or(REFUSED)?));
    if room == 0 {
        reply.word(u32::try_from(bytes.len()).unwrap_or(u32::MAX)).word(0);
    } else if bytes.len() > room {
        return Err(Refusal::Code(Errno::RANGE));
    } else {
        reply.bytes(bytes);
    }
    Ok(())
}

/// Returns the offset of the next data of a disk; of the next hole unless `is_data`. `None` at the
/// end.
fn next_extent(file: &OpenFile, offset: u64, is_data: bool) -> Result<Option<u64>, Error> {
    let mut at = offset;
    while let Some(extent) = file.volume.reader().extent_at(at)? {
        if extent.is_zero != is_data {
            return Ok(Some(at));
        }
        at = extent.span.offset + extent.span.length;
    }
    // The end of a file counts as a hole.
    Ok((!is_data && offset < at).then_some(at))
}
