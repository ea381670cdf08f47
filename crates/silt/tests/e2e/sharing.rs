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
    place.silt(&["popular", "plan", "--share", "101"]).exits(2).says("0 to 100");
    let built = popular(&place, &["build", "--duplicates"]);
    assert_eq!(built["copied_chunks"], plan["chosen_chunks"]);
    let after: u64 = size();
    assert!(after * 2 < before, "{before} bytes became {after}");
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
