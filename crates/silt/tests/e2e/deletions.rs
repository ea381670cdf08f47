//! Deleting, keeping and reclaiming, as a user does it.

use std::fs;
use std::path::Path;

use crate::kit::{Place, Run, disk, noise, tool};

/// A place with a series of three days, oldest first.
fn three_days() -> (Place, Vec<String>) {
    let place = Place::new();
    let mut ids = Vec::new();
    for day in 0..3 {
        let mut disk = noise(7, 3 << 20);
        disk[1 << 20..2 << 20].copy_from_slice(&noise(100 + day, 1 << 20));
        fs::write(place.path("disk.raw"), disk).unwrap();
        let run = place.silt(&["backup", "vm", "disk.raw", "--json"]).exits(0);
        ids.push(run.summary()["id"].as_str().unwrap().to_owned());
    }
    (place, ids)
}

fn listed(place: &Place, arguments: &[&str]) -> Vec<String> {
    let run = place.silt(&[&["snapshots", "--json"], arguments].concat()).exits(0);
    let id = |message: serde_json::Value| message["id"].as_str().unwrap().to_owned();
    run.messages().into_iter().map(id).collect()
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let bytes = entries.map(|entry| match entry.metadata().unwrap() {
        data if data.is_dir() => bytes_below(&entry.path()),
        data => data.len(),
    });
    bytes.sum()
}

#[test]
fn a_snapshot_is_deleted_brought_back_and_its_space_reclaimed() {
    let (place, ids) = three_days();
    let before = bytes_below(&place.path("repository"));
    place.silt(&["delete", &ids[0], "--dry-run"]).exits(0).says("Would delete 1 snapshot of vm");
    assert_eq!(bytes_below(&place.path("repository")), before, "a dry run writes nothing");
    let run = place.silt(&["delete", &ids[0], "--json"]).exits(0);
    assert!(run.messages()[0]["dead_chunks"].as_u64().unwrap() > 200);
    assert_eq!(listed(&place, &[]), ids[1..]);
    assert_eq!(listed(&place, &["--deleted"]), ids[..1]);
    place.silt(&["delete", &ids[0]]).exits(1).says("no snapshot has an id");
    place.silt(&["undelete", &ids[0][..8]]).exits(0).says("Brought back snapshot");
    assert_eq!(listed(&place, &[]), ids);
    place.silt(&["delete", &ids[0]]).exits(0);
    place
        .silt(&["reclaim", "--keep-deleted", "7d"])
        .exits(0)
        .says("0 containers dropped, 0 rewritten");
    place.silt(&["reclaim", "--dry-run"]).exits(0).says("would free");
    let run = place.silt(&["reclaim", "--json"]).exits(0);
    assert!(run.summary()["freed_bytes"].as_u64().unwrap() > 800 << 10);
    assert!(before - bytes_below(&place.path("repository")) > 800 << 10);
    place.silt(&["undelete", &ids[0]]).exits(1).says("no deleted snapshot has an id");
    place.silt(&["check", "--read-data"]).exits(0);
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(0);
    let same =
        fs::read(place.path("out.raw")).unwrap() == fs::read(place.path("disk.raw")).unwrap();
    assert!(same);
}

#[test]
fn a_policy_is_given_or_stored_and_protection_stands_above_it() {
    let (place, ids) = three_days();
    place.silt(&["forget"]).exits(2).says("no policy");
    place.silt(&["forget", "--min-age", "3d"]).exits(2).says("is not a rule");
    place.silt(&["forget", "--keep-within", "3 days"]).exits(2).says("1y5m2w7d2h");
    place.silt(&["protect", &ids[0]]).exits(0);
    place.silt(&["snapshots"]).exits(0).says("(protected)");
    place.silt(&["delete", &ids[0]]).exits(13).says("silt unprotect");
    let run = place.silt(&["forget", "--keep-last", "1", "--dry-run", "--json"]).exits(0);
    let kept = |message: &serde_json::Value| {
        (message["message_type"] == "decision").then(|| message["keep"].as_bool().unwrap())
    };
    let kept: Vec<bool> = run.messages().iter().filter_map(kept).collect();
    assert_eq!(kept, [true, false, true], "newest first");
    place.silt(&["policy", "set", "vm"]).exits(2).says("keep nothing");
    place.silt(&["policy", "set", "vm", "--keep-last", "1", "--keep-deleted", "2d"]).exits(0);
    place
        .silt(&["policy", "show"])
        .exits(0)
        .says("vm: keep last 1; deleted snapshots can be brought back for 2d");
    place
        .silt(&["forget", "--min-age", "3d", "--keep-last", "1"])
        .exits(0)
        .says("Nothing to delete");
    place.silt(&["forget", "--yes"]).exits(0).says("Deleted 1 snapshot of vm");
    assert_eq!(listed(&place, &[]), [ids[0].clone(), ids[2].clone()]);
    place.silt(&["unprotect", &ids[0]]).exits(0);
    place.silt(&["forget"]).exits(0).says("Deleted 1 snapshot of vm");
    let run = place.silt(&["backup", "vm", "disk.raw", "--forget", "--json"]).exits(0);
    let newest = run.summary()["id"].as_str().unwrap().to_owned();
    assert_eq!(listed(&place, &[]), [newest]);
    place.silt(&["policy", "remove", "vm"]).exits(0).says("no policy");
    place.silt(&["backup", "vm", "disk.raw", "--forget"]).exits(0).says("has no stored policy");
}

#[test]
fn an_append_only_repository_asks_for_the_administrator() {
    let place = Place::new();
    fs::write(place.path("disk.raw"), noise(1, 1 << 20)).unwrap();
    fs::write(place.path("admin"), "boss\n").unwrap();
    let silt = |arguments: &[&str]| {
        place.silt(&[&["-r", "append", "--admin-password-file", "admin"], arguments].concat())
    };
    let cost = ["--kdf-memory", "8", "--kdf-passes", "1"];
    silt(&[&["init", "--append-only"], &cost[..]].concat())
        .exits(0)
        .says("administrator's password");
    let host = |arguments: &[&str]| place.silt(&[&["-r", "append"], arguments].concat());
    host(&["backup", "vm", "disk.raw"]).exits(0);
    host(&["backup", "vm", "disk.raw"]).exits(0);
    host(&["delete", "vm@latest"]).exits(13).says("SILT_ADMIN_PASSWORD");
    host(&["tune", ".", "--reset", "vm"]).exits(13).says("SILT_ADMIN_PASSWORD");
    silt(&["tune", ".", "--apply", "vm"]).exits(0).says("as proposed");
    fs::write(place.path("wrong"), "guess\n").unwrap();
    host(&["delete", "vm@latest", "--admin-password-file", "wrong"]).exits(12);
    silt(&["delete", "vm@latest"]).exits(0);
    silt(&["reclaim"]).exits(0);
    silt(&["recover", "vm"]).exits(0).says("needs no recovery");
    host(&["backup", "vm", "disk.raw"]).exits(0);
    host(&["check", "--read-data"]).exits(0);
}

#[test]
fn a_backup_that_could_not_forget_is_refused_before_it_begins() {
    let place = Place::new();
    let image = place.write("a.raw", &noise(3, 1 << 20));
    place.write("fleet.toml", format!("[series.a]\nvolumes = {{ d = \"{image}\" }}").as_bytes());
    let mut add = place.command();
    add.args(["key", "add", "--write-only", "--series", "a"]);
    Run::of(add.env("SILT_NEW_PASSWORD", "host")).exits(0);
    let append_only = place.text("append-only");
    let of = |args: &[&str]| {
        let mut command = place.command();
        command.args(args).env("SILT_REPOSITORY", &append_only);
        Run::of(command.env("SILT_ADMIN_PASSWORD", "signs"))
    };
    of(&["init", "--append-only", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    let backups = [&["backup", "a", &image][..], &["backup", "--fleet", "fleet.toml"]];
    for backup in backups {
        let forgetting = [backup, &["--forget"]].concat();
        let mut by_host = place.command();
        let by_host = Run::of(by_host.args(&forgetting).env("SILT_PASSWORD", "host"));
        by_host.exits(13).says("no backup was made");
        of(&forgetting).exits(13).says("no backup was made");
    }
    assert!(place.objects("state").is_empty(), "not even a lease");
    of(&["snapshots"]).exits(0).says("No snapshots");
    for backup in backups {
        of(backup).exits(0);
        place.silt(&[backup, &["--forget"]].concat()).exits(0).says("no stored policy");
    }
}

#[test]
fn a_series_that_cannot_forget_does_not_stop_the_round() {
    let place = Place::new();
    let series = ["a", "b"].map(|name| {
        let image = place.write(&format!("{name}.raw"), &noise(3, 1 << 20));
        place.silt(&["backup", name, &image]).exits(0);
        format!("[series.{name}]\nvolumes = {{ d = \"{image}\" }}\n")
    });
    place.silt(&["policy", "set", "a", "--keep-tag", "none"]).exits(0);
    place.silt(&["policy", "set", "b", "--keep-last", "2"]).exits(0);
    place.silt(&["backup", "b", "d=b.raw"]).exits(0);
    place.write("fleet.toml", series.concat().as_bytes());
    let run = place.silt(&["backup", "--fleet", "fleet.toml", "--forget"]).exits(6);
    assert!(run.err.contains("the snapshot of 'a' was made"), "{}", run.err);
    run.says("Deleted 1 snapshot of b");
}

#[test]
fn a_wrong_password_is_one_beside_a_damaged_copy() {
    let place = Place::new();
    let repository = place.text("other");
    let image = place.write("a.raw", &disk(1, 4));
    let silt = |password: &str, args: &[&str]| {
        let mut command = place.command();
        command.env("SILT_REPOSITORY", &repository).env("SILT_ADMIN_PASSWORD", password);
        Run::of(command.args(args))
    };
    let init = ["init", "--append-only", "--kdf-memory", "8", "--kdf-passes", "1"];
    silt("signs", &init).exits(0);
    silt("signs", &["backup", "vm", &image]).exits(0);
    let copies = tool("find", &[&repository, "-name", "*authority*"]);
    let copies: Vec<_> = copies.lines().collect();
    assert_eq!(copies.len(), 2, "{copies:?}");
    for copy in copies {
        let whole = fs::read(copy).unwrap();
        fs::write(copy, &whole[..40]).unwrap();
        silt("guesses", &["reclaim"]).exits(12).says("wrong password");
        silt("signs", &["reclaim"]).exits(0);
        fs::write(copy, &whole).unwrap();
    }
}

/// Days of a disk in which a little of every block is changed each time.
#[test]
fn days_that_resemble_each_other_become_deltas() {
    let place = Place::new();
    let day = |number: usize| {
        let mut disk = noise(7, 2 << 20);
        disk.chunks_mut(4096)
            .for_each(|block| block[number * 100..][..8].fill(number.to_le_bytes()[0]));
        disk
    };
    for number in 0..3 {
        fs::write(place.path("disk.raw"), day(number)).unwrap();
        place.silt(&["backup", "vm", "disk.raw"]).exits(0);
    }
    let stored = || bytes_below(&place.path("repository/containers"));
    let before = stored();
    place.silt(&["optimize", "--min-saved", "101"]).exits(2).says("between 0 and 100 percent");
    place.silt(&["optimize", "nobody"]).exits(1).says("nobody");
    place.silt(&["optimize", "--dry-run"]).exits(0).says("vm: would save");
    assert_eq!(stored(), before, "a dry run writes nothing");
    let run = place.silt(&["optimize", "vm", "--json"]).exits(0);
    let messages = run.messages();
    let optimized = messages.iter().find(|message| message["message_type"] == "optimized");
    let optimized = optimized.unwrap();
    assert!(optimized["deltas"].as_u64().unwrap() > 900, "{optimized}");
    assert!(stored() * 2 < before, "{before} {}", stored());
    place.silt(&["optimize"]).exits(0).says("vm: saved 0 B (0 of");
    let run = place.silt(&["stats", "--json"]).exits(0);
    let number = |field: &str| run.messages()[0][field].as_u64().unwrap();
    assert!(number("delta_bases") > 100);
    assert_eq!(number("deltas"), optimized["deltas"].as_u64().unwrap());
    assert_eq!(number("delta_chunk_bytes"), number("deltas") * 4096);
    assert!(number("delta_bytes") < number("container_bytes"));
    let words = format!("{} chunks of ", number("deltas"));
    place.silt(&["stats"]).exits(0).says(&words);
    for (id, number) in listed(&place, &[]).iter().zip(0..3) {
        let _ = fs::remove_file(place.path("out.raw"));
        place.silt(&["restore", id, "out.raw"]).exits(0);
        assert!(place.read("out.raw") == day(number), "day {number}");
    }
    let oldest = listed(&place, &[])[0].clone();
    place.silt(&["delete", &oldest]).exits(0);
    place.silt(&["reclaim", "--sweep", "--min-dead", "0"]).exits(0);
    place.silt(&["check", "--read-data"]).exits(0);
}
