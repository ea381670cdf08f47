//! Ways to the other end: a program that is started, or a TCP connection with TLS.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};
use silt_repository::Repository;
use silt_source::nbd::{Channel, Socket};

use crate::connection::Stream;
use crate::pinned;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(30);

/// Where a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A repository that this program opens itself.
    Location(String),
    /// A shell command that serves a replica on its standard input and output.
    Shell(String),
    /// A program on another machine, by SSH.
    Ssh {
        /// The host, with the user if one is given.
        host: String,
        /// The port, unless it is the usual one.
        port: Option<u16>,
        /// The location of the repository there.
        path: String,
    },
    /// A server that listens on a TCP port.
    Tcp(String),
}

impl Destination {
    /// Parses `exec:COMMAND`, `ssh://[USER@]HOST[:PORT]/PATH`, `tcp://HOST:PORT`; everything else
    /// is a location.
    ///
    /// Fails with `Invalid` if a part is missing, and for `HOST:PATH`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("{text}: {why}"));
        if let Some(command) = text.strip_prefix("exec:") {
            if command.trim().is_empty() {
                return Err(wrong("the command is missing"));
            }
            return Ok(Self::Shell(command.to_owned()));
        }
        if let Some(address) = text.strip_prefix("tcp://") {
            let (host, port) = address.rsplit_once(':').unwrap_or_default();
            if host.is_empty() || port.parse::<u16>().is_err() {
                return Err(wrong("the address must be HOST:PORT"));
            }
            return Ok(Self::Tcp(address.to_owned()));
        }
        let Some(rest) = text.strip_prefix("ssh://") else {
            // What `scp` and `rsync` take, and what would be a folder of an odd name here.
            let is_folder = text.starts_with(['/', '.']) || text.contains("://");
            if !is_folder && text.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err(wrong(
                    "write ssh://HOST/PATH for a folder of another machine, ./ in front of one \
                     whose name has a colon",
                ));
            }
            return Ok(Self::Location(text.to_owned()));
        };
        let (host, path) = rest.split_once('/').ok_or_else(|| wrong("the path is missing"))?;
        // `/~/backup` is below the user's home directory, as in Git's addresses.
        let path = path.strip_prefix("~/").map_or_else(|| format!("/{path}"), str::to_owned);
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| wrong("the port is not a number"))?;
                (host, Some(port))
            }
            _ => (host, None),
        };
        // A host that begins with a dash would be an option of ssh.
        if host.is_empty() || host.starts_with('-') || path.len() < 2 {
            return Err(wrong("host or path is missing"));
        }
        let host = host.to_owned();
        Ok(Self::Ssh { host, port, path })
    }
}

/// A way to the other end that is open.
pub struct Line {
    child: Option<Arc<Mutex<Child>>>,
    name: String,
}

impl Line {
    /// Opens a way to a replica that is not a location. Over SSH, `command` runs with the option
    /// for the replica's location behind it.
    ///
    /// Fails with `Unavailable` if there is none, with `Denied` if a server does not prove the
    /// secret of `repository`.
    pub fn open(
        repository: &Repository,
        to: &Destination,
        command: &str,
    ) -> Result<(Self, Stream<'static>)> {
        match to {
            Destination::Location(_) => {
                Err(Error::invalid("a location is opened and not connected to"))
            }
            Destination::Shell(line) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", line]);
                Self::start(shell, "the command".to_owned())
            }
            Destination::Ssh { host, port, path } => {
                let mut ssh = Command::new("ssh");
                ssh.args(["-T", "-o", "BatchMode=yes"]);
                ssh.args(port.map(|port| format!("-p{port}")));
                let command = format!("{command} -r {}", quoted(path));
                ssh.args(["--", host, &command]);
                Self::start(ssh, format!("ssh to {host}"))
            }
            Destination::Tcp(address) => connect(repository, address),
        }
    }

    fn start(mut command: Command, name: String) -> Result<(Self, Stream<'static>)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| Error::io(format!("start {name}"), error))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::invalid("a program without standard input and output"));
        };
        let child = Arc::new(Mutex::new(child));
        let closed = Arc::clone(&child);
        let input = Input(Arc::new(Mutex::new(Some(to))));
        let writer = Input(Arc::clone(&input.0));
        let close = Box::new(move || {
            // A shell that is killed leaves its programs behind. They end with their input.
            drop(input.lock().take());
            let _ = closed.lock().unwrap_or_else(PoisonError::into_inner).kill();
        });
        let stream = Stream { reader: Box::new(from), writer: Box::new(writer), close };
        Ok((Self { child: Some(child), name }, stream))
    }

    /// Waits for the end of a program that was started, after its stream is dropped.
    ///
    /// Fails with `Unavailable` if it ended with an error.
    pub fn end(self) -> Result<()> {
        let Some(child) = self.child else { return Ok(()) };
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let status = status.map_err(|error| Error::io(format!("wait for {}", self.name), error))?;
        if status.success() {
            return Ok(());
        }
        let message = format!("{} ended with {status}", self.name);
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

/// The standard input of a program, until it is closed.
struct Input(Arc<Mutex<Option<ChildStdin>>>);

impl Input {
    fn lock(&self) -> MutexGuard<'_, Option<ChildStdin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.lock()
            .as_mut()
            .map_or(Err(std::io::ErrorKind::BrokenPipe.into()), |to| to.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.lock().as_mut().map_or(Ok(()), Write::flush)
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A channel as a reader and a writer.
pub(crate) struct Wire(pub Arc<Channel>);

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) fn stream(channel: Channel) -> Stream<'static> {
    let channel = Arc::new(channel);
    let closed = Arc::clone(&channel);
    Stream {
        reader: Box::new(Wire(Arc::clone(&channel))),
        writer: Box::new(Wire(channel)),
        close: Box::new(move || closed.close()),
    }
}

fn connect(repository: &Repository, address: &str) -> Result<(Line, Stream<'static>)> {
    let failed = |error| Error::io(format!("connect to {address}"), error);
    let mut last = std::io::ErrorKind::NotFound.into();
    for found in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&found, CONNECT) {
            Ok(socket) => {
                let socket = Arc::new(Socket::Tcp(socket));
                socket.prepare().map_err(failed)?;
                socket.set_read_timeout(Some(CONNECT)).map_err(failed)?;
                let mut channel = Channel::new(Arc::clone(&socket));
                let tls = pinned::client(crate::connection::master_of(repository)?)?;
                let whom = format!("the server at {address}");
                channel.start_tls(tls).map_err(|error| untrusted(&whom, error))?;
                socket.set_read_timeout(None).map_err(failed)?;
                return Ok((Line { child: None, name: address.to_owned() }, stream(channel)));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// The error of a handshake that failed, with a replica or with a source as `whom`.
pub(crate) fn untrusted(whom: &str, error: std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if matches!(inner, Some(rustls::Error::InvalidCertificate(_))) {
        let message = format!(
            "{whom} does not prove the repository's secret: its repository has another one"
        );
        return Error::new(ErrorKind::Denied, message);
    }
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        let message = format!(
            "{whom} hung up during the handshake: its repository may have another secret, or the \
             server takes no more connections"
        );
        return Error::new(ErrorKind::Unavailable, message);
    }
    Error::io(format!("agree on TLS with {whom}"), error)
}
