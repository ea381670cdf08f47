//! Windows of the day, as users write them.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time of each day in the local time zone, such as 22:00-06:00.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    begin: Time,
    /// The end, which is the next day if it is not after the beginning.
    end: Time,
}

/// Parses `HH:MM-HH:MM`.
pub fn parse(text: &str) -> Result<Window, String> {
    let time = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let number = |digits: &str| {
            let is_number = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_digit());
            digits.parse::<i8>().ok().filter(|_| is_number)
        };
        // The end of a day is the beginning of the next one.
        let hour = number(hour)?;
        let hour = if hour == 24 && minute == "00" { 0 } else { hour };
        Time::new(hour, number(minute)?, 0, 0).ok()
    };
    let times = text.split_once('-').and_then(|(begin, end)| Some((time(begin)?, time(end)?)));
    match times {
        Some((begin, end)) if begin != end => Ok(Window { begin, end }),
        _ => Err(format!("'{text}' is not a window of the day; use local times as in 22:00-06:00")),
    }
}

impl Window {
    /// When the window ends in which `now_ns` is, in nanoseconds since 1970; `None` outside of it.
    ///
    /// Local times count. In a night in which the clock is changed, the window is longer or
    /// shorter.
    pub fn end_ns(&self, now_ns: i64, zone: &TimeZone) -> Option<i64> {
        self.is_open(now_ns, zone).then(|| next(self.end, now_ns, zone)).flatten()
    }

    /// When the window begins next, in nanoseconds since 1970; `None` at the end of time.
    pub fn next_begin_ns(&self, now_ns: i64, zone: &TimeZone) -> Option<i64> {
        next(self.begin, now_ns, zone)
    }

    fn is_open(&self, now_ns: i64, zone: &TimeZone) -> bool {
        let Ok(now) = Timestamp::from_nanosecond(i128::from(now_ns)) else { return false };
        let time = zone.to_datetime(now).time();
        if self.begin < self.end {
            self.begin <= time && time < self.end
        } else {
            self.begin <= time || time < self.end
        }
    }
}

/// When it is `time` of the day next. A time that a day does not have is later by as much as the
/// clock is moved; of a time that it has twice, both count.
fn next(time: Time, now_ns: i64, zone: &TimeZone) -> Option<i64> {
    let now = Timestamp::from_nanosecond(i128::from(now_ns)).ok()?;
    let today = zone.to_datetime(now).date();
    let mut day = today;
    for _ in 0..3 {
        let local = zone.to_ambiguous_zoned(DateTime::from_parts(day, time));
        let both = [local.clone().compatible(), local.later()];
        let mut both = both.into_iter().flatten().map(|zoned| zoned.timestamp());
        if let Some(first) = both.find(|it| *it > now) {
            return i64::try_from(first.as_nanosecond()).ok();
        }
        day = day.checked_add(1.day()).ok()?;
    }
    None
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { begin, end } = self;
        let (first, last) = (begin.minute(), end.minute());
        write!(f, "{:02}:{first:02}-{:02}:{last:02}", begin.hour(), end.hour())
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parse(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        // The rules of Europe/Berlin, whatever the machine has installed.
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn ns(time: &str) -> i64 {
        let time: Timestamp = time.parse().unwrap();
        i64::try_from(time.as_nanosecond()).unwrap()
    }

    fn end(window: &str, now: &str) -> Option<String> {
        let end = parse(window).unwrap().end_ns(ns(now), &berlin())?;
        Some(Timestamp::from_nanosecond(end.into()).unwrap().to_string())
    }

    #[test]
    fn a_window_may_span_midnight() {
        assert_eq!(end("22:00-06:00", "2026-11-23T20:59:59Z"), None);
        let morning = Some("2026-11-24T05:00:00Z".to_owned());
        assert_eq!(end("22:00-06:00", "2026-11-23T21:00:00Z"), morning);
        assert_eq!(end("22:00-06:00", "2026-11-24T04:59:59Z"), morning);
        assert_eq!(end("22:00-06:00", "2026-11-24T05:00:00Z"), None);
        assert_eq!(end("12:00-13:30", "2026-11-24T12:00:00Z").unwrap(), "2026-11-24T12:30:00Z");
        assert_eq!(end("12:00-24:00", "2026-11-24T12:00:00Z").unwrap(), "2026-11-24T23:00:00Z");
        let begin =
            parse("22:00-06:00").unwrap().next_begin_ns(ns("2026-11-24T12:00:00Z"), &berlin());
        assert_eq!(begin, Some(ns("2026-11-24T21:00:00Z")));
    }

    #[test]
    fn a_window_in_the_night_of_a_clock_change_has_local_times() {
        // Forward on 2026-03-29: 02:00 is 03:00. The night is an hour shorter.
        assert_eq!(end("22:00-06:00", "2026-03-28T22:00:00Z").unwrap(), "2026-03-29T04:00:00Z");
        // An end that the day does not have is an hour later.
        assert_eq!(end("22:00-02:30", "2026-03-28T22:00:00Z").unwrap(), "2026-03-29T01:30:00Z");
        assert_eq!(end("22:00-02:30", "2026-03-29T01:00:00Z"), None);
        // Back on 2026-10-25: 02:00 to 03:00 happens twice.
        assert_eq!(end("22:00-06:00", "2026-10-24T22:00:00Z").unwrap(), "2026-10-25T05:00:00Z");
        assert_eq!(end("22:00-02:30", "2026-10-24T22:00:00Z").unwrap(), "2026-10-25T00:30:00Z");
        assert_eq!(end("22:00-02:30", "2026-10-25T01:10:00Z").unwrap(), "2026-10-25T01:30:00Z");
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in ["", "22-6", "22:00", "22:00-22:00", "25:00-06:00", "22:60-06:00", "2:00-6:00"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("22:05-06:00").unwrap().to_string(), "22:05-06:00");
    }
}
