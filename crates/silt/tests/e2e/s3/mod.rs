//! Repositories in a bucket, on a real server.

mod faults;
mod locks;
mod networks;
mod nodes;
mod rights;

use std::process::Command;

use silt_remote::server::{BUCKET, Server};

use crate::kit::{self, Place, Run};

/// A place whose program works on a bucket.
struct Bucket {
    place: Place,
    server: Server,
    location: String,
}

impl Bucket {
    fn new() -> Option<Self> {
        Some(Self::of(Server::start()?))
    }

    fn of(server: Server) -> Self {
        let bucket = Self { place: Place::new(), server, location: format!("s3://{BUCKET}/vms") };
        bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
        bucket
    }

    fn command(&self) -> Command {
        let mut command = self.place.command();
        command.envs(self.server.settings().environment);
        command
            .env("SILT_REPOSITORY", &self.location)
            .env("XDG_CACHE_HOME", self.place.path("cache"));
        command
    }

    fn silt(&self, arguments: &[&str]) -> Run {
        Run::of(self.command().args(arguments))
    }

    fn requests(run: &Run) -> u64 {
        let messages = run.messages();
        let found = messages.iter().find(|message| message["message_type"] == "requests").unwrap();
        ["puts", "gets", "heads", "lists", "deletes"]
            .iter()
            .map(|kind| found[kind].as_u64().unwrap())
            .sum()
    }
}

#[test]
fn a_bucket_is_a_repository_like_any_other() {
    let Some(bucket) = Bucket::new() else { return };
    let disk = kit::disk(1, 16);
    let file = bucket.place.write("vm.raw", &disk);
    bucket.silt(&["init"]).exits(1).says("holds a repository already");
    bucket.silt(&["backup", "vm", &file]).exits(0).says("requests");
    let mut changed = disk.clone();
    changed[5 << 20..6 << 20].copy_from_slice(&kit::disk(2, 1));
    bucket.place.write("vm.raw", &changed);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    // An unchanged disk asks and writes little.
    let run = bucket.silt(&["backup", "vm", &file, "--json"]).exits(0);
    assert!(run.summary()["written_bytes"].as_u64().unwrap() < 64 << 10);
    assert!(Bucket::requests(&run) <= 12, "{}", run.out);

    let target = bucket.place.text("restored.raw");
    bucket.silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(bucket.place.read("restored.raw") == changed);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    // Deleting and reclaiming.
    bucket.silt(&["forget", "--keep-last", "1", "--reclaim", "--yes"]).exits(0);
    bucket.silt(&["restore", "vm@latest", &target, "--force"]).exits(0);
    assert!(bucket.place.read("restored.raw") == changed);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    // A folder as a second copy of the bucket.
    let copy = bucket.place.text("copy");
    bucket.silt(&["copies", "add", &copy]).exits(0);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    let mut offline = bucket.place.command();
    offline.args(["-r", &copy, "restore", "vm@latest", &target, "--force"]);
    offline
        .envs(bucket.server.settings().environment)
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    Run::of(offline.env("SILT_S3_RETRIES", "0")).exits(0).says("cannot be reached");
    assert!(bucket.place.read("restored.raw") == changed);
}

#[test]
fn two_programs_that_back_up_at_once_harm_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let disks: Vec<(String, Vec<u8>)> = (0..4)
        .map(|number| {
            let disk = [kit::disk(1, 4), kit::disk(10 + number, 4)].concat();
            (bucket.place.write(&format!("vm{number}.raw"), &disk), disk)
        })
        .collect();
    for _ in 0..3 {
        let running: Vec<_> = disks
            .iter()
            .enumerate()
            // The last two are the same series: one of them wins.
            .map(|(number, (file, _))| {
                let series = format!("vm{}", number.min(2));
                let mut command = bucket.command();
                command.args(["backup", &series, &format!("disk={file}")]);
                command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let codes: Vec<i32> = running.into_iter().map(|child| kit::finish(child).code).collect();
        assert_eq!(codes[..2], [0, 0]);
        assert!(codes[2..].iter().all(|code| [0, 11].contains(code)), "{codes:?}");
        assert!(codes[2..].contains(&0), "{codes:?}");
    }
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    for (number, (_, disk)) in disks.iter().enumerate().take(2) {
        let target = bucket.place.text("restored.raw");
        bucket.silt(&["restore", &format!("vm{number}@latest"), &target, "--force"]).exits(0);
        assert!(bucket.place.read("restored.raw") == *disk);
    }
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let Some(bucket) = Bucket::new() else { return };
    bucket
        .silt(&["repo", "probe", &format!("s3://{BUCKET}")])
        .exits(0)
        .says("can hold a repository");
    bucket.silt(&["repo", "probe", "s3://nowhere"]).exits(10).says("no such bucket");
    let folder = bucket.place.text("some");
    bucket.silt(&["repo", "probe", &folder]).exits(0).says("can hold a repository");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    let run = |repository: &str| Run::of(bucket.command().args(["-r", repository, "snapshots"]));
    run("s3://nowhere/x").exits(10).says("no such bucket");
    run(&format!("s3://{BUCKET}/other")).exits(10).says("holds no repository");
    run("s3://").exits(1).says("names no bucket");
    run("swift://bucket").exits(1).says("not supported");
    let mut command = bucket.command();
    command.env("AWS_SECRET_ACCESS_KEY", "wrong").arg("snapshots");
    Run::of(&mut command).exits(13);
}
