//! Predicts a round's cost from its load: the cost model of multi-stage deduplication (Zhang et
//! al., HotStorage 2013), in seconds and bytes.
//!
//! Each stage waits for the machine with the most requests; the fingerprints' space is divided
//! evenly among the machines. The network terms are those of the paper: one message latency for
//! each full set of send buffers.

/// The speeds of a machine, the sizes of records, and the expected duplicates.
#[derive(Clone, Copy, Debug)]
pub struct CostModel {
    /// Reading volumes and local files, in bytes a second.
    pub read_bytes_per_s: f64,
    /// Writing local files, in bytes a second.
    pub write_bytes_per_s: f64,
    /// Compressing and writing to the repository, in bytes a second; this goes on beside reading.
    pub store_bytes_per_s: f64,
    /// The latency of a message, in seconds.
    pub message_s: f64,
    /// Size of one message to each machine, together, in bytes.
    pub message_bytes: f64,
    /// Comparing a request with the index, in seconds.
    pub compare_s: f64,
    /// Bytes of a chunk.
    pub chunk_bytes: f64,
    /// Bytes of a request.
    pub request_bytes: f64,
    /// Bytes of a summary: a chunk's number and its reference.
    pub summary_bytes: f64,
    /// Of the requests, the share that is stored already.
    pub duplicate_share: f64,
    /// Of the requests, the share that repeats a new one of the same round.
    pub new_duplicate_share: f64,
    /// Whether the first scan copies changed data to a local file, so that volumes are not needed
    /// after it.
    pub spool: bool,
}

/// The work of a round, on average and on the busiest machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundLoad {
    /// Requests of a machine, the mean.
    pub requests: f64,
    /// Requests of the machine with the most requests.
    pub requests_max: f64,
    /// Scanned bytes of the machine that scans the most.
    pub scan_bytes_max: f64,
    /// Entries of the index that a machine owns.
    pub index_entries: f64,
}

/// The predicted time of each stage of a round, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageSeconds {
    /// 1a: reading the volumes and sending requests.
    pub scan: f64,
    /// 1b: comparing requests with the index.
    pub compare: f64,
    /// 2a: telling the requesting machines which chunks are new.
    pub collect: f64,
    /// 2b: reading new chunks again, and storing them.
    pub store: f64,
    /// 3a: sending the new references to the machines that own the fingerprints.
    pub send: f64,
    /// 3b: adding them to the index.
    pub update: f64,
    /// 4: sending the references of known chunks to the requesting machines.
    pub answer: f64,
}

impl StageSeconds {
    /// The sum of all stages.
    pub fn total(&self) -> f64 {
        let Self { scan, compare, collect, store, send, update, answer } = self;
        scan + compare + collect + store + send + update + answer
    }
}

impl CostModel {
    /// A cluster like the one of the paper: disks read at 50 MB/s beside guests, records of 40
    /// bytes.
    pub fn published() -> Self {
        Self {
            read_bytes_per_s: 50e6,
            write_bytes_per_s: 50e6,
            store_bytes_per_s: 50e6,
            message_s: 0.001,
            message_bytes: 35e6,
            compare_s: 0.2e-6,
            chunk_bytes: 4096.0,
            request_bytes: 40.0,
            summary_bytes: 40.0,
            duplicate_share: 0.745,
            new_duplicate_share: 0.05,
            spool: false,
        }
    }

    /// One machine that backs up its own volumes and sends nothing: records of 32 bytes, sorted and
    /// merged; everything that is new has to be compressed.
    pub fn local(read_bytes_per_s: f64, store_bytes_per_s: f64, spool: bool) -> Self {
        Self {
            read_bytes_per_s,
            write_bytes_per_s: 1e9,
            store_bytes_per_s,
            message_s: 0.0,
            message_bytes: 1.0,
            compare_s: 0.2e-6,
            chunk_bytes: 4096.0,
            request_bytes: 32.0,
            summary_bytes: 32.0,
            duplicate_share: 0.0,
            new_duplicate_share: 0.0,
            spool,
        }
    }

    /// Predicts the time of each stage.
    pub fn stages(&self, load: &RoundLoad) -> StageSeconds {
        let RoundLoad { requests, requests_max, scan_bytes_max, index_entries } = *load;
        let (read, write) = (self.read_bytes_per_s, self.write_bytes_per_s);
        let (request, summary) = (self.request_bytes, self.summary_bytes);
        let send = |bytes: f64| self.message_s * bytes / self.message_bytes;
        let (new, old) = (1.0 - self.duplicate_share, self.duplicate_share);
        let repeated = self.new_duplicate_share;
        let changed_bytes = requests_max * self.chunk_bytes;
        let spooled = if self.spool { changed_bytes / write } else { 0.0 };
        StageSeconds {
            scan: scan_bytes_max / read
                + send(request * requests_max)
                + requests * request / write
                + spooled,
            compare: requests * request / read
                + index_entries * summary / read
                + requests * self.compare_s
                + requests * summary / write,
            collect: requests * new * summary / read
                + send(summary * requests_max * new)
                + requests_max * new * summary / write,
            store: (changed_bytes / read).max(changed_bytes * new / self.store_bytes_per_s)
                + requests_max * new * summary / read,
            send: requests_max * new * summary / read
                + send(summary * requests_max * new)
                + requests * new * summary / write,
            update: requests * (new + repeated) * summary / read
                + requests * repeated * self.compare_s
                + requests * (new + repeated) * summary / write,
            answer: requests * old * summary / read
                + send(summary * requests_max * old)
                + requests * summary / write,
        }
    }

    /// For how long a round needs the volumes, and with them copy-on-write: to the end of the
    /// second reading, or of the first if that spools.
    pub fn held_s(&self, stages: &StageSeconds) -> f64 {
        if self.spool {
            return stages.scan;
        }
        stages.scan + stages.compare + stages.collect + stages.store
    }
}

#[cfg(test)]
mod tests {
    use super::{CostModel, RoundLoad};

    /// 25 volumes of 40 GB a machine, 22 % of them changed: two scans at 50 MB/s are 2.44 h, and
    /// both papers report between 2.4 and 3.2 h for the whole.
    #[test]
    fn the_papers_cluster_takes_what_the_papers_report() {
        let changed = 25.0 * 40e9 * 0.22;
        let requests = changed / 4096.0;
        let index_entries = 10.0 * requests * (1.0 - 0.745);
        let load =
            RoundLoad { requests, requests_max: requests, scan_bytes_max: changed, index_entries };
        let stages = CostModel::published().stages(&load);
        let scans = (stages.scan + stages.store) / 3600.0;
        assert!((2.44..2.6).contains(&scans), "{scans}");
        let total = stages.total() / 3600.0;
        assert!((2.44..3.3).contains(&total), "{total}");
    }

    #[test]
    fn a_spool_holds_volumes_for_the_scan_only() {
        let load =
            RoundLoad { requests: 1e6, requests_max: 2e6, scan_bytes_max: 8e9, index_entries: 1e7 };
        let rescan = CostModel::published();
        let spool = CostModel { spool: true, ..rescan };
        let held = |model: &CostModel| model.held_s(&model.stages(&load));
        assert!(held(&spool) < held(&rescan));
        assert!(spool.stages(&load).total() > rescan.stages(&load).total(), "writing costs time");
    }
}
