//! Accepts connections.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{self, PidfdFlags, PidfdGetfdFlags};
use silt_format::{Error, ErrorKind, Result};
use silt_source::nbd::{Channel, Socket, TlsServer};
use siltstone::Warning;

use super::exports::Exports;
use super::handshake::{Terms, negotiate};
use super::transmission::{THREADS_MAX, Transmission};
use crate::catalog::lock;

/// Most connections at once unless told otherwise.
const CONNECTIONS_MAX: usize = 64;
/// How often the server looks whether it is to end.
const LOOK_NS: i64 = 100_000_000;
/// How often it looks, in the end, for connections that finish what they have begun.
const LAST_LOOKS: usize = 20;
/// The first file descriptor that a supervisor hands over (sd_listen_fds(3)).
const HANDED_OVER_FIRST: i32 = 3;
/// Most file descriptors that a supervisor may hand over.
const HANDED_OVER_MAX: i32 = 16;

/// Where connections come from.
pub enum Listener {
    /// A Unix socket; its file is removed when this is dropped, if this has made it.
    Unix(UnixListener, Option<PathBuf>),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on a Unix socket at `path` that only its owner can use.
    ///
    /// An existing socket is replaced if nobody listens on it; otherwise this fails with
    /// `AlreadyExists`.
    pub fn unix(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(format!("listen on {}", path.display()), error);
        if let Ok(found) = fs::symlink_metadata(path) {
            let is_dead = found.file_type().is_socket()
                && UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !is_dead {
                let message = format!("{} is there already, and in use", path.display());
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        // The file must never be there with other rights.
        let before = process::umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        process::umask(before);
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Unix(listener, Some(path.to_owned())))
    }

    /// Listens on a TCP address.
    pub fn tcp(address: SocketAddr) -> Result<Self> {
        let failed = |error| Error::io(format!("listen on {address}"), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Tcp(listener))
    }

    /// The sockets that a supervisor has opened for this process, by the environment's
    /// `LISTEN_FDS` and `LISTEN_PID`; none if they are meant for another.
    pub fn handed_over(fds: Option<&str>, pid: Option<&str>) -> Result<Vec<Self>> {
        let own = std::process::id().to_string();
        let (Some(fds), true) = (fds, pid == Some(own.as_str())) else { return Ok(Vec::new()) };
        let count: i32 = fds.parse().unwrap_or(0);
        if !(1..=HANDED_OVER_MAX).contains(&count) {
            return Err(Error::invalid(format!("LISTEN_FDS is '{fds}', not 1 to 16")));
        }
        let failed = |error: rustix::io::Errno| {
            Error::io("take over the sockets of LISTEN_FDS", error.into())
        };
        let process = process::pidfd_open(process::getpid(), PidfdFlags::empty());
        let process = process.map_err(failed)?;
        let mut listeners = Vec::new();
        for fd in HANDED_OVER_FIRST..HANDED_OVER_FIRST + count {
            let fd = process::pidfd_getfd(&process, fd, PidfdGetfdFlags::empty());
            listeners.push(Self::of(fd.map_err(failed)?)?);
        }
        Ok(listeners)
    }

    /// A listener of a socket that is open.
    fn of(fd: OwnedFd) -> Result<Self> {
        let failed = |error| Error::io("use a socket of LISTEN_FDS", error);
        if !sockopt::socket_acceptconn(&fd).unwrap_or(false) {
            return Err(Error::invalid("a file descriptor of LISTEN_FDS is no listening socket"));
        }
        let family = sockopt::socket_domain(&fd).map_err(|error| failed(error.into()))?;
        if family == AddressFamily::UNIX {
            let listener = UnixListener::from(fd);
            listener.set_nonblocking(true).map_err(failed)?;
            return Ok(Self::Unix(listener, None));
        }
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Tcp(listener))
    }

    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(..) => true,
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|a| a.ip().is_loopback()),
        }
    }

    /// Returns the address as an NBD URI, with `export` as the export's name.
    pub fn uri(&self, export: &str) -> String {
        match self {
            Self::Unix(listener, _) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                let path = path.map_or_else(String::new, |path| path.display().to_string());
                format!("nbd+unix:///{}?socket={}", escape(export), escape(&path))
            }
            Self::Tcp(listener) => {
                let address = listener.local_addr();
                let address = address.map_or_else(|_| "?".to_owned(), |a| a.to_string());
                format!("nbd://{address}/{}", escape(export))
            }
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        let socket = match self {
            Self::Unix(listener, _) => {
                let socket = listener.accept()?.0;
                socket.set_nonblocking(false)?;
                Socket::Unix(socket)
            }
            Self::Tcp(listener) => {
                let socket = listener.accept()?.0;
                socket.set_nonblocking(false)?;
                Socket::Tcp(socket)
            }
        };
        socket.prepare()?;
        Ok(socket)
    }
}

/// A part of a URI with all but the plainest characters escaped (RFC 3986).
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/@:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let digit = |nibble: u8| char::from(b"0123456789ABCDEF"[usize::from(nibble)]);
            escaped.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    escaped
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            // It may have been removed by hand.
            let _ = fs::remove_file(path);
        }
    }
}

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Maximum number of connections; further ones are closed.
    pub connections_max: usize,
    /// Most threads of a connection that read data.
    pub threads: usize,
    /// Time without connections, in nanoseconds, after which the server ends; `None` for never.
    pub idle_exit_ns: Option<u64>,
    /// TLS, which clients must use then.
    pub tls: Option<TlsServer>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let (connections_max, threads) = (CONNECTIONS_MAX, 2);
        Self { connections_max, threads, idle_exit_ns: None, tls: None }
    }
}

/// An NBD server.
pub struct Server {
    exports: Exports,
    options: ServerOptions,
    /// The sockets of the connections there are.
    connected: Mutex<HashMap<u64, Arc<Socket>>>,
}

impl Server {
    /// A server of these exports.
    pub fn new(exports: Exports, options: ServerOptions) -> Self {
        Self { exports, options, connected: Mutex::default() }
    }

    fn now_ns(&self) -> i64 {
        self.exports.catalog().repository().objects.context.env.now_ns()
    }

    /// Whether the user has asked to stop.
    fn is_ending(&self) -> bool {
        self.exports.catalog().repository().objects.context.env.is_interrupted()
    }

    /// Serves connections until the user asks to stop, or nobody was connected for the time of
    /// `idle_exit_ns`. Requests in progress are still answered.
    pub fn run(&self, listeners: &[Listener]) -> Result<()> {
        std::thread::scope(|scope| {
            let (mut number, mut used_ns) = (0_u64, self.now_ns());
            while !self.is_ending() {
                let count = lock(&self.connected).len();
                if count > 0 {
                    used_ns = self.now_ns();
                }
                let idle_ns = self.now_ns().saturating_sub(used_ns);
                let is_long = |limit: u64| u64::try_from(idle_ns).is_ok_and(|idle| idle >= limit);
                if self.options.idle_exit_ns.is_some_and(is_long) {
                    break;
                }
                for ready in wait(listeners)? {
                    let Ok(socket) = listeners[ready].accept() else { continue };
                    if lock(&self.connected).len() >= self.options.connections_max {
                        self.warn("a client was sent away: too many are connected");
                        continue;
                    }
                    number += 1;
                    let (id, socket) = (number, Arc::new(socket));
                    lock(&self.connected).insert(id, Arc::clone(&socket));
                    scope.spawn(move || {
                        self.connection(socket);
                        lock(&self.connected).remove(&id);
                    });
                }
            }
            self.end();
            Ok(())
        })
    }

    /// Lets connections finish what they have begun, for a while.
    fn end(&self) {
        lock(&self.connected).values().for_each(|socket| socket.shutdown(Shutdown::Read));
        for _ in 0..LAST_LOOKS {
            if lock(&self.connected).is_empty() {
                return;
            }
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: LOOK_NS }));
        }
        lock(&self.connected).values().for_each(|socket| socket.shutdown(Shutdown::Both));
    }

    fn warn(&self, message: &str) {
        let warning = Warning::new(ErrorKind::Unavailable, message);
        self.exports.warn(warning);
    }

    fn connection(&self, socket: Arc<Socket>) {
        let mut channel = Channel::new(socket);
        let is_ending = || self.is_ending();
        let tls = self.options.tls.as_ref();
        let terms = Terms { exports: &self.exports, tls, is_ending: &is_ending };
        let done = negotiate(&terms, &mut channel).and_then(|session| match session {
            None => Ok(()),
            Some(session) => {
                let transmission = Transmission {
                    channel: &channel,
                    session: &session,
                    exports: &self.exports,
                    threads: self.options.threads.clamp(1, THREADS_MAX),
                    is_ending: &is_ending,
                    logged: AtomicUsize::new(0),
                };
                transmission.serve()
            }
        });
        // Clients vanish; only what says more than that is worth telling.
        if let Err(error) = done
            && matches!(error.kind(), io::ErrorKind::Other | io::ErrorKind::InvalidData)
        {
            self.warn(&format!("a connection has ended: {error}"));
        }
        channel.close();
    }
}

/// The listeners that somebody is connecting to, after a while at most.
fn wait(listeners: &[Listener]) -> Result<Vec<usize>> {
    let mut fds: Vec<_> =
        listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: LOOK_NS })) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Error::io("wait for connections", error.into())),
    }
    let ready = (0..).zip(&fds).filter(|(_, fd)| fd.revents().contains(PollFlags::IN));
    Ok(ready.map(|(at, _)| at).collect())
}
