//! Prints the program's output. All writes to standard output go through this module.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};
use silt_format::Error;

/// Escapes characters that a terminal would obey instead of showing, because names, tags and paths
/// come from other hosts. Control characters and bidirectional marks (UAX 9) are shown as `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// The first error of standard output.
static FAILURE: OnceLock<std::io::Error> = OnceLock::new();

/// Returns the error of standard output, if any. A closed pipe does not count: its reader has seen
/// enough.
pub fn failure() -> Option<&'static std::io::Error> {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.flush() {
        let _ = FAILURE.set(error);
    }
    FAILURE.get().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)
}

/// Standard output for bytes that are no text. The standard library's searches all that passes for
/// the last line break.
pub fn data() -> silt_format::Result<File> {
    let descriptor = std::io::stdout().as_fd().try_clone_to_owned();
    Ok(descriptor.map_err(|error| Error::io("open standard output", error))?.into())
}

/// Prints a line to standard output.
pub fn line(text: &str) {
    print(&visible(text));
}

/// Prints two columns with a tab between them.
pub fn columns(left: &str, right: &str) {
    print(&format!("{}\t{}", visible(left), visible(right)));
}

/// Whether `--quiet` was given.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// The file of `--log-file`.
static LOG: OnceLock<Mutex<File>> = OnceLock::new();

/// Appends messages to a file from now on.
pub fn log_to(file: &Path) -> std::io::Result<()> {
    let file = File::options().create(true).append(true).open(file)?;
    let _ = LOG.set(Mutex::new(file));
    Ok(())
}

/// Appends a message to the log, if there is one, with the time. A failure is ignored: the command
/// goes on.
#[expect(clippy::disallowed_methods, reason = "the time of a message, not of an operation")]
pub fn log(text: &str) {
    let Some(log) = LOG.get() else { return };
    let now = jiff::Timestamp::try_from(std::time::SystemTime::now());
    let now = now.map_or_else(|_| "?".to_owned(), |now| format!("{now:.3}"));
    let mut log = log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // One write, so that lines of several processes do not mix.
    let _ = log.write_all(format!("{now} {}\n", visible(text)).as_bytes());
}

/// Stops [`done`] from printing, as `--quiet` asks for.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Prints a line about what was done, unless `--quiet` is given. What a command was asked for, such
/// as a list, is printed by [`line()`].
pub fn done(text: &str) {
    log(text);
    if !IS_QUIET.load(Ordering::Relaxed) {
        line(text);
    }
}

/// Prints a line about what was done, as [`done`], or what a dry run would do.
pub fn outcome(dry_run: bool, text: &str) {
    if dry_run { line(text) } else { done(text) }
}

/// Prints a line to standard error.
pub fn note(text: &str) {
    log(text);
    print_beside(&visible(text));
}

fn print(text: &str) {
    // The command goes on: it may have to clean up.
    if FAILURE.get().is_none()
        && let Err(error) = writeln!(std::io::stdout().lock(), "{text}")
    {
        let _ = FAILURE.set(error);
    }
}

fn print_beside(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints an object as one JSON line with its type.
pub fn message(message_type: &str, value: Value) {
    message_beside(message_type, value, false);
}

/// Prints such a line, but to standard error if standard output carries data.
pub fn message_beside(message_type: &str, mut value: Value, data_on_stdout: bool) {
    value["message_type"] = json!(message_type);
    let text = value.to_string();
    if data_on_stdout { print_beside(&text) } else { print(&text) }
}

/// Prints an error to standard error, as JSON if asked for.
pub fn error(as_json: bool, text: &str, code: u8) {
    if as_json {
        log(&format!("silt: {text}"));
        let error = json!({"message_type": "error", "code": code, "message": text});
        print_beside(&error.to_string());
    } else {
        note(&format!("silt: {text}"));
    }
}

/// Formats a number with its noun: `1 snapshot`, `2 snapshots`, `2 entries`, `2 series`.
pub fn count<N: Copy + std::fmt::Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    if number == N::from(1) || noun.ends_with('s') {
        return format!("{number} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

/// Formats a number of bytes for people, in powers of 1024.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut whole, mut rest, mut unit) = (count / 1024, count % 1024, 0);
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    if whole >= 100 {
        return format!("{whole} {}", UNITS[unit]);
    }
    format!("{whole}.{} {}", rest * 10 / 1024, UNITS[unit])
}

/// Formats `part` of `whole` in percent with one decimal; `-` if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Formats a time for people, in the local time zone.
pub fn time(time_ns: i64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(time_ns));
    let local = stamp.map(|stamp| stamp.to_zoned(jiff::tz::TimeZone::system()));
    local.map_or_else(|_| "?".to_owned(), |local| local.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Formats a time as RFC 3339 in UTC.
pub fn rfc3339(time_ns: i64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(time_ns))
        .map_or_else(|_| "?".to_owned(), |stamp| stamp.to_string())
}

/// Prints a table with aligned columns; those in `right` are right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>], right: &[usize]) {
    let shown = |row: &Vec<String>| row.iter().map(|cell| visible(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let aligned = cells.enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        line(aligned.collect::<Vec<_>>().join("  ").trim_end());
    };
    print(&mut header.iter().copied());
    for row in &rows {
        print(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1_u64, "snapshot"), "1 snapshot");
        assert_eq!(count(0_u64, "snapshot"), "0 snapshots");
        assert_eq!(count(1_usize, "entry"), "1 entry");
        assert_eq!(count(2_usize, "directory"), "2 directories");
        assert_eq!(count(1_u64, "series"), "1 series");
        assert_eq!(count(2_u64, "series"), "2 series");
        assert_eq!(count(3_u64, "recipe pack"), "3 recipe packs");
    }
}
