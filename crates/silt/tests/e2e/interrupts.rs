//! Signals at any moment, and two at once.

use crate::kit::{Place, changed, disk, finish, tool};

#[test]
fn signals_and_kills_leave_the_repository_whole() {
    let place = Place::new();
    let first = disk(1, 48);
    let image = place.write("a.raw", &first);
    place.silt(&["backup", "vm", &image]).exits(0);
    let mut adopted = 0;
    for (round, signal) in ["INT", "TERM", "KILL", "KILL", "INT", "KILL"].iter().enumerate() {
        let next = disk(10 + round as u64, 48);
        std::fs::write(&image, &next).unwrap();
        let child = place.start(&["backup", "vm", &image, "--limit-read", "40"]);
        let before = place.objects("containers").len();
        // Somewhere in the second half of the backup, when there is something to be used again.
        while place.objects("containers").len() == before {
            std::thread::yield_now();
        }
        tool("kill", &[&format!("-{signal}"), &child.id().to_string()]);
        let run = finish(child);
        let expected = if *signal == "KILL" { -1 } else { 130 };
        assert_eq!(run.code, expected, "{signal}: {}", run.err);
        place.silt(&["check", "--read-data"]).exits(0);
        let summary = place.silt(&["backup", "vm", &image, "--json"]).exits(0).summary();
        adopted += summary["adopted_containers"].as_u64().unwrap();
        place.silt(&["restore", "vm@latest", "out.raw", "--force"]).exits(0);
        assert!(place.read("out.raw") == next);
    }
    assert!(adopted >= 6, "each next backup uses what was uploaded: {adopted}");
}

#[test]
fn an_interrupted_restore_is_marked() {
    let place = Place::new();
    let bytes = disk(2, 48);
    let image = place.write("a.raw", &bytes);
    place.silt(&["backup", "vm", &image]).exits(0);
    let child = place.start(&["restore", "latest", "out.raw", "--limit-write", "8"]);
    while !place.path("out.raw.silt-partial").exists() {
        std::thread::yield_now();
    }
    tool("kill", &["-KILL", &child.id().to_string()]);
    finish(child);
    assert!(!place.path("out.raw").exists());
    place.silt(&["restore", "latest", "out.raw"]).exits(0);
    assert!(place.read("out.raw") == bytes);
    place.write("out.raw", &changed(&disk(3, 48), 1));
    let child = place.start(&["restore", "latest", "out.raw", "--in-place", "--limit-write", "8"]);
    while !place.read("out.raw").starts_with(b"SILTSTONE") {
        std::thread::yield_now();
    }
    tool("kill", &["-KILL", &child.id().to_string()]);
    finish(child);
    assert!(place.read("out.raw").starts_with(b"SILTSTONE"), "half a disk is marked");
    place.silt(&["restore", "latest", "out.raw", "--in-place"]).exits(0);
    assert!(place.read("out.raw") == bytes);
}

#[test]
fn a_second_backup_of_a_series_is_told_to_wait() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(4, 48));
    let child = place.start(&["backup", "vm", &image, "--limit-read", "24"]);
    while place.objects("state").is_empty() {
        std::thread::yield_now();
    }
    let busy = place.silt(&["backup", "vm", &image]);
    let other = place.silt(&["backup", "other", &image]);
    let first = finish(child);
    busy.exits(11).says("is being backed up or changed by process");
    other.exits(0);
    first.exits(0);
    place.silt(&["backup", "vm", &image]).exits(0);
}
