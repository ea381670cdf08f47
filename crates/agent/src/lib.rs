//! The agent of a host: the process that backs up when it is due, and the commands that ask agents.

mod board;
mod child;
mod group;
mod index;
mod lines;
mod link;
mod listing;
mod nodes;
mod plan;
mod process;
mod settings;
mod systemd;
mod tell;

pub use board::Board;
pub use child::Program;
pub use group::{Asked, Group, Lookups, choose, run_ended, running};
pub use listing::{calendars, plan as show_plan};
pub use nodes::NodeProcess;
pub use plan::{Plan, host_name};
pub use process::Process;
pub use settings::{AgentSettings, BusSettings, Schedule};
pub use silt_cluster::nodes::NodeServerOptions;
pub use systemd::Notifier;
