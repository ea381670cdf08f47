//! Retries: which requests are repeated, how often, and after which delay.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};
use silt_storage::Key;

use super::ObjectFolder;
use crate::failure::Failure;

/// How long the first wait between tries is; each further one is twice as long, up to the longest.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl ObjectFolder {
    /// Waits before the next try: half of the time is drawn, so that hosts that failed together do
    /// not come back together.
    pub(crate) fn wait(&self, tries: u32) {
        let most = (FIRST_WAIT * 2_u32.pow(tries.min(8))).min(LONGEST_WAIT);
        let [drawn, ..] = RandomState::new().hash_one(tries).to_le_bytes();
        let time = most / 2 + most / 2 * u32::from(drawn) / 256;
        self.runtime().block_on(async { tokio::time::sleep(time).await });
    }

    /// Calls `ask` until it succeeds or fails permanently. Repeats requests whose response broke
    /// off, which the client does not repeat itself. `what` begins the error message.
    pub fn ask<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut tries = 0;
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.failed(what, &failure),
            };
            tries += 1;
            if error.kind() != ErrorKind::Unavailable || tries == self.tries {
                return Err(error);
            }
            self.wait(tries);
        }
    }

    /// Creates an object with `put_once`, which must not repeat anything itself. If an earlier
    /// attempt may have succeeded and the object now exists, `is_ours` decides whether it is the
    /// one that was sent.
    pub fn create(
        &self,
        key: &Key,
        put_once: impl Fn() -> Result<(), Failure>,
        is_ours: impl Fn() -> bool,
    ) -> Result<()> {
        let mut tries = 0_u32;
        loop {
            let error = match put_once() {
                Ok(()) => return Ok(()),
                Err(failure) => self.failed(&format!("create object {key}"), &failure),
            };
            tries += 1;
            match error.kind() {
                // An earlier try may have come through although its answer did not.
                ErrorKind::AlreadyExists if tries > 1 && is_ours() => return Ok(()),
                ErrorKind::AlreadyExists => {
                    let message = format!("object {key} already exists in {}", self.location);
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                ErrorKind::Unavailable if tries < self.tries => self.wait(tries),
                _ => return Err(error),
            }
        }
    }
}
