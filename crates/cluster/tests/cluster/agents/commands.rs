//! What agents do on command, and what they refuse.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use silt_cluster::{AgentOptions, Allowed, Bus, Name, Remote, Work};
use silt_format::{ErrorKind, Result};
use silt_repository::keys::KeyAccess;

use super::stage::{
    Group, HOUR_NS, HostEnv, Luck, MINUTE_NS, READS, SECOND_NS, Secret, TICK_NS, WRITES, backup,
};
use crate::between::{Ask, Between};
use crate::conformance::name;

fn group() -> Group {
    let check = silt_cluster::Task { work: Work::Check, ..backup("", "Sun 23:00") };
    let tasks = |_| vec![backup("db", "Sun 22:00"), backup("files", ""), check.clone()];
    let group = Group::new(2, tasks);
    group.run_for(30 * SECOND_NS);
    group
}

#[test]
fn a_backup_on_command_begins_whatever_was_done() {
    let group = group();
    let remote = group.remote(0, &group.messages);
    for count in 1..=2 {
        let accepted = remote.backup("db", false).unwrap();
        assert_eq!(accepted.key, Work::Backup { series: "db".to_owned() }.key());
        assert!(!accepted.was_running);
        let status = remote.status().unwrap();
        assert!(status.tasks.iter().any(|task| task.key == accepted.key && task.is_asked));
        group.run_for(5 * MINUTE_NS);
        assert_eq!((group.hosts[0].hand.starts(), group.hosts[1].hand.starts()), (count, 0));
        let last = group.hosts[0].agent.status().tasks.into_iter();
        let last = last.filter_map(|task| task.last).max_by_key(|last| last.at_ns).unwrap();
        assert!(last.since_ns >= accepted.at_ns, "whoever asked knows its run by the time");
    }
    assert!(group.hosts[0].hand.ran.lock().unwrap().iter().all(|ran| ran.due_ns.is_none()));
    remote.backup("check", false).unwrap();
    group.run_for(5 * MINUTE_NS);
    assert_eq!(group.began("check").len(), 1, "other tasks are named by their keys");
}

#[test]
fn a_command_waits_for_room_unless_it_is_to_begin_now() {
    let group = group();
    let remote = group.remote(0, &group.messages);
    group.hosts[0].takes(HOUR_NS);
    remote.backup("db", false).unwrap();
    group.run_for(MINUTE_NS);
    remote.backup("files", false).unwrap();
    group.run_for(10 * MINUTE_NS);
    assert_eq!(group.hosts[0].hand.going(), 1);
    assert!(remote.backup("db", true).unwrap().was_running);
    remote.backup("files", true).unwrap();
    group.run_for(MINUTE_NS);
    assert_eq!(group.hosts[0].hand.going(), 2);
    assert_eq!(group.began("db").len(), 1, "it is not begun twice");
    // What was asked for is not repeated if it fails: whoever asked can ask again.
    group.hosts[0].luck(Luck::Fails);
    group.run_for(3 * HOUR_NS);
    assert_eq!(group.began("files").len(), 1);
}

#[test]
fn a_cancelled_run_is_begun_again_when_it_is_due_again() {
    let group = Group::new(1, |_| vec![backup("db", "*:00"), backup("files", "")]);
    group.hosts[0].luck(Luck::Hangs);
    group.run_for(90 * MINUTE_NS);
    let remote = group.remote(0, &group.messages);
    remote.backup("files", false).unwrap();
    assert!(!remote.cancel("files").unwrap().was_running, "it waits for room");
    let error = remote.cancel("files").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("'files' is not running"), "{error}");
    let key = Work::Backup { series: "db".to_owned() }.key();
    assert!(remote.cancel(key.as_str()).unwrap().was_running);
    group.hosts[0].luck(Luck::Succeeds);
    group.run_for(29 * MINUTE_NS);
    assert_eq!(group.began("db"), [(0, 3605)]);
    group.run_for(HOUR_NS);
    assert_eq!(group.began("db").len(), 2);
}

#[test]
fn an_agent_refuses_what_its_settings_do_not_allow() {
    let allowed = Allowed { backup: false, cancel: false, round: true };
    let group = Group::with(
        1,
        |_| vec![backup("db", "*:00")],
        |options| AgentOptions { allowed, ..options },
    );
    group.hosts[0].luck(Luck::Hangs);
    group.run_for(HOUR_NS + MINUTE_NS);
    let remote = group.remote(0, &group.messages);
    let denied = |error: silt_format::Error, entry: &str| {
        assert_eq!(error.kind(), ErrorKind::Denied);
        let wanted = format!("'web0' refuses: its setting 'allow' does not contain \"{entry}\"");
        assert!(error.to_string().contains(&wanted), "{error}");
    };
    denied(remote.backup("db", true).unwrap_err(), "backup");
    denied(remote.cancel("db").unwrap_err(), "cancel");
    let unknown = remote.backup("other", false).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("'other' is none of its tasks"), "{unknown}");
    assert_eq!(remote.status().unwrap().name, name("web0"));
    group.run_for(MINUTE_NS);
    assert_eq!((group.hosts[0].hand.starts(), group.hosts[0].hand.going()), (1, 1));
}

#[test]
fn only_keys_that_read_may_command() {
    let group = group();
    let writer = group.secret.messages_of_writer("*");
    let error = group.remote(0, &writer).backup("db", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("only keys that read data"), "{error}");
    assert!(group.remote(0, &writer).status().is_err());
    let question = br#"{"question":"hello","reply":5}"#;
    let answer = ask(&group, &writer.seal(0, question).unwrap());
    let answer = String::from_utf8(writer.open(5, &answer).unwrap().plain).unwrap();
    assert!(answer.contains("not-full") && !answer.contains("number"), "{answer}");
    // Not even with a number that somebody else has got.
    let number = hello(&group, &group.messages);
    let command = br#"{"question":"backup","series":"db","now":true}"#;
    let answer = ask(&group, &writer.seal(number, command).unwrap());
    let answer = writer.open(number, &answer).unwrap().plain;
    assert!(String::from_utf8(answer).unwrap().contains("not-full"));
    let stranger = Secret::new(&group.clock, 99);
    let error = group.remote(0, &stranger.messages()).backup("db", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(group.hosts[0].agent.status().unreadable > 0);
    group.run_for(MINUTE_NS);
    assert_eq!(group.hosts[0].hand.starts(), 0);
}

fn ask(group: &Group, question: &[u8]) -> Vec<u8> {
    let service = name("agent-web0");
    group.local.ask(&service, question, Duration::ZERO).unwrap().unwrap()
}

/// Gets a number for a command.
fn hello(group: &Group, messages: &silt_cluster::Messages) -> u64 {
    let hello = messages.seal(0, br#"{"question":"hello","reply":5}"#).unwrap();
    let answer = messages.open(5, &ask(group, &hello)).unwrap().plain;
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    answer["number"].as_u64().unwrap()
}

#[test]
fn a_key_that_was_removed_commands_for_ten_minutes_at_most() {
    let mut group = group();
    let id = group.secret.add_key(&KeyAccess::full());
    let removed = group.secret.messages_opened_by(WRITES);
    group.messages = group.secret.messages_opened_by(READS);
    // From here on it is the agent of another process.
    group.hosts[0].restart();
    group.run_for(MINUTE_NS);
    group.remote(0, &removed).backup("db", false).unwrap();
    group.secret.remove_key(id);
    group.run_for(10 * MINUTE_NS);
    let error = group.remote(0, &removed).backup("db", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn a_command_is_obeyed_once_and_soon() {
    let group = group();
    let messages = &group.messages;
    let command = br#"{"question":"backup","series":"db","now":true}"#;
    let is_stale = |number: u64, sealed: &[u8]| {
        let answer = messages.open(number, &ask(&group, sealed)).unwrap().plain;
        String::from_utf8(answer).unwrap().contains("stale")
    };
    let number = hello(&group, messages);
    let sealed = messages.seal(number, command).unwrap();
    // Garbage under the number does not use it up.
    let mut changed = sealed.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(ask(&group, &changed).is_empty());
    assert!(!is_stale(number, &sealed));
    assert!(is_stale(number, &sealed), "it was recorded and repeated");
    let number = hello(&group, messages);
    group.clock.pass(61 * SECOND_NS);
    assert!(is_stale(number, &messages.seal(number, command).unwrap()));
    let first = hello(&group, messages);
    let numbers: Vec<u64> = (0..64).map(|_| hello(&group, messages)).collect();
    assert!(is_stale(first, &messages.seal(first, command).unwrap()), "there are 64 at most");
    assert!(!is_stale(numbers[0], &messages.seal(numbers[0], command).unwrap()));
    for invented in [1, 77] {
        assert!(is_stale(invented, &messages.seal(invented, command).unwrap()));
    }
    let plain = messages.seal(0, command).unwrap();
    assert!(is_stale(0, &plain), "a command without a number");
    group.run_for(2 * MINUTE_NS);
    assert_eq!(group.hosts[0].hand.starts(), 1);
}

/// Answers with what was answered before.
#[derive(Default)]
struct Parrot {
    answers: Mutex<Vec<Vec<u8>>>,
    repeats: std::sync::atomic::AtomicBool,
}

impl Ask for Parrot {
    fn ask(
        &self,
        bus: &dyn Bus,
        service: &Name,
        question: &[u8],
        patience: Duration,
    ) -> Result<Option<Vec<u8>>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.repeats.load(Relaxed) {
            return Ok(Some(answers.remove(0)));
        }
        let answer = bus.ask(service, question, patience)?;
        answers.extend(answer.clone());
        Ok(answer)
    }
}

#[test]
fn an_answer_of_the_past_is_none() {
    let group = group();
    let parrot = Arc::new(Between { bus: group.bus(), ask: Parrot::default() });
    let env = HostEnv::new(&group.clock, 5);
    let remote =
        Remote::new(Arc::clone(&parrot) as _, group.messages.clone(), env as _, name("web0"));
    remote.backup("db", false).unwrap();
    parrot.ask.repeats.store(true, Relaxed);
    let error = remote.backup("db", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("is not its own"), "{error}");
    let nobody = Remote::new(
        group.bus(),
        group.messages.clone(),
        HostEnv::new(&group.clock, 6) as _,
        name("nobody"),
    );
    let error = nobody.status().unwrap_err();
    assert!(error.to_string().contains("'nobody' does not answer"), "{error}");
    group.run_for(TICK_NS);
}
