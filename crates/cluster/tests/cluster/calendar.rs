//! Calendar expressions against systemd's own reading of them, and at the ends of summer time.

use std::collections::BTreeMap;
use std::process::Command;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use silt_cluster::Calendar;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn calendar(text: &str) -> Calendar {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The first times after `after`, in the time zone of the expression.
fn times(text: &str, after: &str, count: usize) -> Vec<String> {
    let (calendar, mut at) = (calendar(text), time(after));
    let next = |_| {
        at = calendar.next(at, &TimeZone::UTC)?;
        Some(at.to_string())
    };
    (0..count).map_while(next).collect()
}

/// Whether systemd's program is there; where it is required it must be.
fn has_systemd() -> bool {
    let is_there = Command::new("systemd-analyze").arg("--version").output().is_ok();
    #[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    if !is_there {
        assert!(!required.split(' ').any(|name| name == "systemd-analyze"), "it is required");
        eprintln!("SKIPPED: systemd-analyze is missing");
    }
    is_there
}

/// What systemd says of expressions: the first times of each that it accepts, in UTC.
fn ask_systemd(expressions: &[String], after: &str, count: usize) -> BTreeMap<String, Vec<String>> {
    let mut command = Command::new("systemd-analyze");
    command.env("TZ", "UTC").env("SYSTEMD_COLORS", "0").env("LC_ALL", "C").arg("calendar");
    command.arg(format!("--iterations={count}")).arg(format!("--base-time={after} UTC"));
    let output = command.arg("--").args(expressions).output().unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut times = None;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((name, value)) = line.trim().split_once(": ") else {
            times = None;
            continue;
        };
        match name {
            "Original form" => times = Some(found.entry(value.to_owned()).or_default()),
            // It prints no other if this is the one that it was asked for.
            "Normalized form" if times.is_none() => {
                times = Some(found.entry(value.to_owned()).or_default());
            }
            name if name == "Next elapse" || name.starts_with("Iter.") => {
                let words: Vec<_> = value.split(' ').collect();
                if let (Some(times), [_, date, time, "UTC"]) = (&mut times, &words[..]) {
                    times.push(format!("{date}T{time}Z"));
                }
            }
            _ => {}
        }
    }
    found
}

/// A generator of numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn pick<'t>(&mut self, words: &[&'t str]) -> &'t str {
        words[self.below(words.len())]
    }

    /// A list of numbers up to about `end`, of which some are wrong; and with the same meaning one
    /// whose repetitions all have an end. After an open one, systemd 252 leaves out times at the
    /// beginning of the next day, month or year.
    fn list(&mut self, end: usize, unit: Unit) -> [String; 2] {
        if self.below(3) == 0 {
            return ["*".to_owned(), "*".to_owned()];
        }
        let mut lists = [Vec::new(), Vec::new()];
        for _ in 0..=self.below(3) {
            let wrong = usize::from(self.below(30) == 0);
            let first = self.below(end + 1 + wrong);
            let number = |value: usize| {
                if value.is_multiple_of(2) { format!("{value}") } else { format!("{value:02}") }
            };
            let last = (self.below(4) == 0).then(|| first + self.below(end));
            // It refuses a range of seconds of one value, but no other.
            let last = last.filter(|last| unit != Unit::Second || *last != first);
            let step = (self.below(4) == 0).then(|| self.below(end / 2 + 1));
            let step_text = step.map_or(String::new(), |step| format!("/{step}"));
            let range = |first, last| format!("{}..{}{step_text}", number(first), number(last));
            let open = format!("{}{step_text}", number(first));
            lists[0].push(last.map_or(open.clone(), |last| range(first, last)));
            lists[1].push(match (last, step) {
                (Some(last), _) => range(first, last),
                (None, Some(step)) if unit == Unit::DayFromEnd && step > 0 && first > 0 => {
                    range(1 + (first - 1) % step, first)
                }
                (None, Some(_)) => range(first, unit as usize),
                (None, None) => open,
            });
        }
        lists.map(|parts| parts.join(","))
    }

    fn weekdays(&mut self) -> String {
        let names = ["Mon", "tue", "Wednesday", "Thu", "FRI", "Saturday", "sun", "Son"];
        let mut parts = Vec::new();
        for _ in 0..=self.below(2) {
            let wrong = usize::from(self.below(20) == 0);
            let mut part = self.pick(&names[..7 + wrong]).to_owned();
            if self.below(3) == 0 {
                part += self.pick(&["..", "..", "-"]);
                part += self.pick(&names[..7]);
            }
            parts.push(part);
        }
        parts.join(",") + self.pick(&["", "", "", ","])
    }

    /// An expression, and one that means the same to systemd 252.
    fn expression(&mut self) -> [String; 2] {
        if self.below(20) == 0 {
            let words = ["minutely", "Hourly", "daily", "weekly", "monthly", "quarterly"];
            let rarer = ["yearly", "annually", "semiannually", "bi-annually", "fortnightly"];
            let word = if self.below(2) == 0 { self.pick(&words) } else { self.pick(&rarer) };
            let text = format!("{word}{}", self.pick(&["", " UTC", " utc"]));
            return [text.clone(), text];
        }
        let mut parts = Vec::new();
        if self.below(3) == 0 {
            let days = self.weekdays();
            parts.push([days.clone(), days]);
        }
        if self.below(3) > 0 {
            let (before, days) = if self.below(4) == 0 {
                ('~', self.list(8, Unit::DayFromEnd))
            } else {
                ('-', self.list(31, Unit::Day))
            };
            let years = ["*-", "*-", "", "2027-", "2026..2030-", "28-", "2028/4-", "1970-"];
            let (year, months) = (self.pick(&years), self.list(12, Unit::Month));
            parts.push(
                [0, 1].map(|which| format!("{year}{}{before}{}", months[which], days[which])),
            );
        }
        if self.below(4) > 0 || parts.is_empty() {
            let (hours, minutes) = (self.list(23, Unit::Hour), self.list(59, Unit::Second));
            let seconds = self.list(59, Unit::Second).map(|seconds| format!(":{seconds}"));
            let seconds = if self.below(2) == 0 { seconds } else { Default::default() };
            let time = |which| format!("{}:{}{}", hours[which], minutes[which], seconds[which]);
            parts.push([0, 1].map(time));
        }
        let space = self.pick(&[" ", " ", " ", "  "]);
        let join = |which| parts.iter().map(|part| &part[which]).cloned().collect::<Vec<_>>();
        [0, 1].map(|which| join(which).join(space))
    }
}

/// The largest value of what a list is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Month = 12,
    Day = 31,
    DayFromEnd = 28,
    Hour = 23,
    /// Of minutes, too.
    Second = 59,
}

#[test]
fn expressions_mean_what_systemd_takes_them_for() {
    if !has_systemd() {
        return;
    }
    let mut dice = Dice(11);
    let (mut refused, mut compared) = (0, 0);
    for after in ["2026-01-31 23:59:59", "2027-06-15 12:34:56", "2028-02-28 00:00:00"] {
        for _ in 0..8 {
            let (texts, closed): (Vec<_>, Vec<_>) =
                (0..200).map(|_| dice.expression().into()).unzip();
            let accepted = ask_systemd(&texts, after, 1);
            let known = ask_systemd(&closed, after, 4);
            for (text, closed) in texts.iter().zip(&closed) {
                let ours = text.parse::<Calendar>();
                assert_eq!(ours.is_ok(), accepted.contains_key(text), "{text}: {ours:?}");
                let Some(theirs) = known.get(closed).filter(|_| ours.is_ok()) else {
                    refused += 1;
                    continue;
                };
                // An expression that was asked for twice has its times twice.
                let theirs = &theirs[..theirs.len().min(4)];
                let after = format!("{}Z", after.replace(' ', "T"));
                assert_eq!(
                    times(text, &after, theirs.len().max(1)),
                    theirs,
                    "{text} after {after}"
                );
                compared += theirs.len();
            }
        }
    }
    assert!(refused > 200 && compared > 3000, "{refused} were refused, {compared} times compared");
}

#[test]
fn time_zones_are_read_as_systemd_reads_them() {
    if !has_systemd() {
        return;
    }
    let mut dice = Dice(12);
    let mut compared = 0;
    for zone in ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"] {
        let after = "2026-06-10 20:00:00";
        let closed = |dice: &mut Dice| format!("{} {zone}", dice.expression()[1]);
        let expressions: Vec<_> = (0..150).map(|_| closed(&mut dice)).collect();
        let known = ask_systemd(&expressions, after, 3);
        // Around a transition the rules differ.
        let clocks = TimeZone::get(zone).unwrap();
        let transition = clocks.following(time("2026-06-10T20:00:00Z")).next();
        let end = transition.map_or(Timestamp::MAX, |transition| transition.timestamp());
        for (text, theirs) in &known {
            let Ok(ours) = text.parse::<Calendar>() else { panic!("{text} is accepted") };
            let mut at = time("2026-06-10T20:00:00Z");
            for theirs in theirs.iter().take(3).take_while(|theirs| time(theirs) < end) {
                at = ours.next(at, &TimeZone::UTC).unwrap();
                assert_eq!(&at.to_string(), theirs, "{text}");
                compared += 1;
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn a_time_that_summer_skips_elapses_when_clocks_are_set() {
    // On 29 March 2026 it is 03:00 after 02:00 in Berlin, at 01:00 UTC.
    let nightly = times("02:30 Europe/Berlin", "2026-03-27T12:00:00Z", 4);
    let expected = [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z",
        "2026-03-31T00:30:00Z",
    ];
    assert_eq!(nightly, expected);
    // Two skipped times are one.
    let twice = times("02:15,45 Europe/Berlin", "2026-03-29T00:00:00Z", 2);
    assert_eq!(twice, ["2026-03-29T01:00:00Z", "2026-03-30T00:15:00Z"]);
    // A time at the end of the hour is that moment anyway.
    let three = times("03:00 Europe/Berlin", "2026-03-28T12:00:00Z", 2);
    assert_eq!(three, ["2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"]);
    let once = times("2026-03-29 02:30 Europe/Berlin", "2026-01-01T00:00:00Z", 2);
    assert_eq!(once, ["2026-03-29T01:00:00Z"]);
}

#[test]
fn a_time_that_occurs_twice_elapses_once_unless_every_hour_counts() {
    // On 25 October 2026 it is 02:00 again after 03:00 in Berlin, at 01:00 UTC.
    let nightly = times("02:30 Europe/Berlin", "2026-10-24T12:00:00Z", 2);
    assert_eq!(nightly, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    let from_within = times("02:30 Europe/Berlin", "2026-10-25T01:10:00Z", 1);
    assert_eq!(from_within, ["2026-10-26T01:30:00Z"]);
    let half_hours = times("*:30 Europe/Berlin", "2026-10-24T23:00:00Z", 4);
    let expected = [
        "2026-10-24T23:30:00Z",
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:30:00Z",
        "2026-10-25T02:30:00Z",
    ];
    assert_eq!(half_hours, expected);
    let only_then = times("2026-10-25 *:30 Europe/Berlin", "2026-10-25T00:50:00Z", 1);
    assert_eq!(only_then, ["2026-10-25T01:30:00Z"]);
}

#[test]
fn what_was_missed_is_due_once() {
    let (daily, utc) = (calendar("daily"), TimeZone::UTC);
    let due =
        |after: &str, now: &str| daily.due(time(after), time(now), &utc).map(|at| at.to_string());
    assert_eq!(due("2026-11-01T00:00:00Z", "2026-11-01T23:59:59Z"), None);
    assert_eq!(
        due("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z").unwrap(),
        "2026-11-02T00:00:00Z"
    );
    assert_eq!(
        due("2025-01-07T00:00:00Z", "2026-11-02T13:00:00Z").unwrap(),
        "2026-11-02T00:00:00Z"
    );
    // A clock that was set back makes nothing due.
    assert_eq!(due("2026-11-05T00:00:00Z", "2026-11-02T13:00:00Z"), None);
    let (secondly, seconds) = (calendar("*:*:*"), time("2026-11-02T13:00:00.7Z"));
    let last = secondly.due(Timestamp::UNIX_EPOCH, seconds, &utc).unwrap();
    assert_eq!(last.to_string(), "2026-11-02T13:00:00Z");
}

#[test]
fn what_is_no_expression_is_named() {
    for (text, problem) in [
        ("", "it is empty"),
        ("fortnightly", "a number is expected at fortnightly"),
        ("Mon..Wed..Fri", "three ends"),
        ("Fri..Mon", "ends before it begins"),
        ("25:00", "the hour 25 is not between 0 and 23"),
        ("*-02~29", "the day 29 is not between 1 and 28"),
        ("12", "minutes after a colon"),
        ("daily Europe/Bonn", "the time zone Europe/Bonn is not known"),
        ("*:0/0", "a repetition of 0"),
        ("*:0/60", "no second value"),
        ("99999999-01-01", "99999999 is too large"),
        ("10:00\n", "\\n is left over"),
    ] {
        let error = text.parse::<Calendar>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn an_expression_that_never_elapses_ends() {
    for text in ["*-02-30", "2020-01-01", "*-02-30 Europe/Berlin", "1970-01-01"] {
        assert_eq!(times(text, "2026-11-01T00:00:00Z", 1), Vec::<String>::new(), "{text}");
    }
    assert_eq!(times("2199-12-31 23:59:59", "2026-11-01T00:00:00Z", 2), ["2199-12-31T23:59:59Z"]);
}
