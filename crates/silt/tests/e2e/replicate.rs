//! `silt replicate` and `silt serve replica`.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::kit::{Place, Run, damage, noise, tool};

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
    let again = replicate(&place, &["--to", "there", "--init", "--append-only"]);
    again.exits(2).says("was made before, not append-only");
    assert!(restored(&place, "web1@latest") == disk);
    there(&place, &["check", "--read-data"]).exits(0);
    // It has its own password.
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("there")).arg("snapshots");
    Run::of(&mut command).exits(12);
    replicate(&place, &["--to", "there"]).exits(0).says("Nothing to send.");
    let plan = replicate(&place, &["--to", "there", "--dry-run", "--prefix", "a-"]);
    plan.exits(0).says("would send web1 as a-web1");
    // A machine that is backed up into the replica, too, is not mixed up.
    there(&place, &["backup", "db1", "root=disk.raw"]).exits(0);
    place.silt(&["backup", "db1", "root=disk.raw"]).exits(0);
    let run = replicate(&place, &["--to", "there", "--json"]).exits(3);
    let last: Value = run.messages().pop().unwrap();
    assert_eq!(last["refused"][0]["series"], "db1");
    replicate(&place, &["--to", "there", "db1", "--prefix", "main-"]).exits(0);
    let id = place.silt(&["snapshots", "web1", "--json"]).messages()[0]["id"].to_string();
    there(&place, &["show", "web1@latest"])
        .exits(0)
        .says(&format!("Copy of    {} in repository ", id.trim_matches('"')));
}

#[test]
fn a_mistake_is_named_and_not_recorded_as_a_replica() {
    let place = place_with_a_replica(&noise(1, 3 << 20));
    for (arguments, code, said) in [
        (&["--to", "backup@offsite:/backup"][..], 1, "write ssh://HOST/PATH"),
        (&["--to", "tcp://offsite:"], 1, "the address must be HOST:PORT"),
        (&["--to", "tcp://127.0.0.1:1"], 1, "connect to 127.0.0.1:1"),
        (&["--to", "thare"], 2, "--init makes one"),
        (&["--to", "there", "wbe*"], 1, "there is no series 'wbe*'"),
        (&["--to", "exec:exit 4"], 1, "ended with exit status: 4"),
    ] {
        replicate(&place, arguments).exits(code).says(said);
    }
    let missing = server(&place).replace("/there'", "/thare'");
    let run = replicate(&place, &["--to", &missing]).exits(1);
    run.says("`silt replicate --init` at the source makes a replica here");
    let run = replicate(&place, &["--to", &server(&place), "--init"]).exits(1);
    run.says("the command must run `silt serve replica --init`");
    let printed = place.silt(&["status"]).exits(0).printed();
    let is_shown = |line: &&str| line.contains("there") || line.contains("exec:");
    assert_eq!(printed.lines().filter(is_shown).count(), 1, "{printed}");
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
    place.silt(&["serve", "replica", "--listen", "nowhere"]).exits(2).says("0.0.0.0:7420");
}

/// Chunks of a series that the replica stores as differences.
fn deltas_there(place: &Place, series: &str) -> u64 {
    let all = there(place, &["stats", "--json"]).exits(0).messages();
    let of_series = all.iter().find(|message| message["name"] == series).unwrap();
    of_series["deltas"].as_u64().unwrap()
}

#[test]
fn what_comes_as_deltas_stays_as_deltas() {
    let mut disk = noise(1, 5 << 20);
    let place = place_with_a_replica(&disk);
    let to = server(&place);
    for (round, off) in ["", " --delta=off", ""].into_iter().enumerate() {
        let before = deltas_there(&place, "web1");
        disk.iter_mut().skip(round).step_by(1000).for_each(|byte| *byte ^= 1);
        place.write("disk.raw", &disk);
        place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
        let run = replicate(&place, &["--to", &format!("{to}{off}"), "--json"]).exits(0);
        assert!(!run.err.contains("silt:"), "{}", run.err);
        let sent = &run.messages()[0];
        assert_eq!((&sent["outcome"], &sent["delta_bytes"]), (&"sent".into(), &(5 << 20).into()));
        let new = deltas_there(&place, "web1") - before;
        assert_eq!(new > 1000, off.is_empty(), "{round}: {new}");
        assert!(restored(&place, "web1@latest") == disk);
    }
    there(&place, &["check", "--read-data"]).exits(0);
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
    replicate(&place, &["--to", &to]).exits(0).says("Nothing to send");
    drop(server);
    replicate(&place, &["--to", &to]).exits(1).says("connect to");
}

/// Silt with a program that is called like ssh, and does with its arguments what a server's shell
/// does.
fn by_ssh(place: &Place) -> Command {
    std::fs::create_dir(place.path("bin")).unwrap();
    let script = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do echo \"$1\" >> asked; shift; done\n\
                  echo \"$2\" >> asked; export SILT_PASSWORD=theirs; exec sh -c \"$3\"\n";
    place.write("bin/ssh", script.as_bytes());
    tool("chmod", &["755", &place.text("bin/ssh")]);
    let mut command: Command = place.command();
    command.env("PATH", format!("{}:/usr/bin:/bin", place.text("bin")));
    command
}

#[test]
fn ssh_runs_the_program_on_the_other_machine() {
    let disk = noise(1, 3 << 20);
    let place = place_with_a_replica(&disk);
    place.silt(&["backup", "web2", "root=disk.raw"]).exits(0);
    let mut command = by_ssh(&place);
    command.args(["replicate", "--remote-program", crate::PROGRAM]);
    command.args(["--to", &format!("ssh://me@offsite:2222{}", place.text("there"))]);
    Run::of(&mut command).exits(0).says("Replicated 1 snapshot");
    let asked = String::from_utf8(place.read("asked")).unwrap();
    assert!(asked.contains("-p2222") && asked.ends_with("me@offsite\n"), "{asked}");
    assert!(restored(&place, "web2@latest") == disk);
}

/// A place with a repository of another secret in the folder "there", whose password is "theirs".
fn place_with_a_stranger(disk: &[u8]) -> Place {
    let place = Place::new();
    place.write("disk.raw", disk);
    place.silt(&["backup", "web1", "root=disk.raw", "--tag", "first"]).exits(0);
    there(&place, &["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    place
}

#[test]
fn a_repository_with_another_secret_takes_snapshots_if_it_is_asked_to() {
    let mut disk = noise(1, 7 << 20);
    let place = place_with_a_stranger(&disk);
    let refused = replicate(&place, &["--to", "there"]).exits(1);
    assert!(refused.err.contains("another secret") && refused.err.contains("pass --foreign"));
    there(&place, &["snapshots"]).exits(0);
    replicate(&place, &["--to", "nowhere", "--foreign"]).exits(2);
    replicate(&place, &["--to", "there", "--foreign", "--init"]).exits(2);
    replicate(&place, &["--to", "exec:true", "--foreign"]).exits(2).says("a folder or bucket");
    let plan = replicate(&place, &["--to", "there", "--foreign", "--dry-run"]).exits(0);
    assert!(plan.printed().contains("would send web1") && plan.err.contains("another secret"));
    let run = replicate(&place, &["--to", "there", "--foreign"]).exits(0);
    run.says("must be read and stored anew");
    run.says("7.0 MiB reread");
    run.says("Replicated 1 snapshot.");
    assert!(restored(&place, "web1@latest") == disk);

    disk[3_000_000..3_100_000].fill(9);
    place.write("disk.raw", &disk);
    std::fs::create_dir(place.path("home")).unwrap();
    place.write("home/file", b"content");
    std::fs::hard_link(place.path("home/file"), place.path("home/same")).unwrap();
    place.silt(&["backup", "web1", "root=disk.raw", "--tag", "second"]).exits(0);
    place.silt(&["backup", "home", "home"]).exits(0);
    let some = ["--to", "there", "--foreign", "--tag", "second", "--prefix", "a-", "--json"];
    let last = replicate(&place, &some).exits(0).messages().pop().unwrap();
    assert_eq!((&last["sent"], &last["present"]), (&1.into(), &0.into()));
    let messages = replicate(&place, &["--to", "there", "--foreign", "--json"]).exits(0).messages();
    let of = |series: &str| messages.iter().find(|message| message["series"] == series).unwrap();
    assert_eq!(of("web1")["reread_bytes"], 2 << 20);
    let last = messages.last().unwrap();
    assert_eq!((&last["sent"], &last["present"]), (&2.into(), &1.into()));
    assert_eq!(last["foreign"], true);
    assert!(restored(&place, "web1@latest") == disk);
    assert!(restored(&place, "a-web1@latest") == disk);
    there(&place, &["restore", "home@latest:/", "back"]).exits(0);
    assert_eq!(place.read("back/same"), b"content");
    assert_eq!(std::fs::metadata(place.path("back/file")).unwrap().nlink(), 2);
    there(&place, &["snapshots", "--json"]).exits(0).says("first");
    there(&place, &["check", "--read-data"]).exits(0);
}

#[test]
fn a_write_only_key_of_another_repository_brings_snapshots_there() {
    let mut disk = noise(1, 5 << 20);
    let place = place_with_a_stranger(&disk);
    place.write("new", b"writes");
    let add = ["key", "add", "--write-only", "--series", "web1", "--new-password-file", "new"];
    there(&place, &[&add[..], &["--kdf-memory", "8", "--kdf-passes", "1"]].concat()).exits(0);
    let bring = |options: &[&str]| {
        let mut command = place.command();
        command.env("SILT_TO_PASSWORD", "writes").args(["replicate", "--to", "there"]);
        Run::of(command.args(options))
    };
    let refused = bring(&[]).exits(13);
    assert!(refused.err.contains("write-only key") && refused.err.contains("pass --foreign"));
    bring(&["--foreign"]).exits(0).says("Replicated 1 snapshot.");
    disk[..100_000].fill(9);
    place.write("disk.raw", &disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    place.silt(&["backup", "db1", "root=disk.raw"]).exits(0);
    let run = bring(&["--foreign"]).exits(3);
    run.says("db1 was not replicated");
    run.says("2.0 MiB reread");
    assert!(restored(&place, "web1@latest") == disk);
    there(&place, &["check", "--read-data"]).exits(0);
}

#[test]
fn at_an_append_only_replica_only_its_administrator_deletes() {
    let mut disk = noise(1, 3 << 20);
    let place = Place::new();
    place.write("disk.raw", &disk);
    let cost = ["--kdf-memory", "8", "--kdf-passes", "1"];
    let over_a_line = format!("{} --init", server(&place));
    for to in ["there", over_a_line.as_str()] {
        place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
        replicate(&place, &["--to", to, "--append-only"]).exits(2).says("--init");
        let arguments = [&["--to", to, "--init", "--append-only"], &cost[..]].concat();
        let run = replicate(&place, &arguments).exits(13);
        assert!(run.err.contains("SILT_ADMIN_PASSWORD"), "{}", run.err);
        let mut command = place.command();
        command.env("SILT_TO_PASSWORD", "theirs").env("SILT_ADMIN_PASSWORD", "signs");
        Run::of(command.arg("replicate").args(arguments)).exits(0);
        // The next day needs no administrator.
        disk.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
        place.write("disk.raw", &disk);
        place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
        let run = replicate(&place, &["--to", to, "--init", "--append-only"]).exits(0);
        run.says("Replicated 1 snapshot");
        assert_eq!(run.err.contains("changes nothing"), to != "there", "{}", run.err);
        assert!(restored(&place, "web1@latest") == disk);
        assert!(!run.err.contains("stay whole"), "{}", run.err);
        assert_eq!(deltas_there(&place, "web1"), 0, "only the administrator makes deltas");
        there(&place, &["delete", "web1@latest"]).exits(13).says("SILT_ADMIN_PASSWORD");
        let mut command = place.command();
        command.env("SILT_REPOSITORY", place.path("there")).env("SILT_PASSWORD", "theirs");
        command.env("SILT_ADMIN_PASSWORD", "signs").args(["delete", "web1@latest"]);
        Run::of(&mut command).exits(0);
        there(&place, &["check", "--read-data"]).exits(0);
        std::fs::remove_dir_all(place.path("there")).unwrap();
        std::fs::remove_dir_all(place.path("state")).unwrap();
    }
}

#[test]
fn of_a_damaged_source_the_rest_comes_over() {
    let disk = noise(1, 5 << 20);
    let place = place_with_a_stranger(&disk);
    let of_web1 = place.objects("containers");
    place.write("other.raw", &noise(2, 3 << 20));
    place.silt(&["backup", "db1", "root=other.raw"]).exits(0);
    let containers = place.objects("containers");
    damage(containers.iter().find(|object| !of_web1.contains(object)).unwrap());
    let run = replicate(&place, &["--to", "there", "--foreign"]).exits(5);
    run.says("Replicated 1 snapshot.");
    assert!(run.err.contains("db1") && run.err.contains("was not sent"), "{}", run.err);
    assert!(restored(&place, "web1@latest") == disk);
    there(&place, &["check", "--read-data"]).exits(0);
}

#[test]
fn a_replica_on_another_machine_is_made_over_the_line() {
    let mut disk = noise(1, 3 << 20);
    let place = Place::new();
    place.write("disk.raw", &disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let cost = ["--kdf-memory", "8", "--kdf-passes", "1"];
    let init = |to: &str| replicate(&place, &[&["--init", "--to", to], &cost[..]].concat());
    init("tcp://127.0.0.1:1").exits(2).says("make the replica over ssh");
    // The other machine does not know the password yet.
    let bare =
        format!("exec:env -u SILT_PASSWORD {} serve replica --init -r there", crate::PROGRAM);
    let run = init(&bare).exits(1);
    assert!(run.err.contains("made the replica") && run.err.contains("SILT_PASSWORD_FILE"));
    there(&place, &["snapshots"]).exits(0);
    // Now it does: what is there is used, and nobody is asked for a new password.
    let to = format!("{} --init", server(&place));
    let mut command = place.command();
    command.args(["replicate", "--init", "--to", &to]);
    Run::of(&mut command).exits(0).says("Replicated 1 snapshot;");
    assert!(restored(&place, "web1@latest") == disk);
    // A server that may make a replica serves those that do not ask for one.
    disk[..4096].fill(2);
    place.write("disk.raw", &disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    replicate(&place, &["--to", &to]).exits(0).says("Replicated 1 snapshot;");
    assert!(restored(&place, "web1@latest") == disk);
    // Everything in one run.
    let to = to.replace("there", "fresh");
    init(&to).exits(0).says("Replicated 2 snapshots;");
    let mut command = place.command();
    command.env("SILT_REPOSITORY", place.path("fresh")).env("SILT_PASSWORD", "theirs");
    Run::of(command.args(["check", "--read-data"])).exits(0);
    // Another place that holds anything is left alone.
    std::fs::create_dir(place.path("full")).unwrap();
    place.write("full/letter", b"dear");
    init(&to.replace("fresh", "full")).exits(1).says("not empty");
    assert_eq!(std::fs::read_dir(place.path("full")).unwrap().count(), 1);
    // A server without --init has no replica to serve.
    init(&server(&place).replace("there", "nowhere")).exits(1).says("does not exist");
    init(&server(&place)).exits(1).says("it was not started for that");
}

#[test]
fn ssh_makes_the_replica_in_one_run() {
    let disk = noise(1, 2 << 20);
    let place = Place::new();
    place.write("disk.raw", &disk);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let mut command = by_ssh(&place);
    command.env("SILT_TO_PASSWORD", "theirs").args(["replicate", "--init"]);
    command.args(["--remote-program", crate::PROGRAM, "--kdf-memory", "8", "--kdf-passes", "1"]);
    command.args(["--to", &format!("ssh://offsite{}", place.text("there"))]);
    Run::of(&mut command).exits(0).says("Replicated 1 snapshot");
    assert!(restored(&place, "web1@latest") == disk);
}
