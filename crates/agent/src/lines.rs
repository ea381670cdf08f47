//! What the processes of runs say, and how their exit statuses are to be read.

use serde::Deserialize;
use silt_cluster::{End, Work};
use silt_terminal::output;

/// Exit statuses of the program.
const UNREADABLE: i32 = 3;
const MAP_WRONG: i32 = 4;
const DAMAGED: i32 = 5;
const FORGET_FAILED: i32 = 6;
const WINDOW_CLOSED: i32 = 7;
const BUSY: i32 = 11;
/// Somebody has asked it to end.
pub const INTERRUPTED: i32 = 130;

/// The warning of a snapshot that lacks something.
const PARTLY: &str = "a source was partly unreadable";

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Bytes done, and in all.
    Progress(u64, Option<u64>),
    /// A run of several series has made this one's snapshot of this time, with a warning.
    Made(String, i64, Option<String>),
    /// Something else.
    Other,
}

/// What a process has said that matters for its end.
#[derive(Debug, Default)]
pub struct Seen {
    /// The time of the snapshot that it made, or found to be there.
    made_ns: Option<i64>,
    /// The last error.
    error: Option<String>,
}

/// A message of the program. Others, and further fields, are of no interest.
#[derive(Deserialize)]
#[serde(tag = "message_type", rename_all = "snake_case")]
enum Message {
    Status {
        run_done_bytes: Option<u64>,
        run_total_bytes: Option<u64>,
    },
    Summary {
        short_id: Option<String>,
        time: Option<String>,
        series: Option<String>,
        #[serde(default)]
        unreadable_bytes: u64,
        #[serde(default)]
        unreadable_entries: u64,
    },
    NotDue {
        short_id: String,
        time: String,
    },
    Warning {
        message: String,
    },
    Error {
        message: String,
    },
    #[serde(other)]
    Other,
}

impl Seen {
    /// Takes a line of the process, and logs it if people should see it.
    pub fn take(&mut self, work: &Work, line: &str) -> Said {
        let name = work.series().map_or_else(|| work.to_string(), str::to_owned);
        if !line.starts_with('{') {
            if !line.is_empty() {
                output::note(&format!("{name}: {line}"));
            }
            return Said::Other;
        }
        match serde_json::from_str(line) {
            Ok(Message::Status { run_done_bytes: Some(done), run_total_bytes }) => {
                return Said::Progress(done, run_total_bytes);
            }
            Ok(Message::Summary {
                short_id: Some(id),
                time: Some(time),
                series,
                unreadable_bytes,
                unreadable_entries,
            }) => {
                let of_several = series.filter(|_| matches!(work, Work::Join { .. }));
                let shown = of_several.as_ref().unwrap_or(&name);
                output::log(&format!("{shown}: made snapshot {id}"));
                let made_ns = nanoseconds(&time);
                let (Some(series), Some(at_ns)) = (of_several, made_ns) else {
                    self.made_ns = made_ns;
                    return Said::Other;
                };
                let is_incomplete = unreadable_bytes > 0 || unreadable_entries > 0;
                return Said::Made(series, at_ns, is_incomplete.then(|| PARTLY.to_owned()));
            }
            Ok(Message::NotDue { short_id, time }) => {
                self.made_ns = nanoseconds(&time);
                output::log(&format!("{name}: there was snapshot {short_id} already"));
            }
            Ok(Message::Warning { message }) => {
                output::note(&format!("{name}: warning: {message}"));
            }
            Ok(Message::Error { message }) => {
                output::note(&format!("{name}: {message}"));
                self.error = Some(message);
            }
            Ok(_) | Err(_) => {}
        }
        Said::Other
    }

    /// How a run has ended whose process ended with this exit status.
    pub fn end(self, work: &Work, code: i32, now_ns: i64) -> End {
        let at_ns = self.made_ns.filter(|_| work.series().is_some()).unwrap_or(now_ns);
        let error = self.error;
        let done = |warning: Option<&str>| {
            let warning = warning.map(|text| match &error {
                Some(error) => format!("{text}: {error}"),
                None => text.to_owned(),
            });
            End::Done { at_ns, warning }
        };
        match (code, work) {
            (0, _) => done(None),
            (UNREADABLE, Work::Backup { .. }) => done(Some(PARTLY)),
            (MAP_WRONG, Work::Backup { .. }) => done(Some("the changed-blocks map was wrong")),
            (FORGET_FAILED, Work::Backup { .. }) => done(Some("the policy was not applied")),
            (UNREADABLE, Work::Replicate) => done(Some("some snapshots were not sent")),
            (WINDOW_CLOSED, Work::Replicate) => {
                done(Some("the rest is sent when the window opens"))
            }
            // Checking again finds it again: it is reported, and not tried again before it is due.
            (DAMAGED, Work::Check) => done(Some("damage was found")),
            (BUSY, _) => End::Busy,
            (code, _) => {
                let unknown = || match code {
                    INTERRUPTED => "its process was interrupted".to_owned(),
                    code => format!("its process ended with exit status {code}"),
                };
                End::Failed { error: error.unwrap_or_else(unknown) }
            }
        }
    }
}

fn nanoseconds(time: &str) -> Option<i64> {
    let stamp: jiff::Timestamp = time.parse().ok()?;
    i64::try_from(stamp.as_nanosecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> Work {
        Work::Backup { series: "web1".to_owned() }
    }

    fn end(work: &Work, lines: &[&str], code: i32) -> End {
        let mut seen = Seen::default();
        lines.iter().for_each(|line| _ = seen.take(work, line));
        seen.end(work, code, 7)
    }

    #[test]
    fn a_run_was_done_at_the_time_of_its_snapshot() {
        let made = r#"{"message_type":"summary","short_id":"3f9a","time":"1970-01-01T00:00:05Z"}"#;
        let known = r#"{"message_type":"not_due","short_id":"3f9a","time":"1970-01-01T00:00:03Z"}"#;
        let done = |seconds: i64| End::Done { at_ns: seconds * 1_000_000_000, warning: None };
        assert_eq!(end(&backup(), &["text", "", "{}", made, "{"], 0), done(5));
        assert_eq!(end(&backup(), &[known], 0), done(3));
        assert_eq!(end(&Work::Forget, &[made], 0), End::Done { at_ns: 7, warning: None });
    }

    #[test]
    fn a_part_in_a_round_says_which_series_it_has_backed_up() {
        let line = |series: &str, unreadable: u64| {
            format!(
                "{{\"message_type\":\"summary\",\"short_id\":\"3f9a\",\"series\":\"{series}\",\
                 \"time\":\"1970-01-01T00:00:05Z\",\"unreadable_bytes\":{unreadable}}}"
            )
        };
        let (mut seen, join) = (Seen::default(), Work::Join { round: 1 });
        let at_ns = 5_000_000_000;
        assert_eq!(seen.take(&join, &line("db", 0)), Said::Made("db".to_owned(), at_ns, None));
        let partly = Some(PARTLY.to_owned());
        assert_eq!(seen.take(&join, &line("web", 1)), Said::Made("web".to_owned(), at_ns, partly));
        assert_eq!(seen.end(&join, 0, 7), End::Done { at_ns: 7, warning: None });
        assert_eq!(Seen::default().take(&backup(), &line("web1", 0)), Said::Other);
    }

    #[test]
    fn exit_statuses_are_ends() {
        let error = r#"{"message_type":"error","code":1,"message":"disk full"}"#;
        let warned = |code: i32, work: &Work| match end(work, &[error], code) {
            End::Done { warning, .. } => warning.unwrap(),
            end => panic!("{end:?}"),
        };
        for code in [3, 4, 6] {
            assert!(warned(code, &backup()).ends_with(": disk full"), "{code}");
        }
        warned(5, &Work::Check);
        warned(7, &Work::Replicate);
        assert_eq!(end(&backup(), &[], 11), End::Busy);
        let failed = |text: &str| End::Failed { error: text.to_owned() };
        // By somebody else than the agent, so the backup is still to be made.
        assert_eq!(end(&backup(), &[], 130), failed("its process was interrupted"));
        assert_eq!(end(&backup(), &[error], 1), failed("disk full"));
        assert_eq!(end(&backup(), &[error], 5), failed("disk full"));
        assert_eq!(end(&Work::Check, &[], 6), failed("its process ended with exit status 6"));
    }

    #[test]
    fn progress_is_of_the_whole_run() {
        let mut seen = Seen::default();
        let line = r#"{"message_type":"status","done_bytes":1,"run_done_bytes":2,
            "run_total_bytes":null}"#;
        assert_eq!(seen.take(&backup(), line), Said::Progress(2, None));
        let line = r#"{"message_type":"status","done_objects":1}"#;
        assert_eq!(seen.take(&backup(), line), Said::Other);
    }
}
