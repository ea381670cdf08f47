//! Named immutable objects.
//!
//! A [`Storage`] holds byte objects under flat names ([`Key`]) and does not interpret them. An
//! object is created once, read in ranges, listed and deleted. No operation changes or overwrites
//! it. This crate has storages in memory, in a folder and in several places; wrappers that inject
//! faults, record and crash; and the [`conformance`] suite, which every storage and every wrapper
//! must pass.
//!
//! Only the [`durable`] module syncs files and renames them into place.

pub mod ahead;
pub mod conformance;
pub mod durable;

mod blocks;
mod cached;
mod crash;
mod direct;
mod dry_run;
mod fault;
mod key;
mod listing;
mod local;
mod memory;
mod operation;
mod pieces;
pub mod planned;
mod probe;
mod recording;
mod replicated;
pub mod retained;
mod routed;
mod storage;
mod usage;

pub use blocks::{Block, Filling};
pub use cached::{BEGINNING_BYTES, CachePolicy, CachedStorage, End, Keep};
pub use crash::{Counted, CrashStorage, CrashingOperation};
pub use direct::{AlignedBuffer, DIRECT_ALIGNMENT, DirectFile};
pub use dry_run::DryRunStorage;
pub use fault::{Fault, FaultRule, FaultStorage};
pub use key::{KEY_BYTES_MAX, KEY_PART_BYTES_MAX, Key};
pub use listing::{LIST_PAGE_OBJECTS_MAX, ListAll, ListPage, TaggedPage, list_all, list_page};
pub use local::LocalStorage;
pub use memory::MemoryStorage;
pub use operation::{Operation, OperationKind};
pub use pieces::{PIECE_BYTES, Pieces};
pub use probe::probe;
pub use recording::{RECORDS_MAX, Record, RecordingStorage, Totals};
pub use replicated::{Replica, Replicated};
pub use routed::{Named, Place, Routed};
pub use storage::{
    ByteRange, Guarantees, ObjectMeta, PutMode, READ_BYTES_MAX, Storage, TAIL_BYTES,
};
pub use usage::Usage;
