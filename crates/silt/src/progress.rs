//! Progress on a terminal, in a log, or as JSON lines.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use siltstone::{Observer, Progress};

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
    operation: String,
    last_done: u64,
}

impl Reporter {
    /// A reporter for the given flags; `to_stdout` says that standard output carries data.
    pub fn new(json: bool, quiet: bool, to_stdout: bool) -> Self {
        let style = match (quiet, json && !to_stdout) {
            (true, _) => Style::Silent,
            (_, true) => Style::Json,
            _ if std::io::stderr().is_terminal() => Style::Bar,
            _ => Style::Log,
        };
        let state =
            State { bar: None, started: None, shown: None, operation: String::new(), last_done: 0 };
        Self { style, json, to_stdout, state: Mutex::new(state) }
    }

    /// Ends the bar that is shown, so that what is printed next begins on a clean line.
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

#[expect(clippy::disallowed_methods, reason = "how often people see progress is the program's")]
fn now() -> Instant {
    Instant::now()
}

impl Observer for Reporter {
    fn progress(&self, what: &str, progress: Progress) {
        if self.style == Style::Silent {
            return;
        }
        let now = now();
        let mut state = self.lock();
        let begun = state.operation == what && progress.done_bytes >= state.last_done;
        if state.started.is_none() || !begun {
            // The next volume, or the next series, gets a bar of its own.
            if let Some(bar) = state.bar.take() {
                bar.finish_and_clear();
            }
            what.clone_into(&mut state.operation);
            state.started = Some(now);
            state.shown = None;
        }
        state.last_done = progress.done_bytes;
        let Some(started) = state.started else { return };
        let since = now.duration_since(state.shown.unwrap_or(started));
        match self.style {
            Style::Bar if now.duration_since(started) >= QUIET_START => {
                let bar = state.bar.get_or_insert_with(|| bar(what, progress.total_bytes));
                bar.set_position(progress.done_bytes);
                bar.set_message(bar_text(what, progress, now.duration_since(started)));
            }
            Style::Log if since >= LOG_INTERVAL => {
                state.shown = Some(now);
                output::note(&log_line(what, progress, now.duration_since(started)));
            }
            Style::Json if since >= JSON_INTERVAL => {
                state.shown = Some(now);
                output::message(
                    "status",
                    json!({
                        "operation": what,
                        "done_bytes": progress.done_bytes,
                        "total_bytes": progress.total_bytes,
                        "new_bytes": progress.new_bytes,
                        "stored_bytes": progress.stored_bytes,
                        "seconds": now.duration_since(started).as_secs(),
                    }),
                );
            }
            _ => {}
        }
    }

    fn warning(&self, message: &str) {
        if self.json {
            output::message_beside("warning", json!({"message": message}), self.to_stdout);
            return;
        }
        let print = || output::note(&format!("silt: warning: {message}"));
        match &self.lock().bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

fn bar(what: &str, total_bytes: u64) -> ProgressBar {
    let is_sized = total_bytes > 0;
    let template =
        if is_sized { "{prefix} [{wide_bar}] {msg}" } else { "{prefix} {spinner} {msg}" };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(
        is_sized.then_some(total_bytes),
        ProgressDrawTarget::stderr_with_hz(5),
    );
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(output::visible(what).into_owned());
    bar
}

/// The numbers beside a bar. The rate is counted here, from when the operation began: the bar is
/// born later, and would take what was done before for the work of its first moment.
fn bar_text(what: &str, progress: Progress, elapsed: Duration) -> String {
    if is_counted(what) {
        return match progress.total_bytes {
            0 => format!("{} objects", progress.done_bytes),
            total => format!("{} of {total} objects", progress.done_bytes),
        };
    }
    let done = output::bytes(progress.done_bytes);
    let rate = rate(progress, elapsed);
    let mut text = match progress.total_bytes {
        0 => format!("{done} {}/s", output::bytes(rate)),
        total => format!("{done}/{} {}/s", output::bytes(total), output::bytes(rate)),
    };
    if let Some(detail) = detail(what, progress) {
        text = format!("{text}, {detail}");
    }
    if progress.total_bytes > 0 {
        text = format!("{text}, ETA {}", duration(seconds_left(progress, rate)));
    }
    text
}

/// Whether an operation counts objects, in the fields of bytes.
fn is_counted(what: &str) -> bool {
    matches!(what, "heal" | "rollback" | "extend locks")
}

/// Bytes a second since the operation began.
fn rate(progress: Progress, elapsed: Duration) -> u64 {
    let milliseconds = elapsed.as_millis().max(1);
    let rate = u128::from(progress.done_bytes) * 1000 / milliseconds;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn seconds_left(progress: Progress, rate: u64) -> u64 {
    progress.total_bytes.saturating_sub(progress.done_bytes).div_ceil(rate.max(1))
}

/// `2:07` or `1:02:07`.
fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// What the operation is about beyond its bytes; a check has nothing to add.
fn detail(what: &str, progress: Progress) -> Option<String> {
    let new = output::bytes(progress.new_bytes);
    match what {
        "backup" => {
            let saved = progress.done_bytes.saturating_sub(progress.new_bytes);
            Some(format!("new {new}, saved {}", output::bytes(saved)))
        }
        "restore" => Some(format!("written {new}")),
        _ => None,
    }
}

fn log_line(what: &str, progress: Progress, elapsed: Duration) -> String {
    if is_counted(what) {
        return format!("{what}: {} of {} objects", progress.done_bytes, progress.total_bytes);
    }
    let rate = rate(progress, elapsed);
    let done = output::bytes(progress.done_bytes);
    let mut line = match progress.total_bytes {
        0 => format!("{what}: {done}, {}/s", output::bytes(rate)),
        total => format!(
            "{what}: {done} of {} ({}), {}/s",
            output::bytes(total),
            output::percent(progress.done_bytes, total),
            output::bytes(rate)
        ),
    };
    if let Some(detail) = detail(what, progress) {
        line = format!("{line}, {detail}");
    }
    if progress.total_bytes > 0 {
        line = format!("{line}, ETA {}", duration(seconds_left(progress, rate)));
    }
    line
}
