//! The parameters of a node, and what storing a piece did.

/// How the indexes of a node are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    /// A table and a lock for each application (AppDedupe).
    PerApplication,
    /// One table and one lock ("naive" in AppDedupe's figure 5.1).
    One,
}

/// How a node finds duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// In the containers that the similarity index names, and nowhere else.
    Approximate,
    /// There, and then in a full index.
    Exact,
    /// In a full index alone; there is no similarity index.
    Full,
    /// In the bin that the file's representative names.
    Bins,
    /// In the containers that an index of one fingerprint in so many names (Guo and Efstathopoulos,
    /// ATC 2011), and nowhere else.
    Sampled(u64),
}

/// The parameters of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// How the indexes are divided.
    pub domains: Domains,
    /// How duplicates are found.
    pub lookup: Lookup,
    /// Representatives of a piece. 8 in AppDedupe.
    pub handprint: usize,
    /// Chunks of a container. Not published; 1,024 are 4 MiB at 4 KiB.
    pub container_chunks: usize,
    /// Containers whose fingerprints are cached, for each lock. Not published.
    pub cache_containers: usize,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            domains: Domains::PerApplication,
            lookup: Lookup::Approximate,
            handprint: 8,
            container_chunks: 1024,
            cache_containers: 64,
        }
    }
}

/// What storing a piece did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of chunks that the node did not find.
    pub new_bytes: u64,
    /// How many chunks these are.
    pub new_chunks: u64,
    /// Fingerprints that were looked up.
    pub looked_up: u64,
    /// Containers, bins and places of the full index that were read.
    pub index_reads: u64,
}

impl Stored {
    pub(crate) fn add(&mut self, bytes: u32) {
        self.new_bytes += u64::from(bytes);
        self.new_chunks += 1;
    }
}
