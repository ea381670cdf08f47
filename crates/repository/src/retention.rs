//! Decides which snapshots a retention policy keeps: a pure function of their times and labels.
//!
//! The rules are restic's, so that a policy moves from there with the same outcome; as in its newer
//! versions, the oldest snapshot is kept while a rule has not kept its number yet.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use silt_format::{Error, Id, Result, RetentionPolicy, SnapshotEntry};

/// The reason for keeping the oldest snapshot although no rule keeps it for its period.
const OLDEST: &str = "oldest";

/// The properties of a snapshot on which a policy depends.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its id.
    pub id: Id,
    /// When it was made, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Its labels.
    pub tags: Vec<String>,
    /// Whether it is protected.
    pub is_protected: bool,
    /// For how many seconds storage has held it, if storage knows.
    pub age_s: Option<u64>,
}

impl Candidate {
    /// A candidate from its entry in a head.
    pub fn new(entry: &SnapshotEntry, age_s: Option<u64>) -> Self {
        let (is_protected, tags) = (entry.is_protected(), entry.labels.clone());
        Self { id: entry.id, time_ns: entry.time_ns, tags, is_protected, age_s }
    }
}

/// The decision about a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The snapshot.
    pub id: Id,
    /// Why it is kept; empty if it is not.
    pub reasons: Vec<&'static str>,
}

/// One counting rule: how many are left to keep, and the last period that had one.
struct Rule {
    reason: &'static str,
    left: u32,
    period: fn(&DateTime) -> i64,
    last: Option<i64>,
}

/// Decides about all snapshots of one series or group, newest first. Snapshots later than `now_ns`
/// are dated in the future: they are kept, and periods are not counted from them. Days begin at
/// midnight in `zone`.
pub fn apply_policy(
    policy: &RetentionPolicy,
    candidates: &[Candidate],
    now_ns: i64,
    zone: &TimeZone,
) -> Result<Vec<Kept>> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| std::cmp::Reverse(candidate.time_ns));
    let oldest = sorted.last().map(|candidate| candidate.id);
    let newest = sorted.iter().find(|candidate| candidate.time_ns <= now_ns);
    let within = match newest {
        Some(newest) if !policy.within.is_zero() => Some(earlier(newest.time_ns, policy, zone)?),
        _ => None,
    };
    let mut rules = rules(policy);
    let mut decided = Vec::with_capacity(sorted.len());
    for candidate in sorted {
        let mut reasons = Vec::new();
        if candidate.is_protected {
            reasons.push("protected");
        }
        if candidate.age_s.is_some_and(|age| age < policy.age_min_s) {
            reasons.push("new in the repository");
        }
        if candidate.time_ns > now_ns {
            reasons.push("dated in the future");
            decided.push(Kept { id: candidate.id, reasons });
            continue;
        }
        if candidate.tags.iter().any(|tag| policy.tags.contains(tag)) {
            reasons.push("tag");
        }
        if within.is_some_and(|within| candidate.time_ns > within) {
            reasons.push("within");
        }
        let civil = civil(candidate.time_ns, zone)?;
        for rule in rules.iter_mut().filter(|rule| rule.left > 0) {
            let period = (rule.period)(&civil);
            let is_new = rule.reason == "last" || rule.last != Some(period);
            // The oldest of all stays while a rule has not kept its number yet.
            if is_new || Some(candidate.id) == oldest {
                reasons.push(if is_new { rule.reason } else { OLDEST });
                rule.last = Some(period);
                if rule.left != u32::MAX {
                    rule.left -= 1;
                }
            }
        }
        decided.push(Kept { id: candidate.id, reasons });
    }
    Ok(decided)
}

fn rules(policy: &RetentionPolicy) -> [Rule; 6] {
    let rule = |reason, left, period| Rule { reason, left, period, last: None };
    [
        rule("last", policy.last, |_| 0),
        rule("hourly", policy.hourly, |at| day(at) * 100 + i64::from(at.hour())),
        rule("daily", policy.daily, day),
        rule("weekly", policy.weekly, |at| {
            let week = at.date().iso_week_date();
            i64::from(week.year()) * 100 + i64::from(week.week())
        }),
        rule("monthly", policy.monthly, |at| i64::from(at.year()) * 100 + i64::from(at.month())),
        rule("yearly", policy.yearly, |at| i64::from(at.year())),
    ]
}

fn day(at: &DateTime) -> i64 {
    i64::from(at.year()) * 10_000 + i64::from(at.month()) * 100 + i64::from(at.day())
}

fn timestamp(time_ns: i64) -> Result<Timestamp> {
    Timestamp::from_nanosecond(i128::from(time_ns))
        .map_err(|_| Error::invalid(format!("{time_ns} ns since 1970 is outside the calendar")))
}

fn civil(time_ns: i64, zone: &TimeZone) -> Result<DateTime> {
    Ok(zone.to_datetime(timestamp(time_ns)?))
}

/// The time that lies the policy's period before another.
fn earlier(time_ns: i64, policy: &RetentionPolicy, zone: &TimeZone) -> Result<i64> {
    let period = policy.within;
    let too_long = |_| Error::invalid("the period within which snapshots are kept is too long");
    let span = Span::new()
        .try_years(period.years)
        .and_then(|span| span.try_months(period.months))
        .and_then(|span| span.try_days(period.days))
        .map_err(too_long)?;
    let at = timestamp(time_ns)?.to_zoned(zone.clone()).checked_sub(span).map_err(too_long)?;
    let hours = Span::new().try_hours(period.hours).map_err(too_long)?;
    let at = at.checked_sub(hours).map_err(too_long)?;
    i64::try_from(at.timestamp().as_nanosecond()).map_err(|_| Error::invalid("the time is too old"))
}
