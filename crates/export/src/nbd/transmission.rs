//! The second phase of a connection: requests and replies.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, ErrorKind};
use silt_source::nbd::Channel;
use silt_source::nbd::wire::{
    EXTENDED_REQUEST_BYTES, REQUEST_BYTES, ReplyForm, Request, command, command_flag, errno,
};
use siltstone::{VolumeReader, Warning};

use super::exports::Exports;
use super::handshake::{BLOCK_BYTES, Session};
use super::reply::{self, To};
use super::status;
use crate::catalog::lock;

/// Most threads that read data for a connection.
pub const THREADS_MAX: usize = 4;
/// Most bytes of data that a thread holds.
pub const PIECE_BYTES: usize = 1 << 20;
/// Most requests that wait for a thread. No more are read from the client meanwhile.
const WAITING_MAX: usize = 64;
/// Most bytes that are read by the thread of the connection itself, if they are in memory.
const AT_ONCE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of replies that are sent together.
const BATCH_BYTES_MAX: usize = 128 << 10;
/// Bytes of requests that are read together.
const INPUT_BYTES: usize = 16 << 10;
/// Zeros inside data that are worth a chunk of their own.
const HOLE_BYTES_MIN: u64 = 32 << 10;
/// Most failed requests of a connection that are logged.
const LOGGED_MAX: usize = 1000;

/// A connection that has chosen an export.
pub struct Transmission<'t> {
    /// Where requests come from.
    pub channel: &'t Channel,
    /// The negotiated session.
    pub session: &'t Session,
    /// The exports.
    pub exports: &'t Exports,
    /// Most threads that read data, at most [`THREADS_MAX`].
    pub threads: usize,
    /// Whether the server is ending.
    pub is_ending: &'t (dyn Fn() -> bool + Sync),
    /// How many failed requests were logged.
    pub logged: AtomicUsize,
}

/// Requests that wait for a thread.
#[derive(Default)]
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Threads that have nothing to do.
    idle: usize,
    is_closed: bool,
}

impl Queue {
    /// Adds a request, once there is room. Returns whether another thread could be of use.
    fn push(&self, request: Request) -> bool {
        let mut state = lock(&self.state);
        while state.requests.len() >= WAITING_MAX && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.requests.push_back(request);
        let is_short = state.idle < state.requests.len();
        drop(state);
        self.changed.notify_all();
        is_short
    }

    /// The next request; `None` once there will be no more.
    fn pop(&self) -> Option<Request> {
        let mut state = lock(&self.state);
        loop {
            if let Some(request) = state.requests.pop_front() {
                if state.requests.len() + 1 == WAITING_MAX {
                    self.changed.notify_all();
                }
                return Some(request);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Lets the threads end when they have done what waits, or at once.
    fn close(&self, at_once: bool) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        if at_once {
            state.requests.clear();
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// What follows a request.
enum Next {
    Request,
    End,
}

/// Why a request was not done: the error's number, what to say, and where.
struct Failed(u32, String, Option<u64>);

impl Failed {
    fn invalid(why: &str) -> Self {
        Self(errno::EINVAL, why.to_owned(), None)
    }
}

/// Whether a request is of more than a thread may hold.
fn is_long(request: &Request) -> bool {
    to_usize(request.length) > PIECE_BYTES
}

impl Transmission<'_> {
    /// Answers requests until the client leaves.
    pub fn serve(&self) -> io::Result<()> {
        let queue = Queue::default();
        std::thread::scope(|scope| {
            let mut threads = 0;
            let result = self.read_requests(&mut |request| {
                if queue.push(request) && threads < self.threads.min(THREADS_MAX) {
                    threads += 1;
                    scope.spawn(|| self.work(&queue));
                }
            });
            queue.close(result.is_err());
            result
        })
    }

    /// Answers requests that take reading.
    fn work(&self, queue: &Queue) {
        let mut out = Vec::new();
        while let Some(request) = queue.pop() {
            out.clear();
            if self.answer(&request, &mut out).is_err() {
                // The client is gone; the thread of the connection notices, too.
                self.channel.close();
                queue.close(true);
            }
        }
    }

    fn read_requests(&self, dispatch: &mut dyn FnMut(Request)) -> io::Result<()> {
        let (mut input, mut from, mut to) = (vec![0; INPUT_BYTES], 0, 0);
        let mut out = Vec::new();
        let header_bytes = if self.is_extended() { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES };
        loop {
            while to - from < header_bytes {
                if !out.is_empty() {
                    self.channel.write_all(&out)?;
                    out.clear();
                }
                input.copy_within(from..to, 0);
                (from, to) = (0, to - from);
                match self.channel.read(&mut input[to..])? {
                    0 => return Ok(()),
                    length => to += length,
                }
            }
            // What does not begin as a request can't be answered, and nor can what follows.
            let Some(request) = self.decode(&input[from..to]) else { return Ok(()) };
            from += header_bytes;
            if self.has_payload(&request) {
                if request.length > u64::from(BLOCK_BYTES.2) {
                    return Ok(());
                }
                let length = to_usize(request.length);
                let here = length.min(to - from);
                from += here;
                self.skip(length - here)?;
            }
            match self.answer_at_once(&request, &mut out, dispatch) {
                Next::Request => {}
                Next::End => {
                    return self.channel.write_all(&out);
                }
            }
            if out.len() >= BATCH_BYTES_MAX {
                self.channel.write_all(&out)?;
                out.clear();
            }
        }
    }

    fn is_extended(&self) -> bool {
        self.session.form == ReplyForm::Extended
    }

    fn decode(&self, bytes: &[u8]) -> Option<Request> {
        if self.is_extended() {
            return Request::decode_extended(bytes.first_chunk()?);
        }
        Request::decode(bytes.first_chunk()?)
    }

    /// Whether bytes follow a request, as many as it is long.
    fn has_payload(&self, request: &Request) -> bool {
        if self.is_extended() {
            return request.flags & command_flag::PAYLOAD_LEN != 0;
        }
        request.command == command::WRITE
    }

    fn is_structured(&self) -> bool {
        self.session.form != ReplyForm::Simple
    }

    /// Where the reply to a request goes.
    fn to(&self, request: &Request) -> To {
        To { form: self.session.form, cookie: request.cookie, offset: request.offset }
    }

    /// Reads what a client has sent to be written.
    fn skip(&self, mut length: usize) -> io::Result<()> {
        let mut bytes = vec![0; length.min(INPUT_BYTES)];
        while length > 0 {
            let piece = length.min(bytes.len());
            self.channel.read_exact(&mut bytes[..piece])?;
            length -= piece;
        }
        Ok(())
    }

    fn reader(&self) -> &VolumeReader {
        self.session.export.volume.reader()
    }

    /// Appends the reply to a request that takes no reading, or dispatches it.
    fn answer_at_once(
        &self,
        request: &Request,
        out: &mut Vec<u8>,
        dispatch: &mut dyn FnMut(Request),
    ) -> Next {
        if request.command == command::DISC {
            return Next::End;
        }
        if let Err(failed) = self.judge(request) {
            self.fail(request, &failed, out);
            return Next::Request;
        }
        match request.command {
            command::FLUSH => self.succeed(request, out),
            command::READ if request.length == 0 => self.succeed(request, out),
            command::READ if request.length <= AT_ONCE_BYTES_MAX => {
                if !self.read_in_memory(request, out) {
                    dispatch(*request);
                }
            }
            _ => dispatch(*request),
        }
        Next::Request
    }

    /// Whether a request is one that this server can do.
    fn judge(&self, request: &Request) -> Result<(), Failed> {
        if (self.is_ending)() {
            let message = "the server is ending".to_owned();
            return Err(Failed(errno::ESHUTDOWN, message, None));
        }
        let mut allowed = command_flag::FUA;
        match request.command {
            command::READ if self.is_structured() => allowed |= command_flag::DF,
            command::BLOCK_STATUS => allowed |= command_flag::REQ_ONE,
            command::READ | command::FLUSH | command::CACHE => {}
            command::WRITE | command::TRIM | command::WRITE_ZEROES => {
                let message = "the export is read-only".to_owned();
                return Err(Failed(errno::EPERM, message, None));
            }
            _ => return Err(Failed::invalid("this server does not know the command")),
        }
        if request.flags & !allowed != 0 {
            return Err(Failed::invalid("the request has flags that it can't have"));
        }
        if request.command == command::FLUSH {
            return Ok(());
        }
        let end = request.offset.checked_add(request.length);
        if end.is_none_or(|end| end > self.reader().bytes()) {
            return Err(Failed::invalid("the range goes beyond the end"));
        }
        match request.command {
            command::READ if request.length > u64::from(BLOCK_BYTES.2) => {
                Err(Failed::invalid("the range is larger than the largest block"))
            }
            command::READ if self.is_whole(request) && is_long(request) => {
                let message = "too much to send in one piece".to_owned();
                Err(Failed(errno::EOVERFLOW, message, None))
            }
            command::CACHE if request.length > u64::from(u32::MAX) => {
                Err(Failed::invalid("the range is too large to be read ahead"))
            }
            command::BLOCK_STATUS if self.session.contexts.is_empty() => {
                Err(Failed::invalid("no metadata context was selected"))
            }
            command::BLOCK_STATUS if request.length == 0 => {
                Err(Failed::invalid("the range is empty"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the client wants one chunk of content.
    fn is_whole(&self, request: &Request) -> bool {
        self.is_structured() && request.flags & command_flag::DF != 0
    }

    /// Appends the reply to a read of what is in memory; `false` if it is not.
    fn read_in_memory(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        let Request { cookie, offset, length, .. } = *request;
        let (before, to, bytes) = (out.len(), self.to(request), to_usize(length));
        let start = if self.is_structured() {
            reply::data(out, to, true, offset, bytes)
        } else {
            reply::simple(out, cookie, 0);
            let start = out.len();
            out.resize(start + bytes, 0);
            start
        };
        let is_zero = self.reader().read_in_memory(offset, &mut out[start..]);
        if is_zero.is_none() || (is_zero == Some(true) && self.is_structured()) {
            out.truncate(before);
        }
        if is_zero == Some(true) && self.is_structured() {
            reply::hole(out, to, true, offset, length);
        }
        is_zero.is_some()
    }

    fn succeed(&self, request: &Request, out: &mut Vec<u8>) {
        if self.is_structured() {
            reply::none(out, self.to(request));
        } else {
            reply::simple(out, request.cookie, 0);
        }
    }

    fn fail(&self, request: &Request, failed: &Failed, out: &mut Vec<u8>) {
        let Failed(number, why, offset) = failed;
        if self.is_structured() {
            reply::error(out, self.to(request), *number, why, *offset);
        } else {
            reply::simple(out, request.cookie, *number);
        }
    }

    /// Answers a request that takes reading. Fails only if the client can't be reached.
    fn answer(&self, request: &Request, out: &mut Vec<u8>) -> io::Result<()> {
        let done = match request.command {
            command::CACHE => self.cache(request),
            command::BLOCK_STATUS => self.block_status(request, out),
            _ if self.is_structured() => return self.read_structured(request, out),
            _ if is_long(request) => return self.read_long_simple(request, out),
            _ => self.read_simple(request, out),
        };
        match done {
            Ok(()) if request.command == command::CACHE => self.succeed(request, out),
            Ok(()) => {}
            Err(failed) => {
                out.clear();
                self.fail(request, &failed, out);
            }
        }
        self.channel.write_all(out)
    }

    fn block_status(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), Failed> {
        let Request { offset, length, .. } = *request;
        let is_one = request.flags & command_flag::REQ_ONE != 0;
        let contexts = &self.session.contexts;
        for (id, context) in (1..).zip(contexts) {
            let found = status::extents(context, self.reader(), offset, length, is_one);
            let found = found.map_err(|error| self.failed(&error, offset, length))?;
            let is_last = to_usize(u64::from(id)) == contexts.len();
            reply::extents(out, self.to(request), is_last, id, &found);
        }
        Ok(())
    }

    /// Reads a range to have it in memory.
    fn cache(&self, request: &Request) -> Result<(), Failed> {
        self.verify(request.offset, request.offset + request.length)
    }

    /// Reads a range and drops it.
    fn verify(&self, from: u64, end: u64) -> Result<(), Failed> {
        let mut piece = vec![0; PIECE_BYTES.min(to_usize(end - from))];
        let mut at = from;
        while at < end {
            let length = piece.len().min(to_usize(end - at));
            self.read_at(at, &mut piece[..length])?;
            at += to_u64(length);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Failed> {
        let length = to_u64(into.len());
        let read = self.reader().read_at(offset, into);
        read.map(drop).map_err(|error| self.failed(&error, offset, length))
    }

    fn read_simple(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), Failed> {
        reply::simple(out, request.cookie, 0);
        let start = out.len();
        out.resize(start + to_usize(request.length), 0);
        self.read_at(request.offset, &mut out[start..])
    }

    /// Reads a range that is longer than a thread may hold. The reply has no room for an error once
    /// it has begun: all is read once before, so that hardly anything can go wrong then.
    fn read_long_simple(&self, request: &Request, out: &mut Vec<u8>) -> io::Result<()> {
        let end = request.offset + request.length;
        if let Err(failed) = self.verify(request.offset, end) {
            self.fail(request, &failed, out);
            return self.channel.write_all(out);
        }
        reply::simple(out, request.cookie, 0);
        self.channel.write_with(|send| {
            send(out)?;
            out.resize(PIECE_BYTES, 0);
            let mut at = request.offset;
            while at < end {
                let length = PIECE_BYTES.min(to_usize(end - at));
                let read = self.read_at(at, &mut out[..length]);
                read.map_err(|Failed(_, why, _)| io::Error::other(why))?;
                send(&out[..length])?;
                at += to_u64(length);
            }
            Ok(())
        })
    }

    /// Answers a read in chunks, a piece at a time, so that no more than a piece is held.
    fn read_structured(&self, request: &Request, out: &mut Vec<u8>) -> io::Result<()> {
        let end = request.offset + request.length;
        let mut at = request.offset;
        while at < end {
            let to = end.min(at + to_u64(PIECE_BYTES));
            out.clear();
            if let Err(failed) = self.read_piece(request, at, to, to == end, out) {
                self.fail(request, &failed, out);
                return self.channel.write_all(out);
            }
            self.channel.write_all(out)?;
            at = to;
        }
        Ok(())
    }

    /// Appends the chunks of a piece. After an error the chunks that are whole stay.
    fn read_piece(
        &self,
        request: &Request,
        from: u64,
        to: u64,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut at = from;
        for (end, is_hole) in self.runs(request, from, to)? {
            let (length, ends) = (end - at, is_last && end == to);
            if is_hole {
                reply::hole(out, self.to(request), ends, at, length);
            } else {
                let before = out.len();
                let start = reply::data(out, self.to(request), ends, at, to_usize(length));
                if let Err(failed) = self.read_at(at, &mut out[start..]) {
                    out.truncate(before);
                    return Err(failed);
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Where data and holes of a piece end, by turns. Short holes count as data, and so do all of
    /// a reply that must be whole.
    fn runs(&self, request: &Request, from: u64, to: u64) -> Result<Vec<(u64, bool)>, Failed> {
        let mut runs: Vec<(u64, bool)> = Vec::new();
        let mut at = from;
        while at < to {
            let extent = self.reader().extent_at(at);
            let extent = extent.map_err(|error| self.failed(&error, at, to - at))?;
            let Some(extent) = extent else { break };
            let end = to.min(extent.span.offset + extent.span.length);
            let is_all = at == from && end == to;
            let is_long = end - at >= HOLE_BYTES_MIN && !self.is_whole(request);
            let is_hole = extent.is_zero && (is_long || is_all);
            match runs.last_mut() {
                Some((last, kind)) if *kind == is_hole => *last = end,
                _ => runs.push((end, is_hole)),
            }
            at = end;
        }
        Ok(runs)
    }

    /// Logs why a range can't be read, and says it in the protocol's terms.
    fn failed(&self, error: &Error, offset: u64, length: u64) -> Failed {
        if error.kind() == ErrorKind::Interrupted {
            return Failed(errno::ESHUTDOWN, "the server is ending".to_owned(), None);
        }
        let export = &self.session.export;
        let logged = self.logged.fetch_add(1, Ordering::Relaxed);
        let catalog = self.exports.catalog();
        let id = export.volume.id();
        let may_be_gone = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
        let mut why = error.to_string();
        // Storage is asked only as long as that is told.
        if logged < LOGGED_MAX && may_be_gone && catalog.is_deleted(id).unwrap_or(false) {
            why = format!("snapshot {} was deleted and its space reclaimed: {why}", id.snapshot);
        }
        if logged < LOGGED_MAX {
            let end = offset.saturating_add(length);
            let name = if export.name.is_empty() { "(default)" } else { &export.name };
            let message = format!("export '{name}', bytes {offset}..{end}: {why}");
            catalog.repository().warn(Warning::new(error.kind(), message));
        } else if logged == LOGGED_MAX {
            let message = "more failed reads of this connection are not logged";
            catalog.repository().warn(Warning::new(error.kind(), message));
        }
        Failed(errno::EIO, why, Some(offset))
    }
}
