//! A server to which sources connect.

use std::io::ErrorKind as Io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use silt_backup::BackupOptions;
use silt_format::replica::ReplicaRole;
use silt_format::{Error, Result};
use silt_repository::Repository;
use silt_repository::event::Warning;
use silt_source::nbd::{Channel, Socket};

use crate::connection::{Connection, master_of, serve};
use crate::pinned;
use crate::replica::{KeepDeltas, Replica};
use crate::transport::{stream, untrusted};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// How often it is looked whether somebody connects, or whether to stop.
const LOOK_NS: u64 = 100_000_000;

/// How a server takes connections.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections at once, at most; others are closed.
    pub connections_max: usize,
    /// How snapshots are stored.
    pub backup: BackupOptions,
    /// The zstd level of what is sent.
    pub level: i32,
}

/// A server's socket.
pub struct Listener(TcpListener);

impl Listener {
    /// Listens on an address.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let failed = |error| Error::io(format!("listen on {address}"), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self(listener))
    }

    /// The address, with the port that was chosen for port 0.
    pub fn address(&self) -> Result<SocketAddr> {
        self.0.local_addr().map_err(|error| Error::io("look up the port", error))
    }

    /// Serves `repository` as a replica until the user asks to stop. Only who proves its secret is
    /// let in. A connection that fails gives a warning.
    ///
    /// After each snapshot whose chunks have come as deltas, `keep` is called.
    pub fn run(
        &self,
        repository: &Repository,
        options: &ListenOptions,
        keep: Option<&KeepDeltas<'_>>,
    ) -> Result<()> {
        let context = &repository.objects.context;
        let open: Mutex<Vec<Arc<Socket>>> = Mutex::default();
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while !context.env.is_interrupted() {
                let (socket, from) = match self.0.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == Io::WouldBlock => {
                        context.env.sleep_ns(LOOK_NS);
                        continue;
                    }
                    Err(error) => {
                        context.warn(Warning::from(&Error::io("accept a connection", error)));
                        context.env.sleep_ns(LOOK_NS);
                        continue;
                    }
                };
                if count.load(Ordering::SeqCst) >= options.connections_max {
                    continue;
                }
                count.fetch_add(1, Ordering::SeqCst);
                let socket = Arc::new(Socket::Tcp(socket));
                lock(&open).push(Arc::clone(&socket));
                let (open, count) = (&open, &count);
                scope.spawn(move || {
                    if let Err(error) = connection(repository, &socket, options, keep) {
                        let error = error.context(format!("connection from {from}"));
                        repository.warn(Warning::from(&error));
                    }
                    lock(open).retain(|other| !Arc::ptr_eq(other, &socket));
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
            lock(&open).iter().for_each(|socket| socket.shutdown(Shutdown::Both));
        });
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connection(
    repository: &Repository,
    socket: &Arc<Socket>,
    options: &ListenOptions,
    keep: Option<&KeepDeltas<'_>>,
) -> Result<()> {
    let failed = |error| Error::io("set up the connection", error);
    if let Socket::Tcp(stream) = &**socket {
        TcpStream::set_nonblocking(stream, false).map_err(failed)?;
    }
    socket.prepare().map_err(failed)?;
    socket.set_read_timeout(Some(HANDSHAKE)).map_err(failed)?;
    let mut channel = Channel::new(Arc::clone(socket));
    let tls = pinned::server(master_of(repository)?)?;
    channel.start_tls(tls).map_err(|error| untrusted("the source", error))?;
    socket.set_read_timeout(None).map_err(failed)?;
    let context = repository.objects.context.clone();
    let repository = repository.for_operation(context.operation());
    let stream = stream(channel);
    let mut connection =
        Connection::open(&repository, ReplicaRole::Replica, stream, options.level)?;
    let replica = Replica::new(&repository, options.backup.clone()).keeping(keep);
    let served = serve(replica, &mut connection);
    connection.close();
    served.map(drop)
}
