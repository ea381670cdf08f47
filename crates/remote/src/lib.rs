//! Objects in object stores: buckets of S3-compatible stores, of Azure and of Google, and folders
//! of HDFS.

mod base;
#[cfg(any(feature = "azure", feature = "google"))]
mod cloud;
mod connections;
mod counters;
#[cfg(feature = "hdfs")]
mod hdfs;
mod object_lock;
mod parts;
mod s3;
#[cfg(feature = "test-server")]
pub mod server;
mod settings;

#[cfg(any(feature = "azure", feature = "google"))]
pub use cloud::CloudStorage;
#[cfg(feature = "hdfs")]
pub use hdfs::HdfsStorage;
pub use object_lock::{Lock, LockMode};
pub use s3::{Extended, Rollback, S3Storage, Version};
pub use settings::Settings;
