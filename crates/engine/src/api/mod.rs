//! The types of other crates that are part of this one's interface, each with an example.
//!
//! rustdoc puts the text of a re-export before the text of the item.

pub mod access;
pub mod backup;
pub mod context;
pub mod rounds;
pub mod snapshots;
pub mod source;
pub mod storage;
