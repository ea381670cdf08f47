//! Images made by the real tools, and hostile ones made of them.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod hostile;
mod images;
mod kit;
mod mounted;
