//! The agent of a host: the process that backs up when it is due, and the commands that ask agents.

mod board;
mod child;
mod group;
mod index;
mod lines;
mod link;
mod listing;
mod plan;
mod process;
mod settings;
mod systemd;
mod tell;

pub use board::Board;
pub use child::Program;
pub use group::{Asked, Group, choose, index_places, run_ended, running};
pub use listing::{calendars, plan as show_plan};
pub use plan::{Plan, host_name};
pub use process::Process;
pub use settings::{AgentSettings, BusSettings, Schedule};
pub use systemd::Notifier;
