//! Walks of trees.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, IFlags, renameat};
use silt_format::ErrorKind;
use silt_tree::{Marker, Rules, Step, Walk};

use crate::kit::{Scratch, awkward_tree, can_act_as_root, set_flags, step_text, walk_all};

/// Returns the steps of a walk as text.
fn names(root: &Path, rules: &Rules) -> Vec<String> {
    walk_all(root, rules, |_, step| match step {
        Step::Enter(found) => format!("{}/", String::from_utf8_lossy(&found.name)),
        Step::Entry(found) => String::from_utf8_lossy(&found.name).into_owned(),
        Step::Leave(_) => "..".into(),
        Step::Excluded(name, reason) => {
            format!("-{} {reason:?}", String::from_utf8_lossy(&name))
        }
        Step::Failed(name, error) => panic!("{name:?}: {error}"),
    })
}

fn write(path: &Path, bytes: usize) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![b'x'; bytes]).unwrap();
}

#[test]
fn entries_come_in_the_order_of_names_and_directories_before_their_content() {
    let scratch = Scratch::new();
    for path in ["b/2/x", "b/1", "b-", "a", "\u{e9}", "B", "b/2.x"] {
        write(&scratch.path("t").join(path), 1);
    }
    let root = scratch.path("t");
    let expected = ["/", "B", "a", "b/", "1", "2/", "x", "..", "2.x", "..", "b-", "\u{e9}", ".."];
    assert_eq!(names(&root, &Rules::default()), expected);
}

#[test]
fn a_directory_may_have_more_entries_than_a_window() {
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    for at in 0..3000 {
        if at % 100 == 7 {
            write(&root.join(format!("{at:05}/below")), 0);
        } else {
            write(&root.join(format!("{at:05}")), 0);
        }
    }
    let mut expected = vec!["/".to_owned()];
    for at in 0..3000 {
        if at % 100 == 7 {
            expected.extend([format!("{at:05}/"), "below".into(), "..".into()]);
        } else {
            expected.push(format!("{at:05}"));
        }
    }
    expected.push("..".into());
    assert_eq!(names(&root, &Rules::default()), expected);
}

/// A walk far down drops the windows above, and reads them again later.
#[test]
fn entries_behind_a_deep_directory_are_found() {
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    let mut path = root.clone();
    for at in 0..150 {
        write(&path.join("a"), 0);
        write(&path.join(format!("z{at}")), 0);
        path = path.join("m");
    }
    let steps = names(&root, &Rules::default());
    let mut expected: Vec<String> = vec!["/".into(), "a".into()];
    for _ in 1..150 {
        expected.extend(["m/".into(), "a".into()]);
    }
    for at in (0..150).rev() {
        expected.extend([format!("z{at}"), "..".into()]);
    }
    assert_eq!(steps, expected);
}

#[test]
fn the_same_tree_gives_the_same_steps() {
    let scratch = Scratch::new();
    let root = scratch.path("t");
    awkward_tree(&root);
    let steps = walk_all(&root, &Rules::default(), step_text);
    assert!(steps.len() > 150, "{}", steps.len());
    assert_eq!(steps, walk_all(&root, &Rules::default(), step_text));
    assert!(!steps.iter().any(|step| step.contains("Some(")), "no problems");
}

#[test]
fn the_machine_is_walked_the_same_way_twice() {
    for root in ["/etc", "/usr"] {
        // The system may change meanwhile, for example by an installation.
        let is_same = (0..5).any(|_| {
            let walk = || walk_all(Path::new(root), &Rules::default(), step_text);
            let (first, second) = (walk(), walk());
            assert!(first.len() > 100, "{root}");
            first == second
        });
        assert!(is_same, "{root}");
    }
}

#[test]
fn roots_that_cannot_be_walked_say_why() {
    let scratch = Scratch::new();
    write(&scratch.path("folder/file"), 1);
    symlink("folder", scratch.path("link")).unwrap();
    symlink("nowhere", scratch.path("dangling")).unwrap();
    let kind = |name: &str| {
        Walk::open(&scratch.path(name), &Rules::default()).err().map(|error| error.kind())
    };
    assert_eq!(kind("missing"), Some(ErrorKind::NotFound));
    assert_eq!(kind("dangling"), Some(ErrorKind::NotFound));
    assert_eq!(kind("folder/file"), Some(ErrorKind::Invalid));
    assert_eq!(names(&scratch.path("link"), &Rules::default()), ["/", "file", ".."]);
}

#[test]
fn what_vanishes_meanwhile_is_counted_and_no_error() {
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    for name in ["a", "b", "c", "d/e", "f"] {
        write(&root.join(name), 0);
    }
    let mut walk = Walk::open(&root, &Rules::default()).unwrap();
    assert!(matches!(walk.next().unwrap(), Some(Step::Enter(_))));
    fs::remove_file(root.join("a")).unwrap();
    let Some(Step::Entry(mut b)) = walk.next().unwrap() else { panic!("b") };
    fs::remove_file(root.join("b")).unwrap();
    assert!(!walk.complete(&mut b));
    let Some(Step::Entry(c)) = walk.next().unwrap() else { panic!("c") };
    fs::write(root.join("c.new"), b"").unwrap();
    renameat(CWD, root.join("c.new"), CWD, root.join("c")).unwrap();
    assert_eq!(walk.open_file(&c).unwrap_err().kind(), ErrorKind::Conflict);
    fs::remove_dir_all(root.join("d")).unwrap();
    let Some(Step::Entry(mut f)) = walk.next().unwrap() else { panic!("f") };
    fs::write(root.join("f"), b"longer now").unwrap();
    assert!(walk.complete(&mut f));
    assert_eq!(f.metadata.size, 10, "what is completed is up to date");
    let file = walk.open_file(&f).unwrap();
    let mut content = [0; 20];
    assert_eq!(file.read_at(0, &mut content).unwrap(), 10);
    assert_eq!(file.status().unwrap().changed, f.metadata.changed);
    fs::write(root.join("f"), b"changed").unwrap();
    assert_ne!(file.status().unwrap(), f.metadata);
    assert!(matches!(walk.next().unwrap(), Some(Step::Leave(None))));
    assert!(walk.next().unwrap().is_none());
    assert_eq!(walk.vanished(), 3);
}

/// Directories far above are closed, and opened again by their names.
#[test]
fn a_directory_that_is_moved_while_the_walk_is_far_below_is_noticed() {
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    let mut path = root.clone();
    for _ in 0..300 {
        path = path.join("m");
        write(&path.join("z"), 0);
    }
    let mut walk = Walk::open(&root, &Rules::default()).unwrap();
    for _ in 0..301 {
        assert!(matches!(walk.next().unwrap(), Some(Step::Enter(_))));
    }
    // Another directory with the same content has taken the name of the first.
    renameat(CWD, root.join("m"), CWD, scratch.path("moved")).unwrap();
    write(&root.join("m/m/z"), 0);
    let (mut found, mut lost) = (0, 0);
    while let Some(step) = walk.next().unwrap() {
        match step {
            Step::Entry(entry) if entry.name == b"z" => found += 1,
            Step::Leave(problem) => lost += u32::from(problem.is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found + lost, 300);
    assert!((120..300).contains(&found), "{found}");
}

#[test]
fn attributes_of_an_unchanged_entry_can_be_taken_over() {
    let scratch = Scratch::new();
    let root = scratch.path("t");
    awkward_tree(&root);
    let complete = walk_all(&root, &Rules::default(), |walk, step| match step {
        Step::Enter(mut found) | Step::Entry(mut found) => {
            assert!(walk.complete(&mut found));
            Some(found.metadata)
        }
        _ => None,
    });
    let mut known = complete.iter();
    walk_all(&root, &Rules::default(), |_, step| match step {
        Step::Enter(mut found) | Step::Entry(mut found) => {
            let known = known.next().unwrap().as_ref().unwrap();
            found.take_attributes(known);
            assert_eq!(found.metadata, *known);
        }
        _ => assert!(known.next().unwrap().is_none()),
    });
}

#[test]
fn rules_leave_entries_out_and_say_why() {
    let scratch = Scratch::new();
    let root = scratch.path("t");
    for name in [
        "big",
        "cache/CACHEDIR.TAG",
        "cache/x/y",
        "no cache/CACHEDIR.TAG",
        "no cache/x",
        "marked/.nobackup",
        "marked/z",
        "headed/tag",
        "headed/x",
        "other/tag",
        "other/x",
        "small",
        "build/x",
        "deep/build/x",
        "deep/x.o",
        "keep.o",
        "dumped",
    ] {
        write(&root.join(name), 10);
    }
    write(&root.join("big"), 11);
    let signature = b"Signature: 8a477f597d28d172789f06886806bc55\n# of a test";
    fs::write(root.join("cache/CACHEDIR.TAG"), signature).unwrap();
    fs::write(root.join("headed/tag"), b"ours and more").unwrap();
    let has_flags = set_flags(&root.join("dumped"), IFlags::NODUMP);
    let mut rules = Rules::default();
    rules.caches = true;
    rules.markers = vec![Marker::parse(".nobackup").unwrap(), Marker::parse("tag:ours").unwrap()];
    rules.larger_than = Some(10);
    rules.nodump = has_flags;
    rules.exclude_lines(b"# comment\n\nBUILD/\n", true).unwrap();
    rules.exclude("*.o", false).unwrap();
    rules.exclude("!keep.o", false).unwrap();
    rules.exclude("CACHEDIR.*", false).unwrap();
    rules.exclude("!CACHEDIR.TAG", false).unwrap();
    // The marker of this directory is larger than the limit and still marks it.
    let steps = names(&root, &rules).join(" ");
    let dumped = if has_flags { "-dumped NoDump" } else { "dumped" };
    assert_eq!(
        steps,
        format!(
            "/ -big TooLarge -build Pattern(0) cache/ -CACHEDIR.TAG TooLarge - Cache .. \
             deep/ -build Pattern(0) -x.o Pattern(1) .. {dumped} headed/ -tag TooLarge \
             - Marker(1) .. keep.o marked/ .nobackup - Marker(0) .. \
             no cache/ CACHEDIR.TAG x .. other/ tag x .. small .."
        )
    );
    assert_eq!(rules.pattern(0), Some(&b"BUILD/"[..]));
    assert!(Marker::parse("a/b").is_err() && Marker::parse(":x").is_err());
}

#[test]
fn file_systems_of_the_kernel_are_left_out_unless_they_are_the_root() {
    let mut rules = Rules::default();
    for pattern in ["/*", "!/proc", "!/sys"] {
        rules.exclude(pattern, false).unwrap();
    }
    let steps = names(Path::new("/"), &rules);
    for name in ["proc/", "sys/"] {
        let at = steps.iter().position(|step| step == name).unwrap();
        assert_eq!(steps[at + 1..at + 3], ["- PseudoFileSystem", ".."]);
    }
    let mut walk = Walk::open(Path::new("/proc"), &Rules::default()).unwrap();
    assert!(matches!(walk.next().unwrap(), Some(Step::Enter(_))));
    assert!(matches!(walk.next().unwrap(), Some(Step::Enter(found)) if found.name == b"1"));
}

#[test]
fn other_mounts_can_be_left_out() {
    let is_mount = |path: &str| {
        fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {path} "))
    };
    if !can_act_as_root() || !is_mount("/dev/shm") || !is_mount("/dev") {
        return;
    }
    let mut rules = Rules::default();
    rules.one_file_system = true;
    rules.exclude("/*", false).unwrap();
    rules.exclude("!/shm", false).unwrap();
    rules.exclude("/shm/*", false).unwrap();
    let closed = |rules: &Rules| names(Path::new("/dev"), rules).join(" ").contains("OtherFile");
    assert!(closed(&rules));
    rules.one_file_system = false;
    assert!(!closed(&rules));
    // File systems are numbered in the order in which the walk reaches them.
    let numbers = walk_all(Path::new("/dev"), &rules, |_, step| match step {
        Step::Enter(found) => Some((found.name, found.metadata.file_system)),
        _ => None,
    });
    let numbers: Vec<_> = numbers.into_iter().flatten().collect();
    assert_eq!(numbers, [(Vec::new(), 0), (b"shm".to_vec(), 1)]);
}

/// Measures the time of a walk through a million files beyond `statx` of each. Run it by hand,
/// built for release.
#[test]
#[ignore = "it measures time"]
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn speed() {
    use std::time::Instant;
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    for folder in 0..1000 {
        fs::create_dir(root.join(format!("{folder}"))).unwrap();
        for file in 0..1000 {
            fs::File::create(root.join(format!("{folder}/file number {file}"))).unwrap();
        }
    }
    let run = |name: &str, completes: bool, excludes: bool| {
        let mut rules = Rules::default();
        if excludes {
            for at in 0..100 {
                rules.exclude(format!("/a/b{at}/**/c*.[oa]"), false).unwrap();
                rules.exclude(format!("*.tmp{at}"), false).unwrap();
            }
        }
        let start = Instant::now();
        let mut walk = Walk::open(&root, &rules).unwrap();
        let mut entries = 0;
        while let Some(step) = walk.next().unwrap() {
            if let Step::Entry(mut found) | Step::Enter(mut found) = step {
                entries += u32::from(!completes || walk.complete(&mut found));
            }
        }
        assert_eq!(entries, 1_001_001);
        println!("{name}: {:?} a file", start.elapsed() / entries);
    };
    let start = Instant::now();
    let files = walk_all(&root, &Rules::default(), |walk, step| match step {
        Step::Entry(found) => Some(walk.path_of(&found)),
        _ => None,
    });
    println!("once, to read the disk: {:?}", start.elapsed());
    let start = Instant::now();
    for file in files.iter().flatten() {
        let path = Path::new(std::ffi::OsStr::from_bytes(file));
        assert!(path.symlink_metadata().unwrap().is_file());
    }
    println!("statx of every path: {:?} a file", start.elapsed() / 1_000_000);
    for _ in 0..2 {
        run("walk", false, false);
        run("walk with 200 patterns", false, true);
        run("walk that reads flags and attributes", true, false);
    }
}

/// Measures the memory of a walk through a directory of a million entries. Run it by hand, alone.
#[test]
#[ignore = "it measures memory"]
fn memory() {
    let scratch = Scratch::new();
    let root = scratch.folder("t");
    for file in 0..1_000_000 {
        fs::File::create(root.join(format!("the name of a file {file:07}"))).unwrap();
    }
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    let before = resident();
    let mut walk = Walk::open(&root, &Rules::default()).unwrap();
    let mut entries = 0;
    while walk.next().unwrap().is_some() {
        entries += 1;
    }
    assert_eq!(entries, 1_000_002);
    println!("{} MiB for a million names of 26 bytes", resident() - before);
    assert!(resident() - before < 64, "more than 64 MiB");
}
