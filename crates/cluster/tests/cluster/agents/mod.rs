//! Agents: alone, in a group, and on command.

mod alone;
mod stage;
