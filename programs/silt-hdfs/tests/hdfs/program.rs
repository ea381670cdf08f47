//! The program on a repository in HDFS.

use crate::hadoop::Hadoop;
use crate::kit::{Place, Run, is_a_repository};

#[test]
fn a_folder_of_hdfs_is_a_repository_like_any_other() {
    let Some(hadoop) = Hadoop::start() else { return };
    is_a_repository(&format!("{}?replication=1", hadoop.location("backup/vms")), &[]);
}

#[test]
fn the_program_says_what_it_is_and_what_it_takes() {
    let place = Place::new();
    place.silt(&["--version"]).exits(0).says("silt-hdfs ");
    place.silt(&["-r", "hdfs://127.0.0.1:9/x?copies=3", "snapshots"]).exits(1).says("replication");
    let other = place.silt(&["-r", "ftp://127.0.0.1/x", "snapshots"]).exits(1);
    other.says("s3://BUCKET/PREFIX or");
    let other = Run::of(place.command().args(["-r", "ftp://127.0.0.1/x", "snapshots"]));
    other.says("hdfs://NAMENODE:PORT/FOLDER");
}
