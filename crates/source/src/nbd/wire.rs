//! The numbers and fixed layouts of the NBD protocol, as defined in doc/proto.md of
//! NetworkBlockDevice/nbd. All numbers are sent in network byte order.

use crate::number::{be_u32, be_u64};

/// The first bytes that a server sends: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins the second word of the greeting, and every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins every request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins every chunk of a reply with an extended header.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an option reply's header.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a request with an extended header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the header of a chunk.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Bytes of the extended header of a chunk.
pub const EXTENDED_CHUNK_HEADER_BYTES: usize = 32;
/// The TCP port of NBD servers.
pub const PORT: u16 = 10809;
/// Maximum length of a string in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Number of zeros after the reply to `EXPORT_NAME`, unless negotiated away.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Flags of the greeting and of the client's reply to it.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeros after the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the negotiation.
pub mod option {
    /// Open an export. The server cannot refuse except by closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe and open an export.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers, which have 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server does not allow it.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option is invalid.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The server requires TLS first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The client must request block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
    /// The option is longer than the server accepts.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// The option needs extended headers.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Information about an export.
pub mod info {
    /// Its size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// A description for humans.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum size of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Capabilities of an export.
pub mod transmission_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The server supports `FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The server supports the flag `FUA`.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The server supports the flag `DF`.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see the same data.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The server supports `CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// Kinds of requests.
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range; its bytes follow the request.
    pub const WRITE: u16 = 1;
    /// End the session.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Read a range ahead.
    pub const CACHE: u16 = 5;
    /// Fill a range with zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describe a range by the selected metadata contexts.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Make the write durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Reply with at most one chunk of content.
    pub const DF: u16 = 1 << 2;
    /// Reply with one extent for each metadata context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// The length is that of the payload after an extended header.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Flags and kinds of the chunks of a structured reply.
pub mod chunk {
    /// The flag of the last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of a metadata context, with 64-bit lengths and states.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// States of the context `base:allocation`.
pub mod allocation {
    /// The extent is not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// The errors of requests.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// The data cannot be read.
    pub const EIO: u32 = 5;
    /// The request is invalid.
    pub const EINVAL: u32 = 22;
    /// The request is too large for one chunk.
    pub const EOVERFLOW: u32 = 75;
    /// The server is shutting down.
    pub const ESHUTDOWN: u32 = 108;
}

/// A request as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags; see [`command_flag`].
    pub flags: u16,
    /// The kind; see [`command`].
    pub command: u16,
    /// Identifies the request in its replies.
    pub cookie: u64,
    /// The offset of the range in bytes.
    pub offset: u64,
    /// The length of the range in bytes. Without extended headers, it fits into 32 bits.
    pub length: u64,
}

/// Removes the next `N` bytes from `bytes` and returns them.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

impl Request {
    /// Decodes a request; `None` if it does not begin with the right magic number.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        Self::decode_any(bytes, REQUEST_MAGIC)
    }

    /// Decodes a request with an extended header; `None` if it does not begin with the right magic
    /// number.
    pub fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Option<Self> {
        Self::decode_any(bytes, EXTENDED_REQUEST_MAGIC)
    }

    fn decode_any(mut bytes: &[u8], magic: u32) -> Option<Self> {
        let bytes = &mut bytes;
        if u32::from_be_bytes(take(bytes)?) != magic {
            return None;
        }
        Some(Self {
            flags: u16::from_be_bytes(take(bytes)?),
            command: u16::from_be_bytes(take(bytes)?),
            cookie: u64::from_be_bytes(take(bytes)?),
            offset: u64::from_be_bytes(take(bytes)?),
            length: match take(bytes) {
                Some(length) => u64::from_be_bytes(length),
                None => u64::from(u32::from_be_bytes(take(bytes)?)),
            },
        })
    }

    /// Encodes the request. Without `is_extended`, a length beyond 32 bits becomes `u32::MAX`.
    pub fn encode(&self, is_extended: bool) -> Vec<u8> {
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut bytes = Vec::with_capacity(EXTENDED_REQUEST_BYTES);
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&self.flags.to_be_bytes());
        bytes.extend_from_slice(&self.command.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        if is_extended {
            bytes.extend_from_slice(&self.length.to_be_bytes());
        } else {
            let length = u32::try_from(self.length).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
        bytes
    }
}

/// The form of the replies of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// Each reply has one simple header.
    Simple,
    /// Replies come in chunks.
    Structured,
    /// Replies come in chunks, and requests and chunks have extended headers.
    Extended,
}

/// The header of a reply or of a chunk of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request's cookie.
    pub cookie: u64,
    /// The part after the header.
    pub body: ReplyBody,
}

/// The part of a reply after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// The requested bytes if the error is 0, otherwise nothing.
    Simple {
        /// The error's number.
        error: u32,
    },
    /// A payload.
    Chunk {
        /// Whether it is the reply's last chunk.
        is_last: bool,
        /// The kind; see [`chunk`].
        kind: u16,
        /// The payload's length in bytes.
        length: u64,
    },
}

impl ReplyHeader {
    /// Returns the length in bytes of a header that begins with this magic number; `None` if no
    /// reply of this form begins with it.
    pub fn bytes(magic: u32, form: ReplyForm) -> Option<usize> {
        match (magic, form) {
            (SIMPLE_REPLY_MAGIC, ReplyForm::Simple | ReplyForm::Structured) => {
                Some(SIMPLE_REPLY_BYTES)
            }
            (STRUCTURED_REPLY_MAGIC, ReplyForm::Structured) => Some(CHUNK_HEADER_BYTES),
            (EXTENDED_REPLY_MAGIC, ReplyForm::Extended) => Some(EXTENDED_CHUNK_HEADER_BYTES),
            _ => None,
        }
    }

    /// Decodes a header of the length that [`bytes`](Self::bytes) returns; `None` if it is shorter.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let magic = u32::from_be_bytes(take(bytes)?);
        if magic == SIMPLE_REPLY_MAGIC {
            let error = u32::from_be_bytes(take(bytes)?);
            let cookie = u64::from_be_bytes(take(bytes)?);
            return Some(Self { cookie, body: ReplyBody::Simple { error } });
        }
        let is_last = u16::from_be_bytes(take(bytes)?) & chunk::FLAG_DONE != 0;
        let kind = u16::from_be_bytes(take(bytes)?);
        let cookie = u64::from_be_bytes(take(bytes)?);
        let length = if magic == EXTENDED_REPLY_MAGIC {
            // The request's offset, which is known from the cookie.
            take::<8>(bytes)?;
            u64::from_be_bytes(take(bytes)?)
        } else {
            u64::from(u32::from_be_bytes(take(bytes)?))
        };
        Some(Self { cookie, body: ReplyBody::Chunk { is_last, kind, length } })
    }
}

/// The length of an extent in bytes, and its state.
pub type StatusExtent = (u64, u64);

/// Decodes the payload of a chunk of block status: the id of the metadata context, and the extents.
/// `None` if the payload is malformed, has no extent, or has an empty one.
pub fn decode_status(kind: u16, mut payload: &[u8]) -> Option<(u32, Vec<StatusExtent>)> {
    let bytes = &mut payload;
    let context = u32::from_be_bytes(take(bytes)?);
    let extents: Vec<StatusExtent> = if kind == chunk::BLOCK_STATUS_EXT {
        let count = u32::from_be_bytes(take(bytes)?);
        let (extents, rest) = bytes.as_chunks::<16>();
        let is_counted = count == 0 || usize::try_from(count).ok()? == extents.len();
        (is_counted && rest.is_empty()).then_some(())?;
        extents.iter().map(|extent| (be_u64(extent, 0), be_u64(extent, 8))).collect()
    } else {
        let (extents, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then_some(())?;
        let of = |extent: &[u8; 8]| (be_u32(extent, 0).into(), be_u32(extent, 4).into());
        extents.iter().map(of).collect()
    };
    let is_sound = !extents.is_empty() && extents.iter().all(|(length, _)| *length > 0);
    is_sound.then_some((context, extents))
}

/// Decodes the header of an option: its kind, and the length of its data. `None` if it does not
/// begin with the right magic number.
pub fn decode_option(bytes: &[u8; OPTION_HEADER_BYTES]) -> Option<(u32, u32)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (option, rest) = rest.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<4>()?;
    let is_option = u64::from_be_bytes(*magic) == OPTION_MAGIC;
    is_option.then_some((u32::from_be_bytes(*option), u32::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let request =
            Request { flags: 4, command: 7, cookie: 0x0102, offset: 0x0a0b_0c0d, length: 512 };
        let bytes: [u8; REQUEST_BYTES] = request.encode(false).try_into().unwrap();
        let expected: [u8; REQUEST_BYTES] = [
            0x25, 0x60, 0x95, 0x13, 0, 4, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x0a, 0x0b,
            0x0c, 0x0d, 0, 0, 2, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(Request::decode(&bytes), Some(request));
        let mut wrong = bytes;
        wrong[3] ^= 1;
        assert_eq!(Request::decode(&wrong), None);
    }

    #[test]
    fn an_extended_request_has_a_longer_length() {
        let request = Request { flags: 0, command: 7, cookie: 1, offset: 2, length: 1 << 40 };
        let bytes: [u8; EXTENDED_REQUEST_BYTES] = request.encode(true).try_into().unwrap();
        assert_eq!(bytes[..8], [0x21, 0xe4, 0x1c, 0x71, 0, 0, 0, 7]);
        assert_eq!(bytes[24..], (1_u64 << 40).to_be_bytes());
        assert_eq!(Request::decode_extended(&bytes), Some(request));
        let mut wrong = bytes;
        wrong[0] ^= 1;
        assert_eq!(Request::decode_extended(&wrong), None);
    }

    #[test]
    fn headers_of_replies_are_told_apart() {
        let simple = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0, 0, 0, 5], &[9; 8]].concat();
        let body = ReplyBody::Simple { error: 5 };
        let cookie = 0x0909_0909_0909_0909;
        assert_eq!(ReplyHeader::decode(&simple), Some(ReplyHeader { cookie, body }));

        let chunk = [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &[0, 1, 0, 6], &[9; 8]].concat();
        let body = ReplyBody::Chunk { is_last: true, kind: 6, length: 20 };
        let compact = [&chunk[..], &[0, 0, 0, 20]].concat();
        assert_eq!(ReplyHeader::decode(&compact), Some(ReplyHeader { cookie, body }));
        let mut extended = [&chunk[..], &[7; 8], &20_u64.to_be_bytes()].concat();
        extended[..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
        assert_eq!(ReplyHeader::decode(&extended), Some(ReplyHeader { cookie, body }));

        let of = |magic, form| ReplyHeader::bytes(magic, form);
        assert_eq!(of(SIMPLE_REPLY_MAGIC, ReplyForm::Structured), Some(16));
        assert_eq!(of(STRUCTURED_REPLY_MAGIC, ReplyForm::Simple), None);
        assert_eq!(of(SIMPLE_REPLY_MAGIC, ReplyForm::Extended), None);
        assert_eq!(of(EXTENDED_REPLY_MAGIC, ReplyForm::Extended), Some(32));
        assert_eq!(of(0, ReplyForm::Simple), None);
    }

    #[test]
    fn block_status_is_understood_in_both_widths() {
        let compact = [0, 0, 0, 2, 0, 0, 16, 0, 0, 0, 0, 3];
        assert_eq!(decode_status(5, &compact), Some((2, vec![(4096, 3)])));
        let extended = [&[0, 0, 0, 2, 0, 0, 0, 1][..], &(1_u64 << 40).to_be_bytes(), &[0; 8]];
        let extended = extended.concat();
        assert_eq!(decode_status(6, &extended), Some((2, vec![(1 << 40, 0)])));
        for end in 0..extended.len() {
            assert_eq!(decode_status(6, &extended[..end]), None, "cut at {end}");
        }
        for end in 0..compact.len() {
            assert_eq!(decode_status(5, &compact[..end]), None, "cut at {end}");
        }
        let mut wrong_count = extended;
        wrong_count[7] = 2;
        assert_eq!(decode_status(6, &wrong_count), None);
        assert_eq!(decode_status(5, &[0; 12]), None, "an extent of no length");
    }

    #[test]
    fn magic_numbers_spell_what_they_should() {
        assert_eq!(&GREETING_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
        let option = [&b"IHAVEOPT"[..], &[0, 0, 0, 7, 0, 0, 1, 0]].concat();
        assert_eq!(decode_option(option.as_slice().try_into().unwrap()), Some((7, 256)));
        assert_eq!(decode_option(&[0; OPTION_HEADER_BYTES]), None);
    }
}
