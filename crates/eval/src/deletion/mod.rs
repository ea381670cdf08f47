//! Deletion: what each method reads, leaves behind and takes, by deleting snapshots of series in
//! memory with the product.

mod grouped;
mod leaks;
mod methods;
mod series;
#[cfg(test)]
mod tests;

pub use leaks::{intervals, leaks, vectors};
pub use methods::{Costs, cluster, costs, times};
