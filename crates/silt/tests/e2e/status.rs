//! `silt status` as a monitoring system calls it.

use crate::kit::{Place, Run, can, damage, disk, faketime_library, tool};

/// A time `hours` after now, as faketime takes it.
fn later(hours: u32) -> String {
    let date = tool("date", &["-u", "-d", &format!("+{hours} hours"), "+%Y-%m-%d %H:%M:%S"]);
    format!("@{date}")
}

#[test]
fn a_monitor_learns_which_series_are_too_old() {
    if !can("faketime") {
        return;
    }
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let library = faketime_library();
    let at = |hours: u32, args: &[&str]| {
        let mut command = place.command();
        command.env("LD_PRELOAD", &library).env("FAKETIME", later(hours));
        Run::of(command.args(args))
    };
    place.silt(&["status"]).exits(0).says("No series yet");
    place.silt(&["backup", "old", &image]).exits(0);
    at(24, &["backup", "new", &image]).exits(0);
    at(25, &["status"]).exits(0).says("ok");
    at(25, &["status", "--max-age", "26h"]).exits(0).says("1d ");
    at(27, &["status", "--max-age", "26h"]).exits(20).says("not protected: old");
    at(27, &["status", "new", "--max-age", "26h"]).exits(0);
    let told = at(27, &["status", "--max-age", "26h", "--json"]).exits(20);
    assert_eq!(told.summary()["failing"], serde_json::json!(["old"]));
    let old = told.messages().into_iter().find(|m| m["series"] == "old").unwrap();
    assert_eq!(old["message_type"], "series_status");
    assert_eq!((&old["ok"], &old["problems"][0]), (&false.into(), &"too old".into()));
    assert!(old["age_s"].as_u64().unwrap() > 26 * 3600, "{old}");
    place.silt(&["status", "nobody"]).exits(1).says("nobody");
    place.silt(&["status", "--max-age", "soon"]).exits(2).says("soon");
}

#[test]
fn a_monitor_learns_what_a_check_has_found() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["status"]).exits(0).says("never");
    damage(&place.objects("containers")[0]);
    place.silt(&["check", "--read-data"]).exits(5);
    place.silt(&["status"]).exits(20).says("damaged");
}

#[test]
fn a_monitor_learns_that_the_last_backup_left_something_out() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    let (root, data) = (format!("root={image}"), format!("data={image}"));
    place.silt(&["backup", "vm", &root, &data]).exits(0);
    place.silt(&["status"]).exits(0).says("ok");
    place.silt(&["backup", "vm", &root]).exits(0);
    place.silt(&["status"]).exits(20).says("lacks volumes that the one before has: data");
    let told = place.silt(&["status", "--json"]).exits(20).messages().remove(0);
    assert_eq!(told["problems"], serde_json::json!(["incomplete"]));
    assert_eq!(told["missing_volumes"], serde_json::json!(["data"]));
    place.silt(&["backup", "vm", &root, &data]).exits(0);
    place.silt(&["status"]).exits(0).says("ok");
}
