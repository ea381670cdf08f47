//! Storage in object stores: S3-compatible stores, Azure and Google.
//!
//! Crates with storages for other stores build on [`ObjectFolder`].

#[cfg(any(feature = "azure", feature = "google"))]
mod cloud;
mod connections;
mod counters;
mod failure;
mod network;
mod object_folder;
mod object_lock;
mod parts;
mod refusal;
mod s3;
#[cfg(feature = "test-server")]
pub mod server;
mod settings;
mod witness;

#[cfg(any(feature = "azure", feature = "google"))]
pub use cloud::CloudStorage;
pub use failure::{Failure, KindOf};
pub use network::Network;
pub use object_folder::{ObjectFolder, REQUEST_BYTES, begins_no_name};
pub use object_lock::{Lock, LockMode};
pub use s3::{Extended, Rollback, S3Storage, Version};
pub use settings::Settings;
