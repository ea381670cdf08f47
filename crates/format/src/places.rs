//! The locations of a repository's objects.

use crate::Result;
use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};

const CORE: u16 = 1;
const FILLING: u16 = 2;

/// The places of a repository that has more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Locations that each hold every object, except those of the shared store if it has its own
    /// locations. The first one decides whether an object can be created.
    pub copies: Vec<String>,
    /// Locations that each hold the shared store, if it has its own.
    pub shared: Vec<String>,
    /// Locations of either list that may lack objects older than their addition.
    pub filling: Vec<String>,
}

impl Places {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            for locations in [&self.copies, &self.shared] {
                to.strings(locations);
            }
        });
        if !self.filling.is_empty() {
            to.section(FILLING, 0, |to| to.strings(&self.filling));
        }
        to.bytes
    }

    /// Reads a list of places.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut found, mut filling) = (None, Vec::new());
        Decoder::new(bytes, "list of places").sections(|tag, body| {
            match tag {
                CORE => found = Some((body.strings()?, body.strings()?)),
                FILLING => filling = body.strings()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let found = found.map(|(copies, shared)| Self { copies, shared, filling });
        found.ok_or_else(|| unsupported("list of places", "an object without its first section"))
    }
}
