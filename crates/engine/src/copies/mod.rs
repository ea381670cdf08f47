//! Copies of a repository: adding, moving and removing them, and making them alike again.

mod change;
mod heal;
mod verify;

pub use change::Completeness;
pub use heal::{HealOptions, HealReport};
