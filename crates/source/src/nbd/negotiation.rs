//! The client's side of the first phase of a connection: fixed newstyle negotiation.

use std::io;

use silt_format::{Error, ErrorKind, Result};

use super::channel::Channel;
use super::tls::TlsClient;
use super::wire::{
    EXPORT_NAME_ZEROES, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES,
    OPTION_REPLY_MAGIC, ReplyForm, handshake_flag, info, option, option_reply,
};
use crate::number::{be_u32, be_u64, to_usize};

/// Maximum length in bytes of the data of a reply to an option.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of replies to one option.
const REPLIES_MAX: usize = 256;
/// Maximum number of characters of a server's message that are shown.
const MESSAGE_CHARS_MAX: usize = 300;
/// Maximum size of an export in bytes: the limit of changed-blocks maps.
pub const EXPORT_BYTES_MAX: u64 = 1 << 50;
/// Maximum value of a server's minimum block size in bytes, as the protocol defines it.
const BLOCK_BYTES_MIN_MAX: u32 = 64 << 10;
/// Maximum size of a request in bytes, also if the server permits more.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// An export to open.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'w> {
    /// The export's name.
    pub export: &'w [u8],
    /// The metadata contexts to select, if the server has them.
    pub contexts: &'w [String],
    /// The TLS configuration, if TLS is required.
    pub tls: Option<&'w TlsClient>,
}

/// The result of a negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes, at most [`EXPORT_BYTES_MAX`].
    pub bytes: u64,
    /// The export's capabilities; see [`transmission_flag`](super::wire::transmission_flag).
    pub flags: u16,
    /// Minimum size of a request in bytes, a power of two. Offsets and lengths are multiples of it.
    pub block_bytes: u32,
    /// Maximum size of a read in bytes.
    pub read_bytes_max: u32,
    /// The form of replies.
    pub form: ReplyForm,
    /// The selected metadata contexts with their ids.
    pub contexts: Vec<(String, u32)>,
}

/// A reply to an option: its kind and data.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

/// Returns the error for a server that violates the protocol.
pub fn violation(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("the server does not keep to the NBD protocol: {why}"))
}

/// Returns the error for a failed connection.
pub fn lost(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            Error::new(ErrorKind::Unavailable, "the server has closed the connection")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::new(ErrorKind::Unavailable, "the server does not answer")
        }
        _ => Error::new(ErrorKind::Unavailable, "the connection failed").with_source(error),
    }
}

/// Returns a server's text for a message: without control characters, and shortened.
pub fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().filter(|char| !char.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

/// Negotiates with a server.
///
/// Fails with `NotFound` if the export does not exist, `Denied` if the server refuses it or only
/// one side has TLS, `Unsupported` if the server has only the old style of negotiation, `Invalid`
/// if it violates the protocol, and `Unavailable` if the connection fails.
pub fn negotiate(channel: &mut Channel, wanted: &Wanted<'_>) -> Result<Terms> {
    let no_zeroes = greet(channel)?;
    let mut client = Negotiation { channel, wanted };
    if let Some(tls) = wanted.tls {
        client.start_tls(tls)?;
    }
    let form = client.reply_form()?;
    let contexts = match form {
        ReplyForm::Simple => Vec::new(),
        ReplyForm::Structured | ReplyForm::Extended => client.select_contexts()?,
    };
    let mut terms = Terms {
        bytes: 0,
        flags: 0,
        block_bytes: 1,
        read_bytes_max: REQUEST_BYTES_MAX,
        form,
        contexts,
    };
    if !client.go(&mut terms)? {
        client.export_name(&mut terms, no_zeroes)?;
    }
    check(&terms)?;
    Ok(terms)
}

fn check(terms: &Terms) -> Result<()> {
    let Terms { bytes, block_bytes, read_bytes_max, .. } = *terms;
    if bytes > EXPORT_BYTES_MAX {
        let message =
            format!("the export has {bytes} bytes; at most {EXPORT_BYTES_MAX} can be read");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MIN_MAX {
        return Err(violation(format!("its smallest block has {block_bytes} bytes")));
    }
    if read_bytes_max < block_bytes {
        return Err(violation("its largest block is smaller than its smallest one"));
    }
    if !bytes.is_multiple_of(u64::from(block_bytes)) {
        let message = format!(
            "the export's size of {bytes} bytes is not a multiple of its smallest block of \
             {block_bytes} bytes, so its end cannot be read"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}

/// Exchanges greetings. Returns whether the reply to `EXPORT_NAME` has no padding.
fn greet(channel: &Channel) -> Result<bool> {
    let mut greeting = [0; 18];
    channel.read_exact(&mut greeting[..16]).map_err(lost)?;
    if be_u64(&greeting, 0) != GREETING_MAGIC {
        return Err(violation("it is not an NBD server"));
    }
    if be_u64(&greeting, 8) != OPTION_MAGIC {
        let message = "the server speaks the old style of NBD, which has no export names";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    channel.read_exact(&mut greeting[16..]).map_err(lost)?;
    let offered = u16::from_be_bytes([greeting[16], greeting[17]]);
    if offered & handshake_flag::FIXED_NEWSTYLE == 0 {
        let message = "the server does not speak the fixed new style of NBD";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let chosen = offered & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    channel.write_all(&u32::from(chosen).to_be_bytes()).map_err(lost)?;
    Ok(chosen & handshake_flag::NO_ZEROES != 0)
}

struct Negotiation<'n> {
    channel: &'n mut Channel,
    wanted: &'n Wanted<'n>,
}

impl Negotiation<'_> {
    fn send(&self, option: u32, data: &[u8]) -> Result<()> {
        let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&length(data));
        message.extend_from_slice(data);
        self.channel.write_all(&message).map_err(lost)
    }

    fn reply(&self, to: u32) -> Result<OptionReply> {
        let mut header = [0; OPTION_REPLY_HEADER_BYTES];
        self.channel.read_exact(&mut header).map_err(lost)?;
        let (kind, length) = (be_u32(&header, 12), be_u32(&header, 16));
        if be_u64(&header, 0) != OPTION_REPLY_MAGIC || be_u32(&header, 8) != to {
            return Err(violation(format!("it does not reply to option {to}")));
        }
        if length > REPLY_BYTES_MAX {
            return Err(violation(format!("a reply to option {to} has {length} bytes")));
        }
        let mut data = vec![0; to_usize(u64::from(length))];
        self.channel.read_exact(&mut data).map_err(lost)?;
        Ok(OptionReply { kind, data })
    }

    /// Sends an option, calls `each` with every reply but the last, and returns the last.
    fn ask(
        &self,
        option: u32,
        data: &[u8],
        mut each: impl FnMut(&OptionReply) -> Result<()>,
    ) -> Result<OptionReply> {
        self.send(option, data)?;
        for _ in 0..REPLIES_MAX {
            let reply = self.reply(option)?;
            if reply.kind == option_reply::ACK || reply.kind >> 31 != 0 {
                return Ok(reply);
            }
            each(&reply)?;
        }
        Err(violation(format!("option {option} has more than {REPLIES_MAX} replies")))
    }

    /// Sends an option that has a single reply. Returns whether the server agrees.
    fn agree(&self, option: u32) -> Result<bool> {
        let reply = self.ask(option, &[], |_| Err(violation("a reply that was not asked for")))?;
        match reply.kind {
            option_reply::ACK => Ok(true),
            option_reply::ERR_TLS_REQD | option_reply::ERR_SHUTDOWN => Err(self.refused(&reply)),
            _ => Ok(false),
        }
    }

    /// Returns the error for a refused option.
    fn refused(&self, reply: &OptionReply) -> Error {
        let export = shown(self.wanted.export);
        let (kind, why) = match reply.kind {
            option_reply::ERR_UNKNOWN => {
                (ErrorKind::NotFound, format!("the server has no export '{export}'"))
            }
            option_reply::ERR_TLS_REQD => {
                let why = "the server requires TLS: use nbds:// or nbds+unix://";
                (ErrorKind::Denied, why.to_owned())
            }
            option_reply::ERR_POLICY => {
                (ErrorKind::Denied, format!("the server does not allow export '{export}'"))
            }
            option_reply::ERR_SHUTDOWN => {
                (ErrorKind::Unavailable, "the server is shutting down".to_owned())
            }
            other => {
                let why = format!("the server refuses export '{export}' with error {other:#x}");
                (ErrorKind::Invalid, why)
            }
        };
        match shown(&reply.data) {
            said if said.is_empty() => Error::new(kind, why),
            said => Error::new(kind, format!("{why} (it says: {said})")),
        }
    }

    fn start_tls(&mut self, tls: &TlsClient) -> Result<()> {
        if !self.agree(option::STARTTLS)? {
            let message = "the server has no TLS, which the URI requires";
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let connection = tls.connection().map_err(lost)?;
        self.channel.start_tls(connection).map_err(|error| {
            Error::new(ErrorKind::Denied, "TLS cannot be set up with the server").with_source(error)
        })
    }

    fn reply_form(&self) -> Result<ReplyForm> {
        if self.agree(option::EXTENDED_HEADERS)? {
            return Ok(ReplyForm::Extended);
        }
        let is_structured = self.agree(option::STRUCTURED_REPLY)?;
        Ok(if is_structured { ReplyForm::Structured } else { ReplyForm::Simple })
    }

    fn select_contexts(&self) -> Result<Vec<(String, u32)>> {
        let names = self.wanted.contexts;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut data = text(self.wanted.export);
        data.extend_from_slice(&count(names.len()));
        names.iter().for_each(|name| data.extend(text(name.as_bytes())));
        let mut selected: Vec<(String, u32)> = Vec::new();
        let reply = self.ask(option::SET_META_CONTEXT, &data, |reply| {
            let Some((id, name)) = reply.data.split_first_chunk::<4>() else {
                return Err(violation("a metadata context without an id"));
            };
            let (id, name) = (u32::from_be_bytes(*id), name);
            let name = names.iter().find(|wanted| wanted.as_bytes() == name);
            let is_new = selected.iter().all(|(known, other)| *other != id && Some(known) != name);
            match name {
                Some(name) if is_new && reply.kind == option_reply::META_CONTEXT => {
                    selected.push((name.clone(), id));
                    Ok(())
                }
                _ => Err(violation("a metadata context that was not asked for")),
            }
        })?;
        // If the export cannot be opened, the reply to `GO` has the reason.
        if reply.kind != option_reply::ACK {
            selected.clear();
        }
        Ok(selected)
    }

    /// Opens the export by `GO`. Returns `false` if the server does not know this option.
    fn go(&self, terms: &mut Terms) -> Result<bool> {
        let mut data = text(self.wanted.export);
        data.extend_from_slice(&1_u16.to_be_bytes());
        data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        let mut is_told = false;
        let reply = self.ask(option::GO, &data, |reply| {
            let Some((kind, rest)) = reply.data.split_first_chunk::<2>() else {
                return Err(violation("information without a kind"));
            };
            match (u16::from_be_bytes(*kind), rest.len()) {
                (info::EXPORT, 10) => {
                    terms.bytes = be_u64(rest, 0);
                    terms.flags = u16::from_be_bytes([rest[8], rest[9]]);
                    is_told = true;
                }
                (info::BLOCK_SIZE, 12) => {
                    terms.block_bytes = be_u32(rest, 0);
                    terms.read_bytes_max = be_u32(rest, 8).min(REQUEST_BYTES_MAX);
                }
                (info::EXPORT | info::BLOCK_SIZE, _) => {
                    return Err(violation("information of another length"));
                }
                _ => {}
            }
            Ok(())
        })?;
        match reply.kind {
            option_reply::ACK if is_told => Ok(true),
            option_reply::ACK => Err(violation("it does not tell the export's size")),
            option_reply::ERR_UNSUP if terms.form != ReplyForm::Extended => Ok(false),
            _ => Err(self.refused(&reply)),
        }
    }

    /// Opens the export by `EXPORT_NAME`, for servers without `GO`. On failure, such a server
    /// closes the connection.
    fn export_name(&self, terms: &mut Terms, no_zeroes: bool) -> Result<()> {
        self.send(option::EXPORT_NAME, self.wanted.export)?;
        let mut reply = [0; 10 + EXPORT_NAME_ZEROES];
        let length = if no_zeroes { 10 } else { reply.len() };
        self.channel.read_exact(&mut reply[..length]).map_err(|error| {
            lost(error).context(format!("opening export '{}'", shown(self.wanted.export)))
        })?;
        terms.bytes = be_u64(&reply, 0);
        terms.flags = u16::from_be_bytes([reply[8], reply[9]]);
        Ok(())
    }
}

fn count(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()
}

fn length(data: &[u8]) -> [u8; 4] {
    count(data.len())
}

/// Returns a string with its length in front.
fn text(bytes: &[u8]) -> Vec<u8> {
    [&length(bytes), bytes].concat()
}
