//! Storage nodes, as a user sets them up, loses one, and moves one.

use crate::kit::{self, Place};

#[test]
fn backups_spread_over_nodes_which_are_added_lost_moved_and_closed() {
    let place = Place::new();
    let (disk, other) = (kit::disk(1, 24), kit::disk(2, 24));
    let (file, second) = (place.write("vm.raw", &disk), place.write("other.raw", &other));
    place.silt(&["node"]).exits(0).says("silt node add");
    let [one, two, new] = ["one", "two", "new"].map(|name| place.text(name));
    place.silt(&["node", "add", "n1", &one]).exits(0).says("Added node n1");
    place.silt(&["node", "add", "n2", &two]).exits(0);
    place.silt(&["node", "add", "n2", &new]).exits(1).says("already");
    assert!(!std::path::Path::new(&new).exists(), "what is refused makes no folder");
    place.silt(&["node", "add", "n3", &one]).exits(1);
    place.silt(&["backup", "vm", &file]).exits(0);
    assert!(place.objects("containers").is_empty(), "chunks are in nodes");
    place.silt(&["backup", "copy", &file]).exits(0).says("0 B new");
    let listed = place.silt(&["node", "list", "--json"]).exits(0).messages();
    let bytes: Vec<u64> =
        listed.iter().map(|node| node["container_bytes"].as_u64().unwrap()).collect();
    assert!(bytes.len() == 2 && bytes.iter().sum::<u64>() > 0, "{listed:?}");
    place.silt(&["stats"]).exits(0).says("(node n1)");
    place.silt(&["copies"]).exits(0).says("node n1");

    // The first node goes away: it is named, and backups use the other.
    let away = place.text("away");
    kit::tool("mv", &[&one, &away]);
    let target = place.text("restored.raw");
    place.silt(&["restore", "vm@latest", &target]).exits(1).says("node 'n1'");
    place.silt(&["backup", "other", &second]).exits(0).says("node 'n1' is not written to");
    place.silt(&["restore", "other@latest", &target]).exits(0);
    assert!(place.read("restored.raw") == other);
    place.silt(&["check"]).exits(1).says("node 'n1'");
    kit::tool("mv", &[&away, &one]);
    place.silt(&["restore", "vm@latest", &target, "--force"]).exits(0);
    assert!(place.read("restored.raw") == disk);

    place.silt(&["node", "drain", "n1", &new]).exits(0).says("copied");
    kit::tool("rm", &["-r", &one]);
    place.silt(&["restore", "copy@latest", &target, "--force"]).exits(0);
    assert!(place.read("restored.raw") == disk);
    place.silt(&["node", "close", "n2"]).exits(0);
    place.silt(&["node"]).exits(0).says("closed");
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    for series in ["vm", "copy", "other"] {
        place.silt(&["delete", &format!("{series}@latest")]).exits(0);
    }
    place.silt(&["reclaim", "--keep-deleted", "0s", "--grace", "0s"]).exits(0).says("node 'n1'");
    let listed = place.silt(&["node", "list", "--json"]).exits(0).messages();
    assert!(listed.iter().all(|node| node["containers"] == 0), "{listed:?}");
}

#[test]
fn init_makes_nodes() {
    let place = Place::new();
    let (repository, nodes) = (place.text("fresh"), [place.text("one"), place.text("two")]);
    let here = ["-r", repository.as_str()];
    let silt = |arguments: &[&str]| place.silt(&[&here, arguments].concat());
    silt(&["init", "--no-encryption", "--nodes", "n1"]).exits(2).says("NAME=LOCATION");
    let list = format!("n1={},n2={}", nodes[0], nodes[1]);
    silt(&["init", "--no-encryption", "--nodes", &list]).exits(0).says("2 storage nodes");
    let listed = silt(&["node", "--json"]).exits(0).messages();
    assert_eq!(listed.len(), 2, "{listed:?}");
}
