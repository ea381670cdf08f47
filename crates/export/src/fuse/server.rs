//! Serving a mounted folder.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, ErrorKind, Result};
use siltstone::Env;

use super::attach;
use super::protocol::{self as fuse, Attributes, Reply, Request};
use super::read_ahead::{OpenFile, ReadAhead};
use super::tree::{Key, Node, Tree};
use crate::catalog::{Catalog, lock};

const ROOT: u64 = 1;
/// The number of what was not looked up.
const UNKNOWN_NODE: u64 = 0xffff_ffff;
/// For how long the kernel believes a name that may go, in seconds.
const NAME_VALID_S: u64 = 5;
/// For how long it believes what does not change.
const LASTING_VALID_S: u64 = 3600;
/// Most files and listings that are open at once.
const HANDLES_MAX: usize = 65_536;
/// Most different messages that are printed of reads that fail.
const MESSAGES_MAX: usize = 1000;
/// How often it is looked whether to stop, and how many times at the end.
const LOOK_NS: u64 = 100_000_000;
const LOOKS_AT_END: usize = 20;

/// How to mount.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Threads that answer requests.
    pub threads: usize,
    /// Let other users see the folder; by default only who mounts it does, not even root.
    pub allow_other: bool,
}

/// A file or folder that the kernel knows.
struct Held {
    node: Arc<Node>,
    /// How many times it was told of it.
    lookups: u64,
}

/// The files and folders that the kernel knows, by their numbers.
struct Nodes {
    held: HashMap<u64, Held>,
    numbers: HashMap<Key, u64>,
    next: u64,
}

impl Nodes {
    fn new() -> Self {
        let root = Held { node: Arc::new(Node::root()), lookups: 1 };
        Self {
            held: HashMap::from([(ROOT, root)]),
            numbers: HashMap::from([(Key::Root, ROOT)]),
            next: ROOT + 1,
        }
    }

    /// The number of a node, one more time told to the kernel.
    fn remember(&mut self, node: Node) -> u64 {
        let number = *self.numbers.entry(node.key.clone()).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        });
        let held = self.held.entry(number);
        let held = held.or_insert_with(|| Held { node: Arc::new(node.clone()), lookups: 0 });
        held.lookups += 1;
        held.node = Arc::new(node);
        number
    }

    fn forget(&mut self, number: u64, lookups: u64) {
        let Some(held) = self.held.get_mut(&number).filter(|_| number != ROOT) else { return };
        held.lookups = held.lookups.saturating_sub(lookups);
        if held.lookups == 0 {
            self.numbers.remove(&held.node.key);
            self.held.remove(&number);
        }
    }
}

enum Handle {
    File(Arc<OpenFile>),
    Listing(Arc<Vec<(String, Node)>>),
}

struct Server {
    device: File,
    tree: Tree,
    ahead: ReadAhead,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
    running: AtomicUsize,
    printed: Mutex<HashSet<String>>,
    mounted_ns: i64,
    uid: u32,
    gid: u32,
}

/// A folder that a repository is mounted at. It stays mounted until [`Mount::serve`] ends.
pub struct Mount {
    folder: PathBuf,
    server: Arc<Server>,
    threads: usize,
}

/// Why a request is refused: what the kernel is told, and what is printed.
enum Refusal {
    Code(Errno),
    Error(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

type Answer = std::result::Result<(), Refusal>;

const REFUSED: Refusal = Refusal::Code(Errno::INVAL);

impl Mount {
    /// Mounts a catalog at an empty folder. When this returns, the folder can be listed as soon as
    /// [`Mount::serve`] runs.
    pub fn new(catalog: Catalog, folder: &Path, options: MountOptions) -> Result<Self> {
        attach::check_mount_point(folder)?;
        let folder = std::fs::canonicalize(folder)
            .map_err(|error| Error::io(format!("mount at {}", folder.display()), error))?;
        let threads = |error| Error::io("start threads", error);
        let ahead = ReadAhead::start(options.threads.div_ceil(2)).map_err(threads)?;
        let mounted_ns = catalog.repository().objects.context.env.now_ns();
        let device: OwnedFd = attach::mount(&folder, options.allow_other)?;
        let server = Server {
            device: device.into(),
            tree: Tree::new(catalog),
            ahead,
            nodes: Mutex::new(Nodes::new()),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            running: AtomicUsize::new(0),
            printed: Mutex::default(),
            mounted_ns,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let mount = Self { folder, server: Arc::new(server), threads: options.threads.max(2) };
        if let Err(error) = mount.server.greet() {
            let _ = attach::unmount(&mount.folder, true);
            return Err(error);
        }
        Ok(mount)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Serves until somebody unmounts the folder or the user asks to stop; then unmounts it.
    ///
    /// Programs that use the folder then get errors; a thread that still reads from storage is left
    /// to end by itself.
    pub fn serve(&self, env: &dyn Env) -> Result<()> {
        self.server.running.store(self.threads, Ordering::SeqCst);
        for _ in 0..self.threads {
            let server = Arc::clone(&self.server);
            let thread = std::thread::Builder::new().name("fuse".to_owned());
            let spawned = thread.spawn(move || {
                server.work();
                server.running.fetch_sub(1, Ordering::SeqCst);
            });
            if let Err(error) = spawned {
                let _ = attach::unmount(&self.folder, true);
                return Err(Error::io("start threads", error));
            }
        }
        // The folder itself is asked for here, which takes threads that answer.
        attach::read_far_ahead(&self.folder);
        let runs = || self.server.running.load(Ordering::SeqCst) == self.threads;
        while runs() && !env.is_interrupted() {
            env.sleep_ns(LOOK_NS);
        }
        if !runs() {
            // Somebody has unmounted it.
            return Ok(());
        }
        match attach::unmount(&self.folder, false) {
            Err(error) if error.kind() == ErrorKind::Busy => attach::unmount(&self.folder, true)?,
            unmounted => unmounted?,
        }
        for _ in 0..LOOKS_AT_END {
            if self.server.running.load(Ordering::SeqCst) == 0 {
                break;
            }
            env.sleep_ns(LOOK_NS);
        }
        Ok(())
    }
}

impl Server {
    /// Answers the first request, by which the kernel and the server agree on the protocol.
    fn greet(&self) -> Result<()> {
        let failed = |error| Error::io("talk to the kernel's FUSE", error);
        let mut message = vec![0; fuse::REQUEST_BYTES_MAX];
        let length = (&self.device).read(&mut message).map_err(failed)?;
        let mut reply = Reply::new();
        let request = Request::decode(&message[..length]);
        let request = request.filter(|request| request.opcode == fuse::INIT);
        let agreed =
            request.and_then(|request| fuse::init(&request, &mut reply).map(|()| request.unique));
        let unique = agreed.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the kernel's FUSE is older than Linux 4.20")
        })?;
        reply.finish(unique, None, &self.device).map_err(failed)
    }

    /// Answers requests until the folder is unmounted.
    fn work(&self) {
        let mut message = vec![0; fuse::REQUEST_BYTES_MAX];
        let mut reply = Reply::new();
        loop {
            let length = match (&self.device).read(&mut message) {
                Ok(length) => length,
                Err(error) => match Errno::from_io_error(&error) {
                    // The request was interrupted before it was read.
                    Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                    _ => return,
                },
            };
            let Some(request) = Request::decode(&message[..length]) else { continue };
            reply.clear();
            match request.opcode {
                fuse::FORGET => {
                    let lookups = request.long(0).unwrap_or(0);
                    lock(&self.nodes).forget(request.node, lookups);
                }
                fuse::BATCH_FORGET => self.forget_many(&request),
                // What is asked for is answered soon enough.
                fuse::INTERRUPT => {}
                _ => {
                    let error = self.answer(&request, &mut reply).err();
                    let code = error.map(|refusal| self.code(refusal));
                    // The program that has asked may be gone.
                    let _ = reply.finish(request.unique, code, &self.device);
                }
            }
        }
    }

    fn forget_many(&self, request: &Request<'_>) {
        let count = to_usize(u64::from(request.word(0).unwrap_or(0)));
        let mut nodes = lock(&self.nodes);
        for index in 0..count {
            let at = 8 + index * 16;
            let (Some(number), Some(lookups)) = (request.long(at), request.long(at + 8)) else {
                return;
            };
            nodes.forget(number, lookups);
        }
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        match request.opcode {
            fuse::LOOKUP => {
                let folder = self.node(request.node)?;
                let name = request.name().ok_or(Refusal::Code(Errno::NOENT))?;
                let found = self.tree.look_up(&folder, name)?;
                let found = found.ok_or(Refusal::Code(Errno::NOENT))?;
                self.entry(found, reply);
                Ok(())
            }
            fuse::GETATTR => {
                let node = self.node(request.node)?;
                let valid_s = if node.is_lasting() { LASTING_VALID_S } else { NAME_VALID_S };
                self.attributes(request.node, &node).reply(valid_s, reply);
                Ok(())
            }
            fuse::READLINK => {
                reply.bytes(self.tree.target(&*self.node(request.node)?)?.as_bytes());
                Ok(())
            }
            fuse::OPEN => self.open(request, reply),
            fuse::READ => self.read(request, reply),
            fuse::LSEEK => self.seek(request, reply),
            fuse::OPENDIR => {
                let listing = self.tree.list(&*self.node(request.node)?)?;
                self.opened(Handle::Listing(Arc::new(listing)), 0, reply)
            }
            fuse::READDIR => self.list(request, false, reply),
            fuse::READDIRPLUS => self.list(request, true, reply),
            fuse::RELEASE | fuse::RELEASEDIR => {
                let handle = request.long(0).ok_or(REFUSED)?;
                drop(lock(&self.handles).remove(&handle));
                Ok(())
            }
            fuse::STATFS => {
                // Nothing is free, and names may have 255 bytes.
                reply.bytes(&[0; 40]).word(4096).word(255).word(4096).bytes(&[0; 28]);
                Ok(())
            }
            fuse::DESTROY => Ok(()),
            _ => Err(Refusal::Code(Errno::NOSYS)),
        }
    }

    fn node(&self, number: u64) -> std::result::Result<Arc<Node>, Refusal> {
        let nodes = lock(&self.nodes);
        let held = nodes.held.get(&number).ok_or(Refusal::Code(Errno::STALE))?;
        Ok(Arc::clone(&held.node))
    }

    fn attributes(&self, number: u64, node: &Node) -> Attributes {
        let time_ns = if node.time_ns == 0 { self.mounted_ns } else { node.time_ns };
        Attributes {
            node: number,
            bytes: node.bytes,
            time_ns,
            mode: node.mode(),
            // One link says that subfolders are not counted.
            links: 1,
            uid: self.uid,
            gid: self.gid,
        }
    }

    fn entry(&self, node: Node, reply: &mut Reply) {
        let valid_s = if node.is_lasting() { LASTING_VALID_S } else { NAME_VALID_S };
        let (mode, bytes, time_ns) = (node.mode(), node.bytes, node.time_ns);
        let time_ns = if time_ns == 0 { self.mounted_ns } else { time_ns };
        let number = lock(&self.nodes).remember(node);
        let (uid, gid) = (self.uid, self.gid);
        let of = Attributes { node: number, bytes, time_ns, mode, links: 1, uid, gid };
        of.entry(valid_s, valid_s, reply);
    }

    fn opened(&self, handle: Handle, flags: u32, reply: &mut Reply) -> Answer {
        let mut handles = lock(&self.handles);
        if handles.len() >= HANDLES_MAX {
            return Err(Refusal::Code(Errno::NFILE));
        }
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        handles.insert(number, handle);
        reply.long(number).word(flags).word(0);
        Ok(())
    }

    fn open(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let node = self.node(request.node)?;
        let Key::Volume(id) = &node.key else { return Err(Refusal::Code(Errno::ISDIR)) };
        let flags = request.word(0).ok_or(REFUSED)?;
        if flags & 3 != 0 {
            return Err(Refusal::Code(Errno::ROFS));
        }
        let file = self.ahead.open(self.tree.catalog().open(id)?);
        // A snapshot never changes, so pages that the kernel has stay right.
        self.opened(Handle::File(file), fuse::FOPEN_KEEP_CACHE, reply)
    }

    fn file(&self, handle: u64) -> std::result::Result<Arc<OpenFile>, Refusal> {
        match lock(&self.handles).get(&handle) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Refusal::Code(Errno::BADF)),
        }
    }

    fn read(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (handle, offset) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let wanted = to_usize(u64::from(request.word(16).ok_or(REFUSED)?));
        let file = self.file(handle)?;
        let wanted = wanted.min(fuse::READ_BYTES_MAX);
        let read = self.ahead.read(&file, offset, wanted, reply).map_err(|error| {
            let id = file.volume.id();
            // Reads of a deleted snapshot fail once its space is reclaimed.
            match self.tree.catalog().is_deleted(id) {
                Ok(true) => {
                    let message = format!("snapshot {} was deleted", id.snapshot);
                    Refusal::Error(Error::new(ErrorKind::NotFound, message).with_source(error))
                }
                _ => Refusal::Error(error),
            }
        });
        // It was there when it was opened: its bytes are what is missing.
        read.map_err(|refusal| {
            self.code(refusal);
            Refusal::Code(Errno::IO)
        })
    }

    /// The next data or the next hole.
    fn seek(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (handle, offset) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let whence = request.word(16).ok_or(REFUSED)?;
        let file = self.file(handle)?;
        let mut at = offset;
        while let Some(extent) = file.volume.reader().extent_at(at)? {
            let is_found = match whence {
                fuse::SEEK_DATA => !extent.is_zero,
                fuse::SEEK_HOLE => extent.is_zero,
                _ => return Err(REFUSED),
            };
            if is_found {
                reply.long(at);
                return Ok(());
            }
            at = extent.span.offset + extent.span.length;
        }
        if whence == fuse::SEEK_HOLE && offset < at {
            // Every file ends in a hole.
            reply.long(at);
            return Ok(());
        }
        Err(Refusal::Code(Errno::NXIO))
    }

    fn list(&self, request: &Request<'_>, with_attributes: bool, reply: &mut Reply) -> Answer {
        let (handle, from) = (request.long(0).ok_or(REFUSED)?, request.long(8).ok_or(REFUSED)?);
        let room = to_usize(u64::from(request.word(16).ok_or(REFUSED)?)).min(fuse::READ_BYTES_MAX);
        let listing = match lock(&self.handles).get(&handle) {
            Some(Handle::Listing(listing)) => Arc::clone(listing),
            _ => return Err(Refusal::Code(Errno::BADF)),
        };
        let fixed = fuse::DIRENT_BYTES + if with_attributes { fuse::ENTRY_BYTES } else { 0 };
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(listing.len());
        for (at, (name, node)) in listing.iter().enumerate().skip(from) {
            if reply.body_bytes() + fixed + name.len().next_multiple_of(8) > room {
                break;
            }
            let (mode, mut number) = (node.mode(), UNKNOWN_NODE);
            if with_attributes {
                self.entry(node.clone(), reply);
                number = lock(&self.nodes).numbers.get(&node.key).copied().unwrap_or(number);
            }
            fuse::dirent(number, to_u64(at) + 1, mode, name, reply);
        }
        Ok(())
    }

    /// What the kernel is told; what is not just a missing name is printed, each message once.
    fn code(&self, refusal: Refusal) -> Errno {
        let error = match refusal {
            Refusal::Code(code) => return code,
            Refusal::Error(error) => error,
        };
        let message = error.to_string();
        let mut printed = lock(&self.printed);
        if printed.len() < MESSAGES_MAX && printed.insert(message.clone()) {
            self.tree.catalog().repository().warn(&error);
        }
        match error.kind() {
            ErrorKind::NotFound => Errno::NOENT,
            ErrorKind::Denied => Errno::ACCESS,
            ErrorKind::Busy => Errno::NFILE,
            ErrorKind::Invalid => Errno::INVAL,
            _ => Errno::IO,
        }
    }
}
