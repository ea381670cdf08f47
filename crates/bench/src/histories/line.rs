//! A line between a host and a server that can be cut.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    has_ended: AtomicBool,
    /// Both ends of each connection, by its number.
    open: Mutex<BTreeMap<usize, [TcpStream; 2]>>,
}

impl Shared {
    fn is(&self, state: State) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, [TcpStream; 2]>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes all connections.
    fn close(&self) {
        for stream in std::mem::take(&mut *self.open()).into_values().flatten() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// A line to a port of this machine.
pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Line {
    pub fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            state: AtomicU8::new(State::Passes as u8),
            has_ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let line = Self { port, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                if shared.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || forward((number, client), to, &shared));
            }
        });
        Ok(line)
    }

    pub fn set(&self, state: State) {
        self.shared.state.store(state as u8, Ordering::SeqCst);
        if state == State::Cut {
            self.shared.close();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.set(State::Cut);
        // So that its thread sees it.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn forward((number, client): (usize, TcpStream), to: u16, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let clones = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(from_client), Ok(to_server), Ok(kept), Ok(also_kept)) = clones else { return };
    {
        let mut open = shared.open();
        // Looked at under the lock, so that no connection is open after a cut.
        if shared.is(State::Cut) {
            return;
        }
        open.insert(number, [kept, also_kept]);
    }
    let other = Arc::clone(shared);
    let there = std::thread::spawn(move || pass(from_client, to_server, &other));
    pass(server, client, shared);
    drop(there.join());
    shared.open().remove(&number);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_no_connection_that_has_ended_and_ends_with_its_last_use() -> Result<()> {
        let server = TcpListener::bind("127.0.0.1:0")?;
        let line = Line::start(server.local_addr()?.port())?;
        for _ in 0..20 {
            let mut client = TcpStream::connect(("127.0.0.1", line.port))?;
            client.write_all(b"a")?;
            let (mut accepted, _) = server.accept()?;
            let mut byte = [0];
            accepted.read_exact(&mut byte)?;
            assert_eq!(&byte, b"a");
        }
        while !line.shared.open().is_empty() {
            std::thread::yield_now();
        }
        let open = TcpStream::connect(("127.0.0.1", line.port))?;
        let (mut accepted, _) = server.accept()?;
        let shared = Arc::clone(&line.shared);
        drop(line);
        assert_eq!(accepted.read(&mut [0])?, 0, "it is cut");
        drop(open);
        // Its thread, which has the listener, and those of its connections. The port itself
        // says nothing: whoever asks the system for a free one may have it by now.
        while Arc::strong_count(&shared) > 1 {
            std::thread::yield_now();
        }
        Ok(())
    }
}
