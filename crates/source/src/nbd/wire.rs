//! The numbers and fixed layouts of the NBD protocol, as doc/proto.md of NetworkBlockDevice/nbd has
//! them. All numbers are sent in network byte order.

/// What a server says first: `NBDMAGIC`.
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

/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 28;
/// Longest string, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Bytes of zeros behind the reply to `EXPORT_NAME`, unless negotiated away.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Flags of the greeting and of the client's reply to it.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeros behind the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// What is negotiated.
pub mod option {
    /// Choose an export and begin, without a way to fail.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Go on with TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server does not allow it.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option makes no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is going down.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option is longer than the server takes.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// What is said of an export.
pub mod info {
    /// Its size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// What it is, for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, best and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission_flag {
    /// The flags mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is taken.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is taken.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The flag `DF` is taken.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections show the same.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is taken.
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
    /// Make what was written durable.
    pub const FLUSH: u16 = 3;
    /// Give a range up.
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
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// One chunk of content at most.
    pub const DF: u16 = 1 << 2;
    /// One extent for each metadata context.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Flags and kinds of the chunks of a structured reply.
pub mod chunk {
    /// The flag of the last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// Nothing more.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// States of the context `base:allocation`.
pub mod allocation {
    /// Nothing is stored.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// The errors of requests.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// The data can't be read.
    pub const EIO: u32 = 5;
    /// The request makes no sense.
    pub const EINVAL: u32 = 22;
    /// The request is too large for one chunk.
    pub const EOVERFLOW: u32 = 75;
    /// The server is going down.
    pub const ESHUTDOWN: u32 = 108;
}

/// A request as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags; see [`command_flag`].
    pub flags: u16,
    /// The kind; see [`command`].
    pub command: u16,
    /// What the reply names the request by.
    pub cookie: u64,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is.
    pub length: u32,
}

impl Request {
    /// The request in these bytes, `None` if it does not begin as one.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (command, rest) = rest.split_first_chunk::<2>()?;
        let (cookie, rest) = rest.split_first_chunk::<8>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        (u32::from_be_bytes(*magic) == REQUEST_MAGIC).then_some(Self {
            flags: u16::from_be_bytes(*flags),
            command: u16::from_be_bytes(*command),
            cookie: u64::from_be_bytes(*cookie),
            offset: u64::from_be_bytes(*offset),
            length: u32::from_be_bytes(*length),
        })
    }

    /// The bytes of the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// The kind of an option and the length of its data; `None` if the bytes do not begin as one.
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
        let bytes = request.encode();
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
    fn magic_numbers_spell_what_they_should() {
        assert_eq!(&GREETING_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
        let option = [&b"IHAVEOPT"[..], &[0, 0, 0, 7, 0, 0, 1, 0]].concat();
        assert_eq!(decode_option(option.as_slice().try_into().unwrap()), Some((7, 256)));
        assert_eq!(decode_option(&[0; OPTION_HEADER_BYTES]), None);
    }
}
