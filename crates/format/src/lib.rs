//! The bytes of a Siltstone repository.
//!
//! Encodes and decodes every stored layout by hand, as docs/FORMAT.md specifies. Performs no I/O.

mod advice;
mod block;
mod codec;
mod compression;
mod dead;
mod directory;
mod envelope;
mod error;
mod frame_packer;
mod head;
mod host_keys;
mod ids;
mod keeps;
mod keyring;
pub mod names;
pub mod number;
mod page;
mod places;
mod policy;
mod recipe;
mod records;
mod reference;
pub mod replica;
mod run;
mod seal;
mod signature;
mod snapshot;
mod summary;
pub mod tree;
mod writers;

pub use advice::Advice;
pub use block::{BLOCK_OVERHEAD_BYTES, BLOCK_RAW_BYTES_MAX, BlockReader, BlockWriter};
pub use compression::Compression;
pub use dead::{
    DEAD_LIST_PARTS_MAX, DEAD_RANGES_MAX, DeadRange, decode_dead_ranges, encode_dead_ranges,
};
pub use directory::{
    ApplicationRun, BlockEntry, BlockKind, CONTAINER_SLOTS_MAX, Delta, Directory, FRAMES_MAX,
    Frame, Link, Slot, SlotKind, SlotRun, decode_blocks, encode_blocks,
};
pub use envelope::{
    FOOTER_BYTES, FORMAT_VERSION, Footer, HEADER_BYTES, Header, HeaderRest, Id, ObjectKind,
    RepositoryId, SealScheme, SeriesId,
};
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use frame_packer::{FramePacker, RawFrame, large_frame_bytes};
pub use head::{
    AHEAD_NS_MAX, DeadListRef, DeletedEntry, Head, LeakForecast, SnapshotEntry, StoreEntry,
    StoreWriter,
};
pub use host_keys::HostKeys;
pub use ids::{
    BLOCK_BYTES, Chunking, ContentHash, Fingerprint, Hashed, ObjectTag, SEGMENT_BYTES, SIGNATURES,
    SegmentDigest, Signatures,
};
pub use keyring::{ALONE, Keyring, MasterKey, is_node_store_name, node_store_name};
pub use page::{
    MapRoot, PAGE_ENTRIES, PAGE_LEVELS_MAX, Page, SegmentEntry, root_level, segment_count,
};
pub use places::{NodePlaces, Places};
pub use policy::{Period, RetentionPolicy};
pub use recipe::{Recipe, RecipeChunk};
pub use records::{
    CheckRecord, Config, DamagedSlots, KdfCost, KeyLabel, Lease, Mark, SeriesRecord, VerifiedRange,
    WrappedKey,
};
pub use reference::{
    BlockRef, FIRST_NODE, ObjectRange, ObjectSet, PRIVATE_STORE, Reference, SHARED_STORE,
};
pub use run::{
    PARTITION_BITS_MAX, RECORD_BYTES, RUN_BLOCK_RECORDS_MAX, Record, RunBlock, RunDirectory,
    RunFilter, RunRef, RunUse, decode_records, encode_records, filter_geometry, partition_of,
};
pub use seal::{DIRECTORY_POSITION, Sealer, TAG_BYTES, fingerprint};
pub use signature::{SIGNATURE_BYTES, Signed, Signer, SigningSeed};
pub use snapshot::{
    ByteSpan, Checkpoint, Level, LevelBytes, MapProof, Snapshot, SummaryRef, Volume, VolumeKind,
};
pub use summary::{PARTITION_BYTES_MAX, PARTITIONS_PER_PART, SummaryGeometry};
pub use writers::{Role, Writer, WriterState, Writers};
