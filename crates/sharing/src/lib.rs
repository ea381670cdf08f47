//! What series have in common: which series has which chunk, the chunks of the shared store, and
//! rounds, in which many series are backed up together.

pub mod copy;
pub mod counting;
pub mod exchange;
pub mod owners;
pub mod references;
pub mod round;
