//! Every storage and every wrapper, put through the conformance suite and through failures.

#![cfg(test)]

mod cached;
mod conformance;
mod listing;
mod local;
mod memory;
mod scarce;
mod wrappers;
