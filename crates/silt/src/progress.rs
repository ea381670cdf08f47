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
    json_warnings: bool,
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
        Self { style, json_warnings: json && !to_stdout, state: Mutex::new(state) }
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
                bar.set_message(detail(progress));
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
        if self.json_warnings {
            output::message("warning", json!({"message": message}));
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
    let template = if total_bytes > 0 {
        "{prefix:8} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} ETA {eta} {msg}"
    } else {
        "{prefix:8} {spinner} {bytes} {bytes_per_sec} {msg}"
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(
        (total_bytes > 0).then_some(total_bytes),
        ProgressDrawTarget::stderr_with_hz(5),
    );
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(what.to_owned());
    bar
}

fn detail(progress: Progress) -> String {
    let saved = progress.done_bytes.saturating_sub(progress.new_bytes);
    format!("new {} saved {}", output::bytes(progress.new_bytes), output::bytes(saved))
}

fn log_line(what: &str, progress: Progress, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs().max(1);
    let rate = progress.done_bytes / seconds;
    let mut line = format!("{what}: {}", output::bytes(progress.done_bytes));
    if progress.total_bytes > 0 {
        let left = progress.total_bytes.saturating_sub(progress.done_bytes);
        line = format!(
            "{line} of {} ({}), {}/s, {} s left",
            output::bytes(progress.total_bytes),
            output::percent(progress.done_bytes, progress.total_bytes),
            output::bytes(rate),
            left / rate.max(1)
        );
    }
    format!("{line}, {}", detail(progress))
}
