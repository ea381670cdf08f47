//! Serving a mounted folder.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use silt_format::number::to_usize;
use silt_format::{Error, ErrorKind, Result};
use siltstone::Env;

use super::attach;
use super::handles::Handles;
use super::nodes::Nodes;
use super::protocol::{self as fuse, Reply, Request};
use super::read_ahead::ReadAhead;
use super::tree::{Node, Tree};
use crate::catalog::{Catalog, lock};

/// Maximum number of different warnings about failed requests.
const MESSAGES_MAX: usize = 1000;
/// Interval at which the server checks whether to stop.
const LOOK_NS: u64 = 100_000_000;
/// Maximum number of such intervals that it waits for its threads at the end.
const LOOKS_AT_END: usize = 20;

/// Options for mounting.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Number of threads that answer requests.
    pub threads: usize,
    /// Let other users see the folder, as far as the permissions of the files allow. Without it,
    /// only the user who mounts sees the folder, not even root, and can read all files.
    pub allow_other: bool,
}

pub struct Server {
    device: File,
    pub tree: Tree,
    pub ahead: ReadAhead,
    pub nodes: Mutex<Nodes>,
    pub handles: Handles,
    running: AtomicUsize,
    printed: Mutex<HashSet<String>>,
    pub mounted_ns: i64,
    /// User and group of disks, and of folders outside of file trees.
    pub owner: (u32, u32),
}

/// A mounted repository. It stays mounted until [`Mount::serve`] ends.
pub struct Mount {
    folder: PathBuf,
    server: Arc<Server>,
    threads: usize,
}

/// Why a request fails: a code for the kernel, or an error that also causes a warning.
pub enum Refusal {
    Code(Errno),
    Error(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub type Answer = std::result::Result<(), Refusal>;

pub const REFUSED: Refusal = Refusal::Code(Errno::INVAL);

impl Mount {
    /// Mounts a catalog at an empty folder, which can be used on return. The end of
    /// [`Mount::serve`] unmounts it.
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
            handles: Handles::default(),
            running: AtomicUsize::new(0),
            printed: Mutex::default(),
            mounted_ns,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        };
        let mount = Self { folder, server: Arc::new(server), threads: options.threads.max(2) };
        let started = mount.server.greet(options.allow_other);
        if let Err(error) = started.and_then(|()| mount.start()) {
            let _ = attach::unmount(&mount.folder, true);
            return Err(error);
        }
        // This accesses the folder, so the threads must be running, and before `serve`: a folder
        // that is being accessed cannot be unmounted.
        attach::read_far_ahead(&mount.folder);
        Ok(mount)
    }

    fn start(&self) -> Result<()> {
        self.server.running.store(self.threads, Ordering::SeqCst);
        for _ in 0..self.threads {
            let server = Arc::clone(&self.server);
            let work = move || {
                server.work();
                server.running.fetch_sub(1, Ordering::SeqCst);
            };
            let thread = std::thread::Builder::new().name("fuse".to_owned());
            thread.spawn(work).map_err(|error| Error::io("start threads", error))?;
        }
        Ok(())
    }

    /// Returns the folder at which it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Serves until the folder is unmounted or `env` is interrupted, and then unmounts it.
    ///
    /// Programs that still use the folder get errors. Does not wait longer than two seconds for
    /// threads that still read from storage.
    pub fn serve(&self, env: &dyn Env) -> Result<()> {
        let runs = || self.server.running.load(Ordering::SeqCst) == self.threads;
        while runs() && !env.is_interrupted() {
            env.sleep_ns(LOOK_NS);
        }
        if !runs() {
            // It was unmounted from outside.
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
    /// Answers the first request, in which the kernel and the server agree on the protocol's
    /// version.
    fn greet(&self, checks_access: bool) -> Result<()> {
        let failed = |error| Error::io("communicate with the kernel's FUSE", error);
        let mut message = vec![0; fuse::REQUEST_BYTES_MAX];
        let length = (&self.device).read(&mut message).map_err(failed)?;
        let mut reply = Reply::new();
        let request = Request::decode(&message[..length]);
        let request = request.filter(|request| request.opcode == fuse::INIT);
        let agreed = request.and_then(|request| {
            fuse::init(&request, checks_access, &mut reply).map(|()| request.unique)
        });
        let unique = agreed.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the kernel's FUSE is older than that of Linux 4.20")
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
                // Ignored: every request is answered soon.
                fuse::INTERRUPT => {}
                _ => {
                    let error = self.answer(&request, &mut reply).err();
                    let code = error.map(|refusal| self.code(refusal));
                    // This fails if the program that sent the request is gone.
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
            fuse::LOOKUP => self.look_up(request, reply),
            fuse::GETATTR => {
                let node = self.node(request.node)?;
                self.attributes(request.node, &node, reply);
                Ok(())
            }
            fuse::READLINK => {
                reply.bytes(&self.tree.target(&*self.node(request.node)?)?);
                Ok(())
            }
            fuse::GETXATTR => self.xattr(request, reply),
            fuse::LISTXATTR => self.xattr_names(request, reply),
            fuse::OPEN => self.open(request, reply),
            fuse::READ => self.read(request, reply),
            fuse::LSEEK => self.seek(request, reply),
            fuse::OPENDIR => self.open_listing(request, reply),
            fuse::READDIR => self.list(request, false, reply),
            fuse::READDIRPLUS => self.list(request, true, reply),
            fuse::RELEASE | fuse::RELEASEDIR => {
                self.handles.close(request.long(0).ok_or(REFUSED)?);
                Ok(())
            }
            fuse::STATFS => {
                // No free space; names of up to 255 bytes.
                reply.bytes(&[0; 40]).word(4096).word(255).word(4096).bytes(&[0; 28]);
                Ok(())
            }
            fuse::DESTROY => Ok(()),
            _ => Err(Refusal::Code(Errno::NOSYS)),
        }
    }

    pub fn node(&self, number: u64) -> std::result::Result<Arc<Node>, Refusal> {
        lock(&self.nodes).get(number).ok_or(Refusal::Code(Errno::STALE))
    }

    /// Returns the code for the kernel. Warns about an error, once for each message.
    pub fn code(&self, refusal: Refusal) -> Errno {
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
