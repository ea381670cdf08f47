//! Hosts that are killed, networks that fail, drives that are lost.

use silt_remote::server::Server;

use super::Bucket;
use crate::kit;

#[test]
fn a_drive_that_is_taken_away_stops_nothing() {
    let Some(server) = Server::start_with_drives(4) else { return };
    let bucket = Bucket::of(server);
    let disk = kit::disk(1, 48);
    let file = bucket.place.write("vm.raw", &disk);
    bucket.silt(&["backup", "before", &file]).exits(0);
    let mut command = bucket.command();
    command.args(["backup", "meanwhile", &file, "--limit-write", "16"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let running = command.spawn().unwrap();
    pause(1000);
    let drive = bucket.server.drive(3).unwrap();
    // The server still writes to it, so it may not be empty at once.
    assert!((0..1000).any(|_| std::fs::remove_dir_all(&drive).is_ok()));
    kit::finish(running).exits(0);
    bucket.silt(&["backup", "after", &file]).exits(0);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let target = bucket.place.text("restored.raw");
    for series in ["before", "meanwhile", "after"] {
        bucket.silt(&["restore", &format!("{series}@latest"), &target, "--force"]).exits(0);
        assert!(bucket.place.read("restored.raw") == disk, "{series}");
    }
}

/// SplitMix64: what the hosts do comes from a seed.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[expect(clippy::disallowed_methods, reason = "a program is killed while it works")]
pub(super) fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// One host's runs of the program, on a network that fails, killed now and then: the snapshots that
/// it was told of, by id, with what they hold.
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
            command.args(["forget", &series, "--keep-last", "3", "--reclaim", "--yes", "--json"]);
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
    bucket.silt(&["reclaim", "--min-dead", "0", "--sweep", "--grace", "0h"]).exits(0);
    bucket.silt(&["check", "--read-data", "--json"]).exits(0).says("\"unreferenced_objects\":0");
}
