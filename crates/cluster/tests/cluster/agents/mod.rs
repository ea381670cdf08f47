//! Agents: alone, in a group, and on command.

mod alone;
mod commands;
mod group;
mod messages;
mod stage;
