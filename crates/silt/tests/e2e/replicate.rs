//! `silt replicate` and `silt serve replica`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::kit::{Place, Run, noise, tool};

/// Runs silt at the source, with the password of the replica.
fn replicate(place: &Place, arguments: &[&str]) -> Run {
    let mut command = place.command();
    command.env("SILT_TO_PASSWORD", "theirs").arg("replicate").args(arguments);
    Run::of(&mut command)
}

/// Runs silt at the replica.
fn there(place: &Place, arguments: &[&str]) -> Run {
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("there")).env("SILT_PASSWORD", "theirs");
    Run::of(command.args(arguments))
}

fn restored(place: &Place, snapshot: &str) -> Vec<u8> {
    there(place, &["restore", snapshot, "back.raw", "--force"]).exits(0);
    place.read("back.raw")
}

fn place_with_a_replica(disk: &[u8]) -> Place {
    let place = Place::new();
    place.write("disk.raw", disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let cost = ["--kdf-memory", "8", "--kdf-passes", "1"];
    replicate(&place, &["--to", "there"]).exits(2).says("--init makes one");
    replicate(&place, &[&["--to", "there", "--init"], &cost[..]].concat())
        .exits(0)
        .says("Replicated 1 snapshot.");
    place
}

/// The server as a command of a shell.
fn server(place: &Place) -> String {
    format!(
        "exec:SILT_PASSWORD=theirs SILT_REPOSITORY='{}' {} serve replica",
        place.text("there"),
        crate::PROGRAM
    )
}

#[test]
fn a_replica_in_a_folder_is_a_repository_of_its_own() {
    let disk = noise(1, 5 << 20);
    let place = place_with_a_replica(&disk);
    assert!(restored(&place, "web1@latest") == disk);
    there(&place, &["check", "--read-data"]).exits(0);
    // It has its own password.
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("there")).arg("snapshots");
    Run::of(&mut command).exits(12);
    replicate(&place, &["--to", "there"]).exits(0).says("Replicated 0 snapshots.");
    let plan = replicate(&place, &["--to", "there", "--dry-run", "--prefix", "a-"]);
    plan.exits(0).says("would send web1 as a-web1");
    // A machine that is backed up into the replica, too, is not mixed up.
    there(&place, &["backup", "db1", "root=disk.raw"]).exits(0);
    place.silt(&["backup", "db1", "root=disk.raw"]).exits(0);
    let run = replicate(&place, &["--to", "there", "--json"]).exits(3);
    let last: Value = run.messages().pop().unwrap();
    assert_eq!(last["refused"][0]["series"], "db1");
    replicate(&place, &["--to", "there", "db1", "--prefix", "main-"]).exits(0);
}

#[test]
fn a_program_at_the_other_end_takes_what_is_missing() {
    let mut disk = noise(1, 5 << 20);
    let place = place_with_a_replica(&disk);
    disk[3_000_000..3_100_000].fill(9);
    place.write("disk.raw", &disk);
    std::fs::create_dir(place.path("home")).unwrap();
    place.write("home/file", b"content");
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    place.silt(&["backup", "home", "home"]).exits(0);
    let to = server(&place);
    let run = replicate(&place, &["--to", &to, "--json"]).exits(0);
    let last = run.messages().pop().unwrap();
    assert_eq!((&last["sent"], &last["present"]), (&2.into(), &1.into()));
    let first = last["sent_bytes"].as_u64().unwrap();
    assert!(first < 150_000, "{first}");
    assert!(restored(&place, "web1@latest") == disk);
    there(&place, &["cat", "home@latest:/file"]).exits(0).says("content");
    let run = replicate(&place, &["--to", &to, "--json"]).exits(0);
    let last = run.messages().pop().unwrap();
    assert_eq!((&last["sent"], &last["present"]), (&0.into(), &2.into()));
    assert!(last["sent_bytes"].as_u64().unwrap() < 1000);
    // Programs that are no replica.
    replicate(&place, &["--to", "exec:echo hello"]).exits(1).says("closed the connection");
    replicate(&place, &["--to", "exec:exit 4"]).exits(1).says("ended with exit status: 4");
    place.silt(&["serve", "replica", "--listen", "nowhere"]).exits(2);
}

/// A server on a port of its own.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listening(place: &Place) -> Server {
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("there")).env("SILT_PASSWORD", "theirs");
    command.args(["serve", "replica", "--listen", "127.0.0.1:0", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = ready["address"].as_str().unwrap().to_owned();
    Server { child, address }
}

#[test]
fn a_server_lets_in_who_has_the_secret() {
    let mut disk = noise(1, 3 << 20);
    let place = place_with_a_replica(&disk);
    let server = listening(&place);
    disk[..4096].fill(3);
    place.write("disk.raw", &disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let to = format!("tcp://{}", server.address);
    replicate(&place, &["--to", &to]).exits(0).says("Replicated 1 snapshot");
    assert!(restored(&place, "web1@latest") == disk);
    let stranger = Place::new();
    stranger.write("disk.raw", &disk);
    stranger.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    replicate(&stranger, &["--to", &to]).exits(13).says("does not prove the repository's secret");
    // It serves on.
    replicate(&place, &["--to", &to]).exits(0).says("Replicated 0 snapshots");
    drop(server);
    replicate(&place, &["--to", &to]).exits(1).says("connect to");
}

#[test]
fn ssh_runs_the_program_on_the_other_machine() {
    let disk = noise(1, 3 << 20);
    let place = place_with_a_replica(&disk);
    place.silt(&["backup", "web2", "root=disk.raw"]).exits(0);
    // A program that is called like ssh, and does with its arguments what a server's shell does.
    std::fs::create_dir(place.path("bin")).unwrap();
    let script = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do echo \"$1\" >> asked; shift; done\n\
                  echo \"$2\" >> asked; export SILT_PASSWORD=theirs; exec sh -c \"$3\"\n";
    place.write("bin/ssh", script.as_bytes());
    tool("chmod", &["755", &place.text("bin/ssh")]);
    let mut command: Command = place.command();
    let path = format!("{}:/usr/bin:/bin", place.text("bin"));
    command.env("PATH", path).args(["replicate", "--remote-program", crate::PROGRAM]);
    command.args(["--to", &format!("ssh://me@offsite:2222{}", place.text("there"))]);
    Run::of(&mut command).exits(0).says("Replicated 1 snapshot");
    let asked = String::from_utf8(place.read("asked")).unwrap();
    assert!(asked.contains("-p2222") && asked.ends_with("me@offsite\n"), "{asked}");
    assert!(restored(&place, "web2@latest") == disk);
}
