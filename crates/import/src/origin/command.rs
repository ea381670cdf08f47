//! Running other programs.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use silt_format::{Error, ErrorKind, Result};

/// Maximum size of a list that a program prints: a million snapshots.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// The output of a program. Reading its end fails if the program failed.
///
/// The program reads the same standard input and prints to the same standard error as this one, so
/// it can ask for a password.
pub struct CommandOutput {
    shown: String,
    child: Child,
}

impl CommandOutput {
    pub(super) fn start(command: &mut Command, shown: &str) -> Result<Self> {
        let child = command.stdout(Stdio::piped()).spawn().map_err(|error| {
            Error::io(format!("start `{}`", command.get_program().display()), error)
        })?;
        Ok(Self { shown: shown.to_owned(), child })
    }
}

impl Read for CommandOutput {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(output) = &mut self.child.stdout else { return Ok(0) };
        let count = output.read(buffer)?;
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        let status = self.child.wait()?;
        if status.success() {
            return Ok(0);
        }
        Err(std::io::Error::other(format!("`{}` failed: {status}", self.shown)))
    }
}

impl Drop for CommandOutput {
    /// Ends a program whose output is not wanted any more.
    fn drop(&mut self) {
        drop(self.child.stdout.take());
        if matches!(self.child.try_wait(), Ok(None)) {
            // It may have ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// All that a program prints.
pub(super) fn list(command: &mut Command, shown: &str) -> Result<Vec<u8>> {
    let output = CommandOutput::start(command, shown)?;
    let mut bytes = Vec::new();
    output.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
        Error::io(format!("list the snapshots with `{shown}`"), error).with_kind(ErrorKind::Invalid)
    })?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(Error::invalid(format!("`{shown}` prints more than 1 GiB")));
    }
    Ok(bytes)
}

/// A time such as `2026-11-23T18:30:05.123456789+01:00`, in nanoseconds since 1970; without a zone
/// it is in UTC.
pub(super) fn time_ns(text: &str) -> Result<i64> {
    let time = text.parse::<jiff::Timestamp>().or_else(|_| {
        let civil: jiff::civil::DateTime = text.parse()?;
        Ok(civil.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp())
    });
    let time = time.map_err(|error: jiff::Error| {
        Error::invalid(format!("the time '{text}' of a snapshot is none: {error}"))
    })?;
    i64::try_from(time.as_nanosecond())
        .map_err(|_| Error::invalid(format!("the time '{text}' of a snapshot is out of range")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_zones_or_are_in_utc() {
        assert_eq!(time_ns("1970-01-01T00:00:01.5Z").unwrap(), 1_500_000_000);
        assert_eq!(time_ns("1970-01-01T01:00:00.000000001+01:00").unwrap(), 1);
        assert_eq!(time_ns("1970-01-01T00:00:02.000000").unwrap(), 2_000_000_000);
        assert!(time_ns("yesterday").is_err());
    }

    #[test]
    fn the_end_of_a_failed_program_is_an_error() {
        let mut shell = Command::new("sh");
        let output = CommandOutput::start(shell.args(["-c", "echo text; exit 3"]), "sh").unwrap();
        let mut output = output;
        let mut text = String::new();
        let error = output.read_to_string(&mut text).unwrap_err();
        assert_eq!(text, "text\n");
        assert!(error.to_string().contains("`sh` failed: exit status: 3"), "{error}");
        let missing = CommandOutput::start(&mut Command::new("/no/such/program"), "x");
        assert_eq!(missing.err().unwrap().kind(), ErrorKind::NotFound);
    }
}
