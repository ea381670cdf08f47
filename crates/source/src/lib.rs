//! Sources and targets of volumes.
//!
//! A [`VolumeSource`] is a raw file, a block device, a qcow2 image with its backing chain, an
//! export of an NBD server, or a byte stream. A volume is restored to a [`VolumeTarget`]. All I/O
//! is synchronous and positioned, so that several threads may read and write concurrently.

mod allocator;
mod changed;
mod in_use;
pub mod nbd;
mod number;
mod positioned;
mod source;
mod target;

pub use allocator::{LargeAligned, keep_heap_small};
pub use changed::{CHANGED_MAP_BYTES_MAX, ChangedMap, MapForm};
pub use source::qcow2;
pub use source::{
    Extent, ExtentKind, FormatChoice, SourceFormat, SourceInfo, SourceOptions, StreamSource,
    VolumeSource, open_source,
};
pub use target::{
    MARKER_TEXT, Order, PARTIAL_SUFFIX, StreamTarget, TargetFormat, TargetMode, TargetOptions,
    Turn, VolumeTarget, open_target,
};
