//! Users' names of snapshots and volumes: `web1@latest`, `web1@2026-11-20:root`, `3f9a01bc:root`.

use jiff::civil;
use jiff::tz::TimeZone;
use silt_format::{Error, Result};
use siltstone::{Selector, When};

/// Fewest digits of an id.
const ID_DIGITS_MIN: usize = 4;

/// Parses the name of a snapshot and, after a colon, of one of its volumes. Times without a zone
/// are in `zone`.
///
/// Times contain colons, too: a colon separates a volume only if the whole text is not the name of
/// a snapshot. Fails with `Invalid` if the text names no snapshot.
pub fn parse_with_volume(text: &str, zone: &TimeZone) -> Result<(Selector, Option<String>)> {
    let whole = parse_snapshot(text, zone);
    if let (Err(_), Some((snapshot, volume))) = (&whole, text.rsplit_once(':')) {
        return Ok((parse_snapshot(snapshot, zone)?, Some(volume.to_owned())));
    }
    Ok((whole?, None))
}

/// Parses the name of a snapshot: an id, `latest`, `SERIES@latest` or `SERIES@TIME`.
///
/// Fails as `Invalid` if the text is none of these.
pub fn parse_snapshot(text: &str, zone: &TimeZone) -> Result<Selector> {
    if let Some((series, when)) = text.rsplit_once('@') {
        let series = Some(series.to_owned()).filter(|series| !series.is_empty());
        let when = if when == "latest" { When::Latest } else { parse_when(when, zone)? };
        return Ok(Selector::Time(series, when));
    }
    if text == "latest" {
        return Ok(Selector::Time(None, When::Latest));
    }
    let digits = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if (ID_DIGITS_MIN..=16).contains(&text.len()) && text.chars().all(digits) {
        return Ok(Selector::Id(text.to_owned()));
    }
    Err(Error::invalid(format!(
        "'{text}' is not a snapshot; use an id of at least {ID_DIGITS_MIN} digits, latest, \
         SERIES@latest or SERIES@2026-11-20"
    )))
}

/// Parses a day, a local date and time, or an RFC 3339 time. Each means the end of the day, minute
/// or second that it names, so that a time copied from a listing selects the snapshot listed there.
fn parse_when(text: &str, zone: &TimeZone) -> Result<When> {
    const SECOND_NS: i64 = 1_000_000_000;
    let time_ns = parse_time(text, zone)?;
    let clock = text.split(['T', ' ']).nth(1).unwrap_or_default();
    let span_ns = match clock.split(':').count() {
        _ if text.len() == 10 || clock.contains('.') => 1,
        2 if !clock.contains(['Z', '+']) => 60 * SECOND_NS,
        _ => SECOND_NS,
    };
    Ok(When::AtOrBefore(time_ns.saturating_add(span_ns - 1)))
}

/// Parses the same forms of a time into nanoseconds since 1970; a day means its last nanosecond.
pub fn parse_time(text: &str, zone: &TimeZone) -> Result<i64> {
    let zone = zone.clone();
    let found = if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
        Some(stamp)
    } else if text.len() == 10 {
        let day = text.parse::<civil::Date>().ok();
        day.and_then(|day| day.tomorrow().ok())
            .and_then(|next| next.to_zoned(zone).ok())
            .map(|zoned| zoned.timestamp() - jiff::SignedDuration::from_nanos(1))
    } else {
        let time = text.replace(' ', "T").parse::<civil::DateTime>().ok();
        time.and_then(|time| time.to_zoned(zone).ok()).map(|zoned| zoned.timestamp())
    };
    let bad = || {
        Error::invalid(format!(
            "'{text}' is not a time; use 2026-11-20, '2026-11-20 18:30' or 2026-11-20T17:30:00Z"
        ))
    };
    let nanoseconds = found.ok_or_else(bad)?.as_nanosecond();
    i64::try_from(nanoseconds).map_err(|_| bad())
}
