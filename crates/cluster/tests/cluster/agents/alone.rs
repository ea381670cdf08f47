//! What an agent does by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use silt_cluster::{
    Agent, AgentOptions, Event, FileNotes, News, NoNotes, Notes, Task, TaskNotes, Work,
};

use super::stage::{
    BEGINNING_NS, Clock, DAY_NS, HOUR_NS, HandWorker, Host, Luck, MINUTE_NS, SECOND_NS, backup,
};
use crate::conformance::name;

const HOUR: i64 = 3600;

#[test]
fn a_task_begins_when_it_is_due_and_once() {
    let host = Host::alone(vec![backup("db", "22:00"), backup("files", "*:30"), backup("x", "")]);
    host.run_for(2 * DAY_NS, MINUTE_NS);
    assert_eq!(host.began("db"), [22 * HOUR, 46 * HOUR]);
    assert_eq!(host.began("files").len(), 48);
    assert_eq!(host.began("files")[1], HOUR + HOUR / 2);
    assert!(host.began("x").is_empty(), "without a schedule it is never due");
    let ran = host.hand.ran.lock().unwrap();
    assert!(ran.iter().all(|ran| ran.due_ns == Some(ran.at_ns)));
}

#[test]
fn what_a_round_has_backed_up_is_done() {
    let host = Host::alone(vec![backup("db", "*:30"), backup("x", "")]);
    let told = |series: &str, at_ns: i64| {
        let made = News::Made { series: series.to_owned(), at_ns, warning: None };
        host.hand.tells.lock().unwrap().push(made);
        host.run_for(MINUTE_NS, MINUTE_NS);
    };
    let notes = |series: &str| {
        let key = Work::Backup { series: series.to_owned() }.key();
        host.notes.0.lock().unwrap()[&key].clone()
    };
    host.luck(Luck::Fails);
    host.run_for(33 * MINUTE_NS, MINUTE_NS);
    assert!(notes("db").failure.is_some() && notes("db").retry_ns.is_some());
    let made_ns = BEGINNING_NS + 32 * MINUTE_NS;
    ["db", "x", "unknown"].iter().for_each(|series| told(series, made_ns));
    assert_eq!((notes("db").failure, notes("db").retry_ns), (None, None));
    assert_eq!((notes("db").done_ns, notes("x").done_ns), (Some(made_ns), Some(made_ns)));
    // A snapshot of the future counts as none.
    told("x", made_ns + DAY_NS);
    assert_eq!(notes("x").done_ns, Some(made_ns));
    let begun = host.began("db").len();
    host.run_for(50 * MINUTE_NS, MINUTE_NS);
    assert_eq!(host.began("db").len(), begun, "it was due and done");
}

#[test]
fn what_was_due_before_an_agent_knew_of_it_is_not_made_up_for() {
    let host = Host::alone(vec![backup("db", "Sun 22:00")]);
    host.run_for(6 * DAY_NS, MINUTE_NS);
    assert!(host.began("db").is_empty());
    host.run_for(DAY_NS, MINUTE_NS);
    assert_eq!(host.began("db"), [6 * 24 * HOUR + 22 * HOUR]);
}

#[test]
fn one_run_makes_up_for_a_week_off() {
    let mut host = Host::alone(vec![backup("db", "hourly")]);
    host.run_for(2 * HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db"), [HOUR]);
    host.env.clock.pass(7 * DAY_NS + 10 * MINUTE_NS);
    host.restart();
    host.run_for(30 * MINUTE_NS, MINUTE_NS);
    let week = 7 * 24 * HOUR + 2 * HOUR;
    assert_eq!(host.began("db"), [HOUR, week + 600]);
    let due_ns = host.hand.ran.lock().unwrap()[1].due_ns;
    assert_eq!(due_ns, Some(BEGINNING_NS + week * SECOND_NS), "the last time that it was due");
    host.run_for(HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db")[2..], [week + HOUR]);
}

#[test]
fn agents_with_one_schedule_begin_at_different_times() {
    let begins = |agent: &str, series: &str| {
        let task = Task { spread: Duration::from_hours(1), ..backup(series, "02:00") };
        let options = AgentOptions { tasks: vec![task], ..AgentOptions::new(name(agent)) };
        let mut host = Host::new(options, &Clock::new(), &Arc::default());
        host.run_for(12 * HOUR_NS, SECOND_NS);
        host.restart();
        host.run_for(30 * HOUR_NS, 10 * SECOND_NS);
        let begins = host.began(series);
        assert_eq!(begins.len(), 2);
        assert!(begins[1] - begins[0] - 24 * HOUR < 10, "each day at the same time: {begins:?}");
        assert!((2 * HOUR..3 * HOUR).contains(&begins[0]), "{begins:?}");
        begins[0]
    };
    let (one, other, third) = (begins("web1", "db"), begins("web2", "db"), begins("web1", "log"));
    assert!(one != other && one != third, "{one} {other} {third}");
}

#[test]
fn what_failed_is_repeated_after_longer_and_longer_pauses() {
    for luck in [Luck::Fails, Luck::Refuses] {
        let mut host = Host::alone(vec![backup("db", "01:00")]);
        host.luck(luck);
        host.takes(0);
        host.run_for(5 * HOUR_NS, SECOND_NS);
        let begins = host.began("db");
        let pauses: Vec<i64> = begins.windows(2).map(|two| (two[1] - two[0]) / 60).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60], "{luck:?}");
        let task = host.agent.status().tasks.remove(0);
        assert_eq!((task.attempts, task.is_ready), (9, false));
        assert!(task.failure.unwrap().contains(if luck == Luck::Fails { "space" } else { "proc" }));
        // It is not forgotten when the agent ends.
        host.restart();
        host.run_for(2 * MINUTE_NS, SECOND_NS);
        assert_eq!(host.began("db").len(), 9);
        host.luck(Luck::Succeeds);
        host.run_for(HOUR_NS, SECOND_NS);
        let task = host.agent.status().tasks.remove(0);
        assert_eq!((task.attempts, task.failure, task.retry_ns), (0, None, None));
        assert_eq!(host.began("db").len(), 10);
    }
}

#[test]
fn a_busy_series_is_tried_each_minute() {
    let host = Host::alone(vec![backup("db", "01:00")]);
    host.luck(Luck::Busy);
    host.takes(0);
    host.run_for(HOUR_NS + 5 * MINUTE_NS + 30 * SECOND_NS, SECOND_NS);
    assert!((5..=6).contains(&host.began("db").len()), "{:?}", host.began("db"));
    let task = host.agent.status().tasks.remove(0);
    assert_eq!((task.attempts, task.failure), (0, None));
}

#[test]
fn as_many_run_at_once_as_allowed_and_what_was_due_first_begins_first() {
    let minutes = ["01:04", "01:01", "01:03", "01:00", "01:02"];
    let tasks = minutes.iter().map(|at| backup(at, at)).collect();
    let options = AgentOptions { tasks, parallel: 2, ..AgentOptions::new(name("web1")) };
    let host = Host::new(options, &Clock::new(), &Arc::default());
    host.takes(10 * MINUTE_NS);
    let mut most = 0;
    for _ in 0..2 * HOUR {
        host.run_for(SECOND_NS, SECOND_NS);
        most = most.max(host.hand.going());
    }
    assert_eq!(most, 2);
    let ran = host.hand.ran.lock().unwrap();
    let order: Vec<&str> = ran.iter().map(|ran| ran.series.as_str()).collect();
    assert_eq!(order, ["01:00", "01:01", "01:02", "01:03", "01:04"]);
}

#[test]
fn a_time_that_cannot_be_believed_is_no_success() {
    for stamp in [Luck::Stamps(HOUR_NS), Luck::Stamps(-HOUR_NS)] {
        let host = Host::alone(vec![backup("db", "01:00")]);
        host.luck(stamp);
        host.takes(0);
        host.run_for(HOUR_NS + 5 * MINUTE_NS, SECOND_NS);
        assert_eq!(host.began("db").len(), 3, "{stamp:?}: it is tried again");
        let failure = host.agent.status().tasks.remove(0).failure.unwrap();
        assert!(failure.contains("stamped 2026-09-28T0"), "{failure}");
    }
    let host = Host::alone(vec![backup("db", "01:00")]);
    host.luck(Luck::Stamps(9 * MINUTE_NS));
    host.takes(0);
    host.run_for(3 * HOUR_NS, SECOND_NS);
    assert_eq!(host.began("db").len(), 1, "clocks are never quite right");
}

#[test]
fn a_clock_that_was_wrong_delays_nothing() {
    let host = Host::alone(vec![backup("db", "hourly")]);
    host.env.skew_ns.store(300 * DAY_NS, Relaxed);
    host.run_for(90 * MINUTE_NS, MINUTE_NS);
    assert_eq!(host.hand.starts(), 2, "a year made up for, and an hour");
    host.luck(Luck::Fails);
    host.run_for(30 * MINUTE_NS + 3 * HOUR_NS, MINUTE_NS);
    host.luck(Luck::Succeeds);
    let before = host.hand.starts();
    host.env.skew_ns.store(0, Relaxed);
    // It does not wait for the day until which it was said to be done, or was to be tried again.
    host.run_for(2 * HOUR_NS + MINUTE_NS, MINUTE_NS);
    let begins = host.hand.starts() - before;
    assert!((2..=3).contains(&begins), "{begins}");
}

#[test]
fn an_agent_that_began_with_a_wrong_clock_waits_for_no_wrong_year() {
    let mut host = Host::alone(vec![backup("db", "hourly")]);
    host.env.skew_ns.store(300 * DAY_NS, Relaxed);
    host.notes.0.lock().unwrap().clear();
    host.restart();
    host.run_for(30 * MINUTE_NS, MINUTE_NS);
    assert!(host.began("db").is_empty());
    host.env.skew_ns.store(0, Relaxed);
    host.run_for(HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db"), [HOUR]);
}

#[test]
fn runs_that_an_agent_left_behind_are_begun_again() {
    let mut host = Host::alone(vec![backup("db", "01:00")]);
    host.luck(Luck::Hangs);
    host.run_for(2 * HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db").len(), 1, "as long as a run goes on, there is no other");
    host.luck(Luck::Succeeds);
    host.restart();
    host.run_for(HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db"), [HOUR, 2 * HOUR]);
    host.restart();
    host.run_for(20 * HOUR_NS, MINUTE_NS);
    assert_eq!(host.began("db").len(), 2);
}

#[test]
fn a_step_says_when_to_come_again() {
    let host = Host::alone(vec![backup("db", "06:00"), backup("files", "04:00")]);
    let step = host.agent.step();
    assert_eq!((step.next_ns, step.running), (Some(BEGINNING_NS + 4 * HOUR_NS), 0));
    host.env.clock.pass(4 * HOUR_NS);
    let step = host.agent.step();
    assert!(
        matches!(&step.events[..], [Event::Started { run }] if run.work.series() == Some("files"))
    );
    assert_eq!((step.next_ns, step.running), (Some(BEGINNING_NS + 6 * HOUR_NS), 1));
}

#[test]
fn two_equal_tasks_and_reserved_names_are_refused() {
    let host = Host::alone(vec![]);
    let worker = || Box::new(HandWorker(Arc::clone(&host.hand)));
    let new = |options: AgentOptions| {
        Agent::new(options, Arc::clone(&host.env) as _, worker(), Box::new(NoNotes))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let tasks = vec![backup("db", "hourly"), backup("db", "daily")];
    let twice = new(AgentOptions { tasks, ..AgentOptions::new(name("web1")) }).unwrap_err();
    assert!(twice.contains("two tasks 'backup of 'db''"), "{twice}");
    assert!(new(AgentOptions::new(name("director"))).is_err());
    assert!(new(AgentOptions::new(name("web1"))).is_ok());
}

#[test]
fn notes_in_a_file_are_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.json");
    let mut notes = FileNotes::new(&path);
    assert!(notes.load().unwrap().is_empty(), "there is no file");
    let one = TaskNotes { first_seen_ns: 5, done_ns: Some(7), attempts: 2, ..TaskNotes::default() };
    let all = [(Work::Check.key(), one)].into();
    notes.save(&all).unwrap();
    assert_eq!(FileNotes::new(&path).load().unwrap(), all);
    let text = std::fs::read_to_string(&path).unwrap();
    for damaged in
        [&text[..text.len() / 2], "", "[1]", &text.replace("\"version\": 1", "\"version\": 2")]
    {
        std::fs::write(&path, damaged).unwrap();
        assert!(notes.load().unwrap().is_empty(), "{damaged}");
    }
    notes.save(&all).unwrap();
    assert_eq!(notes.load().unwrap(), all);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    assert!(FileNotes::new(folder.path()).load().is_err(), "what cannot be read is no empty file");
}
