//! What the program prints. Everything that goes to standard output goes through here.

use std::io::Write;

use serde_json::{Value, json};

/// Prints a line to standard output; a reader that went away is not an error worth a message.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").is_err() {
        std::process::exit(1);
    }
}

/// Prints a line to standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints an object as one JSON line with its type.
pub fn message(message_type: &str, value: Value) {
    message_beside(message_type, value, false);
}

/// The same, but to standard error where standard output carries data.
pub fn message_beside(message_type: &str, mut value: Value, data_on_stdout: bool) {
    value["message_type"] = json!(message_type);
    let text = value.to_string();
    if data_on_stdout { note(&text) } else { line(&text) }
}

/// Prints an error to standard error, as JSON if asked for.
pub fn error(as_json: bool, text: &str, code: u8) {
    if as_json {
        note(&json!({"message_type": "error", "code": code, "message": text}).to_string());
    } else {
        note(&format!("silt: {text}"));
    }
}

/// A number of bytes for people, in powers of 1024.
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

/// `part` of `whole` in percent with one digit, `-` of nothing.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A time for people, in the local time zone.
pub fn time(time_ns: i64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(time_ns));
    let local = stamp.map(|stamp| stamp.to_zoned(jiff::tz::TimeZone::system()));
    local.map_or_else(|_| "?".to_owned(), |local| local.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// A time as RFC 3339 in UTC.
pub fn rfc3339(time_ns: i64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(time_ns))
        .map_or_else(|_| "?".to_owned(), |stamp| stamp.to_string())
}

/// Lines up columns; those in `right` are set to the right.
pub fn table(header: &[&str], rows: &[Vec<String>], right: &[usize]) {
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
    for row in rows {
        print(&mut row.iter().map(String::as_str));
    }
}
