//! A volume written to a byte stream, such as standard output.

use std::io::Write;
use std::sync::Mutex;

use silt_format::{Error, Result};

use super::{VolumeTarget, check_range, unreadable};
use crate::number::lock;
use crate::positioned::each_zeros;

const NAME: &str = "standard output";

/// A volume written to a stream, once and in offset order, including zeros.
pub struct StreamTarget {
    size: u64,
    state: Mutex<State>,
}

struct State {
    writer: Box<dyn Write + Send>,
    position: u64,
    broken: bool,
}

impl StreamTarget {
    /// Returns a target that writes a volume of `size` bytes to `writer`; messages call it standard
    /// output.
    pub fn new(writer: Box<dyn Write + Send>, size: u64) -> Self {
        Self { size, state: Mutex::new(State { writer, position: 0, broken: false }) }
    }

    /// Returns the state if the stream is at `offset`.
    fn at(&self, offset: u64, length: u64) -> Result<std::sync::MutexGuard<'_, State>> {
        check_range(offset, length, self.size)?;
        let state = lock(&self.state);
        if state.broken || offset != state.position {
            return Err(Error::invalid(format!(
                "{NAME} can only be written in order: it is at byte {}, not at {offset}{}",
                state.position,
                if state.broken { ", and an earlier write failed" } else { "" }
            )));
        }
        Ok(state)
    }
}

impl State {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let at = self.position;
        self.writer.write_all(data).map_err(|error| {
            self.broken = true;
            Error::io(format!("writing {NAME} at byte {at}"), error)
        })?;
        self.position += data.len() as u64;
        Ok(())
    }
}

impl VolumeTarget for StreamTarget {
    /// Fails with Invalid if `offset` is not the end of the last write.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.at(offset, data.len() as u64)?.write(data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        let mut state = self.at(offset, length)?;
        each_zeros(length, |zeros| state.write(zeros))
    }

    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(unreadable(NAME))
    }

    fn can_read(&self) -> bool {
        false
    }

    fn is_sequential(&self) -> bool {
        true
    }

    /// Flushes the stream; durability is up to its reader. Fails with Invalid if bytes of the
    /// volume were never written.
    fn finish(self: Box<Self>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.broken || state.position != self.size {
            return Err(Error::invalid(format!(
                "{NAME} received {} of the volume's {} bytes and is incomplete",
                state.position, self.size
            )));
        }
        state.writer.flush().map_err(|error| Error::io(format!("writing {NAME}"), error))
    }
}
