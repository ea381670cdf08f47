//! Reads qcow2 images of versions 2 and 3, as specified in QEMU's docs/interop/qcow2.txt.
//!
//! The decoders are functions of byte slices and numbers, so that they can be tested and fuzzed
//! without files. Memory does not grow with the image: tables are read through a cache of a few MiB
//! for the whole backing chain.

mod chain;
mod compressed;
mod header;
mod reader;
mod tables;

pub(crate) use chain::Qcow2Source;
pub use compressed::{Compression, decompress};
pub use header::{Backing, CLUSTER_BYTES_MAX, Header, MAGIC};
pub use tables::{L2Entry, Unit, decode_l1, decode_l2, unit_at};
