//! Shows progress on a terminal, in a log, or as JSON lines.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use siltstone::{Activity, Event, Observer, OperationId, Progress, Unit, Warning};

use crate::advice::with_advice;
use crate::failure::kind_name;
use crate::output;

const LOG_INTERVAL: Duration = Duration::from_secs(10);
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Operations shorter than this show no bar.
const QUIET_START: Duration = Duration::from_secs(1);

/// How progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Silent,
    Bar,
    Log,
    Json,
}

/// Shows what operations report.
pub struct Reporter {
    style: Style,
    json: bool,
    to_stdout: bool,
    state: Mutex<State>,
}

struct State {
    bar: Option<ProgressBar>,
    started: Option<Instant>,
    shown: Option<Instant>,
    activity: Option<Activity>,
    last_done: u64,
}

impl Reporter {
    /// Returns a reporter for the given flags; `to_stdout` means that standard output carries data.
    pub fn new(json: bool, quiet: bool, to_stdout: bool) -> Self {
        let style = match (quiet, json && !to_stdout) {
            (true, _) => Style::Silent,
            (_, true) => Style::Json,
            _ if std::io::stderr().is_terminal() => Style::Bar,
            _ => Style::Log,
        };
        let state = State { bar: None, started: None, shown: None, activity: None, last_done: 0 };
        Self { style, json, to_stdout, state: Mutex::new(state) }
    }

    /// Ends the current bar, so that the next output begins on a clean line.
    pub fn finish(&self) {
        let mut state = self.lock();
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        state.started = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "the program decides how often progress is shown")]
fn now() -> Instant {
    Instant::now()
}

impl Observer for Reporter {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        match event {
            Event::Progress(progress) => self.progress(*progress),
            Event::Warning(warning) => self.warning(warning),
            _ => {}
        }
    }
}

impl Reporter {
    fn progress(&self, progress: Progress) {
        if self.style == Style::Silent {
            return;
        }
        let now = now();
        let mut state = self.lock();
        let goes_on = state.activity == Some(progress.activity) && progress.done >= state.last_done;
        if state.started.is_none() || !goes_on {
            // The next volume, or the next series, gets a bar of its own.
            if let Some(bar) = state.bar.take() {
                bar.finish_and_clear();
            }
            state.activity = Some(progress.activity);
            state.started = Some(now);
            state.shown = None;
        }
        state.last_done = progress.done;
        let Some(started) = state.started else { return };
        let since = now.duration_since(state.shown.unwrap_or(started));
        match self.style {
            Style::Bar if now.duration_since(started) >= QUIET_START => {
                let bar = state.bar.get_or_insert_with(|| bar(progress));
                bar.set_position(progress.done);
                bar.set_message(bar_text(progress, now.duration_since(started)));
            }
            Style::Log if since >= LOG_INTERVAL => {
                state.shown = Some(now);
                output::note(&log_line(progress, now.duration_since(started)));
            }
            Style::Json if since >= JSON_INTERVAL => {
                state.shown = Some(now);
                output::message("status", status(progress, now.duration_since(started)));
            }
            _ => {}
        }
    }

    fn warning(&self, warning: &Warning) {
        let message = with_advice(&warning.to_string(), warning.advice());
        if self.json {
            let kind = kind_name(warning.kind());
            let value = json!({"message": message, "kind": kind});
            output::message_beside("warning", value, self.to_stdout);
            return;
        }
        let print = || output::note(&format!("silt: warning: {message}"));
        match &self.lock().bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// A `--json` message; the field names contain the unit.
fn status(progress: Progress, elapsed: Duration) -> serde_json::Value {
    let mut value = json!({
        "operation": progress.activity.name(),
        "seconds": elapsed.as_secs(),
    });
    match progress.unit {
        Unit::Bytes => {
            value["done_bytes"] = json!(progress.done);
            value["total_bytes"] = json!(progress.total);
            value["new_bytes"] = json!(progress.new_bytes);
            value["stored_bytes"] = json!(progress.stored_bytes);
        }
        Unit::Objects => {
            value["done_objects"] = json!(progress.done);
            value["total_objects"] = json!(progress.total);
        }
    }
    value
}

fn bar(progress: Progress) -> ProgressBar {
    let total = progress.total.filter(|total| *total > 0);
    let template =
        if total.is_some() { "{prefix} [{wide_bar}] {msg}" } else { "{prefix} {spinner} {msg}" };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(5));
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(progress.activity.name());
    bar
}

/// The numbers beside a bar. The rate is computed from the start of the operation, because the bar
/// appears later and would count all earlier work as done at once.
fn bar_text(progress: Progress, elapsed: Duration) -> String {
    if progress.unit == Unit::Objects {
        return objects_text(progress);
    }
    let done = output::bytes(progress.done);
    let rate = rate(progress, elapsed);
    let mut text = match progress.total {
        None => format!("{done} {}/s", output::bytes(rate)),
        Some(total) => format!("{done}/{} {}/s", output::bytes(total), output::bytes(rate)),
    };
    if let Some(detail) = detail(progress) {
        text = format!("{text}, {detail}");
    }
    if let Some(total) = progress.total {
        text = format!("{text}, ETA {}", duration(seconds_left(progress.done, total, rate)));
    }
    text
}

fn objects_text(progress: Progress) -> String {
    match progress.total {
        None => format!("{} objects", progress.done),
        Some(total) => format!("{} of {total} objects", progress.done),
    }
}

/// Bytes per second since the operation began.
fn rate(progress: Progress, elapsed: Duration) -> u64 {
    let milliseconds = elapsed.as_millis().max(1);
    let rate = u128::from(progress.done) * 1000 / milliseconds;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn seconds_left(done: u64, total: u64, rate: u64) -> u64 {
    total.saturating_sub(done).div_ceil(rate.max(1))
}

/// `2:07` or `1:02:07`.
fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// The new data of a backup, or the bytes that a restore has written.
fn detail(progress: Progress) -> Option<String> {
    let new = output::bytes(progress.new_bytes);
    match progress.activity {
        Activity::Backup => {
            let saved = progress.done.saturating_sub(progress.new_bytes);
            Some(format!("new {new}, saved {}", output::bytes(saved)))
        }
        Activity::Restore => Some(format!("written {new}")),
        _ => None,
    }
}

fn log_line(progress: Progress, elapsed: Duration) -> String {
    let what = progress.activity.name();
    if progress.unit == Unit::Objects {
        return format!("{what}: {}", objects_text(progress));
    }
    let rate = rate(progress, elapsed);
    let done = output::bytes(progress.done);
    let mut line = match progress.total {
        None => format!("{what}: {done}, {}/s", output::bytes(rate)),
        Some(total) => format!(
            "{what}: {done} of {} ({}), {}/s",
            output::bytes(total),
            output::percent(progress.done, total),
            output::bytes(rate)
        ),
    };
    if let Some(detail) = detail(progress) {
        line = format!("{line}, {detail}");
    }
    if let Some(total) = progress.total {
        line = format!("{line}, ETA {}", duration(seconds_left(progress.done, total, rate)));
    }
    line
}
