//! Objects in object stores: buckets of S3-compatible stores, and folders of HDFS.

mod base;
#[cfg(feature = "hdfs")]
mod hdfs;
mod parts;
mod s3;
#[cfg(feature = "test-server")]
pub mod server;
mod usage;

#[cfg(feature = "hdfs")]
pub use hdfs::HdfsStorage;
pub use s3::{Extended, Lock, LockMode, Rollback, S3Storage, Settings, Version};
pub use usage::Usage;
