//! The similarity index of a node: which container has a representative.

use silt_format::number::{to_u32, to_usize};

/// Representatives and the containers that hold them, 5 bytes each.
///
/// A representative is held by 32 of its bits. Its highest bits would not do: representatives are
/// the smallest fingerprints of their super-chunks. Another one with the same bits costs reading a
/// directory in vain: of 8 million, as 1 TB of chunks has, one look-up in 500.
///
/// Entries are in the order of these bits and of their containers. The upper 16 bits are not
/// stored: `starts` says where the entries with each of their values begin.
#[derive(Debug)]
pub(super) struct Similar {
    /// With the end of the last ones.
    starts: Vec<u32>,
    /// The lower 16 bits.
    lows: Vec<u16>,
    /// The lowest byte first.
    containers: Vec<[u8; 3]>,
}

/// Containers from this number on are not entered; their chunks are looked up in the full index.
const CONTAINERS_MAX: u32 = 1 << 24;
const BUCKETS: usize = 1 << 16;

impl Default for Similar {
    fn default() -> Self {
        Self { starts: vec![0; BUCKETS + 1], lows: Vec::new(), containers: Vec::new() }
    }
}

impl Similar {
    /// Adds representatives, each with its container, which has added none before.
    pub fn add(&mut self, new: impl Iterator<Item = (u64, u32)>) {
        let new = new.filter(|(_, container)| *container < CONTAINERS_MAX);
        let mut new: Vec<u64> = new.map(|(print, container)| entry(print, container)).collect();
        new.sort_unstable();
        new.dedup();
        let (old, mut added) = (self.lows.len(), new.len());
        let Ok(mut end) = u32::try_from(old + added) else { return };
        // Not twice the memory, as vectors grow by themselves.
        self.lows.reserve_exact(added + old / 64);
        self.containers.reserve_exact(added + old / 64);
        self.lows.resize(old + added, 0);
        self.containers.resize(old + added, [0; 3]);
        // From behind, so that nothing is overwritten that was not moved yet.
        for bucket in (0..BUCKETS).rev() {
            let (first, mut from) = (self.starts[bucket], self.starts[bucket + 1]);
            self.starts[bucket + 1] = end;
            loop {
                let next = added.checked_sub(1).map(|last| new[last]);
                let next = next.filter(|next| bucket_of(*next) == bucket);
                let last = (from > first).then(|| self.entry(bucket, from - 1));
                let Some(greater) = next.max(last) else { break };
                if Some(greater) == next {
                    added -= 1;
                } else {
                    from -= 1;
                }
                end -= 1;
                self.set(end, greater);
            }
        }
    }

    /// Drops the representatives of containers that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        let mut kept = 0;
        for bucket in 0..BUCKETS {
            let (first, end) = (self.starts[bucket], self.starts[bucket + 1]);
            self.starts[bucket] = kept;
            for place in first..end {
                let entry = self.entry(bucket, place);
                if is_there(container_of(entry)) {
                    self.set(kept, entry);
                    kept += 1;
                }
            }
        }
        self.starts[BUCKETS] = kept;
        self.lows.truncate(kept as usize);
        self.containers.truncate(kept as usize);
    }

    /// The oldest and the newest container that has a representative.
    pub fn find(&self, print: u64) -> Option<[u32; 2]> {
        let wanted = entry(print, 0);
        let bucket = bucket_of(wanted);
        let (first, end) = (self.starts[bucket], self.starts[bucket + 1]);
        let lows = &self.lows[first as usize..end as usize];
        let low = low_of(wanted);
        let oldest = lows.partition_point(|held| *held < low);
        let same = lows[oldest..].partition_point(|held| *held == low);
        let oldest = first + to_u32(oldest);
        let newest = oldest + to_u32(same).checked_sub(1)?;
        Some([oldest, newest].map(|place| container_of(self.entry(bucket, place))))
    }

    /// How many representatives there are.
    pub fn len(&self) -> usize {
        self.lows.len()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.lows.len() * (size_of::<u16>() + size_of::<[u8; 3]>())
    }

    fn entry(&self, bucket: usize, place: u32) -> u64 {
        let [low, middle, high] = self.containers[place as usize];
        let container = u64::from(u32::from_le_bytes([low, middle, high, 0]));
        (bucket as u64) << 48 | u64::from(self.lows[place as usize]) << 32 | container
    }

    fn set(&mut self, place: u32, entry: u64) {
        let [low, middle, high, _] = container_of(entry).to_le_bytes();
        self.lows[place as usize] = low_of(entry);
        self.containers[place as usize] = [low, middle, high];
    }
}

/// The bits of a representative, then the container.
fn entry(print: u64, container: u32) -> u64 {
    print << 32 | u64::from(container)
}

fn bucket_of(entry: u64) -> usize {
    to_usize(entry >> 48)
}

#[expect(clippy::cast_possible_truncation, reason = "these are 16 of the bits")]
fn low_of(entry: u64) -> u16 {
    (entry >> 32) as u16
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
    fn it_finds_the_oldest_and_the_newest_container() {
        let (mut similar, mut model) = (Similar::default(), BTreeMap::<u32, Vec<u32>>::new());
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state >> 33
        };
        for batch in 0..50 {
            let new: Vec<(u64, u32)> = (0..random() % 40)
                .map(|_| {
                    let print = random() % 20 + ((random() % 10) << 16) + (random() << 40);
                    (print, u32::try_from(random() % 9 + batch * 9).unwrap())
                })
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
            for print in (0..11 << 16).filter(|print| print % (1 << 16) < 25) {
                let all = model.get(&print);
                let ends = |all: &Vec<u32>| Some([*all.iter().min()?, *all.iter().max()?]);
                let expected = all.and_then(ends);
                assert_eq!(similar.find(u64::from(print) | 7 << 50), expected, "{batch}: {print}");
            }
        }
        assert!(similar.len() > 100);
    }
}
