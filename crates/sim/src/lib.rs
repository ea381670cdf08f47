//! Deterministic interleaving: what hosts that sleep, die and wake up late do to a repository.
//!
//! A plan, drawn from a seed, says what several hosts do and what goes wrong at which storage
//! operation. One thread runs at a time, time is virtual, and everything that happens follows from
//! the plan: the same plan gives the same events. In the end the repository is compared with what
//! its users were told.

mod content;
mod disk;
mod history;
mod live;
mod model;
mod plan;
mod play;
mod process;
mod race;
mod random;
mod shrink;
mod tree;
mod verify;
mod world;

pub use plan::{
    Action, Class, Exact, Fault, Host, Keep, Kind, Plan, Point, Series, Shape, Work, Wrong,
};
pub use play::{Outcome, play};
pub use shrink::shrink;
