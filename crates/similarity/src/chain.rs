//! Versions of one file as a chain of deltas.
//!
//! A shortcut chain encodes each version by the last whole one, so that any version is restored
//! from at most two objects; a whole version begins anew when deltas have grown or the distance
//! has. An adjacent chain encodes each version by the one before: its deltas are smaller, and a
//! restore reads all of them back to the whole one.

use silt_format::{Error, ErrorKind, Result};

use crate::delta::DeltaCoder;

/// When a chain stores a version as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainParameters {
    /// Versions behind a whole one, at most.
    pub distance_max: usize,
    /// Size of a delta at most, as a share of its version's.
    pub share_max: f64,
    /// Whether deltas are from the last whole version. Otherwise, they are from the version before.
    pub is_shortcut: bool,
}

impl Default for ChainParameters {
    fn default() -> Self {
        Self { distance_max: 16, share_max: 0.5, is_shortcut: true }
    }
}

/// An object of a chain.
enum Stored {
    Whole(Vec<u8>),
    Delta { base: usize, bytes: usize, delta: Vec<u8> },
}

/// A chain of versions.
pub struct Chain {
    parameters: ChainParameters,
    versions: Vec<Stored>,
    last: Vec<u8>,
    last_whole: usize,
}

impl Chain {
    /// An empty chain.
    pub fn new(parameters: ChainParameters) -> Self {
        Self { parameters, versions: Vec::new(), last: Vec::new(), last_whole: 0 }
    }

    /// Number of versions.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether it has no version.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> usize {
        let bytes = |stored: &Stored| match stored {
            Stored::Whole(bytes) => bytes.len(),
            Stored::Delta { delta, .. } => delta.len(),
        };
        self.versions.iter().map(bytes).sum()
    }

    /// Number of versions that are stored whole.
    pub fn wholes(&self) -> usize {
        self.versions.iter().filter(|stored| matches!(stored, Stored::Whole(_))).count()
    }

    /// Adds a version.
    ///
    /// Fails as the coder does.
    pub fn push(&mut self, coder: &mut dyn DeltaCoder, version: &[u8]) -> Result<()> {
        let number = self.versions.len();
        let base = if self.parameters.is_shortcut { self.last_whole } else { number.max(1) - 1 };
        let from = match self.versions.get(base) {
            Some(Stored::Whole(whole)) => Some(whole),
            Some(Stored::Delta { .. }) => Some(&self.last),
            None => None,
        };
        let near = number - self.last_whole <= self.parameters.distance_max;
        let stored = match from.filter(|_| near) {
            None => None,
            Some(from) => {
                let mut delta = Vec::new();
                coder.encode(from, version, &mut delta)?;
                let is_small = share(delta.len(), version.len()) <= self.parameters.share_max;
                is_small.then_some(Stored::Delta { base, bytes: version.len(), delta })
            }
        };
        if stored.is_none() {
            self.last_whole = number;
        }
        self.versions.push(stored.unwrap_or_else(|| Stored::Whole(version.to_vec())));
        self.last = version.to_vec();
        Ok(())
    }

    /// Restores a version. Returns it and the number of objects that were read.
    ///
    /// Fails with `NotFound` if there is no such version, and as the coder does.
    pub fn restore(&self, coder: &mut dyn DeltaCoder, number: usize) -> Result<(Vec<u8>, usize)> {
        let mut deltas = Vec::new();
        let mut at = number;
        let mut version = loop {
            match self.versions.get(at) {
                None => {
                    let message = format!("the chain has no version {number}");
                    return Err(Error::new(ErrorKind::NotFound, message));
                }
                Some(Stored::Whole(whole)) => break whole.clone(),
                Some(Stored::Delta { base, bytes, delta }) => {
                    deltas.push((*bytes, delta));
                    at = *base;
                }
            }
        };
        for (bytes, delta) in deltas.iter().rev() {
            let mut next = vec![0; *bytes];
            coder.decode(&version, delta, &mut next)?;
            version = next;
        }
        Ok((version, deltas.len() + 1))
    }
}

/// Sizes as a share, both below 2^32 as a delta's are.
fn share(part: usize, whole: usize) -> f64 {
    let number = |size: usize| f64::from(u32::try_from(size).unwrap_or(u32::MAX));
    number(part) / number(whole.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{XdeltaCoder, mix::drawn};

    /// Fifty versions, of which each replaces 16 bytes of the one before.
    fn versions() -> Vec<Vec<u8>> {
        let mut bytes: Vec<u8> = (0..2000).flat_map(|at| drawn(1, at).to_le_bytes()).collect();
        let next = |number: usize| {
            let at = number * 311 % 15_000;
            let new = drawn(2, number as u64).to_le_bytes();
            bytes[at..at + 16].copy_from_slice(&[new, new].concat());
            bytes.clone()
        };
        (0..50).map(next).collect()
    }

    fn objects(parameters: ChainParameters) -> Result<(Vec<usize>, usize)> {
        let (mut chain, mut coder) = (Chain::new(parameters), XdeltaCoder::new(None));
        let versions = versions();
        for version in &versions {
            chain.push(&mut coder, version)?;
        }
        let mut read = Vec::new();
        for (number, version) in versions.iter().enumerate() {
            let (restored, objects) = chain.restore(&mut coder, number)?;
            assert!(restored == *version, "version {number}");
            read.push(objects);
        }
        assert!(chain.restore(&mut coder, 50).is_err() && chain.len() == 50);
        Ok((read, chain.bytes()))
    }

    #[test]
    fn a_shortcut_chain_restores_any_version_from_two_objects() -> Result<()> {
        let whole = versions()[0].len();
        let (read, bytes) = objects(ChainParameters::default())?;
        assert_eq!(read.iter().max(), Some(&2));
        let wholes = read.iter().filter(|objects| **objects == 1).count();
        assert_eq!(wholes, 3, "one in seventeen");
        assert!(bytes < whole * 5, "{bytes}");
        let adjacent = ChainParameters { is_shortcut: false, ..ChainParameters::default() };
        let (read, fewer) = objects(adjacent)?;
        assert_eq!(read.iter().max(), Some(&17));
        assert!(fewer < bytes, "{fewer}");
        Ok(())
    }

    #[test]
    fn a_version_that_has_changed_too_much_is_whole() -> Result<()> {
        let (mut chain, mut coder) =
            (Chain::new(ChainParameters::default()), XdeltaCoder::new(None));
        let noise =
            |seed| (0..500).flat_map(|at| drawn(seed, at).to_le_bytes()).collect::<Vec<_>>();
        chain.push(&mut coder, &noise(1))?;
        chain.push(&mut coder, &noise(2))?;
        chain.push(&mut coder, &noise(2))?;
        assert_eq!(chain.restore(&mut coder, 1)?.1, 1);
        assert_eq!(chain.restore(&mut coder, 2)?.1, 2, "a delta from version 1");
        assert!(chain.bytes() < 8100, "{}", chain.bytes());
        Ok(())
    }
}
