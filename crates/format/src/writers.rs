//! The list of writers: the rights of every key. The administrator signs it.

use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};
use crate::envelope::{Id, SeriesId};
use crate::{Error, Result};

const CORE: u16 = 1;

/// The rights of a key. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Reads everything and backs up. Unless the repository is append-only, it also deletes and
    /// creates keys.
    Full = 1,
    /// Backs up, but cannot read data.
    WriteOnly = 2,
}

impl Role {
    fn decode(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Self::Full),
            2 => Ok(Self::WriteOnly),
            other => Err(unsupported("list of writers", &format!("role {other}"))),
        }
    }
}

/// A key that signs objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The id of the wrapped key that holds it.
    pub id: Id,
    /// Its rights.
    pub role: Role,
    /// The Ed25519 public key.
    pub public: [u8; 32],
    /// The series that it may write: names, or prefixes followed by `*`.
    pub series: Vec<String>,
    /// Its state.
    pub state: WriterState,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// It is in use.
    Active,
    /// It is being removed: objects that it has signed stay valid, and signing with it fails.
    Closing,
    /// It was removed. Holds the newest head of each series at that time; later heads that it signs
    /// are refused.
    Removed(Vec<(SeriesId, u64)>),
}

impl Writer {
    /// Returns whether the key may write the series called `name`, or was allowed to before it was
    /// removed.
    pub fn covers(&self, name: &str) -> bool {
        self.series.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        })
    }

    /// Returns whether a head of this generation can have been written before the key was removed.
    pub fn reaches(&self, series: SeriesId, generation: u64) -> bool {
        let WriterState::Removed(newest) = &self.state else { return true };
        newest.iter().any(|(known, newest)| *known == series && generation <= *newest)
    }

    fn encode(&self, to: &mut Encoder) {
        to.u64(self.id.0);
        to.u8(self.role as u8);
        to.raw(&self.public);
        to.strings(&self.series);
        let (state, newest) = match &self.state {
            WriterState::Active => (0, &[][..]),
            WriterState::Closing => (1, &[][..]),
            WriterState::Removed(newest) => (2, newest.as_slice()),
        };
        to.u8(state);
        to.count(newest.len());
        for (series, generation) in newest {
            to.raw(&series.0);
            to.u64(*generation);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (id, role, public) = (Id(from.u64()?), Role::decode(from.u8()?)?, from.array()?);
        let (series, state) = (from.strings()?, from.u8()?);
        let newest = from.list(20, |item| Ok((SeriesId(item.array()?), item.u64()?)))?;
        let state = match state {
            0 => WriterState::Active,
            1 => WriterState::Closing,
            2 => WriterState::Removed(newest),
            other => return Err(unsupported("list of writers", &format!("state {other}"))),
        };
        Ok(Self { id, role, public, series, state })
    }
}

/// All keys that ever signed objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    /// In the order of their creation.
    pub all: Vec<Writer>,
}

impl Writers {
    /// Returns the key with this id.
    pub fn get(&self, id: Id) -> Option<&Writer> {
        self.all.iter().find(|writer| writer.id == id)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.count(self.all.len());
            self.all.iter().for_each(|writer| writer.encode(to));
        });
        to.bytes
    }

    /// Reads a list of writers.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut found = None;
        Decoder::new(bytes, "list of writers").sections(|tag, body| {
            if tag == CORE {
                found = Some(body.list(50, Writer::decode)?);
            }
            Ok(tag == CORE)
        })?;
        let all = found.ok_or_else(|| Error::corrupt("list of writers: it is empty"))?;
        Ok(Self { all })
    }
}
