//! Sites: repositories with one secret, each with its own places, and replications between them.

/// The most sites of a history.
pub const SITES_MAX: usize = 3;

/// A replication between the site of a host and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    /// The other site.
    pub other: usize,
    /// Whether snapshots come from the other site.
    pub pulls: bool,
    /// Whether the series have the letter of their source in front of their names at the replica.
    /// Only series of the source itself are replicated then.
    pub is_prefixed: bool,
    /// Whether only the newest snapshot of each series is sent.
    pub only_newest: bool,
    /// By how many minutes the clock at the other site is ahead.
    pub skew_minutes: i64,
    /// Decides how far each end is ahead of the other.
    pub seed: u64,
}

impl Replication {
    /// The source and the replica of a replication by a host of site `here`.
    pub fn ends(&self, here: usize) -> (usize, usize) {
        if self.pulls { (self.other, here) } else { (here, self.other) }
    }
}
