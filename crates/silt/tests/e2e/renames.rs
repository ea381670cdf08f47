//! Renaming and removing series, and tags of snapshots that exist.

use crate::kit::{Place, Run, changed, disk};

/// The series of all listed snapshots.
fn listed(place: &Place, arguments: &[&str]) -> Vec<String> {
    let run = place.silt(&[&["snapshots", "--json"], arguments].concat()).exits(0);
    let name = |message: serde_json::Value| message["series"].as_str().unwrap().to_owned();
    run.messages().into_iter().map(name).collect()
}

#[test]
fn a_renamed_series_is_found_by_either_name_and_shown_by_the_new_one() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "web1", &image]).exits(0);
    place.silt(&["backup", "db1", &image]).exits(0);
    place.silt(&["rename", "web1", "www"]).exits(0).says("Series web1 is now shown as www");
    assert_eq!(listed(&place, &[]), ["db1", "www"]);
    let mut content = disk(1, 8);
    for name in ["www", "web1"] {
        let mut series = listed(&place, &[name]);
        series.dedup();
        assert_eq!(series, ["www"]);
        let snapshot = format!("{name}@latest");
        place.silt(&["show", &snapshot]).exits(0).says("www (its own name is web1)");
        place.silt(&["restore", &snapshot, "out.raw", "--force"]).exits(0).says("(www, ");
        assert!(place.read("out.raw") == content);
        for command in ["check", "stats", "status", "reclaim", "sweep"] {
            let run = place.silt(&[command, name]).exits(0);
            assert!(!run.out.contains("web1"), "{command}: {}", run.out);
        }
        // The same series goes on, whatever it is called.
        content = changed(&content, name.len());
        place.write("a.raw", &content);
        let made = place.silt(&["backup", name, &image, "--json"]).exits(0).summary();
        assert_eq!(made["series"], "www");
        assert!(made["parent"].is_string(), "{made}");
    }
    let shown = place.silt(&["snapshots", "www", "--json"]).exits(0).messages();
    assert_eq!((shown.len(), &shown[0]["own_name"]), (3, &"web1".into()));
    place.silt(&["policy", "set", "www", "--keep-last", "1"]).exits(0);
    place.silt(&["policy", "show", "web1"]).exits(0).says("www: keep last 1");
    place.silt(&["forget", "--yes"]).exits(0).says("Deleted 2 snapshots of www");
    place
        .write("fleet.toml", format!("[series.www]\nvolumes = {{ a = \"{image}\" }}\n").as_bytes());
    place.silt(&["backup", "--fleet", "fleet.toml"]).exits(0).says("Made snapshot of www");
    place.silt(&["backup", "--all"]).exits(0).says("Made snapshot of www");
    assert_eq!(listed(&place, &["www"]).len(), 3);
    // Nobody else can have one of its names, and it can have its own again.
    place.silt(&["rename", "db1", "www"]).exits(1).says("is shown as 'www' already");
    place.silt(&["rename", "db1", "web1"]).exits(1).says("'web1' exists already");
    place.silt(&["rename", "db1", "a/b"]).exits(1).says("not allowed");
    place.silt(&["rename", "nobody", "x"]).exits(1).says("nobody");
    let renamed = place.silt(&["rename", "www", "web1", "--json"]).exits(0).messages();
    assert_eq!((&renamed[0]["before"], &renamed[0]["series"]), (&"www".into(), &"web1".into()));
    place.silt(&["show", "www@latest"]).exits(1).says("there are: db1, web1");
    place.silt(&["rename", "db1", "www"]).exits(0);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn only_who_may_delete_can_rename_remove_and_tag() {
    let place = Place { folder: tempfile::tempdir().unwrap() };
    let admin = |arguments: &[&str]| {
        Run::of(place.command().env("SILT_ADMIN_PASSWORD", "boss").args(arguments))
    };
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1"];
    admin(&[&["init", "--append-only"][..], &cheap].concat()).exits(0);
    let image = place.write("a.raw", &disk(1, 4));
    place.silt(&["backup", "web1", &image]).exits(0);
    let changes: [&[&str]; 4] = [
        &["rename", "web1", "www"],
        &["remove", "web1", "--yes"],
        &["tag", "add", "web1@latest", "x"],
        &["tag", "remove", "web1@latest", "x"],
    ];
    for change in changes {
        place.silt(change).exits(13).says("administrator's password");
    }
    place.write("host", b"of the host");
    let file = place.text("host");
    let key = |series: &str| {
        let add = ["key", "add", "--write-only", "--series", series, "--new-password-file", &file];
        admin(&[&add[..], &cheap].concat()).exits(0);
    };
    key("web1");
    let host = |arguments: &[&str]| {
        Run::of(place.command().env("SILT_PASSWORD", "of the host").args(arguments))
    };
    for change in changes {
        host(change).exits(13).says("administrator's password");
        let mut with_both = place.command();
        with_both.env("SILT_PASSWORD", "of the host").env("SILT_ADMIN_PASSWORD", "boss");
        Run::of(with_both.args(change)).exits(13).says("this key is write-only");
    }
    admin(changes[0]).exits(0);
    // The host goes on under either name.
    for name in ["web1", "www"] {
        let made = host(&["backup", name, &image, "--json"]).exits(0).summary();
        assert!(made["parent"].is_string() && made["series"] == "www", "{made}");
    }
    assert_eq!(listed(&place, &[]).len(), 3);
    // A key for a name would make another series of that name.
    key("later");
    admin(&["rename", "www", "later"]).exits(1).says("may write a series 'later'");
    key("www");
    let keys = place.silt(&["key", "list", "--json"]).exits(0).messages();
    let of_www = keys.iter().filter(|key| key["series"][0] == "web1").count();
    assert_eq!(of_www, 2, "a key is for the series, not for the name that is shown");
    place.silt(&["check", "--read-data"]).exits(0);
}

#[test]
fn a_removed_series_can_be_brought_back_and_alarms_nobody() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["backup", "kept", &image]).exits(0);
    let would = place.silt(&["remove", "vm", "--dry-run", "--json"]).exits(0).messages();
    assert_eq!(would[0]["message_type"], "removed");
    assert!(would[0]["freed_now_bytes"].as_u64().unwrap() > 1 << 20, "{would:?}");
    assert_eq!(listed(&place, &["vm"]).len(), 2);
    place.silt(&["remove", "vm"]).exits(13).says("--yes");
    place.silt(&["protect", "vm@latest"]).exits(0);
    place.silt(&["remove", "vm", "--yes"]).exits(13).says("silt unprotect");
    place.silt(&["unprotect", "vm@latest"]).exits(0);
    place.silt(&["remove", "vm", "--yes"]).exits(0).says("Deleted 2 snapshots of vm");
    assert_eq!(listed(&place, &[]), ["kept"]);
    place.silt(&["status"]).exits(0).says("removed");
    place.silt(&["status", "vm"]).exits(20).says("no good snapshot");
    let deleted = place.silt(&["snapshots", "--deleted", "--json"]).exits(0).messages();
    for message in deleted {
        place.silt(&["undelete", message["id"].as_str().unwrap()]).exits(0);
    }
    assert_eq!(listed(&place, &["vm"]).len(), 2);
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(0);
    assert!(place.read("out.raw") == disk(1, 8));
    place.silt(&["remove", "vm", "--yes"]).exits(0);
    place.silt(&["reclaim"]).exits(0);
    place.silt(&["status"]).exits(0).says("removed");
    place.silt(&["remove", "vm"]).exits(0).says("has no snapshots");
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn tags_are_added_and_removed_later() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let id = |run: Run| run.exits(0).summary()["short_id"].as_str().unwrap().to_owned();
    let first = id(place.silt(&["backup", "vm", &image, "--tag", "old", "--json"]));
    let second = id(place.silt(&["backup", "vm", &image, "--json"]));
    place.silt(&["tag", "add", "vm@latest", "new", "tested"]).exits(0).says("now new, tested");
    place.silt(&["tag", "add", "-s", &first, "-s", &second, "kept"]).exits(0);
    let removed = place.silt(&["tag", "remove", &first, "old", "--json"]).exits(0).messages();
    assert_eq!((&removed[0]["tags"][0], &removed[0]["changed"]), (&"kept".into(), &true.into()));
    place.silt(&["tag", "remove", &first, "old"]).exits(0).says("still kept");
    place.silt(&["tag", "add", "vm@latest"]).exits(2).says("at least one tag");
    place.silt(&["tag", "add", "vm@latest", ""]).exits(1).says("1 to 255 bytes");
    place.silt(&["snapshots"]).exits(0).says("new,tested,kept");
    place.silt(&["forget", "--keep-tag", "tested", "--yes"]).exits(0).says("Deleted 1 snapshot");
    place.silt(&["check"]).exits(0);
}

#[test]
fn listings_are_filtered() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    for (series, tag) in [("a", "x"), ("a", "y"), ("a", "x"), ("b", "y")] {
        place.silt(&["backup", series, &image, "--tag", tag]).exits(0);
    }
    let all = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let host = all[0]["host"].as_str().unwrap().to_owned();
    let count = |arguments: &[&str]| listed(&place, arguments).len();
    assert_eq!(count(&["--tag", "x"]), 2);
    assert_eq!(count(&["--tag", "x", "--tag", "y"]), 4);
    assert_eq!(count(&["--tag", "x", "--latest", "1"]), 1);
    assert_eq!(listed(&place, &["--latest", "1"]), ["a", "b"]);
    assert_eq!(count(&["a", "--latest", "2"]), 2);
    assert_eq!((count(&["--host", &host]), count(&["--host", "nobody"])), (4, 0));
    assert_eq!((count(&["--newer-than", "1h"]), count(&["--older-than", "1h"])), (4, 0));
    assert_eq!((count(&["--newer-than", "0s"]), count(&["--older-than", "0s"])), (0, 4));
    let newest = place.silt(&["snapshots", "a", "--latest", "1", "--json"]).exits(0).messages();
    assert_eq!(newest[0]["id"], all[2]["id"]);
    place.silt(&["snapshots", "--tag", "z"]).exits(0).says("No snapshot matches");
    place.silt(&["snapshots", "--older-than", "soon"]).exits(2).says("not a length of time");
}
