//! What all stores of a process share: a thread for the network, and connections.
//!
//! A repository with storage nodes has a store in each of several places, often at one server. Were
//! each to make connections by itself, each would read every certificate that the system trusts
//! (10 ms of processor time, or 5 ms for a bundle), start a thread, and greet the server.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::HttpClient;
use silt_format::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Threads for the network at most; one for every two processors.
const THREADS_MAX: usize = 4;

/// The network of a process, as long as a store needs it.
pub struct Network {
    /// Given up before the threads that serve them.
    clients: Mutex<Vec<(Manner, Client)>>,
    runtime: Runtime,
}

/// What makes connections and sends requests over them.
#[derive(Clone)]
pub(crate) struct Client {
    /// How it was made: with certificates that were parsed once for all stores.
    pub(crate) options: ClientOptions,
    pub(crate) http: HttpClient,
}

/// How connections are made. Those that are made alike are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Whether they may be unencrypted.
    pub(crate) is_clear: bool,
    /// How long a request may take.
    pub(crate) timeout: Duration,
    /// Most idle connections to a server.
    pub(crate) idle_max: Option<usize>,
    /// Certificates that are trusted beside those of the system, as PEM.
    pub(crate) certificates: Vec<u8>,
}

impl Network {
    /// The network of this process; started if there is none.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Network>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = shared.upgrade() {
            return Ok(network);
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads((processors / 2).clamp(1, THREADS_MAX))
            .thread_name("network")
            .enable_all()
            .build()
            .map_err(|error| Error::io("start the network client", error))?;
        let network = Arc::new(Self { clients: Mutex::default(), runtime });
        *shared = Arc::downgrade(&network);
        Ok(network)
    }

    /// What runs the calls of asynchronous clients.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The client whose connections are made in this manner, or the one that `make` makes.
    pub(crate) fn client(
        &self,
        manner: &Manner,
        make: impl FnOnce() -> Result<Client>,
    ) -> Result<Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(made, _)| made == manner) {
            return Ok(client.clone());
        }
        let client = make()?;
        clients.push((manner.clone(), client.clone()));
        Ok(client)
    }
}
