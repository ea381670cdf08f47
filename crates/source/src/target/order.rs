//! The order in which several threads write the parts of a volume to a sequential target.

use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::{Error, ErrorKind, Result};

use crate::number::lock;

/// Whose turn it is to write to a target that takes parts one after the other.
#[derive(Default)]
pub struct Order {
    state: Mutex<OrderState>,
    changed: Condvar,
}

#[derive(Default)]
struct OrderState {
    /// Parts that were written.
    written: u64,
    /// Whether one was given up, so that those behind it are never written.
    is_broken: bool,
}

/// A part in the order; the order is broken if it is dropped before it was written.
pub struct Turn<'o> {
    order: &'o Order,
    number: u64,
    is_written: bool,
}

impl Order {
    /// The turn of part `number`, counted from 0. Each has one.
    pub fn turn(&self, number: u64) -> Turn<'_> {
        Turn { order: self, number, is_written: false }
    }
}

impl Turn<'_> {
    /// Waits until all parts before this one were written. Fails if one of them never will be, with
    /// an error that the one of that part comes before.
    pub fn wait(&self) -> Result<()> {
        let mut state = lock(&self.order.state);
        while state.written < self.number {
            if state.is_broken {
                let message = "what comes before could not be written";
                return Err(Error::new(ErrorKind::Interrupted, message));
            }
            state = self.order.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// The part was written, all before it, too.
    pub fn written(mut self) -> Result<()> {
        // Nothing was written where there is nothing to write.
        self.wait()?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.order.state);
        if self.is_written {
            state.written += 1;
        } else {
            state.is_broken = true;
        }
        drop(state);
        self.order.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_in_their_order() {
        let (order, written) = (Order::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for first in [2, 1, 0] {
                let (order, written) = (&order, &written);
                scope.spawn(move || {
                    for number in (first..100).step_by(3) {
                        let turn = order.turn(number);
                        turn.wait().unwrap();
                        lock(written).push(number);
                        turn.written().unwrap();
                    }
                });
            }
        });
        assert!(lock(&written).iter().copied().eq(0..100));
    }

    #[test]
    fn who_waits_for_a_part_that_is_given_up_is_told() {
        let order = Order::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| order.turn(1).wait().unwrap_err().kind());
            drop(order.turn(0));
            assert_eq!(waiting.join().unwrap(), ErrorKind::Interrupted);
        });
        order.turn(0).written().unwrap();
        order.turn(1).wait().unwrap();
    }
}
