//! What is shown of a repository, and how it is read through a server.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod catalog;
mod changed;
mod client;
mod extended;
mod kit;
mod mishaps;
mod protocol;
