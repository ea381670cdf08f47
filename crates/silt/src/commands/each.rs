//! Goes on with the other series when one fails.

use silt_format::ErrorKind;
use siltstone::DamagedHead;

use super::{Failure, Session, exit_code};
use crate::advice::with_advice;
use crate::output;

/// The result of the series so far.
pub struct Each<'s> {
    session: &'s Session<'s>,
    status: u8,
}

impl<'s> Each<'s> {
    pub fn new(session: &'s Session<'s>) -> Self {
        Self { session, status: 0 }
    }

    /// The session of the command.
    pub fn session(&self) -> &'s Session<'s> {
        self.session
    }

    /// Returns the value. If the error concerns this series alone (busy, damaged, refused or
    /// missing), prints it and returns `None`. Other errors end the command.
    pub fn tried<T>(
        &mut self,
        series: &str,
        result: Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Failure::Error(error)) if is_of_one(error.kind()) => {
                self.failed(&format!("series '{series}'"), error);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The same for a store of several series, which may be a node that can't be reached.
    pub fn tried_store(&mut self, shown: &str, result: Result<(), Failure>) -> Result<(), Failure> {
        match result {
            Err(Failure::Error(error))
                if is_of_one(error.kind()) || error.kind() == ErrorKind::Unavailable =>
            {
                self.failed(shown, error);
                Ok(())
            }
            other => other,
        }
    }

    fn failed(&mut self, what: &str, error: silt_format::Error) {
        self.session.reporter.finish();
        let status = exit_code(&error);
        let message = Failure::from(error).to_string();
        let message =
            if message.starts_with(what) { message } else { format!("{what}: {message}") };
        output::error(self.session.global.json, &message, status);
        self.worsen(status);
    }

    /// Prints the series whose newest heads are damaged.
    pub fn damaged(&mut self, damaged: &[DamagedHead]) {
        for found in damaged {
            let DamagedHead { series, error, before } = found;
            let what = format!("series '{series}' is damaged: {error}");
            let message = match (error.advice(), before) {
                (Some(advice), _) => with_advice(&what, Some(advice)),
                (None, Some(before)) => format!(
                    "{what}; `silt recover {series}` restores head {}, which is intact",
                    before.generation
                ),
                (None, None) => format!("{what}; no earlier head can be read"),
            };
            self.session.reporter.finish();
            output::error(self.session.global.json, &message, 5);
            self.worsen(5);
        }
    }

    /// Records a status: damage (5) takes precedence, then busy (11), then any other.
    pub fn worsen(&mut self, status: u8) {
        let rank = |status: u8| match status {
            0 => 0,
            5 => 3,
            11 => 2,
            _ => 1,
        };
        if rank(status) > rank(self.status) {
            self.status = status;
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        self.status
    }
}

/// Whether an error of this kind concerns one series alone.
fn is_of_one(kind: ErrorKind) -> bool {
    use ErrorKind::{Busy, Corrupt, Denied, NotFound};
    matches!(kind, Busy | Corrupt | Denied | NotFound)
}
