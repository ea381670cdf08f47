//! Typing errors and bad days: what a person does by mistake, and what goes wrong by itself.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::kit::{Place, Run, can, changed, damage, disk, finish, tool};

/// A place with `count` snapshots of a series.
fn with_snapshots(count: usize) -> Place {
    let place = Place::new();
    for day in 0..count {
        place.write("a.raw", &changed(&disk(1, 4), day));
        place.silt(&["backup", "vm", "a.raw"]).exits(0);
    }
    place
}

fn count(place: &Place, args: &[&str]) -> usize {
    place.silt(&[&["snapshots", "--json"], args].concat()).messages().len()
}

#[test]
fn a_mistyped_rule_deletes_nothing() {
    let place = with_snapshots(4);
    let typo = ["forget", "--keep-tag", "nigthly", "--reclaim"];
    place.silt(&typo).exits(13).says("keep no snapshot of vm");
    place.silt(&[&typo[..], &["--yes"]].concat()).exits(13).says("--allow-empty");
    place.silt(&[&typo[..], &["--allow-empty"]].concat()).exits(13).says("delete 4 of 4 of vm");
    assert_eq!(count(&place, &[]), 4);
    // More than half is asked for; a dry run is not.
    place.silt(&["forget", "--keep-last", "1"]).exits(13).says("delete 3 of 4 of vm");
    place.silt(&["forget", "--keep-last", "1", "--dry-run"]).exits(0).says("Would delete 3");
    place.silt(&["forget", "--keep-last", "3"]).exits(0).says("Deleted 1 snapshot of vm");
    place.silt(&["forget", "--keep-last", "1", "--yes"]).exits(0).says("Deleted 2 snapshots");
    place.silt(&["forget", "--keep-tag", "no", "--yes", "--allow-empty"]).exits(0);
    assert_eq!(count(&place, &[]), 0);
}

#[test]
fn on_a_terminal_it_is_asked_before_most_goes() {
    let place = with_snapshots(3);
    // script(1) gives the program a terminal.
    let answer = |answer: &str| {
        let command = format!("{} forget --keep-last 1", env!("CARGO_BIN_EXE_silt"));
        let mut asked = Command::new("script");
        asked.args(["-qec", &command, "/dev/null"]).env("PATH", "/usr/bin:/bin");
        asked.env("SILT_REPOSITORY", place.path("repository")).env("SILT_PASSWORD", "secret");
        asked.env("XDG_STATE_HOME", place.path("state")).stdin(Stdio::piped());
        let mut asked = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = asked.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, answer.as_bytes()).unwrap();
        drop(stdin);
        finish(asked)
    };
    answer("n\n").exits(13).says("[y/N]");
    assert_eq!(count(&place, &[]), 3);
    answer("y\n").exits(0).says("Deleted 2 snapshots of vm");
    assert_eq!(count(&place, &[]), 1);
}

#[test]
fn what_forget_reclaims_can_still_be_brought_back_for_a_day() {
    let place = with_snapshots(3);
    place.silt(&["forget", "--keep-last", "2", "--reclaim"]).exits(0);
    let deleted = place.silt(&["snapshots", "--deleted", "--json"]).exits(0).messages();
    let id = deleted[0]["id"].as_str().unwrap().to_owned();
    place.silt(&["undelete", &id]).exits(0);
    place.silt(&["restore", &id, "out.raw"]).exits(0);
    assert!(place.read("out.raw") == changed(&disk(1, 4), 0));
    place.silt(&["forget", "--keep-last", "2", "--reclaim", "--keep-deleted", "0"]).exits(0);
    assert_eq!(count(&place, &["--deleted"]), 0);
    place.silt(&["forget", "--keep-last", "1", "--keep-deleted", "7d"]).exits(2).says("--reclaim");
}

#[test]
fn a_stored_policy_deletes_neither_all_nor_most_unasked() {
    let place = with_snapshots(4);
    place.silt(&["policy", "set", "vm", "--keep-last", "1"]).exits(0);
    let run = place.silt(&["backup", "vm", "a.raw", "--forget"]).exits(0);
    run.says("would delete 4 of its 5 snapshots");
    assert_eq!(count(&place, &[]), 5);
    place.silt(&["forget", "--yes"]).exits(0);
    place.silt(&["backup", "vm", "a.raw", "--forget"]).exits(0).says("Deleted 1 snapshot");
    assert_eq!(count(&place, &[]), 1);
    place.silt(&["policy", "set", "vm", "--keep-tag", "nigthly"]).exits(0);
    let run = place.silt(&["backup", "vm", "a.raw", "--forget"]).exits(6);
    assert!(run.err.contains("the snapshot of 'vm' was made"), "{}", run.err);
    run.says("keep no snapshot of vm");
    assert_eq!(count(&place, &[]), 2);
}

/// A backup that is under way, and has uploaded something.
fn begun(place: &Place, series: &str, image: &str) -> std::process::Child {
    let before = place.objects("containers").len();
    let child = place.start(&["backup", series, image, "--limit-read", "16"]);
    while place.objects("containers").len() == before {
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_first_backup_that_was_interrupted_leaves_nothing_for_good() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(3, 48));
    place.silt(&["backup", "other", &image]).exits(0);
    let before: Vec<_> = place.objects("containers");
    let child = begun(&place, "vm", &place.write("b.raw", &disk(4, 48)));
    tool("kill", &["-KILL", &child.id().to_string()]);
    finish(child);
    assert!(place.objects("containers").len() > before.len());
    let checked = place.silt(&["check"]).exits(0);
    checked.says("of interrupted backups");
    checked.says("Checked 1 series");
    // Within the time of grace the next backup may use it.
    place.silt(&["reclaim"]).exits(0);
    assert!(place.objects("containers").len() > before.len());
    place.silt(&["reclaim", "vm", "--grace", "0", "--dry-run"]).exits(0).says("would free");
    place.silt(&["reclaim", "--grace", "0"]).exits(0).says("vm: freed");
    assert_eq!(place.objects("containers"), before);
    let checked = place.silt(&["check"]).exits(0).printed();
    assert!(!checked.contains("interrupted backups"), "{checked}");
    let stats = place.silt(&["stats"]).exits(0).printed();
    assert!(!stats.contains("vm"), "no series without a snapshot: {stats}");
    place.silt(&["backup", "vm", "b.raw"]).exits(0);
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(0);
    assert!(place.read("out.raw") == disk(4, 48));
}

#[test]
fn a_backup_that_fails_at_once_leaves_no_series() {
    let place = Place::new();
    place.silt(&["backup", "vm", "missing.raw"]).exits(1).says("missing.raw");
    place.write("odd.qcow2", b"no image");
    place.silt(&["backup", "vm", "odd.qcow2"]);
    place.silt(&["check"]).exits(0).says("Checked 0 series");
    assert!(place.objects("series").is_empty());
}

#[test]
fn what_is_busy_or_damaged_keeps_nothing_else_from_being_done() {
    let place = Place::new();
    for series in ["a", "b", "c"] {
        for day in 0..3 {
            place.write("x.raw", &changed(&disk(7, 8), day));
            place.silt(&["backup", series, "x.raw"]).exits(0);
        }
    }
    // It takes longer than all that is tried beside it.
    let before = place.objects("state").len();
    place.write("big.raw", &disk(9, 64));
    let child = place.start(&["backup", "a", "big.raw", "--limit-read", "1"]);
    while place.objects("state").len() == before {
        std::thread::yield_now();
    }
    let run = place.silt(&["forget", "--keep-last", "2"]).exits(11);
    run.says("series 'a'");
    run.says("Deleted 1 snapshot of b");
    run.says("Deleted 1 snapshot of c");
    place.silt(&["reclaim"]).exits(11).says("c: freed");
    // Whoever waits gets it.
    let mut waiting = place.start(&["reclaim", "a", "--wait", "2m"]);
    let (mut said, mut messages) = (String::new(), BufReader::new(waiting.stderr.take().unwrap()));
    messages.read_line(&mut said).unwrap();
    assert!(said.contains("waiting"), "{said}");
    tool("kill", &["-KILL", &child.id().to_string()]);
    finish(child);
    finish(waiting).exits(0);

    let newest = newest_head(&place, "b");
    damage(&newest);
    let listed = place.silt(&["snapshots"]).exits(5);
    listed.says("`silt recover b`");
    assert_eq!(count(&place, &["b"]), 2, "what the head before it lists is shown");
    place.silt(&["check"]).exits(5).says("`silt recover b`");
    let run = place.silt(&["forget", "--keep-last", "1", "--yes"]).exits(5);
    run.says("Deleted 1 snapshot of c");
    place.silt(&["reclaim"]).exits(5).says("series 'b' is damaged");
    place.silt(&["recover", "b"]).exits(0);
    assert_eq!(count(&place, &["b"]), 2);
    place.silt(&["check", "--read-data"]).exits(0);
    place.silt(&["backup", "b", "x.raw"]).exits(0);
}

/// The newest head of a series, which begins with the number that is lowest by name.
fn newest_head(place: &Place, series: &str) -> std::path::PathBuf {
    let before = place.objects("state");
    place.silt(&["protect", &format!("{series}@latest")]).exits(0);
    let new: Vec<_> =
        place.objects("state").into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new.len(), 1);
    new[0].clone()
}

#[test]
fn periods_have_weeks_and_minutes() {
    let place = with_snapshots(1);
    let silt = |args: &[&str]| -> Run { place.silt(args) };
    silt(&["forget", "--keep-within", "1y2m3w4d5h", "--dry-run"]).exits(0);
    silt(&["forget", "--keep-last", "1", "--min-age", "90min"]).exits(0);
    silt(&["reclaim", "--grace", "2w", "--keep-deleted", "30s"]).exits(0);
    silt(&["reclaim", "--grace", "5x"]).exits(2).says("90min");
    silt(&["forget", "--keep-within", "1d1d"]).exits(2);
}

fn fleet(place: &Place, before: &str, after: &str) {
    let text = format!(
        "[series.web]\nbefore = \"{before}\"\nvolumes = {{ root = \"web.raw\" }}\nafter = \
         \"{after}\"\n\
         [series.db]\nvolumes = {{ root = \"db.raw\" }}\n"
    );
    place.write("fleet.toml", text.as_bytes());
    place.write("web.raw", &disk(1, 32));
    place.write("db.raw", &disk(1, 32));
}

#[test]
fn commands_of_a_fleet_get_no_password_and_print_beside() {
    let place = Place::new();
    fleet(&place, "env > env.txt; echo hello", "echo bye");
    let mut command = place.command();
    command.args(["backup", "--fleet", "fleet.toml", "--json"]);
    command.env("SILT_ADMIN_PASSWORD_FILE", "/nowhere").env("SILT_NEW_PASSWORD", "new");
    let run = Run::of(&mut command).exits(0);
    run.messages();
    assert!(run.err.contains("hello") && run.err.contains("bye"), "{}", run.err);
    let seen = String::from_utf8(place.read("env.txt")).unwrap();
    assert!(seen.contains("SILT_SERIES=web") && !seen.contains("PASSWORD"), "{seen}");
}

#[test]
fn commands_of_a_fleet_put_away_what_they_made_whatever_signal_comes() {
    for signal in ["HUP", "TERM", "INT"] {
        let place = Place::new();
        fleet(&place, "touch made", "rm made");
        let child = place.start(&["backup", "--fleet", "fleet.toml", "--limit-read", "8"]);
        while !place.path("made").exists() {
            std::thread::yield_now();
        }
        tool("kill", &[&format!("-{signal}"), &child.id().to_string()]);
        assert_eq!(finish(child).code, 130, "{signal}");
        assert!(!place.path("made").exists(), "{signal}");
    }
}

#[test]
fn a_fleet_is_backed_up_by_who_may_not_add_to_what_is_shared() {
    let place = Place::new();
    fleet(&place, "true", "true");
    let mut add = place.command();
    add.args(["key", "add", "--write-only", "--series", "web", "--series", "db"]);
    Run::of(add.env("SILT_NEW_PASSWORD", "host")).exits(0);
    let mut backup = place.command();
    backup.args(["backup", "--fleet", "fleet.toml"]).env("SILT_PASSWORD", "host");
    Run::of(&mut backup).exits(0).says("shares nothing new");
    assert_eq!(count(&place, &[]), 2);

    let repository = place.text("append-only");
    let of = |args: &[&str]| {
        let mut command = place.command();
        command.env("SILT_REPOSITORY", &repository).args(args);
        command
    };
    let init = ["init", "--append-only", "--kdf-memory", "8", "--kdf-passes", "1"];
    Run::of(of(&init).env("SILT_ADMIN_PASSWORD", "admin")).exits(0);
    Run::of(&mut of(&["backup", "--fleet", "fleet.toml"])).exits(0).says("shares nothing new");
    Run::of(&mut of(&["restore", "web@latest", "out.raw"])).exits(0);
    assert!(place.read("out.raw") == disk(1, 32));
}

#[test]
fn a_full_device_behind_standard_output_is_said() {
    let place = with_snapshots(1);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut listed = place.command();
    let run = Run::of(listed.args(["snapshots"]).stdout(full).stderr(Stdio::piped()));
    run.exits(1).says("No space left on device");
}

#[test]
fn a_missing_password_file_is_named_and_no_missing_repository() {
    let place = with_snapshots(1);
    let mut command = place.command();
    command.env_remove("SILT_PASSWORD").args(["snapshots", "--password-file", "none.txt"]);
    Run::of(&mut command).exits(1).says("none.txt");
}

#[test]
fn a_time_from_the_listing_selects_the_snapshot_that_it_stands_beside() {
    let place = with_snapshots(2);
    let listed = place.silt(&["snapshots"]).exits(0).printed();
    let newest = listed.lines().last().unwrap();
    let (id, time) = (&newest[..8], &newest[10..29]);
    place.silt(&["show", &format!("vm@{time}")]).exits(0).says(id);
    place.silt(&["show", &format!("vm@{}", &time[..16])]).exits(0).says(id);
    place.silt(&["show", &format!("vm@{}Z", time.replace(' ', "T"))]).exits(0).says(id);
}

#[test]
fn limits_of_nothing_are_refused() {
    let place = with_snapshots(1);
    place.silt(&["check", "--limit-read", "0"]).exits(2);
    place.silt(&["backup", "vm", "a.raw", "--limit-write", "0"]).exits(2);
}

#[test]
fn what_is_there_is_kept_with_the_status_of_a_refusal() {
    let place = with_snapshots(1);
    place.silt(&["restore", "vm@latest", "a.raw"]).exits(13).says("--force");
    // Before anybody is asked for a password.
    let mut init = place.command();
    init.env_remove("SILT_PASSWORD").args(["init"]);
    Run::of(&mut init).exits(1).says("holds a repository already");
    let append_only = place.text("append-only");
    let of = |args: &[&str]| {
        let mut command = place.command();
        command.env("SILT_REPOSITORY", &append_only).args(args);
        command
    };
    let init = ["init", "--append-only", "--kdf-memory", "8", "--kdf-passes", "1"];
    Run::of(of(&init).env("SILT_ADMIN_PASSWORD", "admin")).exits(0);
    Run::of(&mut of(&["forget", "--keep-last", "1"])).exits(13).says("SILT_ADMIN_PASSWORD");
}

#[test]
fn a_dump_that_fails_is_no_backup() {
    let place = Place::new();
    let dump = ["backup", "db", "dump=-", "--stdin-command"];
    let failing = "head -c 5000000 /dev/urandom; exit 3";
    place.silt(&[&dump[..], &[failing]].concat()).exits(1).says("exit status: 3");
    assert_eq!(count(&place, &[]), 0);
    place.silt(&[&dump[..], &["printf dumped; env > env.txt"]].concat()).exits(0);
    place.silt(&["restore", "db@latest", "out"]).exits(0);
    assert_eq!(place.read("out"), b"dumped");
    assert!(!String::from_utf8(place.read("env.txt")).unwrap().contains("SILT_PASSWORD"));
    place.silt(&["backup", "db", "env.txt", "--stdin-command", "true"]).exits(2);
}

#[test]
fn images_of_other_formats_and_forgotten_volumes_are_named() {
    let place = Place::new();
    for name in ["disk.vmdk", "disk.VHDX", "disk.vdi"] {
        place.write(name, b"KDMV of a guest");
        place.silt(&["backup", "vm", name]).exits(1).says("qemu-img convert");
        place.silt(&["backup", name.split('.').nth(1).unwrap(), name, "--format", "raw"]).exits(0);
    }
    place.write("a.raw", &disk(1, 4));
    place.write("b.raw", &disk(2, 4));
    place.silt(&["backup", "vm", "root=a.raw", "data=b.raw"]).exits(0);
    place.silt(&["backup", "vm", "root=a.raw"]).exits(0).says("volume 'data' of the last snapshot");
    // A target that is called so is written as an image.
    place.silt(&["restore", "vm@latest", "out.qcow2"]).exits(0);
    assert!(place.read("out.qcow2").starts_with(b"QFI\xfb"));
    let run = place.silt(&["backup", "vm", "a.raw", "--quiet"]).exits(0);
    assert_eq!(run.out, "");
}

#[test]
fn an_object_that_is_missing_is_damage() {
    let place = with_snapshots(1);
    let container = &place.objects("containers")[0];
    std::fs::remove_file(container).unwrap();
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(5).says("containers/");
    let run = place.silt(&["restore", "vm@latest", "out.raw", "--salvage", "--force"]).exits(5);
    let said = run.err.lines().count();
    assert!(said < 30, "{said} lines: {}", run.err);
}

#[test]
fn a_check_gives_its_verdict_where_it_cannot_write() {
    if !can("root") {
        return;
    }
    let place = with_snapshots(2);
    let repository = place.text("repository");
    tool("mount", &["--bind", &repository, &repository]);
    tool("mount", &["-o", "remount,bind,ro", &repository]);
    let run = place.silt(&["check", "--read-data"]);
    let listed = place.silt(&["snapshots"]);
    let restored = place.silt(&["restore", "vm@latest", "out.raw"]);
    tool("umount", &[&repository]);
    run.exits(0).says("No damage found");
    listed.exits(0);
    restored.exits(0);
    assert!(place.read("out.raw") == changed(&disk(1, 4), 1));
}

#[test]
fn damage_that_nobody_needs_any_more_is_no_damage() {
    let place = Place::new();
    let first = disk(1, 40);
    place.write("a.raw", &first);
    place.silt(&["backup", "vm", "a.raw"]).exits(0);
    damage(&place.objects("containers")[0]);
    place.silt(&["check", "--read-data"]).exits(5).says("affects");
    place.silt(&["backup", "vm", "a.raw"]).exits(0);
    place.silt(&["forget", "--keep-last", "1"]).exits(0);
    place.silt(&["check"]).exits(0).says("no living snapshot needs");
    place.silt(&["reclaim", "--sweep", "--min-dead", "0"]).exits(0);
    let checked = place.silt(&["check", "--read-data"]).exits(0).printed();
    assert!(checked.contains("No damage found."), "{checked}");
    place.silt(&["restore", "vm@latest", "out.raw"]).exits(0);
    assert!(place.read("out.raw") == first);
}

#[test]
fn from_a_full_disk_something_can_be_deleted() {
    if !can("tmpfs") {
        return;
    }
    let place = Place::new();
    let small = place.text("small");
    std::fs::create_dir(&small).unwrap();
    tool("mount", &["-t", "tmpfs", "-o", "size=40m", "tmpfs", &small]);
    let repository = format!("{small}/repository");
    let silt = |args: &[&str]| place.silt(&[&["-r", &repository], args].concat());
    let init = silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]);
    for day in 0..3 {
        place.write("a.raw", &disk(10 + day, 8));
        silt(&["backup", "vm", "a.raw"]);
    }
    // Not a byte is left.
    let filler = std::fs::File::create(format!("{small}/filler")).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(7), &mut &filler);
    place.write("a.raw", &disk(20, 8));
    let backup = silt(&["backup", "vm", "a.raw"]);
    let forgotten = silt(&["forget", "--keep-last", "1", "--yes"]);
    let reclaimed = silt(&["reclaim"]);
    let again = silt(&["backup", "vm", "a.raw"]);
    let checked = silt(&["check", "--read-data"]);
    drop(filler);
    tool("umount", &[&small]);
    init.exits(0);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    backup.exits(1).says("space");
    forgotten.exits(0).says("Deleted 2 snapshots");
    reclaimed.exits(0);
    again.exits(0);
    checked.exits(0);
}

#[test]
fn a_device_that_is_mounted_is_named() {
    if !can("loop") {
        return;
    }
    let place = Place::new();
    place.write("device.raw", &vec![0; 8 << 20]);
    let device = tool("losetup", &["--find", "--show", &place.text("device.raw")]);
    tool("mkfs.ext2", &["-q", &device]);
    let folder = place.text("mounted");
    std::fs::create_dir(&folder).unwrap();
    tool("mount", &[&device, &folder]);
    let mounted = place.silt(&["backup", "vm", &device]);
    tool("umount", &[&folder]);
    let alone = place.silt(&["backup", "vm", &device]);
    tool("losetup", &["-d", &device]);
    mounted.exits(0).says("is mounted on");
    let alone = alone.exits(0).printed();
    assert!(!alone.contains("mounted"), "{alone}");
}

#[test]
fn a_series_that_has_lost_its_record_and_its_newest_head_is_called_as_recover_takes_it() {
    let place = with_snapshots(2);
    damage(&newest_head(&place, "vm"));
    std::fs::remove_file(&place.objects("series")[0]).unwrap();
    let checked = place.silt(&["check"]).exits(5).printed();
    let at = checked.find("id:").unwrap();
    let series = checked[at..].split(['\'', '`']).next().unwrap();
    place.silt(&["recover", series]).exits(0);
    place.silt(&["backup", "vm", "a.raw"]).exits(0);
    assert_eq!(count(&place, &["vm"]), 3);
}

/// Names of files are bytes; what names a disk need not be text.
#[test]
fn paths_that_are_no_text_are_paths() {
    use std::os::unix::ffi::OsStringExt;
    let place = Place::new();
    let named = |bytes: &[u8]| place.folder.path().join(OsString::from_vec(bytes.to_vec()));
    let (file, target) = (named(b"disk-\xff.raw"), named(b"back-\xfe.raw"));
    let image = disk(3, 4);
    std::fs::write(&file, &image).unwrap();
    let run = |arguments: &[&OsStr]| Run::of(place.command().args(arguments));
    let os = OsStr::new;
    let volume = OsString::from_vec([b"root=", file.as_os_str().as_encoded_bytes()].concat());
    run(&[os("backup"), os("vm"), &volume]).exits(0);
    let changed = named(b"map-\xfd.json");
    let map = format!("[{{\"start\":0,\"length\":{},\"depth\":0,\"present\":true}}]", image.len());
    std::fs::write(&changed, map).unwrap();
    run(&[os("backup"), os("vm"), &volume, os("--changed"), changed.as_os_str()]).exits(0);
    // This machine knows the file again.
    run(&[os("backup"), os("--all")]).exits(0);
    place.silt(&["show", "vm@latest"]).exits(0).says("disk-\u{fffd}.raw");
    run(&[os("restore"), os("vm@latest"), target.as_os_str()]).exits(0);
    assert!(std::fs::read(&target).unwrap() == image);
    assert_eq!(place.silt(&["snapshots", "vm", "--json"]).exits(0).messages().len(), 3);
}
