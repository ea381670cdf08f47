//! Repositories in HDFS, on a real name node and data node.

use silt_remote::server::Hadoop;

use crate::kit::{self, Place, Run};

#[test]
fn a_folder_of_hdfs_is_a_repository_like_any_other() {
    let Some(hadoop) = Hadoop::start() else { return };
    let place = Place::new();
    let location = format!("{}?replication=1", hadoop.location("backup/vms"));
    let silt = |arguments: &[&str]| {
        Run::of(place.command().env("SILT_REPOSITORY", &location).args(arguments))
    };
    silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    silt(&["init"]).exits(1).says("holds a repository already");
    let disk = kit::disk(1, 16);
    let file = place.write("vm.raw", &disk);
    silt(&["backup", "vm", &file]).exits(0);
    let changed = kit::changed(&disk, 3);
    place.write("vm.raw", &changed);
    silt(&["backup", "vm", &file]).exits(0);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    silt(&["forget", "--keep-last", "1", "--reclaim"]).exits(0);
    let target = place.text("restored.raw");
    silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(place.read("restored.raw") == changed);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    Run::of(place.command().args(["-r", "hdfs://127.0.0.1:9/x?copies=3", "snapshots"]))
        .exits(1)
        .says("replication");
}
