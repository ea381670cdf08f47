//! Tests of what many hosts do together.

mod calendar;
