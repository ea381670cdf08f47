//! How locations in HDFS are written.

use std::sync::Arc;

use silt::StorageKind;
use silt_format::{Error, Result};
use silt_storage::Storage;

use crate::storage::HdfsStorage;

/// Most copies of a block that HDFS allows unless it is set to more.
const REPLICATION_MAX: u32 = 512;

/// Folders of HDFS, for the program's command line.
pub const HDFS: StorageKind =
    StorageKind { scheme: "hdfs", form: "hdfs://NAMENODE:PORT/FOLDER", open };

fn open(location: &str) -> Result<Arc<dyn Storage>> {
    let (place, replication) = parse(location)?;
    Ok(Arc::new(HdfsStorage::open(place, replication)?))
}

/// The location without its option, and how many data nodes hold each block if it says so.
fn parse(location: &str) -> Result<(&str, Option<u32>)> {
    let Some((place, option)) = location.split_once('?') else { return Ok((location, None)) };
    let count = option.strip_prefix("replication=").and_then(|count| count.parse().ok());
    let wrong = || {
        Error::invalid(format!(
            "{location}: the one option of HDFS is replication=NUMBER, 1 to {REPLICATION_MAX}"
        ))
    };
    let count = count.filter(|count| (1..=REPLICATION_MAX).contains(count)).ok_or_else(wrong)?;
    Ok((place, Some(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_of_a_location_is_its_number_of_copies() {
        assert_eq!(parse("hdfs://n:1/a").unwrap(), ("hdfs://n:1/a", None));
        assert_eq!(parse("hdfs://n:1/a?replication=512").unwrap(), ("hdfs://n:1/a", Some(512)));
        for wrong in ["?replication=0", "?replication=513", "?replication=", "?copies=3", "?"] {
            assert!(parse(&format!("hdfs://n:1/a{wrong}")).is_err(), "{wrong}");
        }
    }
}
