//! Bins of files that resemble each other (Extreme Binning).

use crate::piece::Piece;
use crate::print::{Print, PrintMap, PrintSet, mix};

/// A primary index of representatives, and the bins that they name.
#[derive(Debug, Default)]
pub(crate) struct Bins {
    primary: PrintMap<(u64, usize)>,
    bins: Vec<PrintSet>,
}

/// What of a file is new.
pub(crate) struct Binned {
    pub new: Vec<usize>,
    pub looked_up: u64,
    pub read_bins: u64,
}

impl Bins {
    /// Stores a file. One whose content was the first of its bin is a duplicate as a whole;
    /// another is compared with this bin alone (Extreme Binning, section 3).
    pub fn store(&mut self, file: &Piece) -> Binned {
        let looked_up = file.chunks.len() as u64;
        let Some(&representative) = file.handprint(1).first() else {
            return Binned { new: Vec::new(), looked_up: 0, read_bins: 0 };
        };
        let hash = file.chunks.iter().fold(0, |hash: u64, chunk| mix(hash ^ chunk.print));
        let found = self.primary.get(&representative).copied();
        if found.is_some_and(|(first, _)| first == hash) {
            return Binned { new: Vec::new(), looked_up, read_bins: 0 };
        }
        let bin = found.map_or(self.bins.len(), |(_, bin)| bin);
        if found.is_none() {
            self.primary.insert(representative, (hash, bin));
            self.bins.push(PrintSet::default());
        }
        let prints = &mut self.bins[bin];
        let is_new = |(_, print): &(usize, Print)| prints.insert(*print);
        let all = file.chunks.iter().map(|chunk| chunk.print).enumerate();
        let new = all.filter(is_new).map(|(place, _)| place).collect();
        Binned { new, looked_up, read_bins: u64::from(found.is_some()) }
    }

    /// Entries of the primary index.
    pub fn entries(&self) -> u64 {
        self.primary.len() as u64
    }
}
