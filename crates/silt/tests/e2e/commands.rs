//! Every command, for people and as JSON.

use crate::kit::{Place, Run, disk};

#[test]
fn every_command_answers_people_and_programs() {
    let place = Place::new();
    let image = place.write("web.raw", &disk(1, 12));
    place.silt(&["backup", "web1", &format!("root={image}"), "--tag", "first"]).exits(0);
    std::fs::write(&image, crate::kit::changed(&disk(1, 12), 1)).unwrap();
    let second = place.silt(&["backup", "web1", &image, "--json"]).exits(0).summary();
    let id = second["short_id"].as_str().unwrap().to_owned();
    assert_eq!(second["volumes"][0]["name"], "root", "a single disk keeps its name");
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["tags"][0], "first");
    for name in [id.as_str(), "latest", "web1@latest", "web1@2199-01-01", "@latest"] {
        let shown = place.silt(&["show", name, "--json"]).exits(0).messages();
        assert_eq!(shown[0]["short_id"], id.as_str(), "{name}");
        place.silt(&["show", name]).exits(0).says("LEVEL");
        place.silt(&["ls", name]).exits(0).says("root");
    }
    assert_eq!(place.silt(&["ls", "latest", "--json"]).exits(0).messages().len(), 1);
    let diff = place.silt(&["diff", &listed[0]["id"].as_str().unwrap()[..8], &id, "--json"]);
    let diff = diff.exits(0).messages();
    assert_eq!(diff[0]["changed_bytes"], 20 * 4096);
    let stats = place.silt(&["stats", "--json"]).exits(0).summary();
    assert_eq!(stats["snapshots"], 2);
    place.silt(&["stats"]).exits(0).says("total");
    let check = place.silt(&["check", "--read-data", "--json"]).exits(0).summary();
    assert_eq!(check["damaged_objects"], 0);
    assert!(check["verified_bytes"].as_u64().unwrap() > 0);
    place.silt(&["check", "--read-data-subset", "50%"]).exits(0).says("No damage");
    let keys = place.silt(&["key", "list", "--json"]).exits(0).messages();
    assert_eq!(keys.len(), 1);
    place.silt(&["version"]).exits(0).says("format 1");
    for shell in ["bash", "zsh", "fish"] {
        place.silt(&["completion", shell]).exits(0).says("silt");
    }
}

/// Tags and paths come from other hosts: what a terminal would obey is shown and not sent to it.
#[test]
fn nothing_that_a_terminal_obeys_is_printed() {
    let place = Place::new();
    let tag = "red\u{1b}]0;mine\u{7}\u{9b}31m\u{202e}\n0 snapshots";
    let image = place.write("disk\u{1b}[2J\u{2066}.raw", &disk(1, 2));
    place.silt(&["backup", "web1", &format!("root={image}"), "--tag", tag]).exits(0);
    std::fs::remove_file(&image).unwrap();
    let commands: [&[&str]; 6] = [
        &["snapshots"],
        &["show", "latest"],
        &["ls", "latest"],
        &["stats"],
        &["backup", "web1", &format!("root={image}")],
        &["snapshots", "--tag", "\u{1b}[1m"],
    ];
    for command in commands {
        let printed = place.silt(command).printed();
        let obeyed = |c: &char| (c.is_control() && *c != '\n') || "\u{202e}\u{2066}".contains(*c);
        assert_eq!(printed.chars().find(obeyed), None, "{command:?}: {printed}");
    }
    let shown = place.silt(&["show", "latest"]).exits(0).printed();
    assert!(shown.contains("\\u{1b}]0;mine") && !shown.contains("\n0 snapshots"), "{shown}");
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    assert_eq!(listed[0]["tags"][0], tag, "programs get it as it is");
}

#[test]
fn help_has_examples_and_the_exit_statuses() {
    let place = Place::new();
    place.silt(&["--help"]).exits(0).says("11  another process");
    for command in
        ["init", "backup", "snapshots", "show", "ls", "restore", "check", "diff", "stats"]
    {
        place.silt(&[command, "--help"]).exits(0).says("Example");
    }
    place.silt(&["key", "add", "--help"]).exits(0).says("Example");
}

#[test]
fn passwords_come_from_one_place() {
    let place = Place::new();
    let file = place.write("password", b"secret\nsecond line\n");
    place.silt(&["snapshots", "--password-file", &file]).exits(2).says("use only one");
    let run = |name: &str, value: &str| {
        let mut command = place.command();
        command.env_remove("SILT_PASSWORD").env(name, value).arg("snapshots");
        command.output().unwrap().status.code()
    };
    assert_eq!(run("SILT_PASSWORD_FILE", &file), Some(0));
    assert_eq!(run("SILT_PASSWORD_COMMAND", "echo secret"), Some(0));
    assert_eq!(run("SILT_PASSWORD", "wrong"), Some(12));
    assert_eq!(run("SILT_PASSWORD_COMMAND", "exit 3"), Some(13));
    assert_eq!(run("OTHER", ""), Some(2), "no password and no terminal");
    place.write("new", b"another");
    let file = place.text("new");
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1"];
    let args = ["key", "add", "--new-password-file", &file];
    place.silt(&[&args[..], &cheap[..]].concat()).exits(0);
    assert_eq!(run("SILT_PASSWORD", "another"), Some(0));
    place.write("new", b"third");
    let args = ["key", "passwd", "--new-password-file", &file];
    place.silt(&[&args[..], &cheap[..]].concat()).exits(0);
    assert_eq!(run("SILT_PASSWORD", "secret"), Some(12));
    assert_eq!(run("SILT_PASSWORD", "third"), Some(0));
}

#[test]
fn a_write_only_host_backs_up_and_can_not_restore() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(2, 8));
    place.write("host", b"of the host");
    let file = place.text("host");
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1"];
    let add = ["key", "add", "--write-only", "--series", "vm", "--new-password-file", &file];
    place.silt(&[&add[..], &cheap[..]].concat()).exits(0);
    place.silt(&["key", "list"]).exits(0).says("write-only");
    let unlimited = ["key", "add", "--write-only", "--new-password-file", &file];
    place.silt(&unlimited).exits(2).says("--write-only needs --series");
    let host = |arguments: &[&str]| {
        Run::of(place.command().env("SILT_PASSWORD", "of the host").args(arguments))
    };
    host(&["backup", "vm", &image]).exits(0);
    host(&["snapshots"]).exits(0).says("vm");
    host(&["backup", "other", &image]).exits(13).says("may write vm, but not series 'other'");
    let target = place.text("restored.raw");
    let refused = host(&["restore", "vm@latest", &target]);
    refused.exits(13).says("this key is write-only");
    for arguments in
        [&["delete", "vm@latest"][..], &["reclaim"], &["key", "add", "--new-password-file", &file]]
    {
        host(arguments).exits(13).says("this key is write-only");
    }
    place.silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(place.read("restored.raw") == disk(2, 8));
}

#[test]
fn a_dry_run_changes_no_file() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(2, 8));
    place.silt(&["backup", "vm", &image]).exits(0);
    let before = place.objects("");
    std::fs::write(&image, disk(3, 8)).unwrap();
    let would = place.silt(&["backup", "vm", &image, "--dry-run", "--json"]).exits(0).summary();
    assert_eq!(would["dry_run"], true);
    assert!(would["written_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(place.objects(""), before);
    place.silt(&["restore", "latest", "out.raw", "--dry-run"]).exits(0).says("Would restore");
    assert!(!place.path("out.raw").exists());
}

#[test]
fn an_unencrypted_repository_needs_no_password() {
    let place = Place { folder: tempfile::tempdir().unwrap() };
    let run = |args: &[&str]| {
        let output = place.command().env_remove("SILT_PASSWORD").args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["init", "--no-encryption"]);
    let image = place.write("a.raw", &disk(4, 4));
    run(&["backup", "vm", &image]);
    run(&["restore", "vm@latest", "b.raw"]);
    assert!(place.read("b.raw") == place.read("a.raw"));
}

/// A repository that somebody has put back, or a disk that was exchanged for last week's.
#[test]
fn an_older_state_is_refused_until_it_is_accepted() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    place.silt(&["backup", "vm", &image]).exits(0);
    let (repository, old) = (place.path("repository"), place.path("old"));
    crate::kit::tool("cp", &["-a", repository.to_str().unwrap(), old.to_str().unwrap()]);
    place.write("a.raw", &disk(2, 4));
    place.silt(&["backup", "vm", &image]).exits(0);
    std::fs::remove_dir_all(&repository).unwrap();
    crate::kit::tool("cp", &["-a", old.to_str().unwrap(), repository.to_str().unwrap()]);
    for command in [&["backup", "vm", &image][..], &["show", "vm@latest"], &["reclaim", "vm"]] {
        let refused = place.silt(command);
        assert!(refused.err.contains("--accept-older"), "{}", refused.err);
        refused.exits(5);
    }
    place.silt(&["check"]).exits(5);
    place.silt(&["backup", "vm", &image, "--dry-run", "--accept-older"]).exits(0);
    place.silt(&["show", "vm@latest"]).exits(5);
    place.silt(&["backup", "vm", &image, "--accept-older"]).exits(0);
    for command in
        [&["show", "vm@latest"][..], &["check", "--read-data"], &["backup", "vm", &image]]
    {
        place.silt(command).exits(0);
    }
}
