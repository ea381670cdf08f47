//! Trees that another thread changes while they are walked or made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, renameat};
use silt_format::tree::{EntryKind, Metadata, Xattr};
use silt_tree::{Existing, FileStep, MakeOptions, Maker, Rules, Step, Walk};

use crate::kit::{Scratch, metadata};

/// Runs `work` while a thread swaps names in `folder`: a directory and a link to `outside`, a file
/// and a link, and two directories. Returns the number of swaps.
fn while_swapping(folder: &Path, outside: &Path, work: impl FnOnce()) -> u64 {
    let (stop, swaps) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    let aside = folder.with_extension("aside");
    fs::create_dir_all(&aside).unwrap();
    symlink(outside, aside.join("link")).unwrap();
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            // A swap fails if a name does not exist at the moment; it is tried again.
            let swap = |a: &Path, b: &Path| renameat(CWD, a, CWD, b).is_ok();
            while !stop.load(Ordering::Relaxed) {
                for name in ["a", "a/b", "a/b/c", "a/file", "d", "d/file"] {
                    let (here, kept) = (folder.join(name), aside.join("kept"));
                    if swap(&here, &kept) {
                        swap(&aside.join("link"), &here);
                        std::thread::yield_now();
                        swap(&here, &aside.join("link"));
                        // The maker may have made an entry here meanwhile.
                        if !swap(&kept, &here) {
                            let _ = fs::remove_dir_all(&kept);
                            let _ = fs::remove_file(&kept);
                        }
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                    if fs::symlink_metadata(aside.join("link")).is_err() {
                        symlink(outside, aside.join("link")).unwrap();
                    }
                }
                swap(&folder.join("a/b"), &folder.join("d/moved"));
                swap(&folder.join("d/moved"), &folder.join("a/b"));
            }
        });
        work();
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
    });
    swaps.load(Ordering::Relaxed)
}

fn fill(folder: &Path) {
    for path in ["a/b/c/file", "a/file", "a/b/file", "d/file", "d/e/file"] {
        let path = folder.join(path);
        let _ = fs::create_dir_all(path.parent().unwrap());
        let _ = fs::write(path, b"inside");
    }
}

#[test]
fn a_walk_reads_nothing_outside_of_its_root() {
    let scratch = Scratch::new();
    let (root, outside) = (scratch.folder("root"), scratch.folder("outside"));
    fill(&root);
    for name in ["secret", "file", "b/secret", "c/secret"] {
        let path = outside.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"outside").unwrap();
    }
    let mut read = 0;
    let swaps = while_swapping(&root, &outside, || {
        for _ in 0..300 {
            make_round(&root, MakeOptions { existing: Existing::Replace, ..<_>::default() });
            let mut walk = Walk::open(&root, &Rules::default()).unwrap();
            let mut depth = 0;
            while let Some(step) = walk.next().unwrap() {
                match step {
                    Step::Enter(mut found) => {
                        walk.complete(&mut found);
                        depth += 1;
                    }
                    Step::Leave(_) => depth -= 1,
                    Step::Entry(mut found) => {
                        assert_ne!(found.name, b"secret");
                        let is_file = found.metadata.kind == EntryKind::File;
                        if walk.complete(&mut found)
                            && is_file
                            && let Ok(file) = walk.open_file(&found)
                        {
                            let mut bytes = [0; 10];
                            let length = file.read_at(0, &mut bytes).unwrap();
                            assert_eq!(&bytes[..length], b"inside");
                            read += 1;
                        }
                    }
                    Step::Excluded(..) | Step::Failed(..) => {}
                }
            }
            assert_eq!(depth, 0);
        }
    });
    assert!(swaps > 100 && read > 300, "{swaps} swaps, {read} files");
}

/// The same swaps, at the critical moments.
#[test]
fn a_link_that_takes_the_place_of_an_entry_is_not_followed() {
    let scratch = Scratch::new();
    let (root, outside) = (scratch.folder("root"), scratch.folder("outside"));
    for name in ["1 directory", "2 file", "3 file", "4 directory", "5 directory/below"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for name in ["2 file", "3 file"] {
        fs::remove_dir(root.join(name)).unwrap();
        fs::write(root.join(name), b"inside").unwrap();
    }
    fs::write(outside.join("secret"), b"outside").unwrap();
    let swap = |name: &str, target: &Path| {
        renameat(CWD, root.join(name), CWD, scratch.path(name)).unwrap();
        symlink(target, root.join(name)).unwrap();
    };
    let mut walk = Walk::open(&root, &Rules::default()).unwrap();
    let mut next = || walk.next().unwrap().unwrap();
    assert!(matches!(next(), Step::Enter(_)));
    assert!(matches!(next(), Step::Enter(found) if found.name == b"1 directory"));
    assert!(matches!(next(), Step::Leave(None)));
    // The walk has read the status of all entries now.
    let Step::Entry(mut second) = next() else { panic!("2 file") };
    swap("2 file", &outside.join("secret"));
    assert!(walk.complete(&mut second));
    assert!(second.problem.is_some());
    assert!(walk.open_file(&second).is_err());
    let Step::Entry(third) = walk.next().unwrap().unwrap() else { panic!("3 file") };
    swap("3 file", &outside.join("secret"));
    assert!(walk.open_file(&third).is_err());
    swap("4 directory", &outside);
    let Step::Entry(mut fourth) = walk.next().unwrap().unwrap() else { panic!("4 directory") };
    assert!(walk.complete(&mut fourth));
    assert_eq!(fourth.metadata.kind, EntryKind::Symlink);
    assert_eq!(fourth.metadata.target, outside.as_os_str().as_encoded_bytes());
    let Step::Enter(fifth) = walk.next().unwrap().unwrap() else { panic!("5 directory") };
    assert_eq!(fifth.name, b"5 directory");
    swap("5 directory", &outside);
    let Step::Enter(below) = walk.next().unwrap().unwrap() else { panic!("below") };
    assert_eq!(below.name, b"below");
}

#[test]
fn nothing_outside_of_the_target_is_changed() {
    let scratch = Scratch::new();
    let (target, outside) = (scratch.folder("target"), scratch.folder("outside"));
    for name in ["file", "b/file", "b/c/file", "c/file", "e/file"] {
        let path = outside.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"outside").unwrap();
    }
    let state = || {
        let mut walk = Walk::open(&outside, &Rules::default()).unwrap();
        let mut all = Vec::new();
        while let Some(step) = walk.next().unwrap() {
            if let Step::Enter(mut found) | Step::Entry(mut found) = step {
                assert!(walk.complete(&mut found));
                // No links to it may be made or removed: its change time must stay, too.
                all.push(format!("{:?} {:?}", found.name, found.metadata));
            }
        }
        all
    };
    let before = state();
    let mut made = 0;
    let swaps = while_swapping(&target, &outside, || {
        for round in 0..300 {
            let existing = [Existing::Replace, Existing::KeepIfSame][round % 2];
            let options = MakeOptions { existing, lists_others: round % 3 == 0, ..<_>::default() };
            made += make_round(&target, options);
        }
    });
    assert_eq!(before, state());
    assert!(swaps > 100 && made > 300, "{swaps} swaps, {made} entries");
}

/// Makes the tree once, with attributes that would be visible on files outside.
fn make_round(target: &Path, options: MakeOptions) -> u64 {
    let xattrs = vec![Xattr { name: b"user.x".into(), value: b"made".into() }];
    let directory = Metadata { xattrs, mode: 0o751, ..metadata(EntryKind::Directory) };
    let file = Metadata { kind: EntryKind::File, size: 6, ..directory.clone() };
    let link = Metadata { target: b"nowhere".into(), ..metadata(EntryKind::Symlink) };
    let removes = options.lists_others;
    let mut maker = Maker::open(target, options).unwrap();
    let mut entered = 0;
    for name in ["a", "b", "c"] {
        if !maker.enter(name.as_bytes(), &directory) {
            break;
        }
        entered += 1;
    }
    let write = |maker: &mut Maker| {
        match maker.file(b"file", &file) {
            FileStep::New(new) => {
                new.write_at(0, b"inside").unwrap();
                maker.complete(new);
            }
            FileStep::Present(present) => {
                if present.may_stay() {
                    maker.keep(present);
                } else if let Some((new, old)) = maker.renew(present) {
                    new.share_with(&old, &mut std::iter::empty()).unwrap();
                    new.write_at(0, b"inside").unwrap();
                    maker.complete(new);
                }
            }
            FileStep::Failed => {}
        }
        maker.other(b"link", &link);
    };
    for _ in 0..entered {
        write(&mut maker);
        if removes {
            let mut others = maker.others().unwrap();
            while let Some(name) = others.next_name().unwrap() {
                maker.remove(&name);
            }
        }
        maker.leave();
    }
    if maker.enter(b"d", &directory) {
        write(&mut maker);
        maker.link_to(b"second", &file, &["a", "b", "file"].map(Into::into));
        maker.remove(b"moved");
        maker.leave();
    }
    maker.finish().unwrap().made
}
