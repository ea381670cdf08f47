//! What an agent tells about its runs, for a log.

use serde_json::{Value, json};
use silt_cluster::{End, Event, LastRun, Run, Work};
use silt_terminal::output;

/// Tells it as text, or as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Teller {
    /// Whether as JSON.
    pub json: bool,
}

/// A time as JSON.
pub fn time(time_ns: Option<i64>) -> Value {
    json!(time_ns.map(output::rfc3339))
}

/// Work as JSON: what it is, and of which series.
pub fn work(work: &Work) -> (&'static str, Option<&str>) {
    let name = match work {
        Work::Backup { .. } => "backup",
        Work::Forget => "forget",
        Work::Reclaim => "reclaim",
        Work::Optimize => "optimize",
        Work::Check => "check",
        Work::Replicate => "replicate",
        Work::Round => "round",
        Work::Join { .. } => "join",
    };
    (name, work.series())
}

/// How a run ended, in one word.
pub fn end(end: &End) -> &'static str {
    match end {
        End::Done { .. } => "done",
        End::Busy => "busy",
        End::Cancelled => "cancelled",
        End::Failed { .. } => "failed",
    }
}

impl Teller {
    /// What has happened.
    pub fn event(self, event: &Event) {
        match event {
            Event::Started { run } => self.started(run),
            Event::Ended { work, last, retry_ns } => self.ended(work, last, *retry_ns),
            Event::NotesNotSaved { error } => {
                output::error(self.json, &format!("what was done cannot be noted: {error}"), 1);
            }
        }
    }

    fn started(self, run: &Run) {
        if self.json {
            let (name, series) = work(&run.work);
            let value = json!({"work": name, "series": series, "due": time(run.due_ns)});
            output::message("run_started", value);
            return;
        }
        let cause = run.due_ns.map_or_else(
            || "as asked".to_owned(),
            |due_ns| format!("due {}", output::time(due_ns)),
        );
        output::done(&format!("{} begins, {cause}", run.work));
    }

    fn ended(self, of: &Work, last: &LastRun, retry_ns: Option<i64>) {
        let (time_ns, warning, error) = parts(&last.end);
        if self.json {
            let (name, series) = work(of);
            let value = json!({
                "work": name, "series": series, "end": end(&last.end), "time": time(time_ns),
                "warning": warning, "error": error, "retry": time(retry_ns),
            });
            output::message("run_ended", value);
            return;
        }
        let again = retry_ns.map_or_else(String::new, |retry_ns| {
            format!("; it is tried again at {}", output::time(retry_ns))
        });
        match &last.end {
            End::Done { warning: None, .. } => output::done(&format!("{of} is done{again}")),
            End::Done { warning: Some(warning), .. } => {
                output::note(&format!("{of} is done, but {warning}{again}"));
            }
            End::Busy => output::note(&format!("{of}: another process is at work{again}")),
            End::Cancelled => output::note(&format!("{of} was cancelled{again}")),
            End::Failed { error } => output::note(&format!("{of} failed: {error}{again}")),
        }
    }

    /// Whether the bus is reached, and if not, why.
    pub fn bus(self, trouble: Option<&str>) {
        if self.json {
            output::message("bus", json!({"reached": trouble.is_none(), "error": trouble}));
            return;
        }
        match trouble {
            None => output::done("the bus is reached"),
            Some(error) => {
                let message = "the bus is not reached; what is due is started by this host alone";
                output::note(&format!("{message}: {error}"));
            }
        }
    }
}

/// The time, the warning and the error of an end.
pub fn parts(end: &End) -> (Option<i64>, Option<&str>, Option<&str>) {
    match end {
        End::Done { at_ns, warning } => (Some(*at_ns), warning.as_deref(), None),
        End::Failed { error } => (None, None, Some(error)),
        End::Busy | End::Cancelled => (None, None, None),
    }
}
