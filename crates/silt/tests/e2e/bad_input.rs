//! Everything that can be wrong, each with its message and its exit status.

use std::process::Command;

use crate::kit::{Place, can, disk, finish, tool};

#[test]
fn what_is_missing_or_mistyped_is_named() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 2));
    place.silt(&["backup", "vm", "nothing.raw"]).exits(1).says("nothing.raw");
    place.silt(&["backup", "vm@x", &image]).exits(1).says("is not allowed as the name of a series");
    place.silt(&["backup", "vm"]).exits(2);
    place.silt(&["show", "deadbeef"]).exits(1).says("no snapshot has an id");
    place.silt(&["show", "vm"]).exits(2).says("SERIES@latest");
    place.silt(&["snapshots", "nobody"]).exits(1).says("no series 'nobody'");
    place.silt(&["snapshots", "-r", &place.text("elsewhere")]).exits(10).says("elsewhere");
    std::fs::create_dir(place.path("empty")).unwrap();
    place.silt(&["snapshots", "-r", &place.text("empty")]).exits(10).says("silt init");
    place.silt(&["init", "-r", &place.text("repository")]).exits(1);
    place.silt(&["snapshots", "-r", "swift://bucket/x"]).exits(1).says("not supported");
    let error = place.silt(&["show", "deadbeef", "--json"]).exits(1);
    assert!(error.out.is_empty());
    let parsed: serde_json::Value = serde_json::from_str(error.err.trim()).unwrap();
    assert_eq!(
        (parsed["message_type"].as_str(), parsed["code"].as_i64()),
        (Some("error"), Some(1))
    );
}

#[test]
fn images_that_cannot_be_trusted_are_refused() {
    let place = Place::new();
    let base = place.write("base.raw", &disk(2, 4));
    let image = place.text("a.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &image]);
    std::fs::remove_file(&base).unwrap();
    place.silt(&["backup", "vm", &image]).exits(1).says("base.raw");
    let looping = place.text("loop.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &looping, "4M"]);
    tool("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", &looping, "-F", "qcow2", &looping]);
    place.silt(&["backup", "vm", &looping]).exits(1).says("loop.qcow2");
    let cut = place.text("cut.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &cut, "64M"]);
    let bytes = place.read("cut.qcow2");
    place.write("cut.qcow2", &bytes[..70]);
    let run = place.silt(&["backup", "vm", &cut]);
    assert!(matches!(run.code, 1 | 5), "{}", run.err);
    run.says("cut.qcow2");
    place.write("guest.raw", &bytes);
    place.silt(&["backup", "vm", &place.text("guest.raw")]).exits(1).says("--format");
    assert!(place.objects("state").is_empty(), "nothing was committed");
}

#[test]
fn a_disk_that_a_machine_runs_on_is_refused_unless_told_otherwise() {
    let place = Place::new();
    let image = place.text("live.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &image, "8M"]);
    let mut holder = Command::new("qemu-io")
        .args(["-f", "qcow2", &image])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The prompt shows that the image is open and its locks are taken.
    let mut prompt = [0; 8];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut prompt).unwrap();
    let refused = place.silt(&["backup", "vm", &image]);
    let allowed = place.silt(&["backup", "vm", &image, "--allow-in-use"]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    refused.exits(13).says("--allow-in-use");
    allowed.exits(0);
}

#[test]
fn damage_is_named_with_what_it_hurts_and_healed_by_the_next_backup() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(3, 16));
    place.silt(&["backup", "vm", &image]).exits(0);
    let container = &place.objects("containers")[0];
    let mut bytes = std::fs::read(container).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(container, &bytes).unwrap();
    let name = container.file_name().unwrap().to_str().unwrap();
    place.silt(&["restore", "latest", "out.raw"]).exits(5).says(name);
    assert!(!place.path("out.raw").exists() && place.path("out.raw.silt-partial").exists());
    let run = place.silt(&["check", "--read-data", "--json"]).exits(5);
    let damage = run.messages().into_iter().find(|m| m["message_type"] == "damage").unwrap();
    assert!(damage["object"].as_str().unwrap().ends_with(name));
    let hurt = &damage["affected"][0];
    assert_eq!((hurt["series"].as_str(), hurt["volume"].as_str()), (Some("vm"), Some("a")));
    assert!(hurt["bytes"].as_u64().unwrap() >= 4096);
    place.silt(&["check"]).exits(5).says("affects");
    let salvage = place.silt(&["restore", "latest", "out.raw", "--salvage"]).exits(5);
    salvage.says("were replaced by zeros");
    let differing = place.read("out.raw").iter().zip(&disk(3, 16)).filter(|(a, b)| a != b).count();
    assert!(differing > 0 && differing <= 256 << 10);
    place.silt(&["backup", "vm", &image]).exits(0);
    place.silt(&["restore", "latest", "healed.raw"]).exits(0);
    assert!(place.read("healed.raw") == disk(3, 16));
}

#[test]
fn a_repository_of_a_newer_format_is_refused() {
    let place = Place::new();
    let mut config = place.read("repository/config");
    config[8] = 9;
    place.write("repository/config", &config);
    place.silt(&["snapshots"]).exits(1).says("format version 9");
}

#[test]
fn a_full_disk_loses_nothing() {
    if !can("tmpfs") {
        return;
    }
    let place = Place::new();
    let image = place.write("a.raw", &disk(4, 24));
    std::fs::create_dir(place.path("small")).unwrap();
    let small = place.text("small");
    tool("mount", &["-t", "tmpfs", "-o", "size=6m", "tmpfs", &small]);
    let repository = place.text("small/repository");
    let cheap = ["--kdf-memory", "8", "--kdf-passes", "1", "-r", &repository];
    let init = place.silt(&[&["init"][..], &cheap[..]].concat());
    let full = place.silt(&["backup", "vm", &image, "-r", &repository]);
    let target = place.silt(&["backup", "vm", &image]);
    let restore = place.silt(&["restore", "latest", &place.text("small/out.raw")]);
    let _ = std::fs::remove_file(place.path("small/out.raw.silt-partial"));
    tool("mount", &["-o", "remount,size=64m", &small]);
    let after = place.silt(&["backup", "vm", &image, "-r", &repository]);
    let check = place.silt(&["check", "--read-data", "-r", &repository]);
    tool("umount", &[&small]);
    init.exits(0);
    full.exits(1).says("space");
    target.exits(0);
    restore.exits(1).says("NOT restored");
    after.exits(0);
    check.exits(0);
}

#[test]
fn a_source_that_shrinks_is_backed_up_as_far_as_it_can_be_read() {
    let place = Place::new();
    let image = place.write("a.raw", &vec![1; 64 << 20]);
    let child = place.start(&["backup", "vm", &image, "--limit-read", "8", "--json"]);
    // The limit makes the backup take eight seconds; the file shrinks long before its end is read.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    while place.objects("state").is_empty() {
        std::thread::yield_now();
    }
    file.set_len(40 << 20).unwrap();
    let run = finish(child).exits(3);
    let summary = run.summary();
    assert_eq!(summary["volumes"][0]["bytes"], 64 << 20);
    assert_eq!(summary["volumes"][0]["unreadable"][0]["offset"], 40 << 20);
    place.silt(&["show", "latest"]).exits(0).says("unreadable");
}

#[test]
fn wrong_usage_is_json_where_messages_are() {
    let place = Place::new();
    for arguments in [&["--json", "back"][..], &["restore", "--json"], &["ls", "a", "b", "--json"]]
    {
        let run = place.silt(arguments).exits(2);
        let error: serde_json::Value = serde_json::from_str(run.err.trim()).unwrap();
        assert_eq!((&error["message_type"], &error["code"]), (&"error".into(), &2.into()));
        assert!(error["message"].as_str().unwrap().contains("Usage: silt"), "{error}");
    }
    assert!(place.silt(&["--help", "--json"]).exits(0).out.contains("Usage"));
}
