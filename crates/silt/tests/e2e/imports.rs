//! Archives and repositories of other programs that become snapshots.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::kit::{Place, Run, can, tool};
use crate::tree_kit::{Scratch, awkward_tree, deep_tree};

/// What rsync would have to do to make `to` like `from`.
fn differences(what: &str, from: &Path, to: &Path) -> String {
    let (from, to) = (from.join(""), to.join(""));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    tool("rsync", &[what, "--checksum", "--itemize-changes", "--delete", from, to])
}

const ALL: &str = "-aHAXSn";

/// Runs `silt import` with the output of another command as its input.
fn import_from(place: &Place, writer: &mut Command, arguments: &[&str]) -> Run {
    let mut writer = writer.stdout(Stdio::piped()).spawn().unwrap();
    let mut silt = place.command();
    silt.arg("import").args(arguments).stdin(writer.stdout.take().unwrap());
    let run = Run::of(&mut silt);
    writer.wait().unwrap();
    run
}

/// Runs `silt import tar` with these bytes as its input.
fn import_bytes(place: &Place, bytes: &[u8], arguments: &[&str]) -> Run {
    let mut silt = place.command();
    silt.args(["import", "tar"]).args(arguments);
    silt.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = silt.spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    crate::kit::finish(child)
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    command
}

/// A tree with everything that an archive can have. Sockets can't be in one.
fn awkward() -> (Scratch, std::path::PathBuf) {
    let scratch = Scratch::new();
    let root = scratch.folder("data");
    awkward_tree(&root);
    fs::remove_file(root.join("socket")).unwrap();
    crate::tree_kit::set_modified(&root, 1_000_000_000, 5);
    (scratch, root)
}

#[test]
fn what_gnu_tar_archives_is_imported() {
    if !can("rsync") {
        return;
    }
    let place = Place::new();
    let (scratch, root) = awkward();
    let data = root.to_str().unwrap();
    let base = ["-C", data, "-c", "--xattrs", "--xattrs-include=*", "--acls", "--format=posix"];
    let options: [&[&str]; 4] = [
        &[],
        &["--sparse"],
        &["--sparse", "--sparse-version=0.1", "--numeric-owner"],
        &["--sparse", "--sparse-version=0.0", "--zstd"],
    ];
    for (number, options) in options.iter().enumerate() {
        let mut tar = command("tar", &[&base[..], options, &["."]].concat());
        let run = import_from(&place, &mut tar, &["tar", "data"]).exits(0);
        assert_eq!(run.err, "");
        let target = scratch.path(&format!("out{number}"));
        place.silt(&["restore", "data@latest", target.to_str().unwrap()]).exits(0);
        assert_eq!(differences(ALL, &root, &target), "", "{options:?}");
    }
    // The content of the four is the same.
    let shown = place.silt(&["show", "data@latest", "--json"]).exits(0).messages();
    assert_eq!(shown[0]["volumes"][0]["levels"]["new"], 0, "{}", shown[0]["volumes"][0]["levels"]);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn what_gnu_tar_archives_in_old_formats_is_imported() {
    if !can("rsync") {
        return;
    }
    let place = Place::new();
    let root = place.path("data");
    let long = "a long name ".repeat(15);
    fs::create_dir_all(root.join(&long)).unwrap();
    fs::write(root.join(&long).join("f".repeat(200)), b"deep").unwrap();
    std::os::unix::fs::symlink("t/".repeat(150), root.join("link")).unwrap();
    let file = fs::File::create(root.join("sparse")).unwrap();
    for at in 0..60_u64 {
        use std::os::unix::fs::FileExt as _;
        file.write_all_at(b"data", at << 20).unwrap();
    }
    file.set_len(100 << 20).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/x"), b"x").unwrap();
    let set_times = || {
        tool(
            "find",
            &[
                place.path("data").to_str().unwrap(),
                "-exec",
                "touch",
                "-h",
                "-d",
                "2001-02-03 04:05:06",
                "{}",
                ";",
            ],
        );
    };
    set_times();
    let data = place.text("data");
    for (number, options) in
        [&["--format=gnu", "--sparse"][..], &["--format=oldgnu", "--gzip"]].iter().enumerate()
    {
        let mut tar = command("tar", &[&["-C", &data, "-c"], *options, &["."]].concat());
        import_from(&place, &mut tar, &["tar", "old"]).exits(0);
        let out = format!("out{number}");
        place.silt(&["restore", "old@latest", &out]).exits(0);
        assert_eq!(differences("-aHSn", &root, &place.path(&out)), "", "{options:?}");
    }
    // These can't have the long names.
    fs::remove_dir_all(root.join(&long)).unwrap();
    fs::remove_file(root.join("link")).unwrap();
    set_times();
    for (number, format) in ["v7", "ustar"].iter().enumerate() {
        let format = format!("--format={format}");
        let mut tar = command("tar", &["-C", &data, "-c", &format, "."]);
        import_from(&place, &mut tar, &["tar", "old"]).exits(0);
        let out = format!("plain{number}");
        place.silt(&["restore", "old@latest", &out]).exits(0);
        assert_eq!(differences("-aHSn", &root, &place.path(&out)), "", "{format}");
    }
}

#[test]
fn what_bsdtar_archives_is_imported() {
    if !can("rsync") || !can("bsdtar") {
        return;
    }
    let place = Place::new();
    let (scratch, root) = awkward();
    // It writes a time before 1970 that is no whole second wrongly.
    for name in ["1900", "folder of 1900"] {
        crate::tree_kit::set_modified(&root.join(name), -5, 0);
    }
    crate::tree_kit::set_modified(&root, 1_000_000_000, 5);
    let data = root.to_str().unwrap();
    let archive = scratch.path("data.tar");
    let options = ["--format=pax", "--acls", "--xattrs", "--fflags"];
    let make = ["-C", data, "-cf", archive.to_str().unwrap()];
    tool("bsdtar", &[&make[..], &options, &["."]].concat());
    let run = place.silt(&["import", "tar", "data", "--file", archive.to_str().unwrap()]).exits(0);
    assert_eq!(run.err, "");
    let target = scratch.path("out");
    place.silt(&["restore", "data@latest", target.to_str().unwrap()]).exits(0);
    assert_eq!(differences(ALL, &root, &target), "");
}

#[test]
fn what_is_dumped_is_imported_as_it_was() {
    let place = Place::new();
    let (scratch, root) = awkward();
    deep_tree(&root, &"d".repeat(200), 15);
    place.silt(&["backup", "data", root.to_str().unwrap()]).exits(0);
    let mut dump = place.command();
    dump.args(["dump", "data@latest"]);
    let run = import_from(&place, &mut dump, &["tar", "copy"]).exits(0);
    assert_eq!(run.err, "");
    for name in ["data", "copy"] {
        let target = scratch.path(&format!("{name}-out"));
        let snapshot = format!("{name}@latest");
        place.silt(&["restore", &snapshot, target.to_str().unwrap()]).exits(0);
    }
    assert_eq!(differences(ALL, &scratch.path("data-out"), &scratch.path("copy-out")), "");
    assert_eq!(differences(ALL, &root, &scratch.path("copy-out")), "");
}

/// A tree with what restic and Borg write into archives, and times in whole seconds.
fn plain_tree(root: &Path) {
    fs::create_dir_all(root.join("folder/deep")).unwrap();
    fs::write(root.join("folder/deep/file"), b"first\n").unwrap();
    fs::write(root.join("large"), crate::kit::disk(9, 5)).unwrap();
    std::os::unix::fs::symlink("folder", root.join("link")).unwrap();
    whole_seconds(root);
}

fn whole_seconds(root: &Path) {
    let touch = ["-exec", "touch", "-h", "-d", "2019-02-03 04:05:06", "{}", ";"];
    tool("find", &[&[root.to_str().unwrap()], &touch[..]].concat());
}

/// Runs a program of another repository, which must succeed.
fn run(program: &mut Command) {
    Run::of(program).exits(0);
}

/// Imports two snapshots of another program, in several ways. `first` and `second` are what was
/// backed up, and `root` is its path in the archives.
fn imports_all(
    place: &Place,
    other: &dyn Fn(&[&str]) -> Run,
    [first, second]: [&Path; 2],
    root: &str,
) {
    let planned = other(&["--dry-run", "--json"]).exits(0);
    assert_eq!(planned.messages()[0]["message_type"], "planned_import");
    assert_eq!(
        (&planned.summary()["imported"], &planned.summary()["dry_run"]),
        (&2.into(), &true.into())
    );
    place.silt(&["snapshots", "web1"]).exits(1);

    let imported = other(&["--json"]).exits(0);
    assert_eq!(imported.summary()["imported"], 2, "{}", imported.out);
    let listed = place.silt(&["snapshots", "web1", "--json"]).exits(0).messages();
    let times: Vec<_> = listed.iter().map(|it| it["time"].as_str().unwrap()).collect();
    assert_eq!(times, ["2020-01-02T03:04:05Z", "2020-02-03T04:05:06Z"]);
    assert!(listed.iter().all(|it| it["host"] == "web1"), "{listed:?}");
    for (day, path) in [("2020-01-02", first), ("2020-02-03", second)] {
        let (out, snapshot) = (format!("out-{day}"), format!("web1@{day}:{root}"));
        place.silt(&["restore", &snapshot, &out]).exits(0);
        assert_eq!(differences("-an", path, &place.path(&out)), "", "{day}");
    }
    // Most of the second one was known.
    let new = &listed[1]["volumes"][0]["levels"]["new"];
    assert!(new.as_u64().unwrap() < 1000, "{new}");

    let again = other(&["--json"]).exits(0);
    assert_eq!((&again.summary()["imported"], &again.summary()["skipped"]), (&0.into(), &2.into()));
    // A deleted one is not imported again.
    place.silt(&["delete", "web1@2020-01-02"]).exits(0);
    assert_eq!(other(&["--json"]).exits(0).summary()["skipped"], 2);
    // The same, as a tree of its own.
    other(&["home:home", "--root", root, "--host", "web1"]).exits(0).says("Imported 2");
    place.silt(&["restore", "home@latest:home", "home"]).exits(0);
    assert_eq!(differences("-an", second, &place.path("home")), "");
    other(&["--host", "web2"]).exits(0).says("Imported 0");
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn snapshots_of_restic_are_imported_once_with_their_times() {
    if !can("rsync") || !can("restic") {
        return;
    }
    let place = Place::new();
    let (source, copy) = (place.path("source"), place.path("copy"));
    plain_tree(&source);
    let restic = |arguments: &[&str]| {
        let mut restic = command("restic", arguments);
        restic.env("RESTIC_REPOSITORY", place.path("restic")).env("RESTIC_PASSWORD", "other");
        restic.env("HOME", place.path("home-of-restic")).current_dir(place.folder.path());
        restic
    };
    run(&mut restic(&["init"]));
    let source_text = place.text("source");
    let backup = ["backup", "--host", "web1", "--tag", "nightly,full", &source_text, "--time"];
    // The newer one is made first.
    fs::write(source.join("folder/deep/file"), b"second\n").unwrap();
    fs::write(source.join("new"), b"new\n").unwrap();
    whole_seconds(&source);
    run(restic(&[&backup[..], &["2020-02-03 04:05:06"]].concat()).env("TZ", "UTC"));
    tool("cp", &["-a", &source_text, &place.text("copy")]);
    fs::write(source.join("folder/deep/file"), b"first\n").unwrap();
    fs::remove_file(source.join("new")).unwrap();
    whole_seconds(&source);
    run(restic(&[&backup[..], &["2020-01-02 03:04:05"]].concat()).env("TZ", "UTC"));

    place.write("password", b"other\n");
    let other = |arguments: &[&str]| {
        let mut silt = place.command();
        silt.args(["import", "restic", "--from", &place.text("restic")]).args(arguments);
        silt.args(["--from-password-file", "password"]).env("HOME", place.path("home-of-restic"));
        Run::of(&mut silt)
    };
    imports_all(&place, &other, [&source, &copy], &source_text);
    let listed = place.silt(&["snapshots", "web1", "--json"]).exits(0).messages();
    let tags = listed[0]["tags"].as_array().unwrap();
    assert!(tags[0] == "nightly" && tags[1] == "full" && tags.len() == 3, "{tags:?}");
    other(&["t", "--tag", "full,nightly"]).exits(0).says("Imported 2");
    other(&["t2", "--tag", "weekly"]).exits(0).says("Imported 0");
    other(&["p", "--path", "/nowhere"]).exits(0).says("Imported 0");

    // Snapshots of something else should not be in the same series.
    run(&mut restic(&["backup", "--host", "web1", &place.text("source/folder")]));
    other(&["--dry-run"]).exits(0).says("several sets of paths");

    // One that can't be read to its end is named, and the others are imported.
    fs::create_dir(place.path("bin")).unwrap();
    let id = listed[0]["volumes"][0]["source"].as_str().unwrap().replace("restic:", "");
    let script = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\ncase \"$*\" in\n*dump*{id}*) restic \"$@\" | head -c 3000; \
         exit 1;;\nesac\nexec restic \"$@\"\n"
    );
    let script = place.write("bin/restic", script.as_bytes());
    tool("chmod", &["+x", &script]);
    let mut silt = place.command();
    silt.args(["import", "restic", "damaged", "--from", &place.text("restic")]);
    silt.env("RESTIC_PASSWORD", "other").env("HOME", place.path("home-of-restic"));
    silt.env("PATH", format!("{}:/usr/bin:/bin", place.text("bin")));
    let failed = Run::of(&mut silt).exits(1);
    failed.says(&format!("import {}: ", &id[..8]));
    failed.says("`restic dump` failed");
    failed.says("Imported 2 snapshots of restic; 0 were imported before, 1 failed");
    // What failed is imported by the next run.
    other(&["damaged"]).exits(0).says("Imported 1 snapshot of restic; 2 were imported before");
    let mut nowhere = place.command();
    nowhere.args(["import", "restic", "--from", "/nowhere"]).env("RESTIC_PASSWORD", "x");
    Run::of(nowhere.env("HOME", place.path("h"))).exits(1).says("`restic snapshots --json` failed");
}

#[test]
fn archives_of_borg_are_imported_once_with_their_times() {
    if !can("rsync") || !can("borg") {
        return;
    }
    let place = Place::new();
    let (source, copy) = (place.path("source"), place.path("copy"));
    plain_tree(&source);
    let borg = |arguments: &[&str]| {
        let mut borg = command("borg", arguments);
        borg.env("BORG_REPO", place.path("borg")).env("HOME", place.path("home-of-borg"));
        borg.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").env("TZ", "UTC");
        borg.env("BORG_HOST_ID", "x").current_dir(place.folder.path());
        borg
    };
    run(&mut borg(&["init", "-e", "none"]));
    run(&mut borg(&["create", "--timestamp", "2020-01-02T03:04:05", "::home-1", "source"]));
    tool("cp", &["-a", &place.text("source"), &place.text("copy")]);
    fs::write(source.join("folder/deep/file"), b"second\n").unwrap();
    fs::write(source.join("new"), b"new\n").unwrap();
    whole_seconds(&source);
    run(&mut borg(&["create", "--timestamp", "2020-02-03T04:05:06", "::home-2", "source"]));
    let host = tool("hostname", &[]);
    let other = |arguments: &[&str]| {
        let mut silt = place.command();
        silt.args(["import", "borg", "--from", &place.text("borg")]);
        silt.args(arguments.iter().map(|it| if *it == "web1" { host.as_str() } else { it }));
        silt.env("HOME", place.path("home-of-borg"));
        // The time of an archive is in UTC, wherever it is imported.
        silt.env("TZ", "Asia/Tokyo").env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        Run::of(&mut silt)
    };
    other(&["chosen", "--archives", "*-2"]).exits(0).says("Imported 1");
    let listed = place.silt(&["snapshots", "chosen", "--json"]).exits(0).messages();
    assert_eq!(
        (&listed[0]["host"], &listed[0]["tags"][0]),
        (&Value::from(&*host), &"home-2".into())
    );
    assert_eq!(listed[0]["time"], "2020-02-03T04:05:06Z");
    let again = other(&["chosen", "--json"]).exits(0).summary();
    assert_eq!((&again["imported"], &again["skipped"]), (&1.into(), &1.into()));
    for (day, path) in [("2020-01-02", &copy), ("2020-02-03", &source)] {
        let (out, snapshot) = (format!("out-{day}"), format!("chosen@{day}:/source"));
        place.silt(&["restore", &snapshot, &out]).exits(0);
        assert_eq!(differences("-an", path, &place.path(&out)), "", "{day}");
    }
    other(&["no-such", "--host", "web2"]).exits(0).says("Imported 0");
    other(&["--archives", "*-1", "--root", "source"]).exits(0).says("Imported 1");
}

#[test]
fn what_is_wrong_with_an_archive_is_said_and_costs_no_snapshot() {
    let place = Place::new();
    fs::create_dir_all(place.path("data/folder")).unwrap();
    fs::write(place.path("data/folder/file"), vec![5; 100_000]).unwrap();
    let data = place.text("data");
    let archive = place.text("data.tar");
    tool("tar", &["-C", &data, "-cf", &archive, "."]);
    let whole = place.read("data.tar");
    for bytes in [0, 100, 1024, 60_000, 101_888] {
        let run = import_bytes(&place, &whole[..bytes], &["data"]);
        run.exits(1).says(if bytes < 512 { "not a tar archive" } else { "truncated" });
    }
    import_bytes(&place, &vec![b'x'; 5000], &["data", "--json"]).exits(1).says("not a tar archive");
    place.silt(&["snapshots", "data"]).exits(1);
    place.silt(&["import", "tar", "data", "--file", "missing.tar"]).exits(1).says("missing.tar");
    place.silt(&["import", "tar", "a/b", "--file", &archive]).exits(1).says("not allowed");
    place.silt(&["import", "tar", "data", "--time", "soon"]).exits(2).says("not a time");

    // GNU tar keeps these names only if it is told to.
    tool("tar", &["-C", &data, "-cPf", &archive, "./folder", &data]);
    let run = place.silt(&["import", "tar", "data", "--file", &archive]).exits(3);
    run.says("its path is absolute");
    run.says("3 entries are NOT imported as a whole");
    let run = place.silt(&["import", "tar", "data", "--file", &archive, "--json"]).exits(3);
    assert_eq!(run.summary()["refused_entries"], 3);
    let imported = &run.messages().into_iter().find(|m| m["message_type"] == "imported").unwrap();
    assert_eq!((&imported["refused"], &imported["entries"]), (&3.into(), &2.into()));
    assert!(imported["refusals"][0]["path"].as_str().unwrap().starts_with('/'));

    let options = ["--time", "2019-05-01T22:00:00Z", "--host", "old", "--tag", "x", "--dry-run"];
    let named = ["import", "tar", "dated:etc", "--root", "folder", "--file", &archive];
    place.silt(&[&named[..], &options].concat()).exits(3).says("Would import");
    place.silt(&["snapshots", "dated"]).exits(1);
    place.silt(&[&named[..], &options[..6]].concat()).exits(3);
    let listed = place.silt(&["snapshots", "dated", "--json"]).exits(0).messages();
    let fields = ["host", "time"].map(|key| listed[0][key].as_str().unwrap().to_owned());
    assert_eq!(fields, ["old", "2019-05-01T22:00:00Z"]);
    assert_eq!(
        (&listed[0]["volumes"][0]["name"], &listed[0]["tags"][0]),
        (&"etc".into(), &Value::from("x"))
    );
    place.silt(&["ls", "dated@latest:/"]).exits(0).says("file");
    // A backup of the directory goes on where the import ended.
    place.silt(&["backup", "dated", &format!("etc={data}/folder")]).exits(0).says("parent");
    let versions = place.silt(&["versions", "dated:/file", "--json"]).exits(0).messages();
    assert_eq!((versions.len(), &versions[0]["snapshots"]), (1, &2.into()));
}
