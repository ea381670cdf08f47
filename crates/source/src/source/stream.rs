//! A volume read from a byte stream, such as standard input.

use std::io::{ErrorKind as IoKind, Read};
use std::sync::Mutex;

use silt_format::{Error, ErrorKind, Result};

use super::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use crate::number::lock;

const NAME: &str = "standard input";

/// A volume read from a stream, once and in order.
pub struct StreamSource {
    state: Mutex<State>,
}

struct State {
    reader: Box<dyn Read + Send>,
    position: u64,
    ended: bool,
    /// The first error of a read, which later reads return again.
    failure: Option<String>,
}

impl StreamSource {
    /// Returns a source of the bytes that `reader` yields until its end; messages call it standard
    /// input.
    pub fn new(reader: Box<dyn Read + Send>) -> Self {
        Self { state: Mutex::new(State { reader, position: 0, ended: false, failure: None }) }
    }
}

impl VolumeSource for StreamSource {
    /// The size is known once a read has reached the end.
    fn info(&self) -> SourceInfo {
        let state = lock(&self.state);
        let size = state.ended.then_some(state.position);
        SourceInfo {
            description: NAME.to_owned(),
            format: SourceFormat::Stream,
            size,
            backing: Vec::new(),
        }
    }

    fn is_sequential(&self) -> bool {
        true
    }

    /// Data without a known end: the length is the rest of the 64-bit range.
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { offset, length: u64::MAX - offset, kind: ExtentKind::Data })
    }

    /// Continues reading. Fails with Invalid if `offset` is not the end of the last read. A failed
    /// read moves the stream's position, so later reads fail with the same error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut state = lock(&self.state);
        if let Some(failure) = &state.failure {
            return Err(Error::new(ErrorKind::Unavailable, failure));
        }
        if offset != state.position {
            return Err(Error::invalid(format!(
                "{NAME} can only be read in order: it is at byte {}, not at {offset}",
                state.position
            )));
        }
        let mut done = 0;
        while done < buf.len() && !state.ended {
            match state.reader.read(&mut buf[done..]) {
                Ok(0) => state.ended = true,
                Ok(count) => {
                    done += count;
                    state.position += count as u64;
                }
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => {
                    let at = state.position;
                    let error = Error::io(format!("reading {NAME} at byte {at}"), error);
                    state.failure = Some(error.to_string());
                    return Err(error);
                }
            }
        }
        Ok(done)
    }
}
