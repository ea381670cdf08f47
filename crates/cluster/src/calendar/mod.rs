//! Calendar expressions, as in systemd's timers: when something is due.

mod fields;
mod parse;

use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

use fields::{Days, Field};

/// The last year in which anything elapses, as in systemd.
const YEAR_MAX: i16 = 2199;

/// Times that repeat, such as `daily`, `Mon..Fri 22:30` or `*-*~01 03:00 Europe/Berlin`.
///
/// The language is that of `OnCalendar=` in systemd.time(7), without fractions of seconds and
/// without `@` times. Two rules for the ends of summer time differ. A time that is skipped when
/// clocks are set forward elapses at that moment; systemd leaves it out. A time that occurs twice
/// when they are set back elapses once, the first time; if the hour is `*`, both times.
///
/// ```
/// use silt_cluster::Calendar;
/// let calendar: Calendar = "Mon..Fri 22:30".parse().unwrap();
/// let saturday = "2026-11-21T10:00:00Z".parse().unwrap();
/// let next = calendar.next(saturday, &jiff::tz::TimeZone::UTC).unwrap();
/// assert_eq!(next.to_string(), "2026-11-23T22:30:00Z");
/// ```
#[derive(Clone, Debug)]
pub struct Calendar {
    text: String,
    /// Bit 0 is Monday; all are set if the expression names none.
    weekdays: u8,
    years: Field,
    months: Field,
    days: Days,
    hours: Field,
    minutes: Field,
    seconds: Field,
    zone: Option<TimeZone>,
}

impl fmt::Display for Calendar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Calendar {
    /// Returns the first time after `after` at which it elapses, or `None` if it never does before
    /// the year 2200. It is read in `zone` unless it names a time zone.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let zone = self.zone.as_ref().unwrap_or(zone);
        let mut from = second_after(after)?;
        // From one transition of the zone to the next its clocks run evenly.
        loop {
            let offset = zone.to_offset(from);
            let end = zone.following(from).next().map(|transition| transition.timestamp());
            let mut begin = offset.to_datetime(from);
            if !self.hours.is_any() {
                begin = begin.max(first_new_time(zone, from)?);
            }
            let found = self.next_on_clock(begin);
            if let Some(at) = found.and_then(|found| offset.to_timestamp(found).ok())
                && end.is_none_or(|end| at < end)
            {
                return Some(at);
            }
            from = end.filter(|_| begin.year() <= YEAR_MAX)?;
            let clock = zone.to_datetime(from);
            if offset.to_datetime(from) < clock && found.is_some_and(|found| found < clock) {
                return Some(from);
            }
        }
    }

    /// Returns the last time after `after`, and not after `now`, at which it elapsed. However many
    /// there were, one run makes up for all of them.
    pub fn due(&self, after: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let next = |second: i64| {
            let from = Timestamp::from_second(second).ok()?.max(after);
            self.next(from, zone).filter(|at| *at <= now)
        };
        // `next` never goes back, so halving finds the last second from which it finds a time.
        let (mut low, mut high) = (after.as_second(), now.as_second().saturating_add(1));
        let mut found = next(low)?;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match next(middle) {
                Some(at) => (low, found) = (middle, at),
                None => high = middle,
            }
        }
        Some(found)
    }

    /// The first time of day of a matching day, from `begin` on, on a clock that is never set.
    fn next_on_clock(&self, begin: DateTime) -> Option<DateTime> {
        let (mut date, mut time) = (begin.date(), begin.time());
        loop {
            let day = self.next_day(date)?;
            if day > date {
                time = Time::midnight();
            }
            if let Some(time) = self.next_time(time) {
                return Some(day.to_datetime(time));
            }
            (date, time) = (day.tomorrow().ok()?, Time::midnight());
        }
    }

    fn next_day(&self, from: Date) -> Option<Date> {
        for year in from.year()..=YEAR_MAX {
            if !self.years.has(year) {
                continue;
            }
            let first_month = if year == from.year() { from.month() } else { 1 };
            for month in (first_month..=12).filter(|month| self.months.has((*month).into())) {
                let first = Date::new(year, month, 1).ok()?;
                let begin = if from > first { from.day() } else { 1 };
                for day in begin..=first.days_in_month() {
                    let date = Date::new(year, month, day).ok()?;
                    let weekday = date.weekday().to_monday_zero_offset();
                    if self.weekdays >> weekday & 1 == 1 && self.days.has(date) {
                        return Some(date);
                    }
                }
            }
        }
        None
    }

    fn next_time(&self, from: Time) -> Option<Time> {
        let has = |field: &Field, value: &i8| field.has((*value).into());
        for hour in (from.hour()..24).filter(|hour| has(&self.hours, hour)) {
            let same_hour = hour == from.hour();
            let begin = if same_hour { from.minute() } else { 0 };
            for minute in (begin..60).filter(|minute| has(&self.minutes, minute)) {
                let same_minute = same_hour && minute == from.minute();
                let begin = if same_minute { from.second() } else { 0 };
                if let Some(second) = (begin..60).find(|second| has(&self.seconds, second)) {
                    return Time::new(hour, minute, second, 0).ok();
                }
            }
        }
        None
    }
}

/// The first whole second after `time`.
fn second_after(time: Timestamp) -> Option<Timestamp> {
    let second = time.as_nanosecond().div_euclid(1_000_000_000) + 1;
    Timestamp::from_second(i64::try_from(second).ok()?).ok()
}

/// The time on the clock from which times are no repetition of those before the transition that
/// precedes `time`.
fn first_new_time(zone: &TimeZone, time: Timestamp) -> Option<DateTime> {
    let Some(transition) = zone.preceding(second_after(time)?).next() else {
        return Some(DateTime::MIN);
    };
    let before = transition.timestamp().as_second().checked_sub(1)?;
    let offset = zone.to_offset(Timestamp::from_second(before).ok()?);
    Some(offset.to_datetime(transition.timestamp()))
}
