//! The layouts: golden bytes, round trips, and what hostile bytes may not do.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod decoders;
mod golden;
mod hostile;
mod messages;
mod properties;
mod values;
