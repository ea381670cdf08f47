//! Shows progress on a terminal, in a log, or as JSON lines.

mod run;
mod trees;

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use siltstone::{Activity, Event, Observer, OperationId, Progress, Unit, Warning};

use self::run::{Run, Shown};
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
    /// Not at all.
    Silent,
    /// As a bar that moves, on a terminal.
    Bar,
    /// As lines from time to time.
    Log,
    /// As JSON messages.
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
    /// The bar's prefix, and whether it has a length.
    look: (String, bool),
    started: Option<Instant>,
    shown: Option<Instant>,
    run: Run,
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
        let look = (String::new(), false);
        let state = State { bar: None, look, started: None, shown: None, run: Run::new() };
        Self { style, json, to_stdout, state: Mutex::new(state) }
    }

    /// Announces the volumes or series of an activity by their bytes, so that progress is that of
    /// the whole run.
    pub fn expect(&self, activity: Activity, parts: &[Option<u64>]) {
        self.lock().run.expect(activity, parts);
    }

    /// Counts the current volume or series as ended, and drops the announced ones before the last
    /// `left`: they failed.
    pub fn end_parts(&self, activity: Activity, left: usize) {
        self.lock().run.end_parts(activity, left);
    }

    /// Clears the bar, so that the next output begins on a clean line.
    pub fn finish(&self) {
        if let Some(bar) = self.lock().bar.take() {
            bar.finish_and_clear();
        }
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
            Event::LeftOut(entry) if self.json => {
                output::message("left_out", trees::left_out_json(entry));
            }
            Event::LeftOut(entry) => self.beside_bar(|| output::line(&trees::left_out(entry))),
            Event::Unreliable(found) if self.json => {
                output::message("file_system", trees::unreliable_json(found));
            }
            Event::Unreliable(found) => {
                self.beside_bar(|| output::done(&trees::unreliable(found)));
            }
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
        let shown = state.run.update(progress, now);
        let started = *state.started.get_or_insert(now);
        let elapsed = now.duration_since(started);
        let since = now.duration_since(state.shown.unwrap_or(started));
        match self.style {
            Style::Bar if elapsed >= QUIET_START => {
                let State { bar, look, .. } = &mut *state;
                let bar = bar.get_or_insert_with(|| {
                    *look = (String::new(), false);
                    new_bar()
                });
                restyle(bar, look, &shown);
                bar.set_message(bar_text(&shown));
            }
            Style::Log if since >= LOG_INTERVAL => {
                state.shown = Some(now);
                output::note(&log_line(&shown));
            }
            Style::Json if since >= JSON_INTERVAL => {
                state.shown = Some(now);
                output::message("status", status(progress, &shown, elapsed));
            }
            _ => {}
        }
    }

    fn warning(&self, warning: &Warning) {
        let message = with_advice(&warning.to_string(), warning.advice());
        if self.json {
            output::log(&format!("silt: warning: {message}"));
            let kind = kind_name(warning.kind());
            let value = json!({"message": message, "kind": kind});
            output::message_beside("warning", value, self.to_stdout);
            return;
        }
        self.beside_bar(|| output::note(&format!("silt: warning: {message}")));
    }

    /// Prints lines without disturbing the bar.
    fn beside_bar(&self, print: impl FnOnce()) {
        match &self.lock().bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// A `--json` message; the field names contain the unit.
fn status(progress: Progress, shown: &Shown, elapsed: Duration) -> serde_json::Value {
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
            value["entries"] = json!(progress.entries);
            value["part"] = json!(shown.part.0);
            value["parts"] = json!(shown.part.1);
            value["run_done_bytes"] = json!(shown.done);
            value["run_total_bytes"] = json!(shown.total);
            value["bytes_per_s"] = json!(shown.rate);
            value["left_s"] = json!(shown.seconds_left);
        }
        Unit::Objects => {
            value["done_objects"] = json!(progress.done);
            value["total_objects"] = json!(progress.total);
        }
    }
    value
}

fn new_bar() -> ProgressBar {
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5))
}

/// Shows the activity and the position.
fn restyle(bar: &ProgressBar, look: &mut (String, bool), shown: &Shown) {
    let total = shown.total.filter(|total| *total > 0);
    let wanted = (phase(shown), total.is_some());
    if *look != wanted {
        let template = if total.is_some() {
            "{prefix} [{wide_bar}] {percent}% {msg}"
        } else {
            "{prefix} {spinner} {msg}"
        };
        let style = ProgressStyle::with_template(template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(wanted.0.clone());
        *look = wanted;
    }
    if bar.length() != total {
        total.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
    }
    bar.set_position(shown.done);
}

/// The activity and, if there are several, the number of the volume or series.
fn phase(shown: &Shown) -> String {
    let name = shown.activity.name();
    match shown.part {
        (_, 1) => name.to_owned(),
        (number, parts) => format!("{name} {number}/{parts}"),
    }
}

/// The numbers beside a bar, the most important first: a narrow terminal cuts the end off.
fn bar_text(shown: &Shown) -> String {
    if shown.unit == Unit::Objects {
        return objects_text(shown);
    }
    if has_only_entries(shown) {
        return output::count(shown.entries, "entry");
    }
    let done = output::bytes(shown.done);
    let mut text = match shown.total {
        None => done,
        Some(total) => format!("{done}/{}", output::bytes(total)),
    };
    text = format!("{text} {}/s", output::bytes(shown.rate));
    if let Some(left) = shown.seconds_left {
        text = format!("{text} {} left", duration(left));
    }
    match detail(shown) {
        Some(detail) => format!("{text}, {detail}"),
        None => text,
    }
}

/// Whether it is of a file tree of which no file with content was met.
fn has_only_entries(shown: &Shown) -> bool {
    shown.entries > 0 && shown.done == 0 && shown.total.is_none_or(|total| total == 0)
}

fn objects_text(shown: &Shown) -> String {
    match shown.total {
        None => output::count(shown.done, "object"),
        Some(total) => format!("{} of {}", shown.done, output::count(total, "object")),
    }
}

/// `2:07` or `1:02:07`.
fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// The new data of a backup, or the bytes that a restore has written; of file trees also the number
/// of entries.
fn detail(shown: &Shown) -> Option<String> {
    let new = output::bytes(shown.new_bytes);
    let entries = output::count(shown.entries, "entry");
    match shown.activity {
        Activity::Backup if shown.entries > 0 => Some(format!("{entries}, {new} new")),
        Activity::Backup => Some(format!("{new} new")),
        Activity::Restore if shown.entries > 0 => Some(entries),
        Activity::Restore => Some(format!("{new} written")),
        _ => None,
    }
}

fn log_line(shown: &Shown) -> String {
    let phase = phase(shown);
    if shown.unit == Unit::Objects {
        return format!("{phase}: {}", objects_text(shown));
    }
    if has_only_entries(shown) {
        return format!("{phase}: {}", output::count(shown.entries, "entry"));
    }
    let done = output::bytes(shown.done);
    let mut line = match shown.total {
        None => format!("{phase}: {done}"),
        Some(total) => format!(
            "{phase}: {done} of {} ({})",
            output::bytes(total),
            output::percent(shown.done, total),
        ),
    };
    line = format!("{line}, {}/s", output::bytes(shown.rate));
    if let Some(left) = shown.seconds_left {
        line = format!("{line}, {} left", duration(left));
    }
    match detail(shown) {
        Some(detail) => format!("{line}, {detail}"),
        None => line,
    }
}
