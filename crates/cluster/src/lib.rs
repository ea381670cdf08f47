//! Many hosts as one: when backups are due, and who makes them.

mod calendar;

pub use calendar::Calendar;
