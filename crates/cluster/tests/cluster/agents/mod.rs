//! Agents: alone, in a group, and on command.

mod alone;
mod commands;
mod group;
mod histories;
mod messages;
mod scale;
mod stage;
