//! How fast hosts are, as they have measured it themselves.

use serde::{Deserialize, Serialize};

/// What is quicker, or less, says nothing about a rate.
const MEASURED_MS_MIN: u64 = 100;
const MEASURED_BYTES_MIN: u64 = 16 << 20;

/// How fast a host was in its last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRates {
    /// Bytes of its volumes a second in the scan: reading, cutting and hashing go on at once, so
    /// the slowest of them decides.
    #[serde(default)]
    pub scan_bytes_per_s: Option<u64>,
    /// Bytes of new chunks a second in storing: reading them again, compressing and writing.
    #[serde(default)]
    pub store_bytes_per_s: Option<u64>,
}

impl HostRates {
    /// The rates of these bytes in these times; `None` where there is too little of it.
    pub(super) fn of(scan: Stage, store: Stage) -> Self {
        Self { scan_bytes_per_s: scan.rate(), store_bytes_per_s: store.rate() }
    }

    /// These rates, and what only `older` knows.
    #[must_use]
    pub fn or(self, older: Self) -> Self {
        Self {
            scan_bytes_per_s: self.scan_bytes_per_s.or(older.scan_bytes_per_s),
            store_bytes_per_s: self.store_bytes_per_s.or(older.store_bytes_per_s),
        }
    }
}

/// A stage of a host: what it was about, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    pub(super) bytes: u64,
    pub(super) ms: u64,
}

impl Stage {
    fn rate(self) -> Option<u64> {
        let Self { bytes, ms } = self;
        let is_enough = ms >= MEASURED_MS_MIN && bytes >= MEASURED_BYTES_MIN;
        is_enough.then(|| u64::try_from(u128::from(bytes) * 1000 / u128::from(ms)).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_rate_is_known_only_where_enough_was_measured() {
        let stage = |bytes, ms| Stage { bytes, ms };
        let rates = |scan, store| HostRates::of(scan, store);
        let known = rates(stage(200 * MIB, 2000), stage(MIB, 2000));
        assert_eq!(known, HostRates { scan_bytes_per_s: Some(100 * MIB), store_bytes_per_s: None });
        assert_eq!(rates(stage(200 * MIB, 99), stage(0, 0)), HostRates::default());
        let older = rates(stage(100 * MIB, 2000), stage(100 * MIB, 1000));
        assert_eq!(
            known.or(older),
            HostRates { scan_bytes_per_s: Some(100 * MIB), store_bytes_per_s: Some(100 * MIB) }
        );
    }
}
