//! Repositories in Azure and in Google's cloud, on servers started here.

use silt_remote::server::{Azurite, BUCKET, Google};

use crate::kit::{Place, Run, is_a_repository};

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

#[test]
fn hdfs_is_another_program_s() {
    let place = Place::new();
    place.silt(&["-r", "hdfs://127.0.0.1:9/x", "snapshots"]).exits(1).says("use silt-hdfs");
}
