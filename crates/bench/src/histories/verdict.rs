//! What must be true at the end of a history.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::story::{KEPT, Story};
use super::summary::{LEAKED, LOST};
use crate::Result;

const LOOK: Duration = Duration::from_millis(300);
/// What no log may contain.
const NEVER: [&str; 3] = ["panicked", "assertion", "overflow"];
/// Exit statuses of a command that has met damage, panicked, or does not exist as it was given.
const BAD_STATUSES: [i32; 3] = [5, 101, 2];

/// What a history was found to be.
pub struct Verdict {
    pub snapshots: usize,
    pub reported: usize,
    /// How long it took until every series had a snapshot again.
    pub settled: Duration,
}

/// Something is lost, or left behind.
#[derive(Debug)]
struct Found(&'static str, String);

impl std::fmt::Display for Found {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.0, self.1)
    }
}

impl std::error::Error for Found {}

fn lost(what: String) -> Box<dyn std::error::Error> {
    Box::new(Found(LOST, what))
}

/// What is listed of a failure: first, whether something is lost or left behind.
pub fn shown(error: &(dyn std::error::Error + 'static)) -> String {
    if error.is::<Found>() { error.to_string() } else { format!("FAILED: {error}") }
}

/// A snapshot by its series and time.
type Made = (String, String);

fn when(text: &str) -> Result<SystemTime> {
    Ok(text.parse::<jiff::Timestamp>()?.into())
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// Ends a history and judges it; agents have `patience` to back everything up again.
pub fn judge(story: &mut Story, patience: Duration) -> Result<Verdict> {
    let healed = Instant::now();
    story.mend()?;
    end_commands(story, patience)?;
    let faultless = SystemTime::now();
    hurry(story, patience)?;
    settle(story, faultless, patience)?;
    let settled = healed.elapsed();
    end_agents(story)?;
    check(story)?;
    let reported = reported(story)?;
    let snapshots = snapshots(story)?;
    are_there(&reported, &snapshots, story.has_forgotten)?;
    restore(story, snapshots.iter())?;
    for _ in 0..2 {
        story.silt(&["reclaim", "--min-dead", "0", "--sweep", "--grace", "0h", "--json"])?;
    }
    let checked = check(story)?;
    if checked["unreferenced_objects"] != 0 {
        let found = format!("after everything was reclaimed: {checked}");
        return Err(Box::new(Found(LEAKED, found)));
    }
    let newest: BTreeMap<&str, &Value> =
        snapshots.iter().map(|snapshot| (text(snapshot, "series"), snapshot)).collect();
    restore(story, newest.into_values())?;
    Ok(Verdict { snapshots: snapshots.len(), reported: reported.len(), settled })
}

/// Reads everything. Returns what was found, which is no damage.
fn check(story: &Story) -> Result<Value> {
    let messages = story.silt(&["check", "--read-data", "--json"]);
    let messages = messages.map_err(|error| lost(error.to_string()))?;
    let found = messages.iter().find(|message| message["message_type"] == "summary");
    let found = found.cloned().unwrap_or_default();
    if found["damaged_objects"] != 0 {
        return Err(lost(format!("check has found damage: {messages:?}")));
    }
    Ok(found)
}

/// Waits for the commands that were given: each may wait for an agent that is in a round.
fn end_commands(story: &mut Story, patience: Duration) -> Result<()> {
    for given in &mut story.given {
        let Some(status) = given.process.wait(patience)? else {
            return Err(format!("it does not end: {}", given.what).into());
        };
        let is_bad = status.code().map_or(!given.was_killed, |code| BAD_STATUSES.contains(&code));
        if is_bad {
            let log = std::fs::read_to_string(&given.log)?;
            return Err(format!("{} ended with {status}: {log}", given.what).into());
        }
    }
    Ok(())
}

/// What has failed is tried again after minutes: most histories do not wait for that.
fn hurry(story: &mut Story, patience: Duration) -> Result<()> {
    match story.draw.below(8) {
        // The agents do all by themselves.
        0 => {}
        // The hosts lose their notes.
        1..=3 => {
            for number in 0..story.agents() {
                let host = &mut story.hosts[number];
                if let Some(agent) = &mut host.agent {
                    agent.kill();
                }
                drop(std::fs::remove_dir_all(host.path("state")));
                host.start()?;
            }
        }
        // Somebody asks for each backup, until an agent has heard it.
        _ => {
            for disk in &story.disks {
                let begin = Instant::now();
                let asked = ["cluster", "backup", &disk.series, "--json"];
                loop {
                    let output = story.run(&asked)?;
                    if output.status.success() {
                        break;
                    }
                    if begin.elapsed() > patience {
                        let error = String::from_utf8_lossy(&output.stderr).into_owned();
                        return Err(format!("no agent obeys for {}: {error}", disk.series).into());
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
    Ok(())
}

/// Waits until each series has a snapshot from after a time.
fn settle(story: &Story, after: SystemTime, patience: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        let mut newest: BTreeMap<String, SystemTime> = BTreeMap::new();
        for snapshot in snapshots(story)? {
            let time = when(text(&snapshot, "time"))?;
            let known = newest.entry(text(&snapshot, "series").to_owned()).or_insert(time);
            *known = time.max(*known);
        }
        let is_late = |series: &&str| newest.get(*series).is_none_or(|time| *time < after);
        let series = story.disks.iter().map(|disk| disk.series.as_str());
        let late: Vec<&str> = series.filter(is_late).collect();
        if late.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > patience {
            return Err(format!("not backed up for {patience:?} without faults: {late:?}").into());
        }
        std::thread::sleep(LOOK);
    }
}

fn snapshots(story: &Story) -> Result<Vec<Value>> {
    let mut listed = story.silt(&["snapshots", "--json"])?;
    listed.retain(|message| message["message_type"] == "snapshot");
    Ok(listed)
}

fn end_agents(story: &mut Story) -> Result<()> {
    for number in 0..story.agents() {
        let host = &mut story.hosts[number];
        let name = host.name.clone();
        let Some(agent) = &mut host.agent else { continue };
        match agent.end()? {
            Some(status) if status.success() => {}
            Some(status) => return Err(format!("the agent of {name} ended with {status}").into()),
            None => return Err(format!("the agent of {name} does not end").into()),
        }
    }
    Ok(())
}

/// The snapshots that somebody was told of.
fn reported(story: &Story) -> Result<Vec<Made>> {
    let agents = story.hosts[..story.agents()].iter().map(|host| host.path("log"));
    let mut made = Vec::new();
    for path in agents.chain(story.given.iter().map(|given| given.log.clone())) {
        let log = std::fs::read_to_string(&path)?;
        if let Some(never) = NEVER.iter().find(|never| log.contains(*never)) {
            return Err(format!("{}: {never}", path.display()).into());
        }
        for line in log.lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let is_run = message["message_type"] == "run_ended" && message["work"] == "backup";
            let is_round = message["message_type"] == "round_series" && message["error"].is_null();
            if (is_run && message["end"] == "done" || is_round) && message["time"].is_string() {
                let of = (text(&message, "series"), text(&message, "time"));
                made.push((of.0.to_owned(), of.1.to_owned()));
            }
        }
    }
    made.sort();
    made.dedup();
    Ok(made)
}

/// Compares what was reported with what is there. `forget` keeps the newest ones of each series.
fn are_there(reported: &[Made], snapshots: &[Value], has_forgotten: bool) -> Result<()> {
    for (series, time) in reported {
        let of_series: Vec<_> =
            snapshots.iter().filter(|it| text(it, "series") == series).collect();
        if of_series.iter().any(|it| text(it, "time") == time) {
            continue;
        }
        let at = when(time)?;
        let mut newer = 0;
        for snapshot in of_series {
            newer += usize::from(when(text(snapshot, "time"))? > at);
        }
        if !has_forgotten || newer < KEPT {
            return Err(lost(format!("{series} has lost its snapshot of {time}")));
        }
    }
    Ok(())
}

/// Restores snapshots: their disks must have had these states.
fn restore<'s>(story: &Story, snapshots: impl Iterator<Item = &'s Value>) -> Result<()> {
    let target = story.folder.join("restored");
    let target_text = target.to_string_lossy();
    for snapshot in snapshots {
        let (id, series) = (text(snapshot, "id"), text(snapshot, "series"));
        let restored = story.silt(&["restore", id, &target_text, "--force"]);
        restored.map_err(|error| lost(error.to_string()))?;
        let Some(disk) = story.disks.iter().find(|disk| disk.series == series) else {
            return Err(format!("nobody has a series {series}").into());
        };
        let bytes = std::fs::read(&target)?;
        disk.had(&bytes, when(text(snapshot, "time"))?).map_err(|found| {
            lost(format!("snapshot {id} of {series}, {}, holds {found}", text(snapshot, "time")))
        })?;
    }
    std::fs::remove_file(&target)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_snapshot_that_was_reported_may_be_missing_only_if_newer_ones_replace_it() {
        let time = |second: usize| format!("2026-11-23T10:00:0{second}Z");
        let there = |seconds: std::ops::Range<usize>| -> Vec<Value> {
            seconds.map(|second| json!({"series": "vm", "time": time(second)})).collect()
        };
        let made = |series: &str, second| vec![(series.to_owned(), time(second))];
        assert!(are_there(&made("vm", 1), &there(0..2), false).is_ok());
        assert!(are_there(&made("vm", 2), &there(0..2), false).is_err());
        assert!(are_there(&made("other", 1), &there(0..2), true).is_err());
        assert!(are_there(&made("vm", 1), &there(2..2 + KEPT), false).is_err());
        assert!(are_there(&made("vm", 1), &there(2..2 + KEPT), true).is_ok());
        assert!(are_there(&made("vm", 1), &there(2..1 + KEPT), true).is_err());
    }
}
