//! Splits an operation's memory among its buffers.

const MIB: usize = 1 << 20;

/// The default memory of a backup, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// The minimum memory of an operation, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 24 << 20;
/// The memory of the program, its threads' stacks and zstd, independent of the budget.
const FIXED_BYTES: u64 = 16 << 20;
/// The maximum useful memory: more does not find more duplicates.
const SHARES_MAX: u64 = 64;

/// The split of an operation's memory. One share is the default budget minus the fixed part;
/// buffers grow and shrink with the number of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Shares in hundredths.
    centishares: usize,
}

impl Budget {
    /// Returns the split of `memory_bytes`. 0 stands for the default; less than the minimum counts
    /// as the minimum.
    pub fn new(memory_bytes: u64) -> Self {
        let bytes = if memory_bytes == 0 { MEMORY_BYTES_DEFAULT } else { memory_bytes };
        let share = MEMORY_BYTES_DEFAULT - FIXED_BYTES;
        let left = (bytes.max(MEMORY_BYTES_MIN) - FIXED_BYTES).min(SHARES_MAX * share);
        Self { centishares: silt_format::number::to_usize(left * 100 / share) }
    }

    fn part(self, at_one_share: usize) -> usize {
        at_one_share * self.centishares / 100
    }

    /// Sealed bytes at which a container is closed; the configuration's limit if that is less.
    pub fn container_bytes(self, configured: usize) -> usize {
        configured.min(self.part(8 * MIB).max(MIB))
    }

    /// Number of segments in memory: one for each worker and one that is being placed, but at least
    /// four, or two with little memory.
    pub fn segment_buffers(self, workers: usize) -> usize {
        (workers + 1).max(if self.centishares < 50 { 2 } else { 4 })
    }

    /// Maximum number of workers; each needs the buffers of one segment.
    pub fn workers(self, wanted: usize) -> usize {
        wanted.min((self.part(16 * MIB) / (4 * MIB)).max(1))
    }

    /// Maximum number of containers that are uploaded at once; each is in memory.
    pub fn uploads(self, wanted: usize) -> usize {
        wanted.min((self.part(16 * MIB) / (8 * MIB)).max(1))
    }

    /// Bytes of candidates' tables.
    pub fn tables_bytes(self) -> usize {
        self.part(5 * MIB)
    }

    /// Places of the index of signatures, 42 bytes each.
    pub fn signature_places(self) -> usize {
        self.part(320_000)
    }

    /// Bytes of the shared index's filters and blocks kept in a backup.
    pub fn lookup_bytes(self) -> usize {
        self.part(4 * MIB)
    }

    /// Bytes of the sketches of chunks that a replication finds bases among: of a million chunks.
    pub fn sketches_bytes(self) -> usize {
        self.part(32 * MIB)
    }

    /// Bytes of decoded frames kept in a restore. From distant storage, a frame that is dropped too
    /// early may have to be read again.
    pub fn frames_bytes(self, is_distant: bool) -> usize {
        self.part(if is_distant { 20 * MIB } else { 12 * MIB })
    }

    /// Bytes of container parts from distant storage that a reader keeps, or of frames that a
    /// restore has read ahead; from folders, of more decoded frames where there are deltas.
    pub fn parts_bytes(self) -> usize {
        self.part(24 * MIB)
    }

    /// Bytes of all series that are worked on at once.
    pub fn beside_bytes(self) -> u64 {
        silt_format::number::to_u64(self.part(48 * MIB))
    }

    /// Bytes of container directories kept in a restore.
    pub fn directories_bytes(self) -> usize {
        self.part(8 * MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_of_the_default_is_one_share() {
        let budget = Budget::new(0);
        assert_eq!(budget.centishares, 100);
        assert_eq!(budget, Budget::new(MEMORY_BYTES_DEFAULT));
        assert_eq!(budget.container_bytes(8 << 20), 8 << 20, "rounding loses less than a percent");
    }

    #[test]
    fn a_small_budget_splits_to_less_than_itself() {
        let budget = Budget::new(MEMORY_BYTES_MIN);
        let workers = budget.workers(16);
        let buffers = (workers + budget.segment_buffers(workers)) * 2 * MIB;
        let all = budget.container_bytes(256 << 20) * 2 + budget.tables_bytes() + buffers;
        assert!(all <= 16 * MIB, "{all}");
        assert!(budget.workers(0) == 0 || budget.workers(1) == 1);
    }

    #[test]
    fn a_large_budget_is_capped() {
        assert_eq!(Budget::new(u64::MAX).centishares, 6400);
    }
}
