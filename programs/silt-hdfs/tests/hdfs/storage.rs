//! The storage on a real name node and data node of HDFS, started here.

use std::sync::atomic::{AtomicU32, Ordering};

use silt_format::ErrorKind;
use silt_hdfs::HdfsStorage;
use silt_storage::{Key, PutMode, Storage, conformance};

use crate::hadoop::Hadoop;

#[test]
fn a_folder_of_hdfs_passes_the_conformance_suite() {
    let Some(hadoop) = Hadoop::start() else { return };
    let number = AtomicU32::new(0);
    conformance::run(&|| {
        let folder = number.fetch_add(1, Ordering::Relaxed);
        let location = hadoop.location(&format!("suite/{folder}"));
        Box::new(HdfsStorage::open(&location, None).unwrap())
    });
    // With a number of copies of its own.
    let storage = HdfsStorage::open(&hadoop.location("copies"), Some(3)).unwrap();
    let key = Key::new("a/b").unwrap();
    storage.put(&key, &[b"12", b"3"], PutMode::Create).unwrap();
    assert_eq!(storage.replication(&key).unwrap(), Some(3));
    assert_eq!(storage.head(&key).unwrap().size, 3);
}

#[test]
fn a_name_node_of_hdfs_that_is_not_there_is_named() {
    let storage = HdfsStorage::open("hdfs://127.0.0.1:9/x", None).unwrap();
    let error = storage.head(&Key::new("config").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:9/x"), "{error}");
}
