//! The similarity index of a node: which container has a representative.

/// Representatives and the containers that hold them, 8 bytes each.
///
/// A representative is held by 32 of its bits. Its highest bits would not do: representatives are
/// the smallest fingerprints of their super-chunks. Another one with the same bits costs reading a
/// directory in vain: of 8 million, as 1 TB of chunks has, one look-up in 500.
#[derive(Debug, Default)]
pub(super) struct Similar {
    /// In order: the bits of the representative, then the container.
    entries: Vec<u64>,
}

impl Similar {
    /// Adds representatives, each with its container.
    pub fn add(&mut self, new: impl Iterator<Item = (u64, u32)>) {
        let mut new: Vec<u64> = new.map(|(print, container)| entry(print, container)).collect();
        new.sort_unstable();
        new.dedup();
        let (mut old, mut added) = (self.entries.len(), new.len());
        // Not twice the memory, as vectors grow by themselves.
        self.entries.reserve_exact(added + old / 64);
        self.entries.resize(old + added, 0);
        // From behind, so that nothing is overwritten that was not moved yet.
        while added > 0 {
            let is_old = old > 0 && self.entries[old - 1] > new[added - 1];
            let from = if is_old { self.entries[old - 1] } else { new[added - 1] };
            self.entries[old + added - 1] = from;
            if is_old { old -= 1 } else { added -= 1 }
        }
        self.entries.dedup();
    }

    /// Drops the representatives of containers that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.entries.retain(|entry| is_there(container_of(*entry)));
    }

    /// The newest container that has a representative.
    pub fn find(&self, print: u64) -> Option<u32> {
        let end = self.entries.partition_point(|held| *held <= entry(print, u32::MAX));
        let last = *self.entries[..end].last()?;
        (last >= entry(print, 0)).then(|| container_of(last))
    }

    /// How many representatives there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

fn entry(print: u64, container: u32) -> u64 {
    print << 32 | u64::from(container)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is the container")]
fn container_of(entry: u64) -> u32 {
    entry as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Similar;

    /// Like a map, whatever is added in which order.
    #[test]
    fn it_finds_the_newest_container() {
        let (mut similar, mut model) = (Similar::default(), BTreeMap::<u32, Vec<u32>>::new());
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state >> 33
        };
        for batch in 0..50 {
            let new: Vec<(u64, u32)> = (0..random() % 40)
                .map(|_| (random() % 200 + (random() << 40), u32::try_from(random() % 90).unwrap()))
                .collect();
            for (print, container) in &new {
                model
                    .entry(u32::try_from(print & 0xffff_ffff).unwrap())
                    .or_default()
                    .push(*container);
            }
            similar.add(new.into_iter());
            if batch % 10 == 9 {
                similar.retain(|container| container % 3 != 0);
                model.values_mut().for_each(|all| all.retain(|container| container % 3 != 0));
            }
            for print in 0..200 {
                let expected = model.get(&print).and_then(|all| all.iter().max().copied());
                assert_eq!(similar.find(u64::from(print) | 7 << 50), expected, "{batch}: {print}");
            }
        }
        assert!(similar.len() > 100);
    }
}
