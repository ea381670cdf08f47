//! `silt repo`.

mod probe;
mod rollback;

pub use probe::run as probe;
pub use rollback::run as rollback;
