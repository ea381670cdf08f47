//! Repositories in a bucket, on a real server.

use std::process::Command;

use silt_s3::S3Storage;
use silt_s3::server::{BUCKET, Server};
use silt_storage::{Key, Storage, list_all};

use crate::kit::{self, Place, Run};

/// A place whose program works on a bucket.
struct Bucket {
    place: Place,
    server: Server,
    location: String,
}

impl Bucket {
    fn new() -> Option<Self> {
        let server = Server::start()?;
        let bucket = Self { place: Place::new(), server, location: format!("s3://{BUCKET}/vms") };
        bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
        Some(bucket)
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
    bucket.silt(&["forget", "--keep-last", "1", "--reclaim"]).exits(0);
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
    Run::of(offline.env("SILT_S3_RETRIES", "0")).exits(0).says("can't be reached");
    assert!(bucket.place.read("restored.raw") == changed);
}

/// Everything below a location, with no regard for what it is for.
fn all_objects(storage: &S3Storage) -> Vec<Key> {
    list_all(storage, "", None).map(|item| item.unwrap().0).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the store tells times apart by seconds")]
fn what_is_deleted_and_overwritten_in_a_locked_bucket_comes_back() {
    let Some(mut bucket) = Bucket::new() else { return };
    bucket.server.make_locked_bucket("locked");
    let place = "s3://locked/vms";
    bucket.location = format!("{place}?lock=30d&class=STANDARD");
    bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    let (first, second) = (kit::disk(1, 12), kit::disk(2, 12));
    let file = bucket.place.write("vm.raw", &first);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    bucket.silt(&["check"]).exits(0).says("Extended the locks of 0 of");
    let storage = S3Storage::open(place, &bucket.server.settings()).unwrap();
    let versions = storage.versions().unwrap();
    let locked = |version: &&silt_s3::Version| {
        version.content.is_some() && !version.key.as_str().contains("/leases/")
    };
    for version in versions.iter().filter(locked) {
        bucket.server.delete_version(place, version).unwrap_err();
    }
    // Times of versions are told apart by seconds.
    let at = versions.iter().map(|version| version.modified).max().unwrap();
    let later = || std::time::SystemTime::now() > (at + jiff::SignedDuration::from_secs(2)).into();
    while !later() {
        std::thread::yield_now();
    }

    // A good backup, and then somebody with all rights of a host goes through the bucket.
    bucket.place.write("vm.raw", &second);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    for (number, key) in all_objects(&storage).into_iter().enumerate() {
        if number % 2 == 0 {
            bucket.server.overwrite(place, &key, b"pay us");
        } else {
            storage.delete(std::slice::from_ref(&key)).unwrap();
        }
    }
    assert_ne!(bucket.silt(&["snapshots"]).code, 0);
    let when = at.to_string();
    let rollback = ["repo", "rollback", "--at", &when];
    bucket.silt(&[&rollback[..], &["--dry-run"]].concat()).exits(0).says("Would restore");
    bucket.silt(&rollback).exits(0).says("Restored");
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let target = bucket.place.text("restored.raw");
    bucket.silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(bucket.place.read("restored.raw") == first);
    // What the later backup has stored is used again.
    let run = bucket.silt(&["backup", "vm", &file, "--json"]).exits(0);
    assert!(run.summary()["written_bytes"].as_u64().unwrap() < 12 << 20);
    bucket.silt(&["restore", "vm@latest", &target, "--force"]).exits(0);
    assert!(bucket.place.read("restored.raw") == second);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    bucket.silt(&["repo", "rollback", "--at", "2020-01-01"]).exits(10);
    bucket.location = "s3://locked/vms?locks=1d".to_owned();
    bucket.silt(&["snapshots"]).exits(1).says("is no option");
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
    bucket.silt(&["repo", "probe", &format!("s3://{BUCKET}")]).exits(0).says("all that a repository needs");
    bucket.silt(&["repo", "probe", "s3://nowhere"]).exits(10).says("no such bucket");
    let folder = bucket.place.text("some");
    bucket.silt(&["repo", "probe", &folder]).exits(0).says("all that a repository needs");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    let run = |repository: &str| Run::of(bucket.command().args(["-r", repository, "snapshots"]));
    run("s3://nowhere/x").exits(10).says("no such bucket");
    run(&format!("s3://{BUCKET}/other")).exits(10).says("holds no repository");
    run("s3://").exits(1).says("names no bucket");
    run("gs://bucket").exits(1).says("not supported");
    let mut command = bucket.command();
    command.env("AWS_SECRET_ACCESS_KEY", "wrong").arg("snapshots");
    Run::of(&mut command).exits(13);
}

/// SplitMix64: what the hosts do comes from a seed.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[expect(clippy::disallowed_methods, reason = "a program is killed while it works")]
fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// One host's runs of the program, on a network that fails, killed now and then: the snapshots that it was
/// told of, by id, with what they hold.
fn host(bucket: &Bucket, number: u64, runs: u64) -> Vec<(String, Vec<u8>)> {
    let mut state = number;
    let proxy = bucket.server.proxy(number);
    let (series, mut known) = (format!("vm{}", number % 2), Vec::new());
    let mut disk = kit::disk(1, 3);
    for _ in 0..runs {
        let at = usize::try_from(draw(&mut state) % 700).unwrap() * 4096;
        disk[at..at + 8192].fill(u8::try_from(draw(&mut state) % 251).unwrap() + 1);
        let file = bucket.place.write(&format!("host{number}.raw"), &disk);
        let mut command = bucket.command();
        command.env("AWS_ENDPOINT_URL", proxy.endpoint()).env("SILT_S3_TIMEOUT", "5");
        let volume = format!("disk={file}");
        let is_backup = !draw(&mut state).is_multiple_of(4);
        if is_backup {
            command.args(["backup", &series, &volume, "--json"]);
        } else {
            command.args(["forget", &series, "--keep-last", "3", "--reclaim", "--json"]);
        }
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        if draw(&mut state).is_multiple_of(3) {
            pause(draw(&mut state) % 500);
            let _ = child.kill();
        }
        let run = kit::finish(child);
        if is_backup && run.code == 0 {
            let id = run.summary()["id"].as_str().unwrap().to_owned();
            known.push((id, disk.clone()));
        }
    }
    known
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long a test runs is the tester's choice")]
fn hosts_that_are_killed_on_a_network_that_fails_lose_nothing() {
    let Some(bucket) = Bucket::new() else { return };
    let runs =
        std::env::var("SILT_FAULT_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(12);
    let known: Vec<(String, Vec<u8>)> = std::thread::scope(|scope| {
        // Two hosts have a series each, and a third takes part in one of them.
        let hosts: Vec<_> = (2..5)
            .map(|number| {
                scope.spawn({
                    let bucket = &bucket;
                    move || host(bucket, number, runs)
                })
            })
            .collect();
        hosts.into_iter().flat_map(|host| host.join().unwrap()).collect()
    });
    assert!(!known.is_empty());
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let listed = bucket.silt(&["snapshots", "--json"]).exits(0).messages();
    let mut restored = 0;
    for snapshot in listed.iter().filter(|message| message["message_type"] == "snapshot") {
        let id = snapshot["id"].as_str().unwrap();
        let Some((_, disk)) = known.iter().find(|(known, _)| known == id) else { continue };
        let target = bucket.place.text("restored.raw");
        bucket.silt(&["restore", id, &target, "--force"]).exits(0);
        assert!(bucket.place.read("restored.raw") == *disk, "{id}");
        restored += 1;
    }
    assert!(restored > 0, "{listed:?}");
    // A lease of a killed process ends by itself; its host is known to be this one, so at once.
    bucket.silt(&["reclaim", "--min-dead", "0", "--repair", "--grace", "0h"]).exits(0);
    bucket.silt(&["check", "--read-data", "--json"]).exits(0).says("\"unreferenced_objects\":0");
}
