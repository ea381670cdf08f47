//! Fingerprints of recently used containers, in memory.

use std::collections::BTreeMap;

use crate::print::{Print, PrintMap};

/// The fingerprints of whole containers. The container that was least recently used leaves first,
/// with all of its fingerprints.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    prints: PrintMap<u32>,
    uses: BTreeMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    clock: u64,
}

impl Cache {
    /// The container that has a fingerprint, if it is cached.
    pub fn find(&self, print: Print) -> Option<u32> {
        self.prints.get(&print).copied()
    }

    /// Whether a container was absent and is now cached. At most `limit` containers stay.
    pub fn fetch(&mut self, container: u32, containers: &[Vec<Print>], limit: usize) -> bool {
        self.clock += 1;
        self.order.insert(self.clock, container);
        if let Some(before) = self.uses.insert(container, self.clock) {
            self.order.remove(&before);
            return false;
        }
        for print in content(containers, container) {
            self.prints.insert(*print, container);
        }
        while self.uses.len() > limit.max(1) {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.uses.remove(&oldest);
            for print in content(containers, oldest) {
                if self.prints.get(print) == Some(&oldest) {
                    self.prints.remove(print);
                }
            }
        }
        true
    }

    /// Adds a fingerprint that a cached container has just got.
    pub fn add(&mut self, print: Print, container: u32) {
        self.prints.insert(print, container);
    }

    /// Forgets everything, as a restart does.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn content(containers: &[Vec<Print>], container: u32) -> &[Print] {
    let place = usize::try_from(container).unwrap_or(usize::MAX);
    containers.get(place).map_or(&[], Vec::as_slice)
}
