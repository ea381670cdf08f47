//! A repository in several folders, as a user keeps it.

use crate::kit::{self, Place};

#[test]
fn a_copy_takes_over_when_the_first_folder_is_lost() {
    let place = Place::new();
    let disk = kit::disk(1, 8);
    let file = place.write("vm.raw", &disk);
    place.silt(&["backup", "vm", &file]).exits(0);
    place.silt(&["copies"]).exits(0).says("one copy");
    let copy = place.text("copy");
    place.silt(&["copies", "add", &copy]).exits(0).says("objects compared");
    place.silt(&["copies", "add", &copy]).exits(1).says("already");
    let full = place.text("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(format!("{full}/file"), b"x").unwrap();
    place.silt(&["copies", "add", &full]).exits(1).says("not empty");
    place.silt(&["backup", "vm", &file, "--tag", "second"]).exits(0);
    let listed = place.silt(&["copies", "--json"]).exits(0).messages();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|copy| copy["failure"].is_null()), "{listed:?}");

    // A damaged file is read around, and mended.
    let container = place.objects("containers").into_iter().next().unwrap();
    let whole = std::fs::read(&container).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&container, &damaged).unwrap();
    let target = place.text("restored.raw");
    place.silt(&["restore", "vm@latest", &target]).exits(0).says("silt copies heal");
    assert!(place.read("restored.raw") == disk);
    place.silt(&["copies", "heal"]).exits(0).says("0 copied, 0 replaced");
    place.silt(&["copies", "heal", "--read-data"]).exits(0).says("1 replaced");
    assert!(std::fs::read(&container).unwrap() == whole);

    // The first folder goes.
    let first = place.text("repository");
    kit::tool("mv", &[&first, &place.text("gone")]);
    let here = ["-r", copy.as_str()];
    let silt = |arguments: &[&str]| place.silt(&[&here, arguments].concat());
    silt(&["restore", "vm@latest", &target, "--force"]).exits(0).says("cannot be reached");
    assert!(place.read("restored.raw") == disk);
    silt(&["backup", "vm", &file]).exits(1).says("silt copies remove");
    silt(&["copies", "remove", &first]).exits(0);
    silt(&["backup", "vm", &file]).exits(0);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    silt(&["copies", "remove", &copy]).exits(13).says("only copy left");

    // The first, which has missed all this, leads to the other, and takes nothing.
    let gone = ["-r", &place.text("gone")];
    let left_out = |arguments: &[&str]| place.silt(&[&gone, arguments].concat());
    let listed = left_out(&["snapshots"]).exits(0);
    listed.says("is not a copy of the repository");
    listed.says(&copy);
    left_out(&["backup", "vm", &file]).exits(13).says("open it by one of these");

    // The folder that is left gets another name.
    let renamed = place.text("renamed");
    kit::tool("mv", &[&copy, &renamed]);
    let here = ["-r", renamed.as_str()];
    let silt = |arguments: &[&str]| place.silt(&[&here, arguments].concat());
    silt(&["restore", "vm@latest", &target, "--force"]).exits(0).says("cannot be reached");
    silt(&["backup", "vm", &file]).exits(1).says("silt copies move");
    silt(&["copies", "move", &copy, &renamed]).exits(0).says("renamed");
    silt(&["backup", "vm", &file]).exits(0);

    // A folder that went to another disk, with a link where it was, needs no word.
    let elsewhere = place.text("elsewhere");
    kit::tool("mv", &[&renamed, &elsewhere]);
    std::os::unix::fs::symlink(&elsewhere, &renamed).unwrap();
    silt(&["backup", "vm", &file]).exits(0);
    assert!(!silt(&["copies"]).exits(0).printed().contains("not a copy"));
    silt(&["copies", "add", &place.text("third")]).exits(0).says("objects compared");
    place.silt(&["-r", &elsewhere, "backup", "vm", &file]).exits(13).says(
        "open it by one of \
        these",
    );
}

#[test]
fn the_shared_store_is_kept_in_a_folder_of_its_own() {
    let place = Place::new();
    let common = kit::disk(1, 12);
    for number in 0..2 {
        let disk = [common.as_slice(), &kit::disk(10 + number, 2)].concat();
        let file = place.write(&format!("vm{number}.raw"), &disk);
        place.silt(&["backup", &format!("vm{number}"), &file]).exits(0);
    }
    place.silt(&["popular", "build", "--duplicates"]).exits(0);
    let size = |folder: &str| {
        let path = std::path::Path::new(folder).join("containers");
        std::fs::read_dir(path).map_or(0, Iterator::count)
    };
    let shared = place.text("shared");
    place.silt(&["copies", "add", "--shared", &shared]).exits(0);
    place.silt(&["copies"]).exits(0).says("shared store");
    assert_eq!(size(&shared), 1, "one store");
    place.silt(&["restore", "vm1@latest", &place.text("restored.raw")]).exits(0);
    let expected = [common.as_slice(), &kit::disk(11, 2)].concat();
    assert!(place.read("restored.raw") == expected);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    kit::tool("mv", &[&shared, &place.text("away")]);
    place
        .silt(&["restore", "vm1@latest", &place.text("restored.raw"), "--force"])
        .exits(1)
        .says("cannot be reached");
}
