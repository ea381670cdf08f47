//! `silt backup --due-since`: a job that comes twice makes one snapshot.

use crate::agents::eventually;
use crate::kit::{Place, Run, can, disk, faketime_library, finish, tool};

fn now() -> String {
    tool("date", &["-u", "+%Y-%m-%dT%H:%M:%S.%NZ"])
}

fn snapshots(place: &Place) -> usize {
    place.silt(&["snapshots", "--json"]).exits(0).messages().len()
}

#[test]
fn a_snapshot_is_not_newer_than_what_it_holds() {
    let place = Place::new();
    place.write("disk.raw", &disk(1, 1));
    std::fs::create_dir(place.path("tree")).unwrap();
    // The commands that hold a volume still take their time.
    let hook = "date -u +%Y-%m-%dT%H:%M:%S.%NZ > held";
    for (name, volume) in [("round", "disk.raw"), ("alone", "tree")] {
        let fleet = format!("[series.{name}]\nvolumes = {{ x = '{volume}' }}\nbefore = '{hook}'\n");
        place.write(&format!("{name}.toml"), fleet.as_bytes());
    }
    for args in [
        ["backup", "one", "disk.raw", "--before", hook].as_slice(),
        &["backup", "--fleet", "round.toml"],
        &["backup", "--fleet", "alone.toml"],
    ] {
        let made = place.silt(&[args, &["--json"]].concat()).exits(0).summary();
        let held = String::from_utf8(place.read("held")).unwrap();
        let taken = made["time"].as_str().unwrap();
        // Seconds without the last zeros of their fraction.
        let (taken, held) = (taken.trim_end_matches('Z'), held.trim().trim_end_matches('Z'));
        assert!(taken <= held, "{args:?}: {taken}, held at {held}");
    }
}

#[test]
fn a_backup_that_was_made_is_not_made_again() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let before = now();
    let backup = |since: &str| {
        let hook = "echo ran >> hooks";
        let args = ["backup", "vm", &image, "--before", hook, "--due-since", since];
        place.silt(&args).exits(0)
    };
    backup(&before).says("Made snapshot of vm");
    backup(&before).says("vm is not due: it has snapshot");
    assert_eq!((snapshots(&place), place.read("hooks")), (1, b"ran\n".to_vec()));
    // The source is not opened, and need not be there.
    let skipped = place.silt(&["backup", "vm", "gone.raw", "--due-since", &before, "--json"]);
    let skipped = skipped.exits(0).messages().remove(0);
    let made = place.silt(&["snapshots", "--json"]).exits(0).messages().remove(0);
    assert_eq!(skipped["message_type"], "not_due");
    assert_eq!((&skipped["id"], &skipped["time"]), (&made["id"], &made["time"]));
    backup(made["time"].as_str().unwrap()).says("is not due");
    backup(&now()).says("Made snapshot of vm");
    assert_eq!(snapshots(&place), 2);
    // A day means its start. At midnight the first may be of yesterday.
    let days = || tool("date", &["-u", "+%F"]);
    let today = days();
    let run = place.silt(&["backup", "vm", &image, "--due-since", &today]).exits(0);
    assert!(run.out.contains("is not due") || today != days(), "{}", run.out);
    place.silt(&["backup", "vm", &image, "--due-since", "soon"]).exits(2).says("not a time");
    place.silt(&["rename", "vm", "www"]).exits(0);
    backup(&before).says("www is not due");
}

#[test]
fn of_a_profile_or_a_fleet_those_that_are_due_are_backed_up() {
    let place = Place::new();
    place.write("a.raw", &disk(1, 4));
    place.write("b.raw", &disk(2, 4));
    std::fs::create_dir(place.path("home")).unwrap();
    let series = |table: &str| {
        let volumes = [("a", "a.raw"), ("b", "b.raw"), ("home", "home")];
        let line = |(name, path)| format!("[{table}{name}]\nvolumes = {{ x = '{path}' }}\n");
        volumes.map(line).concat()
    };
    place.write("silt.toml", series("profiles.default.series.").as_bytes());
    place.write("fleet.toml", series("series.").as_bytes());
    let before = now();
    let silt = |args: &[&str]| {
        let args = [&["--config", "silt.toml"], args, &["--due-since", &before]].concat();
        place.silt(&args).exits(0)
    };
    silt(&["backup", "b"]).says("Made snapshot of b");
    silt(&["backup", "b"]).says("b is not due");
    let all = silt(&["backup"]);
    all.says("Made snapshot of a");
    all.says("Made snapshot of home");
    all.says("b is not due");
    let again = silt(&["backup", "--fleet", "fleet.toml"]);
    assert_eq!(again.out.matches("is not due").count(), 3, "{}", again.out);
    assert_eq!(silt(&["backup", "--all"]).out.matches("is not due").count(), 3);
    assert_eq!(snapshots(&place), 3);
}

#[test]
fn of_two_backups_that_are_due_at_once_one_is_made() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    let fleet = "[profiles.default.series.listed]\nvolumes = { x = 'a.raw' }\n";
    place.write("silt.toml", fleet.as_bytes());
    for series in [["named", image.as_str()].as_slice(), &["listed"]] {
        let before = now();
        let backup = |more: [&'static str; 2]| {
            let args = ["--config", "silt.toml", "backup", "--due-since", &before];
            [&args[..], &more, series].concat()
        };
        let slow = place.start(&backup(["--limit-read", "4"]));
        eventually("a backup that has begun", || {
            place.objects("state").iter().any(|it| it.to_string_lossy().contains("lease"))
        });
        // It waits for the first one, and finds its snapshot.
        let second = place.silt(&backup(["--wait", "1m"])).exits(0);
        second.says("is not due");
        finish(slow).exits(0).says("Made snapshot");
        let all = place.silt(&["snapshots", "--json"]).exits(0).messages();
        assert_eq!(all.iter().filter(|made| made["series"] == series[0]).count(), 1);
    }
}

#[test]
fn a_snapshot_from_the_future_does_not_count() {
    if !can("faketime") {
        return;
    }
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let (before, library) = (now(), faketime_library());
    let at = |minutes: u32, series: &str| {
        let shifted = format!("+{minutes}m");
        let mut command = place.command();
        command.env("LD_PRELOAD", &library).env("FAKETIME", shifted);
        Run::of(command.args(["backup", series, &image])).exits(0);
        place.silt(&["backup", series, &image, "--due-since", &before]).exits(0)
    };
    at(5, "near").says("near is not due");
    at(15, "far").says("Made snapshot of far");
}
