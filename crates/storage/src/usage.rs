//! Counts requests to a store, which may cost money.

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects created, failed attempts included.
    pub puts: u64,
    /// Reads.
    pub gets: u64,
    /// Requests for an object's size.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Bytes of bodies sent.
    pub sent_bytes: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
}

impl Usage {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.puts + self.gets + self.heads + self.lists + self.deletes
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            puts: sum.puts + one.puts,
            gets: sum.gets + one.gets,
            heads: sum.heads + one.heads,
            lists: sum.lists + one.lists,
            deletes: sum.deletes + one.deletes,
            sent_bytes: sum.sent_bytes + one.sent_bytes,
            received_bytes: sum.received_bytes + one.received_bytes,
        })
    }
}
