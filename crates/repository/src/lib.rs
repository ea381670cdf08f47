//! A Siltstone repository: its objects, and how they are read and changed.
//!
//! From the bottom up: [`mod@env`] provides time, random numbers and messages; [`objects`] reads
//! and writes sealed objects in a storage; [`heads`], [`lease`] and [`settle`] implement the
//! commit; [`chunks`] and [`map`] read containers and recipe packs. [`repository`] is an open
//! repository; [`mod@open`], [`keys`], [`authority`], [`places`], [`history`] and [`find`] add
//! methods to it. The operations (backups, restores, checks, deletions) are in the crate
//! `siltstone`.

pub mod authority;
mod bases;
pub mod believed;
pub mod beside;
pub mod bounds;
pub mod budget;
pub mod buffers;
pub mod cache;
pub mod check_record;
pub mod chunks;
pub mod compare;
pub mod container;
pub mod container_reader;
pub mod dead;
pub mod directories;
pub mod draft;
pub mod edit;
pub mod env;
pub mod event;
pub mod find;
pub mod found_damage;
pub mod hashes;
pub mod heads;
pub mod history;
pub mod jobs;
pub mod keys;
pub mod lease;
pub mod map;
pub mod objects;
pub mod one_each;
pub mod open;
pub mod operation;
pub mod packs;
pub mod places;
mod planning;
pub mod recompression;
pub mod rename;
pub mod repository;
pub mod retention;
pub mod room;
pub mod root;
pub mod seen;
pub mod series;
pub mod settle;
pub mod status;
pub mod storage_rules;
pub mod stores;
pub mod summary;
pub mod sync;
pub mod system;
pub mod table;
pub mod temporary;
pub mod tree;
pub mod upload;
pub mod upload_queue;
pub mod volume_reader;
pub mod writers;

pub use repository::{Found, FoundVolume, Repository};
pub use volume_reader::{ReadCache, VolumeExtent, VolumeReader};
