//! Trees that are walked and recreated.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use silt_format::ErrorKind;
use silt_format::tree::{EntryKind, Metadata, Xattr};
use silt_tree::{
    Existing, FAILURES_MAX, FileStep, MakeOptions, Maker, Missing, OwnerChoice, Report, Rules,
    Walk, XattrChoice,
};

use crate::kit::{
    Scratch, assert_same, awkward_tree, can_act_as_root, capability, copy, deep_tree, is_root,
    metadata, set_modified, step_text, walk_all,
};

#[track_caller]
fn assert_clean(report: &Report) {
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!((report.failed, report.missing), (0, Missing::default()));
}

fn with(existing: Existing) -> MakeOptions {
    MakeOptions { existing, ..MakeOptions::default() }
}

fn round_trip(scratch: &Scratch) {
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    let missing = awkward_tree(&a);
    let report = copy(&a, &b, MakeOptions::default());
    assert_clean(&report);
    assert_same(&a, &b);
    // Again over the existing entries, replacing and keeping them.
    for existing in [Existing::Replace, Existing::KeepIfSame] {
        let report = copy(&a, &b, with(existing));
        assert_clean(&report);
        assert_same(&a, &b);
    }
    assert!(!is_root() || missing.iter().all(|it| *it == "flags"), "{missing:?}");
}

#[test]
fn every_kind_of_entry_is_made_again_as_it_was() {
    round_trip(&Scratch::new());
}

#[test]
fn every_kind_of_entry_is_made_again_in_memory() {
    if Path::new("/dev/shm").is_dir() {
        round_trip(&Scratch::in_folder(Path::new("/dev/shm")));
    }
}

/// The comparison above notices differences.
#[test]
fn trees_that_differ_in_a_time_are_not_the_same() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.folder("a"), scratch.folder("b"));
    for folder in [&a, &b] {
        fs::write(folder.join("x"), b"x").unwrap();
        set_modified(&folder.join("x"), 1000, 0);
        set_modified(folder, 1000, 0);
    }
    assert_same(&a, &b);
    set_modified(&b.join("x"), 1001, 0);
    assert!(std::panic::catch_unwind(|| assert_same(&a, &b)).is_err());
}

#[test]
fn directories_may_be_deeper_than_paths_and_descriptors_allow() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = Some(limit.current.map_or(1024, |now| now.min(1024)));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let scratch = Scratch::new();
    let (a, b) = (scratch.folder("a"), scratch.path("b"));
    let name = "deep ".repeat(10);
    deep_tree(&a, &name, 1500);
    assert_clean(&copy(&a, &b, MakeOptions::default()));
    let texts = |root: &Path| {
        let steps = walk_all(root, &Rules::default(), |walk, step| {
            let text = step_text(walk, step);
            let kept = text.split_once(" true ").map_or(&*text, |(path, _)| path);
            kept.replacen(root.to_str().unwrap(), "", 1)
        });
        assert_eq!(steps.len(), 1501 * 2 + 1);
        steps
    };
    let steps = texts(&a);
    assert!(steps[1501].contains("deepest") && steps[1501].len() > 75_000);
    assert!(steps[1502..].iter().all(|step| step == "Leave(None)"));
    assert_eq!(steps, texts(&b));
}

#[test]
fn hostile_names_and_kinds_are_refused() {
    let scratch = Scratch::new();
    let target = scratch.folder("in/target");
    let mut maker = Maker::open(&target, with(Existing::Replace)).unwrap();
    let directory = metadata(EntryKind::Directory);
    let file = metadata(EntryKind::File);
    let link = Metadata { target: b"../..".into(), ..metadata(EntryKind::Symlink) };
    let long = [b'n'; 256];
    let names: [&[u8]; 8] = [b"", b".", b"..", b"/", b"../x", b"a/b", b"nul\0", &long];
    for name in names {
        assert!(!maker.enter(name, &directory));
        assert!(matches!(maker.file(name, &file), FileStep::Failed));
        assert!(!maker.other(name, &link));
        assert!(!maker.link_to(name, &file, &[b"x".to_vec()]));
        assert!(!maker.link_to(b"x", &file, &[name.to_vec()]));
        assert!(!maker.link_to(b"x", &file, &[name.to_vec(), b"x".to_vec()]));
        assert!(!maker.remove(name));
    }
    assert!(!maker.enter(b"x", &file) && !maker.other(b"x", &file));
    assert!(!maker.link_to(b"x", &file, &[]));
    assert!(!maker.other(b"x", &Metadata { target: b"nul\0".into(), ..link.clone() }));
    // Nothing is made through links, neither existing ones nor those of this tree.
    assert!(maker.other(b"up", &link));
    assert!(!maker.link_to(b"y", &file, &[b"up".to_vec(), b"target".to_vec()]));
    assert!(maker.enter(b"up", &directory));
    assert!(matches!(maker.file(b"inside", &file), FileStep::New(_)));
    let report = maker.finish().unwrap();
    assert_eq!(report.failed, 8 * 7 + 5);
    assert!(target.join("up").symlink_metadata().unwrap().is_dir());
    let names = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((names(&target), names(&target.join("up"))), (1, 0));
    assert_eq!(names(&scratch.path("in")), 1);
}

#[test]
fn metadata_that_no_file_can_have_fails_or_is_counted() {
    let scratch = Scratch::new();
    let target = scratch.folder("target");
    let mut maker = Maker::open(&target, MakeOptions::default()).unwrap();
    let file = metadata(EntryKind::File);
    let huge = Metadata { size: u64::MAX, ..file.clone() };
    assert!(matches!(maker.file(b"huge", &huge), FileStep::Failed));
    let xattrs = vec![Xattr { name: b"user.nul\0".into(), value: Vec::new() }];
    let nobodys = Metadata { uid: u32::MAX, mode: 0o4755, ..file.clone() };
    let odd = [(&b"odd"[..], Metadata { xattrs, ..file }, false), (b"nobodys", nobodys, true)];
    for (name, metadata, is_right) in odd {
        let FileStep::New(new) = maker.file(name, &metadata) else { panic!("failed") };
        assert_eq!(maker.complete(new), is_right);
    }
    let empty = metadata(EntryKind::Symlink);
    assert!(!maker.other(b"link to nothing", &empty));
    let report = maker.finish().unwrap();
    let failed: Vec<_> = report.failures.iter().map(|failure| &*failure.path).collect();
    assert_eq!(failed, [&b"huge"[..], b"odd", b"link to nothing"]);
    assert_eq!(report.missing.owners, 1);
    // The content is there in spite of the attribute.
    let mut names: Vec<_> =
        fs::read_dir(&target).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["nobodys", "odd"]);
    assert_eq!(target.join("nobodys").metadata().unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn failures_are_bounded_and_stop_nothing() {
    let scratch = Scratch::new();
    let mut maker = Maker::open(&scratch.path("new/target"), MakeOptions::default()).unwrap();
    for _ in 0..FAILURES_MAX + 10 {
        assert!(!maker.enter(b"..", &metadata(EntryKind::Directory)));
    }
    assert!(maker.other(b"pipe", &metadata(EntryKind::Fifo)));
    let report = maker.finish().unwrap();
    assert_eq!(report.failures.len(), FAILURES_MAX);
    assert_eq!((report.failed, report.made), (FAILURES_MAX as u64 + 10, 1));
    assert!(scratch.path("new/target/pipe").exists());
}

#[test]
fn what_is_there_is_refused_replaced_or_kept() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.folder("a"), scratch.folder("b"));
    for folder in [&a, &b] {
        for name in ["same", "other content", "other size"] {
            fs::write(folder.join(name), name).unwrap();
        }
        symlink("x", folder.join("link")).unwrap();
    }
    fs::write(b.join("other content"), b"OTHER CONTENT").unwrap();
    fs::write(b.join("other size"), b"").unwrap();
    symlink("/etc", b.join("was a link")).unwrap();
    fs::create_dir(a.join("was a link")).unwrap();
    fs::write(a.join("was a link/passwd"), b"inside").unwrap();
    fs::create_dir_all(b.join("was a folder/full")).unwrap();
    fs::write(a.join("was a folder"), b"is a file").unwrap();
    for folder in [&a, &b] {
        for name in ["same", "other content", "other size"] {
            set_modified(&folder.join(name), 1_000_000, 1);
        }
    }
    let inode = |name: &str| b.join(name).symlink_metadata().unwrap().ino();
    let refused = copy(&a, &b, with(Existing::Refuse));
    assert_eq!(refused.failed, 6, "{:?}", refused.failures);
    assert!(refused.failures.iter().all(|it| it.error.kind() == ErrorKind::AlreadyExists));
    assert_eq!(fs::read(b.join("other size")).unwrap(), b"");

    let before = ["same", "link", "other content"].map(inode);
    let kept = copy(&a, &b, with(Existing::KeepIfSame));
    assert_eq!(kept.failed, 1, "a directory with something in it stays: {:?}", kept.failures);
    assert_eq!(kept.failures[0].path, b"was a folder");
    let after = ["same", "link", "other content"].map(inode);
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
    assert_eq!(fs::read(b.join("was a link/passwd")).unwrap(), b"inside");
    assert_ne!(fs::read("/etc/passwd").unwrap(), b"inside");

    fs::remove_dir_all(b.join("was a folder")).unwrap();
    assert_clean(&copy(&a, &b, with(Existing::Replace)));
    assert_ne!(inode("same"), before[0]);
    assert_same(&a, &b);
}

#[test]
fn other_names_are_listed_and_removed_with_all_below() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.path("a"), scratch.folder("b"));
    awkward_tree(&b.join("m/awkward"));
    deep_tree(&b.join("m"), "deep ".repeat(40).as_str(), 300);
    for name in ["0", "b", "m/z", "zz"] {
        fs::write(b.join(name), b"").unwrap();
        fs::create_dir_all(a.join("m/n")).unwrap();
    }
    fs::write(scratch.path("outside"), b"stays").unwrap();
    symlink("../outside", b.join("m/link")).unwrap();
    symlink("..", b.join("m/up")).unwrap();
    fs::write(a.join("m/kept"), b"").unwrap();
    fs::write(a.join("c"), b"").unwrap();
    let options = MakeOptions { lists_others: true, ..with(Existing::Replace) };
    let report = copy(&a, &b, options);
    assert_clean(&report);
    assert!(report.removed > 400, "{}", report.removed);
    assert_same(&a, &b);
    assert_eq!(fs::read(scratch.path("outside")).unwrap(), b"stays");
}

#[test]
fn mounts_are_not_emptied() {
    if !can_act_as_root() {
        return;
    }
    let mut maker = Maker::open(Path::new("/"), MakeOptions::default()).unwrap();
    assert!(!maker.remove(b"proc"));
    let report = maker.finish().unwrap();
    assert_eq!(report.failures[0].error.kind(), ErrorKind::Busy);
}

#[test]
fn an_existing_file_that_changes_meanwhile_is_made_again() {
    let scratch = Scratch::new();
    let (target, outside) = (scratch.folder("target"), scratch.path("outside"));
    let path = target.join("folder/file");
    let file = Metadata { size: 5, ..metadata(EntryKind::File) };
    let changes: [&dyn Fn(); 3] = [
        &|| fs::write(&path, b"other").unwrap(),
        &|| {
            fs::remove_file(&path).unwrap();
            fs::write(&path, b"12345").unwrap();
            set_modified(&path, 1_000_000, 1);
        },
        &|| fs::hard_link(&path, &outside).unwrap(),
    ];
    for change in changes {
        fs::create_dir_all(target.join("folder")).unwrap();
        fs::write(&path, b"12345").unwrap();
        set_modified(&path, 1_000_000, 1);
        let mut maker = Maker::open(&target, with(Existing::KeepIfSame)).unwrap();
        assert!(maker.enter(b"folder", &metadata(EntryKind::Directory)));
        let FileStep::Present(present) = maker.file(b"file", &file) else { panic!("failed") };
        maker.leave();
        assert!(present.may_stay() && present.is_current());
        change();
        assert!(!present.is_current());
        let (new, old) = maker.renew(present).unwrap();
        new.share_with(&old, &mut std::iter::empty()).unwrap();
        new.write_at(0, b"54321").unwrap();
        assert!(maker.complete(new));
        assert_clean(&maker.finish().unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"54321");
        // Its attributes are set after the file is complete.
        assert_eq!(target.join("folder").metadata().unwrap().mtime(), 77);
        fs::remove_dir_all(&target).unwrap();
    }
    assert_eq!(fs::read(&outside).unwrap(), b"12345");
}

#[test]
fn a_file_that_is_not_completed_leaves_nothing() {
    let scratch = Scratch::new();
    let target = scratch.folder("target");
    let mut maker = Maker::open(&target, MakeOptions::default()).unwrap();
    let file = Metadata { size: 5, ..metadata(EntryKind::File) };
    assert!(maker.enter(b"folder", &metadata(EntryKind::Directory)));
    let FileStep::New(dropped) = maker.file(b"dropped", &file) else { panic!("failed") };
    let FileStep::New(given_up) = maker.file(b"given up", &file) else { panic!("failed") };
    let FileStep::New(done) = maker.file(b"whole", &file) else { panic!("failed") };
    dropped.write_at(0, b"part").unwrap();
    assert!(done.write_at(1, b"12345").is_err(), "behind the end");
    assert!(done.write_at(u64::MAX, b"1").is_err());
    done.write_at(1, b"1234").unwrap();
    // The directory is left before its files are complete, and still gets its time.
    maker.leave();
    drop(dropped);
    maker.give_up(given_up, silt_format::Error::corrupt("its content is damaged"));
    assert!(maker.complete(done));
    let report = maker.finish().unwrap();
    assert_eq!((report.failed, report.made), (1, 2));
    let names: Vec<_> =
        fs::read_dir(target.join("folder")).unwrap().map(|it| it.unwrap()).collect();
    assert_eq!(names.len(), 1);
    assert_eq!(fs::read(target.join("folder/whole")).unwrap(), b"\x001234");
    assert_eq!(target.join("folder").metadata().unwrap().mtime(), 77);
    assert_eq!(target.join("folder/whole").metadata().unwrap().mtime(), 77);
}

#[test]
fn what_others_make_in_a_new_directory_stays() {
    let scratch = Scratch::new();
    let target = scratch.folder("target");
    let folder = target.join("folder");
    let file = Metadata { size: 5, ..metadata(EntryKind::File) };
    let link = Metadata { target: b"nowhere".into(), ..metadata(EntryKind::Symlink) };
    let mut maker = Maker::open(&target, MakeOptions::default()).unwrap();
    assert!(maker.enter(b"folder", &metadata(EntryKind::Directory)));
    for name in ["early", "link"] {
        fs::write(folder.join(name), b"other").unwrap();
    }
    assert!(matches!(maker.file(b"early", &file), FileStep::Failed));
    let FileStep::New(new) = maker.file(b"late", &file) else { panic!("failed") };
    assert!(!maker.other(b"link", &link));
    new.write_at(0, b"part").unwrap();
    fs::remove_file(folder.join("late")).unwrap();
    fs::write(folder.join("late"), b"other").unwrap();
    drop(new);
    let report = maker.finish().unwrap();
    assert_eq!((report.failed, report.made), (2, 1));
    for name in ["early", "late", "link"] {
        assert_eq!(fs::read(folder.join(name)).unwrap(), b"other", "{name}");
    }
}

#[test]
fn incomplete_files_of_an_existing_directory_have_other_names() {
    let scratch = Scratch::new();
    let folder = scratch.folder("target/folder");
    fs::write(folder.join("old"), b"old").unwrap();
    let file = Metadata { size: 5, ..metadata(EntryKind::File) };
    let mut maker = Maker::open(&scratch.path("target"), with(Existing::Replace)).unwrap();
    assert!(maker.enter(b"folder", &metadata(EntryKind::Directory)));
    let files = [b"new", b"old"].map(|name| {
        let FileStep::New(new) = maker.file(name, &file) else { panic!("failed") };
        new.write_at(0, b"whole").unwrap();
        new
    });
    assert_eq!(fs::read(folder.join("old")).unwrap(), b"old");
    assert!(!folder.join("new").exists());
    assert!(files.into_iter().all(|new| maker.complete(new)));
    assert_clean(&maker.finish().unwrap());
    assert!(["new", "old"].iter().all(|name| fs::read(folder.join(name)).unwrap() == b"whole"));
    assert_eq!(folder.read_dir().unwrap().count(), 2);
}

#[test]
fn owners_attributes_and_flags_are_a_choice() {
    let scratch = Scratch::new();
    let xattr = |name: &str| Xattr { name: name.into(), value: b"1".into() };
    let file = Metadata {
        uid: 4321,
        gid: 1234,
        mode: 0o6755,
        flags: 0x40,
        xattrs: vec![xattr("trusted.x"), xattr("user.x")],
        ..metadata(EntryKind::File)
    };
    let made = |name: &str, options: MakeOptions| {
        let mut maker = Maker::open(&scratch.path(name), options).unwrap();
        let FileStep::New(new) = maker.file(b"x", &file) else { panic!("failed") };
        assert!(maker.complete(new));
        let report = maker.finish().unwrap();
        let mut walk = Walk::open(&scratch.path(name), &Rules::default()).unwrap();
        walk.next().unwrap();
        let Some(silt_tree::Step::Entry(mut found)) = walk.next().unwrap() else { panic!("none") };
        assert!(walk.complete(&mut found));
        (found.metadata, report)
    };
    let (all, report) = made("all", MakeOptions::default());
    if is_root() {
        assert_eq!((all.uid, all.gid, all.mode), (4321, 1234, 0o6755));
        assert_eq!((&all.xattrs, report.missing), (&file.xattrs, Missing::default()));
    } else {
        assert_eq!((all.mode, report.missing.owners, report.missing.xattrs), (0o755, 1, 1));
    }
    let options = MakeOptions {
        owners: OwnerChoice::Maker,
        xattrs: XattrChoice::User,
        ignores_flags: true,
        ..MakeOptions::default()
    };
    let (own, report) = made("own", options);
    assert_eq!((own.uid, own.mode), (rustix::process::geteuid().as_raw(), 0o755));
    assert_eq!((own.xattrs, own.flags), (vec![xattr("user.x")], 0));
    assert_clean(&report);
    let options = MakeOptions { xattrs: XattrChoice::None, ..MakeOptions::default() };
    assert_eq!(made("none", options).0.xattrs, []);
}

#[test]
fn a_user_without_privileges_gets_everything_else() {
    if can_act_as_root() {
        crate::kit::as_nobody("make::unprivileged");
    }
}

/// Runs as another user, from the test above.
#[test]
#[ignore = "run by a_user_without_privileges_gets_everything_else"]
fn unprivileged() {
    assert!(!is_root());
    let scratch = Scratch::new();
    let mut maker = Maker::open(&scratch.path("x"), MakeOptions::default()).unwrap();
    let folder = Metadata { uid: 0, mode: 0o555, ..metadata(EntryKind::Directory) };
    let device = metadata(EntryKind::BlockDevice);
    assert!(maker.enter(b"read only", &folder));
    let capability = Xattr { name: b"security.capability".into(), value: capability() };
    let xattrs = vec![capability];
    let file = Metadata { uid: 0, xattrs, mode: 0o4711, ..metadata(EntryKind::File) };
    let FileStep::New(new) = maker.file(b"file", &file) else { panic!("failed") };
    assert!(maker.complete(new));
    maker.other(b"device", &device);
    maker.leave();
    let report = maker.finish().unwrap();
    assert_eq!(report.failed, 0, "{:?}", report.failures);
    assert_eq!(report.missing, Missing { owners: 2, xattrs: 1, flags: 0, devices: 1 });
    let made = scratch.path("x/read only");
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o555);
    assert_eq!(made.join("file").metadata().unwrap().permissions().mode() & 0o7777, 0o711);
    fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
    // An unreadable file is a problem of its entry, and the walk continues.
    let root = scratch.folder("closed");
    for name in ["a", "c"] {
        fs::create_dir_all(root.join(name).join("below")).unwrap();
        fs::write(root.join(format!("{name} file")), b"").unwrap();
        for path in [root.join(name), root.join(format!("{name} file"))] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
    }
    fs::write(root.join("b"), b"").unwrap();
    let steps = walk_all(&root, &Rules::default(), step_text);
    let denied = steps.iter().filter(|step| step.contains("Permission denied")).count();
    assert_eq!((denied, steps.len()), (4, 9), "{steps:#?}");
    for name in ["a", "c"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
