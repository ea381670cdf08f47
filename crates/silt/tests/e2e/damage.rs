//! Damage that a user meets, and what the next backup and the status make of it.

use std::fs;

use crate::kit::{Place, can, damage, disk, tool};

/// A place with one snapshot of a disk, whose first container is then damaged.
fn damaged_disk() -> (Place, String) {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "vm", &image]).exits(0);
    damage(&place.objects("containers")[0]);
    (place, image)
}

#[test]
fn the_backup_after_a_failed_restore_is_whole() {
    let (place, image) = damaged_disk();
    place.silt(&["status"]).exits(0);
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(5).says("this is recorded");
    let checks = place.objects("state");
    place.silt(&["status"]).exits(20).says("`silt check` proves it");
    // It is known now.
    let again = ["restore", "vm@latest", "out.raw", "--salvage", "--force"];
    place.silt(&again).exits(5).says("this is recorded");
    assert_eq!(place.objects("state"), checks, "nothing new was recorded");
    place.silt(&["backup", "vm", &image]).exits(0);
    assert!(place.restored("vm@latest") == place.read("a.raw"));
}

#[test]
fn a_damaged_recipe_is_recorded_by_the_restore_that_meets_it() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "vm", &image]).exits(0);
    let pack = place.objects("recipes").remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    // Behind the header are the recipes, at the end the map and the directory.
    bytes[200] ^= 1;
    fs::write(&pack, bytes).unwrap();
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(5).says("this is recorded");
    place.silt(&["status"]).exits(20).says("damaged");
    place.silt(&["backup", "vm", &image]).exits(0);
    assert!(place.restored("vm@latest") == place.read("a.raw"));
}

#[test]
fn a_file_that_is_read_from_damage_is_stored_again() {
    let place = Place::new();
    fs::create_dir(place.path("home")).unwrap();
    fs::write(place.path("home/large"), disk(5, 3)).unwrap();
    place.silt(&["backup", "home", "home"]).exits(0);
    damage(&place.objects("containers")[0]);
    place.silt(&["cat", "home@latest:/large"]).exits(5).says("this is recorded");
    place.silt(&["backup", "home", "home"]).exits(0);
    place.silt(&["restore", "home@latest:/", "out"]).exits(0);
    assert!(place.read("out/large") == disk(5, 3));
}

#[test]
fn a_restore_that_cannot_record_says_so() {
    if !can("root") {
        return;
    }
    let (place, _) = damaged_disk();
    let repository = place.text("repository");
    tool("mount", &["--bind", &repository, &repository]);
    tool("mount", &["-o", "remount,bind,ro", &repository]);
    let run = place.silt(&["restore", "vm@latest", "out.raw"]);
    tool("umount", &[&repository]);
    let run = run.exits(5);
    assert!(run.err.contains("the next backup does not know of it"), "{}", run.err);
    run.says("silt check --read-data");
}

#[test]
fn the_status_is_good_once_nothing_that_is_kept_is_damaged() {
    let (place, image) = damaged_disk();
    place.silt(&["check", "--read-data"]).exits(5);
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["status"]).exits(20).says("damaged");
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    place.silt(&["delete", &id]).exits(0);
    place.silt(&["check"]).exits(0);
    place.silt(&["status"]).exits(0).says("ok");
    // What is brought back is damaged as before.
    place.silt(&["undelete", &id]).exits(0);
    place.silt(&["status"]).exits(20).says("damaged");
    place.silt(&["delete", &id]).exits(0);
    place.silt(&["check"]).exits(0);
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["status"]).exits(0).says("ok");
    assert!(place.restored("vm@latest") == place.read("a.raw"));
}

#[test]
fn the_status_is_good_once_a_missing_container_is_not_needed() {
    let place = Place::new();
    let first = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "vm", &first]).exits(0);
    fs::remove_file(&place.objects("containers")[0]).unwrap();
    place.silt(&["check"]).exits(5);
    place.silt(&["backup", "vm", &first]).exits(0);
    place.silt(&["status"]).exits(20);
    place.silt(&["forget", "--keep-last", "1", "--yes"]).exits(0);
    place.silt(&["check"]).exits(0);
    place.silt(&["status"]).exits(0).says("ok");
}

#[test]
fn the_status_is_good_once_a_copy_has_healed_the_damage() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 8));
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["copies", "add", &place.text("copy")]).exits(0);
    let here = place.objects("containers").remove(0);
    let there = place.path("copy").join(here.strip_prefix(place.path("repository")).unwrap());
    let whole = fs::read(&there).unwrap();
    damage(&here);
    damage(&there);
    place.silt(&["check", "--read-data"]).exits(5);
    place.silt(&["status"]).exits(20).says("damaged");
    fs::write(&there, whole).unwrap();
    place.silt(&["copies", "heal", "--read-data"]).exits(0).says("1 replaced");
    place.silt(&["status"]).exits(0).says("ok");
}
