//! Parses snapshots, times, ranges and sizes as users write them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use jiff::tz::TimeZone;
use silt_format::{ByteSpan, Chunking, Period};
use siltstone::Selector;

use crate::failure::Failure;

fn usage(message: String) -> Failure {
    Failure::Usage(message)
}

/// Parses a snapshot and, after a colon, a volume of it.
pub fn parse_with_volume(text: &str) -> Result<(Selector, Option<String>), Failure> {
    let parsed = silt_export::snapshot_name::parse_with_volume(text, &TimeZone::system());
    parsed.map_err(|error| usage(error.to_string()))
}

/// A snapshot, and a place in a file tree of it.
pub struct WithPath {
    /// The snapshot.
    pub selector: Selector,
    /// The volume, if one is named.
    pub volume: Option<String>,
    /// With a slash at its start. Any bytes.
    pub path: Option<Vec<u8>>,
}

/// Splits text at its first slash: what names a snapshot, and the bytes of a path.
pub fn split_path(text: &OsStr) -> Result<(&str, Option<&[u8]>), Failure> {
    let bytes = text.as_bytes();
    let slash = bytes.iter().position(|&byte| byte == b'/');
    let (before, path) = bytes.split_at(slash.unwrap_or(bytes.len()));
    let before = std::str::from_utf8(before)
        .map_err(|_| usage(format!("'{}' names no snapshot: it is not UTF-8", text.display())))?;
    Ok((before, slash.map(|_| path)))
}

/// Parses a snapshot and, after a colon, `/PATH`, `VOLUME/PATH` or `VOLUME`.
pub fn parse_with_path(text: &OsStr) -> Result<WithPath, Failure> {
    let (before, path) = split_path(text)?;
    let Some(path) = path else {
        let (selector, volume) = parse_with_volume(before)?;
        return Ok(WithPath { selector, volume, path: None });
    };
    let (selector, volume) = match before.strip_suffix(':') {
        Some(snapshot) => (parse(snapshot)?, None),
        None => parse_with_volume(before)?,
    };
    if volume.is_none() && !before.ends_with(':') {
        let shown = text.display();
        return Err(usage(format!("'{shown}' is not a path in a snapshot; use SNAPSHOT:/PATH")));
    }
    Ok(WithPath { selector, volume, path: Some(path.to_vec()) })
}

/// Parses a snapshot: an id, `latest`, `SERIES@latest` or `SERIES@TIME`.
pub fn parse(text: &str) -> Result<Selector, Failure> {
    let parsed = silt_export::snapshot_name::parse_snapshot(text, &TimeZone::system());
    parsed.map_err(|error| usage(error.to_string()))
}

/// A day, or a local date and time, or an RFC 3339 time, in nanoseconds since 1970.
pub fn parse_nanoseconds(text: &str) -> Result<i64, Failure> {
    let parsed = silt_export::snapshot_name::parse_time(text, &TimeZone::system());
    parsed.map_err(|error| usage(error.to_string()))
}

/// The same, but a day means its start: what is asked about is what has happened since.
pub fn parse_since(text: &str) -> Result<i64, Failure> {
    let time_ns = parse_nanoseconds(text)?;
    let day = text.parse::<jiff::civil::Date>().ok().filter(|_| text.len() == 10);
    let start = day.and_then(|day| day.to_zoned(TimeZone::system()).ok());
    let start_ns = start.and_then(|start| i64::try_from(start.timestamp().as_nanosecond()).ok());
    Ok(start_ns.unwrap_or(time_ns))
}

/// Parses a number of bytes: digits, then optionally KiB, MiB, GiB, TiB or their first letters.
pub fn parse_bytes(text: &str) -> Result<u64, Failure> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].trim() {
        "" | "B" => 0,
        "K" | "KiB" | "k" => 10,
        "M" | "MiB" | "m" => 20,
        "G" | "GiB" | "g" => 30,
        "T" | "TiB" | "t" => 40,
        _ => 64,
    };
    let number = text[..end].parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?));
    bytes.ok_or_else(|| usage(format!("'{text}' is not a size; use bytes, or 64KiB, 1MiB, 2GiB")))
}

/// Splits text into numbers and their units; a unit may be empty.
fn parts(text: &str) -> Option<Vec<(u64, &str)>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        parts.push((number.parse().ok()?, unit));
        rest = behind;
    }
    (!parts.is_empty()).then_some(parts)
}

/// Parses a period such as `1y5m2w7d2h`: years, months, weeks, days and hours, each at most once.
pub fn parse_period(text: &str) -> Result<Period, Failure> {
    let bad = || {
        usage(format!(
            "'{text}' is not a period; use years, months, weeks, days, hours as in 1y5m2w7d2h"
        ))
    };
    let mut period = Period::default();
    let (mut weeks, mut seen) = (0_u32, Vec::new());
    for (count, unit) in parts(text).ok_or_else(bad)? {
        let part = match unit {
            "y" => &mut period.years,
            "m" => &mut period.months,
            "w" => &mut weeks,
            "d" => &mut period.days,
            "h" => &mut period.hours,
            _ => return Err(bad()),
        };
        *part = u32::try_from(count).map_err(|_| bad())?;
        if seen.contains(&unit) {
            return Err(bad());
        }
        seen.push(unit);
    }
    let days = weeks.checked_mul(7).and_then(|days| days.checked_add(period.days));
    period.days = days.ok_or_else(bad)?;
    Ok(period)
}

/// Parses a period of weeks, days, hours, minutes and seconds; returns seconds.
pub fn parse_seconds(text: &str) -> Result<u64, Failure> {
    let wrong = || {
        usage(format!(
            "'{text}' is not a length of time; use weeks, days, hours, minutes and seconds, as in \
             2w, 30d12h or 90min"
        ))
    };
    let mut seconds = 0_u64;
    let parts = parts(text).ok_or_else(wrong)?;
    for (count, unit) in parts {
        let each = match unit {
            "w" => 7 * 86_400,
            "d" => 86_400,
            "h" => 3600,
            "min" => 60,
            "s" => 1,
            _ if count == 0 => 0,
            _ => return Err(wrong()),
        };
        seconds =
            count.checked_mul(each).and_then(|part| seconds.checked_add(part)).ok_or_else(wrong)?;
    }
    Ok(seconds)
}

/// Parses the time to wait; returns seconds.
pub fn wait(text: &str) -> Result<u64, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let seconds = parsed.and_then(|time| u64::try_from(time.as_secs()).ok());
    seconds.ok_or_else(|| "use hours, minutes and seconds, as in 10m or 1h30m".to_owned())
}

/// Parses a time such as 90s, 30m or 1h30m; returns seconds.
pub fn parse_time_limit(text: &str) -> Result<f64, Failure> {
    let parsed = text.parse::<jiff::SignedDuration>();
    let parsed = parsed.ok().filter(|time| !time.is_negative());
    let wrong =
        || usage(format!("'{text}' is not a time; use hours, minutes and seconds as in 1h30m"));
    parsed.map(|time| time.as_secs_f64()).ok_or_else(wrong)
}

/// Parses a range of a volume of `volume_bytes` bytes: `START-END`, `START+LENGTH` or `START-`.
pub fn parse_range(text: &str, volume_bytes: u64) -> Result<ByteSpan, Failure> {
    let (start, end) = if let Some((start, length)) = text.split_once('+') {
        let start = parse_bytes(start)?;
        (start, start.saturating_add(parse_bytes(length)?))
    } else if let Some((start, end)) = text.split_once('-') {
        let end = if end.is_empty() { volume_bytes } else { parse_bytes(end)? };
        (parse_bytes(start)?, end)
    } else {
        return Err(usage(format!(
            "'{text}' is not a range; use START-END, START+LENGTH or START-"
        )));
    };
    if start > end || end > volume_bytes {
        return Err(usage(format!(
            "the range {text} exceeds the volume, which has {volume_bytes} bytes"
        )));
    }
    Ok(ByteSpan { offset: start, length: end - start })
}

/// Parses a chunking: `fixed:BYTES` or `fastcdc:MIN/AVG/MAX`.
pub fn parse_chunking(text: &str) -> Result<Chunking, Failure> {
    let bad =
        || usage(format!("'{text}' is not a chunking; use fixed:4096 or fastcdc:1024/4096/16384"));
    let small = |text: &str| parse_bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
    let (kind, sizes) = text.split_once(':').ok_or_else(bad)?;
    let sizes: Option<Vec<u32>> = sizes.split('/').map(small).collect();
    let chunking = match (kind, sizes.as_deref()) {
        ("fixed", Some(&[bytes])) => Chunking::Fixed { bytes },
        ("fastcdc", Some(&[min, avg, max])) => Chunking::FastCdc { min, avg, max },
        _ => return Err(bad()),
    };
    chunking.validate().map_err(|error| usage(error.to_string()))
}
