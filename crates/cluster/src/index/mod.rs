//! The shared index in the memory of many hosts.
//!
//! The index of the shared store is divided into partitions by fingerprint, and each agent that
//! has memory for it holds some of them. Who has which follows from the names of the agents that
//! are there (rendezvous hashing, Thaler and Ravishankar 1998): every host comes to the same
//! answer, and when an agent comes or goes only its own partitions move.
//!
//! An answer is a hint like every other: references that the shared store's head, as the asking
//! host has read it, does not allow are dropped, and no answer is a miss. Questions and answers are
//! sealed and signed, so that the bus cannot make a chunk up.

mod client;
pub(crate) mod messages;
mod server;

pub use client::IndexClient;
pub use server::{IndexServer, Served};

use silt_format::{Fingerprint, partition_of};

use crate::Name;

/// Two to the power of this is the number of partitions.
const PARTITION_BITS: u8 = 10;
/// How many there are.
const PARTITIONS: u32 = 1 << PARTITION_BITS;
/// The most fingerprints of a question.
pub const FINGERPRINTS_MAX: usize = 8192;

fn partition(fingerprint: &Fingerprint) -> u32 {
    partition_of(PARTITION_BITS, fingerprint)
}

/// The host that holds a partition, of those that are there.
fn holder(partition: u32, hosts: &[Name]) -> Option<&Name> {
    let weight = |host: &&Name| {
        let mut hasher = blake3::Hasher::new_derive_key("siltstone 2026 v1 holder of a partition");
        hasher.update(&partition.to_le_bytes()).update(host.as_str().as_bytes());
        *hasher.finalize().as_bytes()
    };
    hosts.iter().max_by_key(weight)
}

/// The service by which a host answers.
fn service_of(host: &Name) -> silt_format::Result<Name> {
    Name::new(format!("index-{host}"))
}

#[cfg(test)]
mod tests {
    use super::{PARTITIONS, holder};
    use crate::Name;

    fn hosts(count: usize) -> Vec<Name> {
        (0..count)
            .map(|number| Name::new(format!("host{number}")).unwrap_or_else(|_| unreachable!()))
            .collect()
    }

    #[test]
    fn partitions_are_spread_and_stay_when_another_host_leaves() {
        let all = hosts(8);
        let mut counts = [0_u32; 8];
        for partition in 0..PARTITIONS {
            let found = holder(partition, &all);
            let number = all.iter().position(|host| Some(host) == found).unwrap_or_default();
            counts[number] += 1;
            let mut fewer = all.clone();
            let gone = fewer.remove(3);
            if found != Some(&gone) {
                assert_eq!(holder(partition, &fewer), found);
            }
        }
        assert!(counts.iter().all(|count| (90..170).contains(count)), "{counts:?}");
        assert_eq!(holder(5, &[]), None);
    }
}
