//! Directory trees: walked, recreated, and compared by other programs.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod archive;
mod kit;
mod lists;
mod make;
mod origin;
mod patterns;
mod races;
mod walk;
