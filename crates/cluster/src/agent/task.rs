//! One task of an agent: when it is due, and what became of its runs.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use silt_format::AHEAD_NS_MAX;

use crate::notes::TaskNotes;
use crate::status::{LastRun, RunStatus, TaskStatus};
use crate::work::{End, Run, Task};
use crate::{Calendar, Name};

const MINUTE_NS: i64 = 60_000_000_000;
/// The longest pause until a task that failed is tried again.
const RETRY_MINUTES_MAX: i64 = 60;
/// The pause until a task is tried again whose series was busy.
const BUSY_NS: i64 = MINUTE_NS;

/// A run that goes on.
pub(super) struct Running {
    pub run: Run,
    pub since_ns: i64,
    pub is_cancelled: bool,
    pub done: u64,
    pub total: Option<u64>,
}

/// A task, and what is known of it.
pub(super) struct Known {
    pub task: Task,
    pub key: Name,
    pub notes: TaskNotes,
    /// By how much it is put off.
    offset_ns: i64,
    pub running: Option<Running>,
    /// Whether a job has come for it.
    pub has_job: bool,
    /// Whether it was asked for; `Some(true)` if it waits for no room.
    pub asked: Option<bool>,
    pub last: Option<LastRun>,
    /// The first time at which it is due after another time.
    first: Option<(i64, Option<i64>)>,
}

/// A task that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The first time that was missed.
    pub since_ns: i64,
    /// The last one, which a run makes up for.
    pub ns: i64,
}

impl Known {
    pub fn new(agent: &Name, task: Task, notes: Option<TaskNotes>, now_ns: i64) -> Self {
        let key = task.work.key();
        let offset_ns = offset(agent, &key, task.spread);
        let first_seen = || TaskNotes { first_seen_ns: now_ns, ..TaskNotes::default() };
        let notes = notes.unwrap_or_else(first_seen);
        let (running, last, first) = (None, None, None);
        Self { task, key, notes, offset_ns, running, has_job: false, asked: None, last, first }
    }

    /// Corrects times that a clock which was ahead has left behind. Returns whether there were any.
    pub fn correct(&mut self, now_ns: i64) -> bool {
        let latest_ns = now_ns.saturating_add(RETRY_MINUTES_MAX * MINUTE_NS);
        let before = (self.notes.first_seen_ns, self.notes.retry_ns);
        self.notes.first_seen_ns = self.notes.first_seen_ns.min(now_ns);
        self.notes.retry_ns = self.notes.retry_ns.map(|at| at.min(latest_ns));
        before != (self.notes.first_seen_ns, self.notes.retry_ns)
    }

    /// The newest time at which it was done, or its due time given up.
    fn after(&self, now_ns: i64) -> i64 {
        let TaskNotes { done_ns, elsewhere_ns, skipped_ns, .. } = self.notes;
        let known = [done_ns, elsewhere_ns, skipped_ns].into_iter().flatten();
        let believed = known.filter(|at| is_believed(*at, now_ns)).max();
        believed.unwrap_or(self.notes.first_seen_ns)
    }

    /// When it was done last, by whomever.
    fn done(&self, now_ns: i64) -> Option<i64> {
        let known = [self.notes.done_ns, self.notes.elsewhere_ns].into_iter().flatten();
        known.filter(|at| is_believed(*at, now_ns)).max()
    }

    /// The first time at which it is due after it was done, if there is one.
    fn first(&mut self, now_ns: i64, zone: &TimeZone) -> Option<i64> {
        let after_ns = self.after(now_ns);
        if let Some((after, first)) = self.first
            && after == after_ns
        {
            return first;
        }
        let calendar = self.task.when.as_ref()?;
        let first = timestamp(after_ns.saturating_sub(self.offset_ns))
            .and_then(|after| calendar.next(after, zone))
            .map(|at| nanoseconds(at).saturating_add(self.offset_ns));
        self.first = Some((after_ns, first));
        first
    }

    /// Whether it is due.
    pub fn due(&mut self, now_ns: i64, zone: &TimeZone) -> Option<Due> {
        let since_ns = self.first(now_ns, zone).filter(|first| *first <= now_ns)?;
        let calendar = self.task.when.as_ref()?;
        let last = last(calendar, self.after(now_ns), now_ns, self.offset_ns, zone);
        Some(Due { since_ns, ns: last.unwrap_or(since_ns) })
    }

    /// Since when it is due, without the last time, which costs more to find.
    pub fn due_since(&mut self, now_ns: i64, zone: &TimeZone) -> Option<i64> {
        self.first(now_ns, zone).filter(|first| *first <= now_ns)
    }

    /// Whether it may begin if it is due: it does not run, and waits for no repetition.
    pub fn is_free(&self, now_ns: i64) -> bool {
        self.running.is_none() && self.notes.retry_ns.is_none_or(|at| at <= now_ns)
    }

    /// When something changes by itself, after now.
    pub fn next_ns(&mut self, now_ns: i64, zone: &TimeZone) -> Option<i64> {
        if self.running.is_some() {
            return None;
        }
        let first = self.first(now_ns, zone)?;
        let at = self.notes.retry_ns.map_or(first, |retry| retry.max(first));
        Some(at).filter(|at| *at > now_ns)
    }

    /// A run has ended. Returns what is reported: a success is one only if it is about a time that
    /// can be believed.
    pub fn end(&mut self, end: End, now_ns: i64) -> Option<LastRun> {
        let running = self.running.take()?;
        let end = match end {
            End::Done { at_ns, .. } if !is_believed(at_ns, now_ns) => End::Failed {
                error: format!("what was made is stamped {}, in the future", shown(at_ns)),
            },
            End::Done { at_ns, .. } if running.run.due_ns.is_some_and(|due| at_ns < due) => {
                let due = running.run.due_ns.unwrap_or_default();
                End::Failed {
                    error: format!(
                        "what was made is stamped {}, before it was due at {}",
                        shown(at_ns),
                        shown(due)
                    ),
                }
            }
            end => end,
        };
        match &end {
            End::Done { at_ns, warning } => _ = self.made(*at_ns, warning.clone(), now_ns),
            End::Cancelled if running.is_cancelled => {
                if running.run.due_ns.is_some() {
                    self.notes.skipped_ns = Some(now_ns);
                }
                (self.notes.attempts, self.notes.retry_ns) = (0, None);
            }
            End::Busy => self.notes.retry_ns = Some(now_ns.saturating_add(BUSY_NS)),
            End::Cancelled => self.failed("it was stopped", now_ns),
            End::Failed { error } => self.failed(error, now_ns),
        }
        let last = LastRun { since_ns: running.since_ns, at_ns: now_ns, end };
        self.last = Some(last.clone());
        Some(last)
    }

    /// It was done, by its own run or by one of several series. Returns whether that counts.
    pub fn made(&mut self, at_ns: i64, warning: Option<String>, now_ns: i64) -> bool {
        if !is_believed(at_ns, now_ns) {
            return false;
        }
        let done_ns = self.notes.done_ns.filter(|at| is_believed(*at, now_ns));
        self.notes.done_ns = Some(done_ns.map_or(at_ns, |done| done.max(at_ns)));
        (self.notes.attempts, self.notes.retry_ns) = (0, None);
        (self.notes.failure, self.notes.warning) = (None, warning);
        true
    }

    fn failed(&mut self, error: &str, now_ns: i64) {
        let minutes = 1_i64.checked_shl(self.notes.attempts).unwrap_or(RETRY_MINUTES_MAX);
        let minutes = minutes.clamp(1, RETRY_MINUTES_MAX);
        self.notes.attempts = self.notes.attempts.saturating_add(1);
        self.notes.retry_ns = Some(now_ns.saturating_add(minutes * MINUTE_NS));
        self.notes.failure = Some(error.to_owned());
    }

    /// Another agent has done it. Returns whether that is new.
    pub fn done_elsewhere(&mut self, at_ns: i64, now_ns: i64) -> bool {
        let known = self.notes.elsewhere_ns.filter(|at| is_believed(*at, now_ns));
        let is_new = is_believed(at_ns, now_ns) && known.is_none_or(|known| at_ns > known);
        if is_new {
            self.notes.elsewhere_ns = Some(at_ns);
        }
        is_new
    }

    pub fn status(&mut self, now_ns: i64, zone: &TimeZone) -> TaskStatus {
        let due = self.due(now_ns, zone);
        let next = self.task.when.as_ref().and_then(|calendar| {
            let after = timestamp(now_ns.saturating_sub(self.offset_ns))?;
            Some(nanoseconds(calendar.next(after, zone)?).saturating_add(self.offset_ns))
        });
        TaskStatus {
            key: self.key.clone(),
            work: self.task.work.clone(),
            schedule: self.task.when.as_ref().map(ToString::to_string),
            done_ns: self.done(now_ns),
            next_ns: next,
            due_since_ns: due.map(|due| due.since_ns),
            due_ns: due.map(|due| due.ns),
            is_ready: due.is_some() && self.is_free(now_ns),
            is_asked: self.asked.is_some(),
            running: self.running.as_ref().map(Running::status),
            attempts: self.notes.attempts,
            failure: self.notes.failure.clone(),
            warning: self.notes.warning.clone(),
            retry_ns: self.notes.retry_ns,
            last: self.last.clone(),
        }
    }
}

impl Running {
    pub fn status(&self) -> RunStatus {
        RunStatus { since_ns: self.since_ns, done: self.done, total: self.total }
    }
}

/// Whether a time is not too far ahead of the clock.
pub(super) fn is_believed(at_ns: i64, now_ns: i64) -> bool {
    at_ns <= now_ns.saturating_add(AHEAD_NS_MAX)
}

/// The last due time after `after_ns` and not after `now_ns`.
fn last(
    calendar: &Calendar,
    after_ns: i64,
    now_ns: i64,
    offset_ns: i64,
    zone: &TimeZone,
) -> Option<i64> {
    let after = timestamp(after_ns.saturating_sub(offset_ns))?;
    let now = timestamp(now_ns.saturating_sub(offset_ns))?;
    Some(nanoseconds(calendar.due(after, now, zone)?).saturating_add(offset_ns))
}

/// By how much an agent puts off a task, in whole seconds: less than `spread`, and always the same.
fn offset(agent: &Name, key: &Name, spread: Duration) -> i64 {
    let seconds = spread.as_secs().max(1);
    let hash = blake3::hash(format!("spread\0{agent}\0{key}").as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    let seconds = u64::from_le_bytes(first) % seconds;
    i64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000)
}

fn timestamp(ns: i64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(ns)).ok()
}

fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

fn shown(ns: i64) -> String {
    timestamp(ns).map_or_else(|| ns.to_string(), |at| at.to_string())
}
