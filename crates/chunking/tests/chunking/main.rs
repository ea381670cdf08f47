//! The crate's contracts: golden vectors of what is stored, and properties against oracles.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, as it should")]

mod cut;
mod digest;
mod fingerprint;
mod sample;
mod signature;
mod universal;
mod zero;
