//! A network that fails: between a program and its store.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What happens to a connection.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// It is closed before anything is sent on.
    Refused,
    /// The store says that it is busy, without having seen the request.
    Busy,
    /// Answers are cut after so many bytes: lost as a whole, or in the middle of a body.
    Cut(u64),
    /// Requests are cut after so many bytes.
    Broken(u64),
    /// Everything is late.
    Slow,
}

/// What an S3-compatible store says when it has begun an answer before it knew how the request
/// would end.
const SUCCESS_WITH_AN_ERROR: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n\
    Content-Length: 108\r\nConnection: close\r\n\r\n<?xml version=\"1.0\"?>\n<Error>\
    <Code>InternalError</Code><Message>We encountered an error</Message></Error>\n\n\n";

/// Forwards connections, of which some fail, by numbers drawn from a seed.
pub struct Proxy {
    port: u16,
    stop: Arc<AtomicBool>,
    faults: Arc<AtomicU64>,
}

fn draw(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fault_of(drawn: u64) -> Fault {
    let size = drawn >> 16;
    match drawn % 10 {
        0 => Fault::Refused,
        1 => Fault::Busy,
        2 => Fault::Cut(size % 300),
        3 => Fault::Cut(size % 100_000),
        4 => Fault::Broken(size % 200_000),
        5 => Fault::Slow,
        _ => Fault::None,
    }
}

impl Proxy {
    /// A proxy to a port of this machine.
    pub fn start(to: u16, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, faults) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&faults));
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let fault = fault_of(draw(seed.wrapping_mul(1 << 32).wrapping_add(number)));
                counted.fetch_add(u64::from(!matches!(fault, Fault::None)), Ordering::SeqCst);
                if let Ok(client) = client {
                    thread::spawn(move || forward(client, to, fault));
                }
            }
        });
        Self { port, stop, faults }
    }

    /// A proxy that passes everything on but the first `times` requests that complete an upload of
    /// several parts: these are answered by a success with an error in it.
    pub fn failing_completions(to: u16, times: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, faults) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&faults));
        thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), counted) = (client, Arc::clone(&counted)) else { continue };
                thread::spawn(move || forward_but_completions(client, to, &counted, times));
            }
        });
        Self { port, stop, faults }
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// How many connections were made to fail.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

#[expect(clippy::disallowed_methods, reason = "a slow network is slow")]
fn forward(mut client: TcpStream, to: u16, fault: Fault) {
    match fault {
        Fault::Refused => return,
        Fault::Busy => {
            let mut request = [0; 4096];
            let _ = client.read(&mut request);
            let answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = client.write_all(answer.as_bytes());
            return;
        }
        Fault::Slow => thread::sleep(Duration::from_millis(300)),
        Fault::None | Fault::Cut(_) | Fault::Broken(_) => {}
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let asked = if let Fault::Broken(bytes) = fault { bytes } else { u64::MAX };
    let answered = if let Fault::Cut(bytes) = fault { bytes } else { u64::MAX };
    let there = thread::spawn(move || pass(from_client, to_server, asked));
    pass(server, client, answered);
    let _ = there.join();
}

fn forward_but_completions(client: TcpStream, to: u16, answered: &AtomicU64, times: u64) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let (Ok(mut from), Ok(answers)) = (client.try_clone(), client.try_clone()) else { return };
    let (Ok(mut to), mut client) = (server.try_clone(), client) else { return };
    thread::spawn(move || pass(server, answers, u64::MAX));
    let mut buffer = [0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        // A client sends a request when the one before was answered, so that its line begins what
        // is read.
        let line = buffer[..read].split(|byte| *byte == b'\r').next().unwrap_or_default();
        let completes = line.starts_with(b"POST ") && line.windows(9).any(|at| at == b"uploadId=");
        if completes && answered.fetch_add(1, Ordering::SeqCst) < times {
            let _ = client.write_all(SUCCESS_WITH_AN_ERROR);
            break;
        }
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}

/// Passes at most so many bytes on, and then ends both directions.
fn pass(mut from: TcpStream, mut to: TcpStream, mut left: u64) {
    let mut buffer = [0; 16 << 10];
    while left > 0 {
        let Ok(read) = from.read(&mut buffer) else { break };
        let passed = usize::try_from(left).map_or(read, |left| left.min(read));
        if read == 0 || to.write_all(&buffer[..passed]).is_err() {
            break;
        }
        left -= passed as u64;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
