//! Messages that the bus can neither read nor make.

use std::hash::Hasher as _;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use silt_format::{Error, HEADER_BYTES, Hashed, Header, ObjectKind, Result, SeriesId};
use silt_repository::believed::SignedBy;
use silt_repository::objects::{Address, Objects};

use crate::bus::Name;

/// Seals and signs what hosts of one repository tell each other, like the repository's objects.
/// So whoever runs the bus sees no names of series, and can make no host believe anything.
///
/// In a repository that is not encrypted, everybody can read and make messages.
#[derive(Clone)]
pub struct Messages {
    pub(crate) objects: Arc<Objects>,
    /// Who has signed all messages, if they bear no signatures.
    alone: Option<SignedBy>,
}

/// A message that one of the repository's keys has signed.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it says.
    pub plain: Vec<u8>,
    /// Who says it.
    pub signer: SignedBy,
}

impl Messages {
    /// The messages of the hosts of this repository.
    pub fn new(objects: &Arc<Objects>) -> Self {
        Self { objects: Arc::clone(objects), alone: None }
    }

    /// The messages of simulated hosts that have one key: they bear a checksum instead of a
    /// signature, so that damage and wrong numbers are found, but everybody can make them.
    ///
    /// Of a simulated minute of an agent, signatures would take most of the time.
    pub fn simulated(objects: &Arc<Objects>) -> Result<Self> {
        let signed = Self::new(objects);
        let own = signed.open(0, &signed.seal(0, &[])?)?;
        Ok(Self { alone: Some(own.signer), ..signed })
    }

    /// Seals and signs a message. It can only be opened with the same `number`, so an answer that
    /// is sealed with a random number that the question has given is no repetition of an older one.
    pub fn seal(&self, number: u64, plain: &[u8]) -> Result<Vec<u8>> {
        if self.alone.is_none() {
            return self.objects.sealed(address(number), plain);
        }
        let header = self.objects.new_header(address(number)).encode();
        Ok([&header[..], &sum(&header, plain), plain].concat())
    }

    /// Opens a message.
    ///
    /// Fails with `Corrupt` if it was sealed with another number or by another repository, or if
    /// its signer is not in the repository's list of writers, or was removed from it.
    pub fn open(&self, number: u64, sealed: &[u8]) -> Result<Message> {
        if let Some(signer) = &self.alone {
            return self.open_simulated(number, sealed, signer);
        }
        let (plain, signer) = self.objects.open_signed(&mut sealed.to_vec(), address(number))?;
        if self.objects.believed.is_removed(signer.id) {
            let message = format!("it is signed by key {}, which was removed", signer.id);
            return Err(Error::corrupt(message));
        }
        Ok(Message { plain, signer })
    }

    fn open_simulated(&self, number: u64, sealed: &[u8], signer: &SignedBy) -> Result<Message> {
        let claimed = Header::decode(sealed)?;
        if (claimed.number, claimed.repository) != (number, self.objects.repository) {
            return Err(Error::corrupt("a message is another one"));
        }
        let (header, rest) = sealed.split_at(HEADER_BYTES);
        let split = rest.split_at_checked(8);
        let (claimed, plain) = split.ok_or_else(|| Error::corrupt("a message is cut"))?;
        if sum(header, plain) != claimed {
            return Err(Error::corrupt("a message is damaged"));
        }
        Ok(Message { plain: plain.to_vec(), signer: signer.clone() })
    }

    /// Whether others believe what only a key that reads data may say.
    pub fn are_believed(&self) -> Result<bool> {
        let own = self.open(0, &self.seal(0, &[])?)?;
        Ok(own.signer.is_full())
    }

    /// Reads the list of writers again if there is a newer one. Keys that were removed since the
    /// last time are believed until then.
    pub fn refresh(&self) -> Result<()> {
        self.objects.load_writers(None).map(drop)
    }

    /// The number that a message claims to be sealed with. Fails with `Corrupt` if it is none.
    pub(crate) fn number(sealed: &[u8]) -> Result<u64> {
        Header::decode(sealed).map(|header| header.number)
    }

    /// Seals a value as JSON.
    pub(crate) fn seal_json(&self, number: u64, value: &impl Serialize) -> Result<Vec<u8>> {
        let plain = serde_json::to_vec(value)
            .map_err(|error| Error::invalid(format!("a message cannot be written: {error}")))?;
        self.seal(number, &plain)
    }

    /// Opens a value that was sealed as JSON. Fails as [`Self::open`] does, and with `Corrupt` if
    /// it is another value.
    pub(crate) fn open_json<T: DeserializeOwned>(
        &self,
        number: u64,
        sealed: &[u8],
    ) -> Result<(T, SignedBy)> {
        let Message { plain, signer } = self.open(number, sealed)?;
        let value = serde_json::from_slice(&plain)
            .map_err(|error| Error::corrupt(format!("a message has another form: {error}")))?;
        Ok((value, signer))
    }

    /// A name on the bus that all hosts of the repository derive alike, and that tells others
    /// nothing.
    pub(crate) fn hidden(&self, what: &str) -> Name {
        Name::made(self.objects.keys.content_hash(Hashed::BusName, what.as_bytes()).to_string())
    }
}

/// A checksum of a simulated message.
fn sum(header: &[u8], plain: &[u8]) -> [u8; 8] {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(header);
    hasher.write(plain);
    hasher.finish().to_le_bytes()
}

fn address(number: u64) -> Address {
    Address::new(ObjectKind::Message, SeriesId::NONE, number)
}
