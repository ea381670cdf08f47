//! Sources and targets against images that QEMU makes and checks. Needs qemu-utils; what needs root
//! says so when it is skipped.

#![expect(clippy::unwrap_used, reason = "a failing test says so by panicking")]

mod chains;
mod damage;
mod devices;
mod in_place;
mod in_use;
mod nbd;
mod nbd_hostile;
mod new_targets;
mod qcow2_source;
mod qemu;
mod raw_source;
mod streams;
