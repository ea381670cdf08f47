//! The client's side of the second phase of a connection: requests and replies.
//!
//! Any number of threads share a connection. Each sends its requests and waits for their replies.
//! One thread at a time reads the socket: it reads the next header, and if the reply is for another
//! thread, hands the socket to that thread, which reads the payload. So data goes from the socket
//! directly into the buffer of the thread that wants it, and the connection needs no thread of its
//! own.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::{Error, ErrorKind, Result};

use super::channel::Channel;
use super::negotiation::{Terms, lost, shown, violation};
use super::wire::{ReplyBody, ReplyForm, ReplyHeader, Request, chunk, command, errno};
use crate::number::{be_u32, lock, to_usize};

/// Maximum number of requests of a connection that wait for replies. Their bytes fit into a
/// socket's buffer, so sending them never waits until replies are received.
pub const REQUESTS_MAX: usize = 16;
/// Size of the input buffer in bytes. Larger pieces of data are read past it.
const INPUT_BYTES: usize = 16 << 10;
/// Maximum length of the payload of an error in bytes.
const ERROR_BYTES_MAX: u64 = 8 << 10;
/// Maximum number of errors in one reply.
const ERRORS_MAX: usize = 16;

/// A request, and the code that receives its reply.
pub trait Exchange {
    /// Returns the request, with cookie 0.
    fn request(&self) -> Request;
    /// Receives the payload of a simple reply.
    fn simple(&mut self, input: &mut Turn<'_>) -> Result<()>;
    /// Receives the payload of a chunk, which has `length` bytes. Not called for errors.
    fn chunk(&mut self, kind: u16, length: u64, input: &mut Turn<'_>) -> Result<()>;
    /// Returns whether the whole reply has arrived.
    fn is_complete(&self) -> bool;
}

/// A connection to an export.
pub struct Connection {
    channel: Channel,
    terms: Terms,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The input, unless a thread is reading it.
    input: Option<Input>,
    /// A header whose payload is next in the input, for the thread that sent the request.
    parked: Option<ReplyHeader>,
    /// The requests that wait for replies: cookie, and number of the call that sent it.
    waiting: HashMap<u64, u64>,
    calls: u64,
    cookies: u64,
    /// The error that has ended the connection.
    lost: Option<(ErrorKind, String)>,
}

/// Received bytes that were not processed yet.
struct Input {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

/// The right to read the input. Dropping it returns the input to the connection.
pub struct Turn<'c> {
    connection: &'c Connection,
    input: Option<Input>,
}

impl Turn<'_> {
    /// Fills `into`.
    pub fn read_exact(&mut self, mut into: &mut [u8]) -> Result<()> {
        let (channel, Some(input)) = (&self.connection.channel, &mut self.input) else {
            return Err(violation("nothing can be received"));
        };
        while !into.is_empty() {
            if input.from < input.to {
                let length = into.len().min(input.to - input.from);
                into[..length].copy_from_slice(&input.bytes[input.from..input.from + length]);
                input.from += length;
                into = &mut into[length..];
            } else if into.len() >= INPUT_BYTES {
                channel.read_exact(into).map_err(lost)?;
                into = &mut [];
            } else {
                (input.from, input.to) = (0, channel.read(&mut input.bytes).map_err(lost)?);
                if input.to == 0 {
                    return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
                }
            }
        }
        Ok(())
    }

    /// Reads the next header.
    fn header(&mut self) -> Result<ReplyHeader> {
        let mut bytes = [0; super::wire::EXTENDED_CHUNK_HEADER_BYTES];
        self.read_exact(&mut bytes[..4])?;
        let magic = be_u32(&bytes, 0);
        let length = ReplyHeader::bytes(magic, self.connection.terms.form);
        let length = length.ok_or_else(|| violation(format!("{magic:#x} begins no reply")))?;
        self.read_exact(&mut bytes[4..length])?;
        ReplyHeader::decode(&bytes[..length]).ok_or_else(|| violation("an unusual header"))
    }

    /// Reads an error's payload and returns its number and message.
    fn error(&mut self, length: u64) -> Result<(u32, String)> {
        if !(4..=ERROR_BYTES_MAX).contains(&length) {
            return Err(violation(format!("an error has {length} bytes")));
        }
        let mut payload = vec![0; to_usize(length)];
        self.read_exact(&mut payload)?;
        let message = payload.get(6..).unwrap_or_default();
        let stated = payload.get(4..6).map_or(0, |n| usize::from(u16::from_be_bytes([n[0], n[1]])));
        let message = message.get(..stated).ok_or_else(|| violation("an error ends early"))?;
        Ok((be_u32(&payload, 0), shown(message)))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.connection.state).input = self.input.take();
        self.connection.changed.notify_all();
    }
}

/// A request that waits for its reply.
struct Open<E> {
    exchange: E,
    errors: usize,
}

impl Connection {
    /// Returns a connection after its negotiation.
    pub fn new(channel: Channel, terms: Terms) -> Self {
        let input = Some(Input { bytes: vec![0; INPUT_BYTES], from: 0, to: 0 });
        let state = State { input, ..State::default() };
        Self { channel, terms, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the negotiated terms.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the number of requests that wait for replies.
    pub fn load(&self) -> usize {
        lock(&self.state).waiting.len()
    }

    /// Returns the error that has ended the connection, if it is ended.
    pub fn failure(&self) -> Option<Error> {
        let state = lock(&self.state);
        state.lost.as_ref().map(|(kind, why)| Error::new(*kind, why.clone()))
    }

    /// Sends requests, several at a time, and receives the replies. If the server refuses some,
    /// returns the first of its errors after all replies have arrived; any other error ends the
    /// connection.
    pub fn exchange<E: Exchange>(&self, exchanges: impl Iterator<Item = E>) -> Result<()> {
        let done = self.try_exchange(exchanges);
        done.map_err(|error| self.lose(&error))?.map_or(Ok(()), Err)
    }

    fn try_exchange<E: Exchange>(
        &self,
        mut exchanges: impl Iterator<Item = E>,
    ) -> Result<Option<Error>> {
        let call = {
            let mut state = lock(&self.state);
            state.calls += 1;
            state.calls
        };
        let (mut open, mut failure) = (HashMap::new(), None);
        let mut next = exchanges.next();
        loop {
            let mut out = Vec::new();
            while let (Some(exchange), None) = (&next, &failure) {
                let Some(cookie) = self.admit(call, open.is_empty())? else { break };
                let request = Request { cookie, ..exchange.request() };
                out.extend(request.encode(self.terms.form == ReplyForm::Extended));
                let exchange = next.take();
                open.extend(exchange.map(|exchange| (cookie, Open { exchange, errors: 0 })));
                next = exchanges.next();
            }
            if !out.is_empty() {
                self.channel.write_all(&out).map_err(lost)?;
            }
            if open.is_empty() {
                return Ok(failure);
            }
            self.receive(call, &mut open, &mut failure)?;
        }
    }

    /// Counts a request in and returns its cookie, `None` if as many wait as may. With `must`, this
    /// waits until it may be sent.
    fn admit(&self, call: u64, must: bool) -> Result<Option<u64>> {
        let mut state = lock(&self.state);
        while state.lost.is_none() && state.waiting.len() >= REQUESTS_MAX {
            if !must {
                return Ok(None);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some((kind, why)) = &state.lost {
            return Err(Error::new(*kind, why.clone()));
        }
        state.cookies += 1;
        let cookie = state.cookies;
        state.waiting.insert(cookie, call);
        Ok(Some(cookie))
    }

    /// Receives a simple reply, or a chunk, for this call.
    fn receive<E: Exchange>(
        &self,
        call: u64,
        open: &mut HashMap<u64, Open<E>>,
        failure: &mut Option<Error>,
    ) -> Result<()> {
        let (header, mut turn) = self.wait(call)?;
        let Some(waiting) = open.get_mut(&header.cookie) else {
            return Err(violation("a reply that nobody waits for"));
        };
        let mut failed = None;
        let is_last = match header.body {
            ReplyBody::Simple { error: 0 } if self.terms.form != ReplyForm::Simple => {
                return Err(violation("a simple reply where chunks were negotiated"));
            }
            ReplyBody::Simple { error: 0 } => {
                waiting.exchange.simple(&mut turn)?;
                true
            }
            ReplyBody::Simple { error } => {
                failed = Some((error, String::new()));
                true
            }
            ReplyBody::Chunk { is_last, kind, length } if kind >> 15 != 0 => {
                failed = Some(turn.error(length)?);
                is_last
            }
            ReplyBody::Chunk { is_last, kind: chunk::NONE, length: 0 } if is_last => true,
            ReplyBody::Chunk { is_last, kind, length } => {
                waiting.exchange.chunk(kind, length, &mut turn)?;
                is_last
            }
        };
        drop(turn);
        if let Some((number, message)) = failed {
            waiting.errors += 1;
            if waiting.errors > ERRORS_MAX {
                return Err(violation("a reply of many errors"));
            }
            let request = waiting.exchange.request();
            failure.get_or_insert_with(|| request_error(&request, number, &message));
        }
        if is_last {
            if waiting.errors == 0 && !waiting.exchange.is_complete() {
                return Err(violation("a reply lacks a part of what was asked for"));
            }
            open.remove(&header.cookie);
            lock(&self.state).waiting.remove(&header.cookie);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits for the next reply to this call, and for the right to read its payload.
    fn wait(&self, call: u64) -> Result<(ReplyHeader, Turn<'_>)> {
        let mut state = lock(&self.state);
        loop {
            if let Some((kind, why)) = &state.lost {
                return Err(Error::new(*kind, why.clone()));
            }
            let is_ours = |state: &State, header: &ReplyHeader| {
                state.waiting.get(&header.cookie) == Some(&call)
            };
            match (state.parked, state.input.take()) {
                (Some(header), Some(input)) if is_ours(&state, &header) => {
                    state.parked = None;
                    return Ok((header, Turn { connection: self, input: Some(input) }));
                }
                (None, Some(input)) => {
                    drop(state);
                    let mut turn = Turn { connection: self, input: Some(input) };
                    let header = turn.header()?;
                    let mut state_now = lock(&self.state);
                    if is_ours(&state_now, &header) {
                        return Ok((header, {
                            drop(state_now);
                            turn
                        }));
                    }
                    if !state_now.waiting.contains_key(&header.cookie) {
                        drop(state_now);
                        return Err(violation("a reply to no request"));
                    }
                    state_now.parked = Some(header);
                    drop(state_now);
                    drop(turn);
                    state = lock(&self.state);
                }
                (_, input) => {
                    state.input = input;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Ends the connection because of an error, and returns the first such error.
    fn lose(&self, error: &Error) -> Error {
        let mut state = lock(&self.state);
        let (kind, why) = state.lost.get_or_insert_with(|| (error.kind(), error.to_string()));
        let first = Error::new(*kind, why.clone());
        drop(state);
        self.channel.socket().shutdown(std::net::Shutdown::Both);
        self.changed.notify_all();
        first
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let bye = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        if lock(&self.state).lost.is_none() {
            // The server may have left first.
            let bye = bye.encode(self.terms.form == ReplyForm::Extended);
            let _ = self.channel.write_all(&bye);
        }
        self.channel.close();
    }
}

/// Returns the error for a request to which the server has replied with an error.
fn request_error(request: &Request, number: u32, message: &str) -> Error {
    let kind = match number {
        errno::EPERM => ErrorKind::Denied,
        errno::EINVAL | errno::EOVERFLOW => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let name = match number {
        errno::EPERM => "EPERM".to_owned(),
        errno::EIO => "EIO".to_owned(),
        errno::EINVAL => "EINVAL".to_owned(),
        errno::EOVERFLOW => "EOVERFLOW".to_owned(),
        errno::ESHUTDOWN => "ESHUTDOWN".to_owned(),
        other => format!("error {other}"),
    };
    let what = if request.command == command::READ { "a read" } else { "a status request" };
    let said = if message.is_empty() { String::new() } else { format!(": {message}") };
    let Request { offset, length, .. } = request;
    Error::new(
        kind,
        format!("the server failed {what} of {length} bytes at {offset} with {name}{said}"),
    )
}
