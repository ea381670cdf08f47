//! Reads calendar expressions.

use std::ops::RangeInclusive;
use std::str::FromStr;

use jiff::tz::TimeZone;
use silt_format::{Error, Result};

use super::fields::{Days, Field, Part};
use super::{Calendar, YEAR_MAX};

const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const EVERY_DAY: u8 = 0x7f;
/// The most parts of a list, as in systemd.
const PARTS_MAX: usize = 240;

/// Words for whole expressions.
const WORDS: [(&str, &str); 13] = [
    ("minutely", "*:*"),
    ("hourly", "*:00"),
    ("daily", "*-*-*"),
    ("weekly", "Mon *-*-*"),
    ("monthly", "*-*-01"),
    ("quarterly", "*-01,04,07,10-01"),
    ("semiannually", "*-01,07-01"),
    ("semi-annually", "*-01,07-01"),
    ("biannually", "*-01,07-01"),
    ("bi-annually", "*-01,07-01"),
    ("yearly", "*-01-01"),
    ("annually", "*-01-01"),
    ("anually", "*-01-01"),
];

impl FromStr for Calendar {
    type Err = Error;

    /// Fails with `Invalid`, and says what it does not understand.
    fn from_str(text: &str) -> Result<Self> {
        read(text).map(|calendar| Self { text: text.to_owned(), ..calendar }).map_err(|problem| {
            let hint = "such as daily, Mon..Fri 22:30, or *-*-01 03:00 Europe/Berlin";
            let text = text.escape_debug();
            Error::invalid(format!("\"{text}\" is no calendar time, {hint}: {problem}"))
        })
    }
}

/// What was parsed, or what is wrong.
type Parsed<T> = std::result::Result<T, String>;

fn read(text: &str) -> Parsed<Calendar> {
    let (rest, zone) = split_zone(text)?;
    let rest = rest.to_ascii_lowercase();
    let word = WORDS.iter().find(|(word, _)| *word == rest);
    let meaning = word.map_or(rest.clone(), |(_, meaning)| meaning.to_ascii_lowercase());
    let calendar = Parser { rest: &meaning }.calendar()?;
    Ok(Calendar { zone, ..calendar })
}

/// An expression without its time zone, and the zone.
fn split_zone(text: &str) -> Parsed<(&str, Option<TimeZone>)> {
    match text.rsplit_once(' ') {
        Some((rest, name)) if name.eq_ignore_ascii_case("utc") => Ok((rest, Some(TimeZone::UTC))),
        Some((rest, name)) if name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            match TimeZone::get(name) {
                Ok(zone) => Ok((rest, Some(zone))),
                Err(_) => Err(format!("the time zone {} is not known", name.escape_debug())),
            }
        }
        _ => Ok((text, None)),
    }
}

struct Parser<'t> {
    /// What is not read yet, in lower case.
    rest: &'t str,
}

impl Parser<'_> {
    fn calendar(mut self) -> Parsed<Calendar> {
        if self.rest.is_empty() {
            return Err("it is empty".to_owned());
        }
        let weekdays = self.weekdays()?;
        let [years, months, (days, from_end)] = self.date()?;
        let [hours, minutes, seconds] = self.time()?;
        if !self.rest.is_empty() {
            return Err(format!("{} is left over", self.rest.escape_debug()));
        }
        let years = Field { parts: years.0.parts.into_iter().map(full_year).collect() };
        let days_max = if from_end { 28 } else { 31 };
        check("year", &years, 1970..=YEAR_MAX, false)?;
        check("month", &months.0, 1..=12, false)?;
        check("day", &days, 1..=days_max, from_end)?;
        check("hour", &hours, 0..=23, false)?;
        check("minute", &minutes, 0..=59, false)?;
        check("second", &seconds, 0..=59, false)?;
        let days = Days { field: days, from_end };
        let (text, zone) = (String::new(), None);
        Ok(Calendar {
            text,
            weekdays,
            years,
            months: months.0,
            days,
            hours,
            minutes,
            seconds,
            zone,
        })
    }

    fn take(&mut self, word: &str) -> bool {
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn is_at_end_of_word(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with(' ')
    }

    /// Days of the week as bits; all, if the expression does not begin with one.
    fn weekdays(&mut self) -> Parsed<u8> {
        let mut days = 0;
        let mut range_from = None;
        loop {
            let Some(day) = self.weekday()? else {
                return if days == 0 { Ok(EVERY_DAY) } else { Err("a weekday is missing".into()) };
            };
            if range_from.is_some_and(|from| from > day) {
                return Err("a range of weekdays ends before it begins".into());
            }
            for day in range_from.unwrap_or(day)..=day {
                days |= 1 << day;
            }
            if self.is_at_end_of_word() {
                range_from = None;
            } else {
                let is_range = self.take("..") || self.take("-");
                if is_range && range_from.is_some() {
                    return Err("a range of weekdays has three ends".into());
                }
                if !is_range && !self.take(",") {
                    return Err("weekdays are separated by , or ..".into());
                }
                range_from = is_range.then_some(day);
            }
            if self.is_at_end_of_word() {
                self.skip_spaces();
                return if range_from.is_none() { Ok(days) } else { Err("a range is open".into()) };
            }
        }
    }

    /// The weekday at the beginning, if there is one; 0 is Monday.
    fn weekday(&mut self) -> Parsed<Option<u8>> {
        for (number, name) in (0..).zip(WEEKDAYS) {
            if self.take(name) || self.take(&name[..3]) {
                return match self.rest.chars().next() {
                    None | Some('-' | '.' | ',' | ' ') => Ok(Some(number)),
                    Some(_) => Err(format!("{name} goes on with {}", self.rest.escape_debug())),
                };
            }
        }
        Ok(None)
    }

    /// Years, months and days; nothing is read if a time is next.
    fn date(&mut self) -> Parsed<[(Field, bool); 3]> {
        let any = || (Field::default(), false);
        let begin = self.rest;
        if self.rest.is_empty() {
            return Ok([any(), any(), any()]);
        }
        let first = self.list()?;
        if self.rest.is_empty() || self.rest.starts_with(':') {
            self.rest = begin;
            return Ok([any(), any(), any()]);
        }
        let mut from_end = self.date_separator()?;
        let second = self.list()?;
        if self.is_at_end_of_word() {
            self.skip_spaces();
            return Ok([any(), (first, false), (second, from_end)]);
        }
        if from_end {
            return Err("~ is before a day only".into());
        }
        from_end = self.date_separator()?;
        let third = self.list()?;
        if !self.is_at_end_of_word() {
            return Err(format!("after the date comes {}", self.rest.escape_debug()));
        }
        self.skip_spaces();
        Ok([(first, false), (second, false), (third, from_end)])
    }

    /// Whether the next part of a date is counted from the end.
    fn date_separator(&mut self) -> Parsed<bool> {
        if self.take("~") {
            return Ok(true);
        }
        if self.take("-") {
            return Ok(false);
        }
        Err(format!("a date needs - before {}", self.rest.escape_debug()))
    }

    /// Hours, minutes and seconds; midnight, if there is none.
    fn time(&mut self) -> Parsed<[Field; 3]> {
        let zero = || Field::only(0);
        if self.rest.is_empty() {
            return Ok([zero(), zero(), zero()]);
        }
        let hours = self.list()?;
        if !self.take(":") {
            return Err("a time has minutes after a colon".into());
        }
        let minutes = self.list()?;
        if !self.take(":") {
            return Ok([hours, minutes, zero()]);
        }
        Ok([hours, minutes, self.list()?])
    }

    /// `*`, or numbers, ranges and repetitions, separated by commas.
    fn list(&mut self) -> Parsed<Field> {
        if self.take("*") {
            return Ok(Field::default());
        }
        let mut parts = Vec::new();
        loop {
            let first = self.number()?;
            let last = if self.take("..") { Some(self.number()?) } else { None };
            let step = if self.take("/") { Some(self.number()?) } else { last.map(|_| 1) };
            if step == Some(0) {
                return Err("a repetition of 0 never moves".into());
            }
            parts.push(without_rest(Part { first, last, step }));
            if !self.take(",") {
                return Ok(Field { parts });
            }
            if parts.len() > PARTS_MAX {
                return Err("a list is too long".into());
            }
        }
    }

    fn number(&mut self) -> Parsed<i16> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        if number.is_empty() {
            let at =
                if rest.is_empty() { "the end".into() } else { rest.escape_debug().to_string() };
            return Err(format!("a number is expected at {at}"));
        }
        self.rest = rest;
        number.parse().map_err(|_| format!("{number} is too large"))
    }
}

/// A range that ends with a value of its repetition, and is no range if that is its first.
fn without_rest(part: Part) -> Part {
    let (Some(last), Some(step)) = (part.last, part.step) else { return part };
    let last = if last > part.first { last - (last - part.first) % step } else { last };
    if last == part.first {
        return Part { last: None, step: None, ..part };
    }
    Part { last: Some(last), ..part }
}

/// A year may have two digits: 70 and more are of the last century.
fn full_year(part: Part) -> Part {
    let full = |year: i16| match year {
        0..70 => year + 2000,
        70..100 => year + 1900,
        _ => year,
    };
    Part { first: full(part.first), last: part.last.map(full), ..part }
}

/// Values are in their range, ranges do not go back, and open repetitions have a second value.
fn check(unit: &str, field: &Field, range: RangeInclusive<i16>, from_end: bool) -> Parsed<()> {
    let (low, high) = (*range.start(), *range.end());
    for part in &field.parts {
        for value in [Some(part.first), part.last].into_iter().flatten() {
            if !range.contains(&value) {
                return Err(format!("the {unit} {value} is not between {low} and {high}"));
            }
        }
        match (part.last, part.step) {
            (Some(last), _) if last < part.first => {
                return Err(format!("a range of the {unit} ends before it begins"));
            }
            (None, Some(step)) => {
                let room = if from_end { part.first - low } else { high - part.first };
                if step > room {
                    return Err(format!("a repetition of the {unit} has no second value"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
