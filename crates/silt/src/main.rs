//! The Siltstone program.
fn main() {}
