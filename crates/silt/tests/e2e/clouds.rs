//! Repositories in Azure, in Google's cloud and in HDFS, on servers started here.

use silt_remote::server::{Azurite, BUCKET, Google};

use crate::kit::{self, Place, Run};

/// A location, and the variables that it is reached with, are a repository like any other.
fn is_a_repository(location: &str, variables: &[(String, String)]) {
    let place = Place::new();
    let silt = |arguments: &[&str]| {
        let mut command = place.command();
        command.envs(variables.iter().cloned()).env("SILT_REPOSITORY", location);
        Run::of(command.env("XDG_CACHE_HOME", place.path("cache")).args(arguments))
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
    silt(&["forget", "--keep-last", "1", "--reclaim", "--yes"]).exits(0);
    let target = place.text("restored.raw");
    silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(place.read("restored.raw") == changed);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let unchanged = silt(&["--json", "backup", "vm", &file]).exits(0);
    let messages = unchanged.messages();
    assert!(messages.iter().any(|message| message["message_type"] == "requests"));
}

#[test]
fn a_container_of_azure_is_a_repository_like_any_other() {
    let Some(azurite) = Azurite::start() else { return };
    let location = format!("az://{BUCKET}/backup/vms");
    is_a_repository(&location, &azurite.settings().environment);
    // Its objects are not locked by what puts them.
    let place = Place::new();
    let mut command = place.command();
    command.envs(azurite.settings().environment);
    let location = format!("az://{BUCKET}/locked?lock=30d");
    Run::of(command.args(["-r", &location, "init"])).exits(1).says("only buckets of S3");
}

#[test]
fn a_bucket_of_google_is_a_repository_like_any_other() {
    let Some(google) = Google::start() else { return };
    is_a_repository(&format!("gs://{BUCKET}/backup/vms"), &google.settings().environment);
}

#[cfg(feature = "hdfs")]
#[test]
fn a_folder_of_hdfs_is_a_repository_like_any_other() {
    let Some(hadoop) = silt_remote::server::Hadoop::start() else { return };
    is_a_repository(&format!("{}?replication=1", hadoop.location("backup/vms")), &[]);
    let place = Place::new();
    Run::of(place.command().args(["-r", "hdfs://127.0.0.1:9/x?copies=3", "snapshots"]))
        .exits(1)
        .says("replication");
}
