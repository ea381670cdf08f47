//! Several replicas of a profile, what they lack, and when they get it.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{Place, Run, can, faketime_library, finish, noise, tool};

const COST: [&str; 4] = ["--kdf-memory", "8", "--kdf-passes", "1"];

/// A place with two replicas in its profile, of which `near` exists and `far` does not.
fn place_with_replicas(more: &str) -> Place {
    let place = Place::new();
    place.write("password", b"secret\n");
    place.write("near.password", b"theirs\n");
    let file = format!(
        "[profiles.default]\nrepository = \"repository\"\npassword-file = \"password\"\n\
         [profiles.default.replicas.near]\nto = \"near\"\npassword-file = \"near.password\"\n\
         prefix = \"a-\"\nseries = [\"web*\", \"db1\"]\n{more}\n\
         [profiles.default.replicas.far]\nto = \"exec:exit 4\"\n"
    );
    place.write("silt.toml", file.as_bytes());
    place.write("disk.raw", &noise(1, 3 << 20));
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    place
}

fn silt(place: &Place, arguments: &[&str]) -> Run {
    let mut command = place.command();
    command.env_remove("SILT_REPOSITORY").env_remove("SILT_PASSWORD");
    command.current_dir("/").env("SILT_CONFIG", place.path("silt.toml"));
    Run::of(command.args(arguments))
}

/// The server of the replica `near`, behind another program.
fn line(place: &Place, before: &str) -> String {
    let there = place.text("near");
    let program = crate::PROGRAM;
    format!(
        "exec:{before}SILT_PASSWORD=theirs SILT_REPOSITORY='{there}' SILT_CONFIG=/dev/null \
         {program} serve replica"
    )
}

/// What `silt status` says of a replica.
fn status_of(place: &Place, replica: &str) -> Value {
    let run = silt(place, &["status", "--json"]);
    let found = run.messages().into_iter();
    let mut found = found.filter(|it| it["message_type"] == "replica_status");
    let is = |it: &Value| it["replica"] == replica || it["destination"] == replica;
    found.find(is).unwrap_or_else(|| panic!("{}", run.printed()))
}

#[test]
fn a_replica_that_is_away_does_not_keep_the_others_waiting() {
    let place = place_with_replicas("");
    silt(&place, &["config", "check"]).exits(0);
    silt(&place, &["config", "show"]).exits(0).says("Replicas  far, near");
    // Nobody has made the replica yet.
    silt(&place, &["replicate", "--to", "near"]).exits(2).says("--init makes one");
    let before = status_of(&place, "near");
    assert_eq!(before["problems"], serde_json::json!(["never replicated"]));
    assert_eq!((&before["waiting"], &before["last_success"]), (&1.into(), &Value::Null));
    assert_eq!(before["bytes"], 3 << 20);
    let new = before["new_bytes"].as_u64().unwrap();
    assert!((3 << 20..3_300_000).contains(&new), "{new}");
    silt(&place, &[&["replicate", "--to", "near", "--init"], &COST[..]].concat()).exits(0);
    silt(&place, &["status"]).exits(20).says("replicas not up to date: far");
    place.silt(&["backup", "web2", "root=disk.raw"]).exits(0);
    place.silt(&["backup", "other", "root=disk.raw"]).exits(0);
    let run = silt(&place, &["replicate"]);
    assert_eq!(run.code, 1, "{}", run.printed());
    run.says("replica far: the command ended with exit status: 4");
    run.says("sent web2 as a-web2");
    run.says("Replicated 1 snapshot to near");
    let near = status_of(&place, "near");
    assert_eq!((&near["ok"], &near["waiting"]), (&true.into(), &0.into()), "{near}");
    let far = status_of(&place, "far");
    assert_eq!((&far["ok"], &far["waiting"]), (&false.into(), &3.into()), "{far}");
    assert!(far["error"].as_str().unwrap().contains("ended with exit status: 4"), "{far}");
    // What a replica takes is decided by the profile.
    silt(&place, &["replicate", "--to", "near", "other"]).exits(2).says("takes only the series");
    silt(&place, &["replicate", "other", "--dry-run"]).exits(1).says("ended with");
    silt(&place, &["replicate", "web1", "--to", "near", "--json"]).exits(0);
    // The profile's replicas are no replicas of another repository.
    let theirs = ["-r", &place.text("near"), "--password-file", &place.text("near.password")];
    silt(&place, &[&["status"], &theirs[..]].concat()).exits(0);
    silt(&place, &[&["replicate"], &theirs[..]].concat()).exits(2).says("no replica");
}

#[test]
fn the_backlog_is_what_the_next_replication_sends() {
    let place = place_with_replicas("tags = [\"keep\"]");
    silt(&place, &[&["replicate", "--to", "near", "--init"], &COST[..]].concat()).exits(0);
    assert_eq!(status_of(&place, "near")["waiting"], 0, "no snapshot has the tag");
    let mut disk = noise(1, 3 << 20);
    for (round, tag) in ["keep", "other", "keep"].iter().enumerate() {
        disk[round * 8192..][..4096].fill(9);
        place.write("disk.raw", &disk);
        place.silt(&["backup", "web1", "root=disk.raw", "--tag", tag]).exits(0);
    }
    place.silt(&["rename", "web1", "www"]).exits(0);
    let near = status_of(&place, "near");
    let told = (&near["waiting"], &near["series"][0]["series"], &near["bytes"]);
    assert_eq!(told, (&2.into(), &"web1".into(), &(6 << 20).into()), "{near}");
    let planned = silt(&place, &["replicate", "--to", "near", "--dry-run", "--json"]).exits(0);
    let planned = planned.messages();
    assert_eq!(planned.len(), 3, "{planned:?}");
    assert_eq!(planned[0]["time"], near["oldest_waiting"]);
    silt(&place, &["status", "--max-lag", "1h"]).exits(20).says("replicas not up to date: far");
}

#[test]
fn a_record_that_is_lost_makes_the_backlog_larger() {
    let place = place_with_replicas("");
    silt(&place, &[&["replicate", "--to", "near", "--init"], &COST[..]].concat()).exits(0);
    assert_eq!(status_of(&place, "near")["waiting"], 0);
    let ids = std::fs::read_dir(place.path("state/silt")).unwrap();
    let records = ids.flat_map(|id| std::fs::read_dir(id.unwrap().path().join("replicas")));
    let records: Vec<_> = records.flatten().map(|record| record.unwrap().path()).collect();
    assert_eq!(records.len(), 1);
    std::fs::write(&records[0], "{\"known\": 7}").unwrap();
    let near = status_of(&place, "near");
    assert_eq!((&near["waiting"], &near["problems"][0]), (&1.into(), &"never replicated".into()));
    silt(&place, &["replicate", "--to", "near"]).exits(0).says("Nothing to send to near");
    assert_eq!(status_of(&place, "near")["waiting"], 0);
    // One that the profile does not know is shown until it is forgotten.
    place.write(
        "silt.toml",
        b"[profiles.default]\nrepository = \"repository\"\npassword-file = \"password\"\n",
    );
    let to = place.text("near");
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    assert_eq!(status_of(&place, &to)["waiting"], 1);
    silt(&place, &["status"]).exits(0).says("waiting");
    let forget = ["replicate", "--to", &to, "--prefix", "a-", "--forget"];
    silt(&place, &forget).exits(0).says("Forgot the replica");
    silt(&place, &forget).exits(0).says("Nothing is recorded");
    assert!(!silt(&place, &["status"]).exits(0).printed().contains("REPLICA"));
}

#[test]
fn a_closed_window_begins_nothing() {
    let place = place_with_replicas("");
    // An hour that is not now.
    let hour: u32 = tool("date", &["-u", "+%H"]).parse().unwrap();
    let (begin, end) = ((hour + 12) % 24, (hour + 13) % 24);
    let window = format!("{begin:02}:00-{end:02}:00");
    silt(&place, &[&["replicate", "--to", "near", "--init"], &COST[..]].concat()).exits(0);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let closed = ["replicate", "--to", "near", "--window", &window];
    let run = silt(&place, &closed).exits(7);
    run.says(&format!("replica near: the window {window} is closed"));
    run.says(&format!("{begin:02}:00:00"));
    let told = silt(&place, &[&closed[..], &["--json"]].concat()).exits(7).messages();
    assert_eq!(told[0]["message_type"], "replication_postponed");
    assert_eq!((&told[0]["window"], &told[0]["replica"]), (&window.into(), &"near".into()));
    assert_eq!(status_of(&place, "near")["waiting"], 1);
    silt(&place, &["replicate", "--to", "near", "--window", "1-2"]).exits(2).says("22:00-06:00");
    let open = format!("{hour:02}:00-{:02}:00", (hour + 2) % 24);
    silt(&place, &["replicate", "--to", "near", "--window", &open]).exits(0);
    assert_eq!(status_of(&place, "near")["waiting"], 0);
}

#[test]
fn a_window_that_ends_stops_the_replication_and_the_next_one_goes_on() {
    if !can("faketime") {
        return;
    }
    let place = place_with_replicas("");
    let to = line(&place, "");
    let library = faketime_library();
    let at = |time: &str, arguments: &[&str]| {
        let mut command = place.command();
        command.env("LD_PRELOAD", &library).env("FAKETIME", format!("@{time}"));
        command.env("SILT_CONFIG", place.path("silt.toml"));
        Run::of(command.args(arguments))
    };
    let init = [&["replicate", "--to", "near", "--init"], &COST[..]].concat();
    at("2030-05-01 23:00:00", &init).exits(0);
    let disk = noise(5, 24 << 20);
    place.write("disk.raw", &disk);
    at("2030-05-01 23:30:00", &["backup", "web1", "root=disk.raw"]).exits(0);
    at("2030-05-01 23:31:00", &["backup", "web2", "root=disk.raw"]).exits(0);
    let send = ["replicate", "--to", &to, "--prefix", "a-", "--window", "22:00-06:00", "--json"];
    let thin = [&send[..], &["--limit-write", "1.1m"]].concat();
    let cut = at("2030-05-02 05:59:40", &thin).exits(7);
    let told = cut.messages();
    let outcomes: Vec<&str> = told.iter().filter_map(|it| it["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["postponed", "postponed"], "{}", cut.printed());
    assert_eq!(told.last().unwrap()["opens"], "2030-05-02T22:00:00Z");
    at("2030-05-02 12:00:00", &["status"]).exits(20).says("waiting");
    let rest = at("2030-05-02 22:00:00", &send).exits(0).messages();
    assert_eq!(rest.last().unwrap()["sent"], 2, "{rest:?}");
    // On a busy machine, messages on progress come first.
    let mut outcomes = rest.iter().filter(|it| it["outcome"].is_string());
    let sent_bytes = outcomes.find_map(|it| it["sent_bytes"].as_u64()).unwrap();
    assert!(sent_bytes < 24 << 20, "what has arrived is not sent again: {sent_bytes}");
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("near")).env("SILT_PASSWORD", "theirs");
    Run::of(command.args(["restore", "a-web2@latest", "back.raw"])).exits(0);
    assert!(place.read("back.raw") == disk);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a limit is measured")]
fn a_thin_line_is_limited_evenly_and_can_be_interrupted() {
    let place = place_with_replicas("");
    silt(&place, &[&["replicate", "--to", "near", "--init"], &COST[..]].concat()).exits(0);
    place.write("disk.raw", &noise(8, 1 << 20));
    place.silt(&["backup", "web2", "root=disk.raw"]).exits(0);
    // A shell that leaves its programs behind if it is killed.
    let to = line(&place, "tee seen | ");
    let begun = Instant::now();
    let child = place.start(&["replicate", "--to", &to, "--limit-write", "64k"]);
    while std::fs::metadata(place.path("seen")).map_or(0, |seen| seen.len()) < 96 << 10 {
        std::thread::yield_now();
    }
    tool("kill", &["-TERM", &child.id().to_string()]);
    finish(child).exits(130);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let to = line(&place, "");
    place.silt(&["replicate", "--to", &to, "web2", "--limit-write", "256k"]).exits(0);
    let seconds = begun.elapsed().as_secs_f64();
    assert!((3.9..12.0).contains(&seconds), "{seconds}");
}
