//! Copies of a repository: adds, moves and removes them, and repairs differences between them.

mod change;
mod heal;
mod nodes;
mod verify;

pub use change::Completeness;
pub use heal::{HealOptions, HealReport};
