//! Repositories in folders of HDFS: the storage, and how the program opens it.

mod location;
mod storage;

pub use location::HDFS;
pub use storage::HdfsStorage;
