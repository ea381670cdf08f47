//! What a user meets every day: help, silence, progress, and bytes to decide by.

use crate::kit::{Place, changed, disk};

#[test]
fn help_has_topics() {
    let place = Place::new();
    let page = |words: &[&str]| place.silt(&[&["help"], words].concat()).exits(0).out;
    assert!(page(&["options"]).contains("--limit-read <RATE>"));
    let buckets = page(&["buckets"]);
    assert!(buckets.contains("SILT_S3_LOCK_MODE") && buckets.contains("--cache-dir <FOLDER>"));
    assert!(page(&["environment"]).contains("SILT_PASSWORD_COMMAND"));
    assert!(page(&["fleet"]).contains("[series.web1]"));
    assert!(page(&["key", "add"]).contains("--write-only"));
    assert!(page(&[]).contains("Exit status"));
    place.silt(&["help", "nothing"]).exits(2).says("'nothing' is neither a command nor");
    let short = place.silt(&["check", "--help"]).exits(0).out;
    assert!(short.lines().count() <= 40 && !short.contains("--s3-prices"), "{short}");
    // What is not shown still works.
    place.silt(&["snapshots", "--no-cache", "--cache-size", "7", "--connections", "3"]).exits(0);
    let mut command = place.command();
    command.env("SILT_S3_CONNECTIONS", "many").args(["snapshots"]);
    crate::kit::Run::of(&mut command).exits(0);
}

#[test]
fn quiet_prints_nothing_on_success() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    let fleet = format!("[series.b]\nvolumes = {{ root = \"{image}\" }}\n");
    place.write("fleet.toml", fleet.as_bytes());
    place.write("new", b"another");
    let commands: &[&[&str]] = &[
        &["init", "-r", "other", "--kdf-memory", "8", "--kdf-passes", "1"],
        &["backup", "vm", "a.raw"],
        &["backup", "--fleet", "fleet.toml"],
        &["backup", "--all"],
        &["check", "--read-data"],
        &["restore", "vm@latest", "out.raw"],
        &["restore", "vm@latest", "folder/"],
        &["protect", "vm@latest"],
        &["unprotect", "vm@latest"],
        &["policy", "set", "vm", "--keep-last", "1"],
        &["forget", "--yes", "--keep-last", "1", "--reclaim"],
        &["delete", "vm@latest"],
        &["reclaim"],
        &["sweep"],
        &["optimize"],
        &["popular", "build", "--duplicates"],
        &["policy", "remove", "vm"],
        &["copies", "add", "copy"],
        &["copies", "heal"],
        &["copies", "remove", "copy"],
        &["key", "add", "--new-password-file", "new", "--kdf-memory", "8", "--kdf-passes", "1"],
    ];
    for command in commands {
        let run = place.silt(&[command, &["--quiet"][..]].concat()).exits(0);
        assert_eq!((run.out.as_str(), run.err.as_str()), ("", ""), "{command:?}");
    }
    // What is asked for is printed, and what goes wrong.
    place.silt(&["-q", "snapshots"]).exits(0).says("b");
    place.silt(&["-q", "delete", "b@latest", "--dry-run"]).exits(0).says("Would delete");
    place.silt(&["-q", "delete", "nobody@latest"]).exits(1).says("nobody");
    let warned = place.silt(&["-q", "backup", "vm", "x=a.raw", "--forget"]).exits(0);
    assert!(warned.out.is_empty() && warned.err.contains("warning"), "{}", warned.err);
}

/// The last report of an activity, and the greatest total of the run that was told.
fn last_status(messages: &[serde_json::Value], operation: &str) -> (serde_json::Value, u64) {
    let mut statuses = messages.iter().filter(|message| message["message_type"] == "status");
    // What counts objects has no bytes.
    let in_bytes = statuses.clone().filter(|it| it.get("done_objects").is_none());
    let total = in_bytes.map(|it| it["run_total_bytes"].as_u64().unwrap()).max().unwrap();
    let last = statuses.rfind(|it| it["operation"] == operation).unwrap();
    (last.clone(), total)
}

#[test]
fn progress_is_that_of_the_whole_run() {
    let place = Place::new();
    for (number, mib) in [(1, 4), (2, 10), (3, 10)] {
        place.write(&format!("{number}.raw"), &disk(number, mib));
    }
    let slow = ["--json", "--limit-read", "8"];
    let backup = ["backup", "vm", "a=1.raw", "b=2.raw", "c=3.raw"];
    let run = place.silt(&[&backup[..], &slow].concat()).exits(0);
    let (last, total) = last_status(&run.messages(), "backup");
    assert_eq!((total, &last["part"], &last["parts"]), (24 << 20, &3.into(), &3.into()), "{last}");
    assert!(last["run_done_bytes"].as_u64().unwrap() > 14 << 20, "{last}");
    assert_eq!(last["total_bytes"], 10 << 20, "of the volume");
    let rate = last["bytes_per_s"].as_u64().unwrap();
    assert!(((1 << 20)..(64 << 20)).contains(&rate) && last["left_s"].is_u64(), "{last}");

    let restore = ["restore", "vm@latest", "out/", "--json", "--limit-write", "8"];
    let (last, total) = last_status(&place.silt(&restore).exits(0).messages(), "restore");
    assert_eq!((total, &last["parts"]), (24 << 20, &3.into()), "{last}");

    let fleet =
        "[series.x]\nvolumes = { disk = \"2.raw\" }\n[series.y]\nvolumes = { disk = \"3.raw\" }";
    place.write("fleet.toml", fleet.as_bytes());
    let rounds = ["backup", "--fleet", "fleet.toml", "--rounds", "2"];
    let run = place.silt(&[&rounds[..], &slow].concat()).exits(0);
    let (last, total) = last_status(&run.messages(), "scan");
    assert_eq!((total, &last["part"], &last["parts"]), (40 << 20, &2.into(), &2.into()), "{last}");

    let check = place.silt(&["check", "--read-data", "--json", "--limit-read", "2"]).exits(0);
    let stored: u64 = place.objects("containers").iter().map(|o| o.metadata().unwrap().len()).sum();
    let (last, total) = last_status(&check.messages(), "check");
    assert_eq!(total, stored, "{last}");
    assert!(last["parts"].as_u64().unwrap() >= 2, "{last}");
}

#[test]
fn a_dry_run_says_how_many_bytes_are_freed_now_and_later() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 12));
    for seed in 2..5 {
        place.silt(&["backup", "vm", &image]).exits(0);
        std::fs::write(&image, disk(seed, 12)).unwrap();
    }
    place.silt(&["policy", "set", "vm", "--keep-last", "1", "--keep-deleted", "7d"]).exits(0);
    let deleted = |arguments: &[&str]| {
        let messages =
            place.silt(&[arguments, &["--dry-run", "--json"]].concat()).exits(0).messages();
        messages.into_iter().find(|message| message["message_type"] == "deleted").unwrap()
    };
    let bytes = |value: &serde_json::Value| value.as_u64().unwrap();
    for arguments in [&["forget"][..], &["delete", "vm@latest"]] {
        let would = deleted(arguments);
        assert_eq!(would["freed_now_bytes"], 0, "{would}");
        assert!(bytes(&would["freed_later_bytes"]) > 2 << 20, "{would}");
    }
    place.silt(&["forget", "--dry-run"]).exits(0).says("more once deleted snapshots can no longer");
    let later = bytes(&deleted(&["forget"])["freed_later_bytes"]);
    place.silt(&["forget", "--yes"]).exits(0);
    let would = place.silt(&["reclaim", "vm", "--dry-run", "--json"]).exits(0).summary();
    // Snapshots and summaries go with the containers; the first forecast counts these alone.
    let all_later = bytes(&would["later_bytes"]);
    assert_eq!(would["freed_bytes"], 0);
    assert!(all_later >= later && all_later < later + (64 << 10), "{all_later}, not {later}");
    place
        .silt(&["reclaim", "--dry-run"])
        .exits(0)
        .says("more once deleted snapshots can no longer");
    let all = ["reclaim", "vm", "--keep-deleted", "0", "--json"];
    let size = || place.objects("").iter().map(|object| object.metadata().unwrap().len()).sum();
    let before: u64 = size();
    let freed = bytes(&place.silt(&all).exits(0).summary()["freed_bytes"]);
    assert!(freed.abs_diff(all_later) < 64 << 10, "{freed}, not {all_later}");
    assert!((before - size()).abs_diff(freed) < 1 << 20, "it counts each object once");
    let would = place.silt(&["reclaim", "vm", "--dry-run", "--json"]).exits(0).summary();
    assert_eq!((&would["freed_bytes"], &would["later_bytes"]), (&0.into(), &0.into()));
}

#[test]
fn a_plan_of_sharing_says_how_many_bytes_it_saves() {
    let place = Place::new();
    let common = disk(1, 12);
    for number in 0..3 {
        let disk = [common.as_slice(), &changed(&disk(10 + number, 2), 1)].concat();
        let file = place.write(&format!("vm{number}.raw"), &disk);
        place.silt(&["backup", &format!("vm{number}"), &file]).exits(0);
    }
    let size = || place.objects("containers").iter().map(|o| o.metadata().unwrap().len()).sum();
    let before: u64 = size();
    let plan = place.silt(&["popular", "plan", "--duplicates", "--json"]).exits(0).messages();
    let plan = plan.into_iter().find(|message| message["message_type"] == "popular").unwrap();
    let freed = plan["estimated_freed_bytes"].as_u64().unwrap();
    let shared = plan["estimated_shared_bytes"].as_u64().unwrap();
    place.silt(&["popular", "plan", "--duplicates"]).exits(0).says("less in all");
    place.silt(&["popular", "build", "--duplicates"]).exits(0);
    let saved = before - size();
    let told = freed - shared;
    assert!(told > saved / 2 && told < saved * 2, "{told} were told, {saved} saved");
}

#[test]
fn a_log_has_what_happened_and_when() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let log = ["--log-file", "silt.log"];
    place.silt(&[&["backup", "vm", &image, "-q"][..], &log].concat()).exits(0);
    place.silt(&[&["delete", "nobody@latest", "--json"][..], &log].concat()).exits(1);
    let text = String::from_utf8(place.read("silt.log")).unwrap();
    for part in ["opened repository", "Made snapshot of vm", "exit status 0 after", "nobody"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for line in text.lines() {
        let (time, message) = line.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z') && !message.is_empty(), "{line}");
    }
    place.silt(&["snapshots", "--log-file", "none/x.log"]).exits(1).says("none/x.log");
    let said = place.silt(&["snapshots", "-v"]).exits(0).err;
    assert!(said.contains("opened repository") && said.contains("with key"), "{said}");
    assert_eq!(place.silt(&["snapshots"]).exits(0).err, "");
    place.silt(&["snapshots", "-v", "-q"]).exits(2);
}

#[test]
fn commands_prepare_a_single_backup_and_clean_up() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let backup = |before: &str, after: &str| {
        place.silt(&["backup", "vm", "copy.raw", "--before", before, "--after", after])
    };
    let before = format!("cp {image} copy.raw; env > before");
    backup(&before, "rm copy.raw; echo $SILT_SERIES > after").exits(0);
    assert!(!place.path("copy.raw").exists());
    assert_eq!(place.read("after"), b"vm\n");
    let environment = String::from_utf8(place.read("before")).unwrap();
    assert!(environment.contains("SILT_SERIES=vm") && !environment.contains("secret"));
    // Nothing to open: the backup fails, and the second command runs all the same.
    backup("true", "echo again > after").exits(1).says("copy.raw");
    assert_eq!(place.read("after"), b"again\n");
    backup("exit 3", "echo never > after").exits(1).says("`before` failed");
    assert_eq!(place.read("after"), b"again\n");
    backup(&before, "exit 4").exits(1).says("`after` failed");
    assert_eq!(place.silt(&["snapshots", "--json"]).exits(0).messages().len(), 2);
    place.silt(&["backup", "--all", "--before", "true"]).exits(2);
}

#[test]
fn a_key_says_what_it_is_for() {
    let place = Place::new();
    place.write("new", b"another");
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1", "--new-password-file", "new"];
    let add = |more: &[&str]| place.silt(&[&["key", "add"], more, &cheap].concat());
    add(&["--label", "office safe"]).exits(0);
    place.silt(&["key", "list"]).exits(0).says("office safe");
    let keys = place.silt(&["key", "list", "--json"]).exits(0).messages();
    let mut labels: Vec<_> = keys.iter().map(|key| key["label"].as_str().unwrap()).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["", "office safe"]);
    add(&["--label", &"x".repeat(256)]).exits(2).says("255 bytes");
    // The next password of a key is for the same.
    place.write("next", b"third");
    let mut command = place.command();
    command.env("SILT_PASSWORD", "another").args(["key", "passwd", "--new-password-file", "next"]);
    crate::kit::Run::of(command.args(&cheap[..4])).exits(0);
    place.silt(&["key", "list"]).exits(0).says("office safe");
}
