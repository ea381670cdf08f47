//! The first phase of a connection: fixed newstyle negotiation.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, ErrorKind};
use silt_source::nbd::wire::{
    EXPORT_NAME_ZEROES, GREETING_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC, ReplyForm,
    decode_option, handshake_flag, info, option, option_reply, transmission_flag,
};
use silt_source::nbd::{Channel, TlsServer};

use super::exports::{Export, Exports};
use super::options::{self, ContextRequest, OPTION_BYTES_MAX};
use super::reply;
use crate::catalog::OpenVolume;

/// Most options of a connection.
const OPTIONS_MAX: usize = 100_000;
/// Longest option whose data is skipped; a client that announces more is let go.
const SKIPPED_BYTES_MAX: u32 = 16 << 20;
/// How long a client may be silent before it has chosen an export.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// Most metadata contexts of a connection: each but the first has a volume open.
const CONTEXTS_MAX: usize = 16;
/// The first words of the contexts that say what has changed.
const CHANGED_SINCE: &str = "silt:changed-since:";
/// The context of holes.
const ALLOCATION: &str = "base:allocation";

/// Smallest, best and largest request, in bytes.
pub const BLOCK_BYTES: (u32, u32, u32) = (1, 4096, 32 << 20);

/// A metadata context.
pub enum Context {
    /// Holes and zeros.
    Allocation,
    /// Ranges that may differ from another state of the volume.
    ChangedSince(Arc<OpenVolume>),
}

/// The result of a negotiation.
pub struct Session {
    /// The export.
    pub export: Export,
    /// How replies begin.
    pub form: ReplyForm,
    /// The metadata contexts; the ids are their places, counted from 1.
    pub contexts: Vec<Context>,
}

/// The parts of a server that a handshake uses.
pub struct Terms<'s> {
    /// The exports.
    pub exports: &'s Exports,
    /// TLS, which is required if it is there.
    pub tls: Option<&'s TlsServer>,
    /// Whether the server is ending.
    pub is_ending: &'s dyn Fn() -> bool,
}

/// What comes after an option.
enum Next {
    /// Another option.
    Option,
    /// The client goes on to requests, with the negotiated session.
    Requests(Box<Session>),
    /// Nothing.
    End,
}

struct Handshake<'s> {
    terms: &'s Terms<'s>,
    channel: &'s mut Channel,
    no_zeroes: bool,
    form: ReplyForm,
    /// The contexts that were selected, and for which export.
    contexts: Option<(String, Vec<Context>)>,
}

/// Negotiates with a client. Returns `None` if it has left, or was let go.
pub fn negotiate(terms: &Terms<'_>, channel: &mut Channel) -> io::Result<Option<Session>> {
    channel.socket().set_read_timeout(Some(SILENCE_MAX))?;
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let mut greeting = GREETING_MAGIC.to_be_bytes().to_vec();
    greeting.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    greeting.extend_from_slice(&flags.to_be_bytes());
    channel.write_all(&greeting)?;
    let mut client = [0; 4];
    channel.read_exact(&mut client)?;
    let client = u32::from_be_bytes(client);
    if client & !u32::from(flags) != 0 {
        return Ok(None);
    }
    let no_zeroes = client & u32::from(handshake_flag::NO_ZEROES) != 0;
    let is_fixed = client & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
    let mut handshake =
        Handshake { terms, channel, no_zeroes, form: ReplyForm::Simple, contexts: None };
    for _ in 0..OPTIONS_MAX {
        let mut header = [0; OPTION_HEADER_BYTES];
        handshake.channel.read_exact(&mut header)?;
        let Some((kind, length)) = decode_option(&header) else { return Ok(None) };
        if !is_fixed && kind != option::EXPORT_NAME {
            return Ok(None);
        }
        match handshake.answer(kind, length)? {
            Next::Option => {}
            Next::End => return Ok(None),
            Next::Requests(session) => {
                handshake.channel.socket().set_read_timeout(None)?;
                return Ok(Some(*session));
            }
        }
    }
    Ok(None)
}

impl Handshake<'_> {
    fn answer(&mut self, kind: u32, length: u32) -> io::Result<Next> {
        if to_usize(u64::from(length)) > OPTION_BYTES_MAX {
            return self.skip(kind, length);
        }
        let mut data = vec![0; to_usize(u64::from(length))];
        self.channel.read_exact(&mut data)?;
        let tls_first = self.terms.tls.is_some() && !self.channel.is_secure();
        if tls_first && ![option::STARTTLS, option::ABORT].contains(&kind) {
            if kind == option::EXPORT_NAME {
                return Ok(Next::End);
            }
            return self.refuse(kind, option_reply::ERR_TLS_REQD, "this server requires TLS");
        }
        if (self.terms.is_ending)() && kind != option::ABORT {
            return self.refuse(kind, option_reply::ERR_SHUTDOWN, "the server is ending");
        }
        let must_be_empty =
            [option::LIST, option::STARTTLS, option::STRUCTURED_REPLY, option::EXTENDED_HEADERS]
                .contains(&kind);
        if must_be_empty && !data.is_empty() {
            return self.refuse(kind, option_reply::ERR_INVALID, "this option has no data");
        }
        match kind {
            option::EXPORT_NAME => self.export_name(&data),
            option::ABORT => {
                // The client may have left already.
                let _ = self.acknowledge(kind);
                Ok(Next::End)
            }
            option::LIST => self.list(),
            option::STARTTLS => self.start_tls(),
            option::INFO | option::GO => self.go(kind, &data),
            option::STRUCTURED_REPLY => self.use_form(kind, ReplyForm::Structured),
            option::EXTENDED_HEADERS => self.use_form(kind, ReplyForm::Extended),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(kind, &data),
            _ => self.refuse(kind, option_reply::ERR_UNSUP, "this server does not know the option"),
        }
    }

    /// Passes over an option that is too long to be looked at.
    fn skip(&mut self, kind: u32, length: u32) -> io::Result<Next> {
        if length > SKIPPED_BYTES_MAX || kind == option::EXPORT_NAME {
            return Ok(Next::End);
        }
        let mut left = to_usize(u64::from(length));
        let mut skipped = vec![0; OPTION_BYTES_MAX];
        while left > 0 {
            let piece = left.min(OPTION_BYTES_MAX);
            self.channel.read_exact(&mut skipped[..piece])?;
            left -= piece;
        }
        self.refuse(kind, option_reply::ERR_TOO_BIG, "the option is too long")
    }

    fn acknowledge(&mut self, kind: u32) -> io::Result<Next> {
        let mut out = Vec::new();
        reply::option(&mut out, kind, option_reply::ACK, &[]);
        self.channel.write_all(&out)?;
        Ok(Next::Option)
    }

    fn refuse(&mut self, kind: u32, error: u32, why: &str) -> io::Result<Next> {
        let mut out = Vec::new();
        reply::option_error(&mut out, kind, error, why);
        self.channel.write_all(&out)?;
        Ok(Next::Option)
    }

    /// Refuses an option because of what went wrong with the repository, and logs what the client
    /// could not have caused.
    fn fail(&mut self, kind: u32, error: &Error) -> io::Result<Next> {
        let reply = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Invalid => option_reply::ERR_UNKNOWN,
            ErrorKind::Interrupted => option_reply::ERR_SHUTDOWN,
            _ => {
                self.terms.exports.warn(error);
                option_reply::ERR_POLICY
            }
        };
        self.refuse(kind, reply, &error.to_string())
    }

    /// Agrees to a form of replies; none replaces one that can do more.
    fn use_form(&mut self, kind: u32, form: ReplyForm) -> io::Result<Next> {
        if self.form == ReplyForm::Extended {
            let error = match form {
                ReplyForm::Extended => option_reply::ERR_INVALID,
                _ => option_reply::ERR_EXT_HEADER_REQD,
            };
            return self.refuse(kind, error, "extended headers are on already");
        }
        self.form = form;
        self.acknowledge(kind)
    }

    fn start_tls(&mut self) -> io::Result<Next> {
        let kind = option::STARTTLS;
        let Some(config) = self.terms.tls else {
            return self.refuse(kind, option_reply::ERR_POLICY, "this server has no certificate");
        };
        if self.channel.is_secure() {
            return self.refuse(kind, option_reply::ERR_INVALID, "TLS is on already");
        }
        self.acknowledge(kind)?;
        self.channel.start_tls(config.connection()?)?;
        // What was agreed before may have been said by anybody.
        (self.form, self.contexts) = (ReplyForm::Simple, None);
        Ok(Next::Option)
    }

    fn list(&mut self) -> io::Result<Next> {
        let listed = match self.terms.exports.list() {
            Ok(listed) => listed,
            Err(error) => return self.fail(option::LIST, &error),
        };
        let mut out = Vec::new();
        for (name, about) in &listed {
            let mut data = u32_of(name.len()).to_vec();
            data.extend_from_slice(name.as_bytes());
            data.extend_from_slice(about.as_bytes());
            reply::option(&mut out, option::LIST, option_reply::SERVER, &data);
        }
        reply::option(&mut out, option::LIST, option_reply::ACK, &[]);
        self.channel.write_all(&out)?;
        Ok(Next::Option)
    }

    fn export_name(&mut self, data: &[u8]) -> io::Result<Next> {
        // Its reply is older than extended headers.
        let name = options::string(data).filter(|_| self.form != ReplyForm::Extended);
        let Some(name) = name else { return Ok(Next::End) };
        let export = match self.terms.exports.open(&name) {
            Ok(export) => export,
            Err(error) => {
                let error = error.context(format!("a client asked for export '{name}'"));
                self.terms.exports.warn(&error);
                return Ok(Next::End);
            }
        };
        let mut out = export.volume.reader().bytes().to_be_bytes().to_vec();
        out.extend_from_slice(&self.flags(&export).to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + EXPORT_NAME_ZEROES, 0);
        }
        self.channel.write_all(&out)?;
        Ok(self.begin(export))
    }

    fn begin(&mut self, export: Export) -> Next {
        let contexts = match self.contexts.take() {
            Some((name, contexts)) if name == export.name => contexts,
            _ => Vec::new(),
        };
        Next::Requests(Box::new(Session { export, form: self.form, contexts }))
    }

    fn flags(&self, export: &Export) -> u16 {
        let mut flags = transmission_flag::HAS_FLAGS
            | transmission_flag::READ_ONLY
            | transmission_flag::SEND_FLUSH
            | transmission_flag::SEND_FUA
            | transmission_flag::SEND_CACHE;
        if self.form != ReplyForm::Simple {
            flags |= transmission_flag::SEND_DF;
        }
        if export.is_fixed {
            flags |= transmission_flag::CAN_MULTI_CONN;
        }
        flags
    }

    fn go(&mut self, kind: u32, data: &[u8]) -> io::Result<Next> {
        let Some(asked) = options::parse_info(data) else {
            return self.refuse(kind, option_reply::ERR_INVALID, "the option is malformed");
        };
        let export = match self.terms.exports.open(&asked.export) {
            Ok(export) => export,
            Err(error) => return self.fail(kind, &error),
        };
        let mut out = Vec::new();
        let mut say = |what: u16, rest: &[u8]| {
            let data = [&what.to_be_bytes()[..], rest].concat();
            reply::option(&mut out, kind, option_reply::INFO, &data);
        };
        let size = export.volume.reader().bytes().to_be_bytes();
        say(info::EXPORT, &[&size[..], &self.flags(&export).to_be_bytes()].concat());
        if asked.wanted.contains(&info::NAME) {
            say(info::NAME, asked.export.as_bytes());
        }
        if asked.wanted.contains(&info::DESCRIPTION) {
            say(info::DESCRIPTION, describe(&export).as_bytes());
        }
        let (least, best, most) = BLOCK_BYTES;
        say(info::BLOCK_SIZE, &[least, best, most].map(u32::to_be_bytes).concat());
        reply::option(&mut out, kind, option_reply::ACK, &[]);
        self.channel.write_all(&out)?;
        if kind == option::GO { Ok(self.begin(export)) } else { Ok(Next::Option) }
    }

    fn contexts(&mut self, kind: u32, data: &[u8]) -> io::Result<Next> {
        let Some(asked) = options::parse_contexts(data) else {
            return self.refuse(kind, option_reply::ERR_INVALID, "the option is malformed");
        };
        if self.form == ReplyForm::Simple {
            let why = "metadata contexts need structured replies";
            return self.refuse(kind, option_reply::ERR_INVALID, why);
        }
        if kind == option::SET_META_CONTEXT {
            self.contexts = None;
        }
        let export = match self.terms.exports.open(&asked.export) {
            Ok(export) => export,
            Err(error) => return self.fail(kind, &error),
        };
        let mut out = Vec::new();
        let mut say = |id: u32, name: &str| {
            let data = [&id.to_be_bytes()[..], name.as_bytes()].concat();
            reply::option(&mut out, kind, option_reply::META_CONTEXT, &data);
        };
        if kind == option::LIST_META_CONTEXT {
            match self.known_contexts(&export, &asked) {
                Ok(names) => names.iter().for_each(|name| say(0, name)),
                Err(error) => return self.fail(kind, &error),
            }
        } else {
            let selected = match self.select(&export, &asked) {
                Ok(selected) => selected,
                Err(error) => return self.fail(kind, &error),
            };
            let mut contexts = Vec::new();
            for (id, (name, context)) in (1..).zip(selected) {
                say(id, &name);
                contexts.push(context);
            }
            self.contexts = Some((asked.export, contexts));
        }
        reply::option(&mut out, kind, option_reply::ACK, &[]);
        self.channel.write_all(&out)?;
        Ok(Next::Option)
    }

    /// The contexts that queries find: by whole names, or by all that comes before the last colon.
    fn known_contexts(
        &self,
        export: &Export,
        asked: &ContextRequest,
    ) -> silt_format::Result<Vec<String>> {
        let mut known = vec![ALLOCATION.to_owned()];
        let others = self.terms.exports.others(export)?;
        known.extend(others.iter().map(|id| format!("{CHANGED_SINCE}{id}")));
        let finds = |query: &String, name: &String| {
            query == name || (query.ends_with(':') && name.starts_with(query))
        };
        if !asked.queries.is_empty() {
            known.retain(|name| asked.queries.iter().any(|query| finds(query, name)));
            // A snapshot may be named in other ways than those that are listed.
            for query in &asked.queries {
                if let Some(name) = query.strip_prefix(CHANGED_SINCE)
                    && !known.contains(query)
                    && !name.is_empty()
                    && self.terms.exports.other(export, name)?.is_some()
                {
                    known.push(query.clone());
                }
            }
        }
        Ok(known)
    }

    fn select(
        &self,
        export: &Export,
        asked: &ContextRequest,
    ) -> silt_format::Result<Vec<(String, Context)>> {
        let mut selected: Vec<(String, Context)> = Vec::new();
        for query in &asked.queries {
            let is_new = selected.iter().all(|(name, _)| name != query);
            if !is_new || selected.len() >= CONTEXTS_MAX {
                continue;
            }
            if query == ALLOCATION {
                selected.push((query.clone(), Context::Allocation));
            } else if let Some(name) = query.strip_prefix(CHANGED_SINCE).filter(|n| !n.is_empty())
                && let Some(other) = self.terms.exports.other(export, name)?
            {
                selected.push((query.clone(), Context::ChangedSince(other)));
            }
        }
        Ok(selected)
    }
}

fn describe(export: &Export) -> String {
    let volume = &export.volume;
    let (id, time) = (volume.id(), super::exports::time(volume.time_ns()));
    format!("{} of {}, snapshot {} of {time}", id.volume, volume.series_name(), id.snapshot)
}

fn u32_of(length: usize) -> [u8; 4] {
    u32::try_from(to_u64(length)).unwrap_or(u32::MAX).to_be_bytes()
}
