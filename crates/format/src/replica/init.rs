//! Making a replica over a line, before the hellos.
//!
//! A message is a header of 16 bytes, a body, and the BLAKE3 hash of both. Nothing is sealed,
//! since the other end has no secret yet; the objects are those that storage would hold.

use crate::codec::{Decoder, Encoder};
use crate::replica::wanted::{kind_number, kind_of};
use crate::{Advice, Error, ErrorKind, Result};

/// The version of these messages.
pub const INIT_VERSION: u16 = 1;
/// Size of the header of a message in bytes.
pub const INIT_HEADER_BYTES: usize = 16;
/// Maximum size of a body in bytes.
pub const INIT_BODY_BYTES_MAX: usize = 128 << 10;
/// Maximum number of objects.
pub const INIT_OBJECTS_MAX: usize = 16;

const MAGIC: &[u8; 8] = b"SILTINIT";
const HASH_BYTES: usize = 32;

const ASK: u8 = 1;
const EMPTY: u8 = 2;
const EXISTS: u8 = 3;
const OBJECTS: u8 = 4;
const MADE: u8 = 5;
const FAILED: u8 = 6;

/// What both ends say before the hellos, if the source wants a missing replica to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitMessage {
    /// The source asks whether there is a repository.
    Ask,
    /// There is nothing: the other end waits for objects.
    Empty,
    /// There is a repository. The hellos follow.
    Exists,
    /// The objects of the new repository, names and bytes, in the order in which they are stored.
    Objects(Vec<(String, Vec<u8>)>),
    /// The objects are durable. The hellos follow.
    Made,
    /// No replica was made, and the other end hangs up.
    Failed {
        /// What can be done about it.
        kind: ErrorKind,
        /// The error.
        message: String,
    },
}

impl InitMessage {
    /// Whether these are the first bytes of such a message, and not of a hello.
    pub fn begins_with(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Encodes magic, version `u16`, kind `u8`, zero `u8`, the body's length `u32`, body, hash.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        let kind = match self {
            Self::Ask => ASK,
            Self::Empty => EMPTY,
            Self::Exists => EXISTS,
            Self::Objects(objects) => {
                to.count(objects.len());
                for (name, bytes) in objects {
                    to.string(name);
                    to.count(bytes.len());
                    to.raw(bytes);
                }
                OBJECTS
            }
            Self::Made => MADE,
            Self::Failed { kind, message } => {
                to.u8(kind_number(*kind));
                to.string(message);
                FAILED
            }
        };
        let body = to.bytes;
        let mut to = Encoder::default();
        to.raw(MAGIC);
        to.u16(INIT_VERSION);
        to.u8(kind);
        to.u8(0);
        to.count(body.len());
        to.raw(&body);
        let hash = blake3::hash(&to.bytes);
        to.raw(hash.as_bytes());
        to.bytes
    }

    /// Returns how many bytes follow the header of a message.
    ///
    /// Fails with `Invalid` if it is no such message or says that it is too large, with
    /// `Unsupported` for another version.
    pub fn bytes_behind(header: &[u8; INIT_HEADER_BYTES]) -> Result<usize> {
        if !Self::begins_with(header) {
            let message = "the other end makes no replica: it was not started for that";
            return Err(Error::invalid(message).with_advice(Advice::ServeInit));
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != INIT_VERSION {
            let message = format!("the other end makes replicas by version {version}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let bytes = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
        if bytes > INIT_BODY_BYTES_MAX {
            return Err(Error::invalid(format!("the other end sent a message of {bytes} bytes")));
        }
        Ok(bytes + HASH_BYTES)
    }

    /// Decodes a whole message. Fails with `Corrupt` if it was changed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "message about a new replica");
        let header = from.array()?;
        let behind = Self::bytes_behind(&header)?;
        if from.rest_len() != behind {
            return Err(from.corrupt("its length is wrong"));
        }
        let (hashed, hash) = bytes.split_at(bytes.len() - HASH_BYTES);
        if blake3::hash(hashed).as_bytes()[..] != *hash {
            return Err(from.corrupt("it was changed on its way"));
        }
        Self::decode_body(header[10], &hashed[INIT_HEADER_BYTES..])
    }

    /// Decodes the body of a message of the kind `kind`.
    pub fn decode_body(kind: u8, body: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(body, "message about a new replica");
        let message = match kind {
            ASK => Self::Ask,
            EMPTY => Self::Empty,
            EXISTS => Self::Exists,
            OBJECTS => {
                let objects = from.list(6, |item| {
                    let name = item.string()?;
                    let bytes = item.count(1)?;
                    Ok((name, item.take(bytes)?.to_vec()))
                })?;
                if objects.len() > INIT_OBJECTS_MAX {
                    return Err(from.corrupt(format!("{} objects", objects.len())));
                }
                Self::Objects(objects)
            }
            MADE => Self::Made,
            FAILED => Self::Failed { kind: kind_of(from.u8()?), message: from.string()? },
            other => return Err(from.corrupt(format!("a message of kind {other}"))),
        };
        from.end()?;
        Ok(message)
    }
}
