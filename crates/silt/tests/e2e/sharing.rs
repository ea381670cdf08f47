//! What machines have in common, as a user shares it.

use crate::kit::{self, Place};

fn popular(place: &Place, arguments: &[&str]) -> serde_json::Value {
    let run = place.silt(&[&["popular"], arguments, &["--json"]].concat()).exits(0);
    let messages = run.messages();
    messages.into_iter().find(|message| message["message_type"] == "popular").unwrap()
}

#[test]
fn machines_that_have_much_in_common_store_it_once() {
    let place = Place::new();
    let common = kit::disk(1, 12);
    let disks: Vec<(String, Vec<u8>)> = (0..3)
        .map(|number| {
            let disk = [common.as_slice(), &kit::disk(10 + number, 2)].concat();
            let (name, file) = (format!("vm{number}"), format!("vm{number}.raw"));
            place.silt(&["backup", &name, &place.write(&file, &disk)]).exits(0);
            (name, disk)
        })
        .collect();
    let size = || place.objects("containers").iter().map(|o| o.metadata().unwrap().len()).sum();
    let before: u64 = size();
    let plan = popular(&place, &["plan", "--duplicates"]);
    assert_eq!(plan["chunks_by_series"].as_array().unwrap().len(), 3);
    assert_eq!(size(), before, "a plan writes nothing");
    place.silt(&["popular", "plan", "--share", "101"]).exits(2).says("between 0 and 100");
    let built = popular(&place, &["build", "--duplicates"]);
    assert_eq!(built["copied_chunks"], plan["chosen_chunks"]);
    let after: u64 = size();
    assert!(after * 2 < before, "{before} bytes became {after}");
    place.silt(&["stats"]).exits(0).says("(shared store)");
    for (name, disk) in &disks {
        let snapshot = format!("{name}@latest");
        place.silt(&["restore", &snapshot, &place.text("restored.raw"), "--force"]).exits(0);
        assert!(place.read("restored.raw") == *disk, "{name}");
    }
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    // Two machines go; what only they had in common goes with the next reclaim.
    for name in ["vm0", "vm1", "vm2"] {
        place.silt(&["delete", &format!("{name}@latest")]).exits(0);
    }
    place.silt(&["reclaim"]).exits(0).says("shared store: freed");
    let left: u64 = size();
    assert!(left * 10 < after, "{after} bytes became {left}");
}

#[test]
fn a_fleet_is_backed_up_in_rounds() {
    let place = Place::new();
    let common = kit::disk(1, 12);
    let mut fleet = "tags = [\"nightly\"]\n".to_owned();
    let mut disks = Vec::new();
    for number in 0..3 {
        let disk = [common.as_slice(), &kit::disk(10 + number, 2)].concat();
        let path = place.write(&format!("vm{number}.raw"), &disk);
        fleet += &["[series.vm", &number.to_string(), "]\nvolumes = { disk = \"", &path, "\" }\n"]
            .concat();
        disks.push(disk);
    }
    let file = place.write("fleet.toml", fleet.as_bytes());
    let run = place.silt(&["backup", "--fleet", &file, "--json"]).exits(0);
    let messages = run.messages();
    let round = messages.iter().find(|message| message["message_type"] == "round").unwrap();
    assert_eq!((&round["series"], &round["failed"]), (&3.into(), &0.into()), "{round}");
    assert!(round["shared_bytes"].as_u64().unwrap() > 4 << 20, "{round}");
    let stored: u64 = place.objects("containers").iter().map(|o| o.metadata().unwrap().len()).sum();
    let all: usize = disks.iter().map(Vec::len).sum();
    assert!(stored * 2 < all as u64, "{stored} bytes of {all}");
    for (number, disk) in disks.iter().enumerate() {
        let snapshot = format!("vm{number}@latest");
        place.silt(&["restore", &snapshot, &place.text("restored.raw"), "--force"]).exits(0);
        assert!(place.read("restored.raw") == *disk, "{snapshot}");
    }
    place.silt(&["snapshots"]).exits(0).says("nightly");
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    // All again, from where they were.
    place.silt(&["backup", "--all"]).exits(0).says("Round of 3 series");
    let run = place.silt(&["snapshots", "--json"]).exits(0);
    assert_eq!(run.messages().iter().filter(|m| m["message_type"] == "snapshot").count(), 6);

    // Another machine that shares the repository can't say which files of this one are opened.
    let secret = place.write("secret.raw", &kit::disk(9, 4));
    let elsewhere = |arguments: &[&str]| {
        let mut command = place.command();
        kit::Run::of(command.env("XDG_STATE_HOME", place.path("other")).args(arguments))
    };
    elsewhere(&["backup", "--all"]).exits(2).says("has not backed up any series");
    elsewhere(&["backup", "vm0", &format!("disk={secret}")]).exits(0);
    place.silt(&["backup", "--all"]).exits(0).says("Round of 3 series");
    let shown = place.silt(&["show", "vm0@latest", "--json"]).exits(0).messages();
    let source = shown[0]["volumes"][0]["source"].as_str().unwrap();
    assert!(source.ends_with("vm0.raw"), "{source}");
    for series in ["vm1", "vm2"] {
        place.silt(&["delete", &format!("{series}@latest")]).exits(0);
    }
    for _ in 0..2 {
        place.silt(&["delete", "vm0@latest"]).exits(0);
    }

    // A machine whose disk is gone is named; the others are backed up.
    std::fs::remove_file(place.text("vm1.raw")).unwrap();
    place.silt(&["backup", "--fleet", &file]).exits(1).says("'vm1' was not backed up");
    let run = place.silt(&["snapshots", "--json"]).exits(0);
    assert_eq!(run.messages().iter().filter(|m| m["message_type"] == "snapshot").count(), 8);
}

#[test]
fn commands_make_and_remove_what_a_round_reads() {
    let place = Place::new();
    let disk = kit::disk(1, 8);
    let (original, copy) = (place.write("vm.raw", &disk), place.text("copy.raw"));
    let fleet = format!(
        "[series.vm]\nbefore = \"cp {original} {copy}\"\nvolumes = {{ disk = \"{copy}\" }}\n\
         after = \"rm {copy}; echo $SILT_SERIES >> {}\"\n",
        place.text("log")
    );
    let file = place.write("fleet.toml", fleet.as_bytes());
    place
        .silt(&["rounds", "plan", &file, "--time-limit", "1h"])
        .exits(0)
        .says("1 round of 1 series");
    for options in [&["--spool"][..], &["--rounds", "3"]] {
        let run = place.silt(&[&["backup", "--fleet", &file], options].concat()).exits(0);
        run.says("volumes needed for");
        assert!(!std::path::Path::new(&copy).exists(), "it was removed");
        place.silt(&["restore", "vm@latest", &place.text("restored.raw"), "--force"]).exits(0);
        assert!(place.read("restored.raw") == disk);
    }
    assert_eq!(place.read("log"), b"vm\nvm\n");
    let plan = place.silt(&["rounds", "plan", &file, "--json"]).exits(0).messages();
    let planned = plan.iter().find(|message| message["message_type"] == "planned_round").unwrap();
    assert_eq!(planned["series"], serde_json::json!(["vm"]));
    assert_eq!(planned["expected_new_bytes"], 0, "nothing was new the last time: {planned}");

    // A command that fails is named, and nothing is backed up without it.
    let fleet = format!(
        "[series.vm]\nbefore = \"exit 7\"\nvolumes = {{ disk = \"{original}\" }}\n\
         after = \"touch {copy}\"\n"
    );
    let file = place.write("fleet.toml", fleet.as_bytes());
    place.silt(&["backup", "--fleet", &file]).exits(1).says("`before` failed: exit status: 7");
    assert!(!std::path::Path::new(&copy).exists(), "there was nothing to remove");
}

#[test]
fn a_fleet_file_that_is_wrong_is_refused_and_says_where() {
    let place = Place::new();
    let wrong = [
        ("", "missing field `series`"),
        ("[series]", "lists no series"),
        ("[series.a]\nvolumes = {}", "series 'a' has no volumes"),
        ("[series.a]\nvolume = { disk = \"x\" }", "line 2"),
        ("[series.a]\nvolumes = { disk = 1 }", "line 2"),
        ("tags = 1\n[series.a]\nvolumes = { disk = \"x\" }", "line 1"),
    ];
    for (text, message) in wrong {
        let file = place.write("fleet.toml", text.as_bytes());
        place.silt(&["backup", "--fleet", &file]).exits(2).says(message);
    }
    place.silt(&["backup", "--fleet", &place.text("none.toml")]).exits(1).says("none.toml");
    place.silt(&["backup"]).exits(2).says("name a series and its volumes");
    let file = place.write("fleet.toml", b"[series.a]\nvolumes = { disk = \"-\" }");
    place.silt(&["backup", "--fleet", &file]).exits(1).says("back it up alone");
}
