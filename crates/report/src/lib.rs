//! What evaluations have in common: tables, plots, pages of both, and numbers drawn from a seed.

#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "evaluations print their tables; places in a plot need no more digits"
)]

mod charts;
mod page;
mod random;
mod tables;

pub use charts::Axis;
pub use page::Page;
pub use random::{Random, draw, floor};
pub use tables::{Line, Table, bars, number, percent, plot, plot_from, plot_values};

/// What commands of evaluations return.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
