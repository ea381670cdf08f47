//! The Siltstone library: back up, list, verify and restore volumes.
