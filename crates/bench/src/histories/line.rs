//! A line between a host and a server that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::Result;

/// How often a held line looks whether it passes again.
const LOOK: Duration = Duration::from_millis(20);

/// What a line does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Passes = 0,
    /// Connections are closed, and new ones too.
    Cut = 1,
    /// Connections stay, and nothing arrives.
    Silent = 2,
}

struct Shared {
    state: AtomicU8,
    open: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn is(&self, state: State) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }
}

/// A line to a port of this machine, which lasts as long as the program.
pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Line {
    pub fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared =
            Arc::new(Shared { state: AtomicU8::new(State::Passes as u8), open: Mutex::default() });
        let line = Self { port, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || forward(client, to, &shared));
            }
        });
        Ok(line)
    }

    pub fn set(&self, state: State) {
        self.shared.state.store(state as u8, Ordering::SeqCst);
        if state == State::Cut {
            let mut open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
            for stream in open.drain(..) {
                drop(stream.shutdown(Shutdown::Both));
            }
        }
    }
}

fn forward(client: TcpStream, to: u16, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let clones = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(from_client), Ok(to_server), Ok(kept), Ok(also_kept)) = clones else { return };
    {
        let mut open = shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock, so that no connection is open after a cut.
        if shared.is(State::Cut) {
            return;
        }
        open.extend([kept, also_kept]);
    }
    let other = Arc::clone(shared);
    let there = std::thread::spawn(move || pass(from_client, to_server, &other));
    pass(server, client, shared);
    drop(there.join());
}

fn pass(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while shared.is(State::Silent) {
            std::thread::sleep(LOOK);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
