//! A deterministic simulator of several hosts that use one repository, or replicate between
//! several, and that sleep, die and wake up late.
//!
//! A plan, drawn from a seed, lists the operations of each host and the faults at storage
//! operations. One thread runs at a time and time is virtual, so the same plan gives the same
//! events. At the end, the repository is compared with the results that its users were told.

mod agents;
mod caches;
mod called;
mod content;
mod disk;
mod drawn_agents;
mod drawn_caches;
mod drawn_deltas;
mod drawn_nodes;
mod drawn_sites;
mod drawn_trees;
mod history;
mod link;
mod live;
mod model;
mod plan;
mod play;
mod process;
mod race;
mod random;
mod shrink;
mod site;
mod stage;
mod tree;
mod verify;
mod verify_sites;
mod world;

pub use plan::{
    Action, AgentHost, Class, Exact, Fault, Host, Keep, Kind, Plan, Point, Series, Shape, Trouble,
    Work, Wrong,
};
pub use play::{Outcome, play};
pub use shrink::shrink;
pub use site::Replication;
