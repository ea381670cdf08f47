//! Images that were made to do harm.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use silt_files::{Budget, CopyOptions, Ext, Layout, Region, copy_out};
use siltstone::{ErrorKind, SystemEnv};

use crate::kit::{copy_all, region, tool};

/// A small image without checksums, so that its bytes can be changed at will.
fn small(folder: &Path) -> Vec<u8> {
    let (source, image) = (folder.join("source"), folder.join("small"));
    fs::create_dir_all(source.join("aa")).unwrap();
    fs::write(source.join("aa/bb..cc"), "evil").unwrap();
    fs::write(source.join("zz"), vec![1; 5000]).unwrap();
    std::os::unix::fs::symlink("/tmp", source.join("ll")).unwrap();
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let flavour = ["-q", "-b", "1024", "-O", "^metadata_csum,^dir_index,^resize_inode", "-d"];
    let paths = [source.to_str().unwrap(), image.to_str().unwrap()];
    tool("mke2fs", &[&flavour[..], &paths[..]].concat());
    fs::read(image).unwrap()
}

fn replace(image: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let at = image.windows(from.len()).position(|here| here == from).unwrap();
    image[at..at + to.len()].copy_from_slice(to);
}

#[test]
fn names_that_lead_out_of_the_folder_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let clean = small(folder.path());
    for evil in [b"../../../", b"/tmp/evil", b"x\0/../../"] {
        let mut image = clean.clone();
        replace(&mut image, b"bb..cc\0\0\0", &[&evil[..6], &[0; 3]].concat());
        let ext = Ext::open(region(Arc::new(image))).unwrap();
        let target = folder.path().join(format!("target-{}", evil[0]));
        let report = copy_all(&ext, &target, CopyOptions::default()).unwrap();
        assert_eq!(report.left_out_count, 1, "{:?}", report.left_out);
        assert!(report.found_damage);
        assert_eq!(fs::read_dir(target.join("aa")).unwrap().count(), 0);
        assert_eq!(fs::read(target.join("zz")).unwrap(), [1; 5000]);
    }
}

/// Two names of the same: a link that leads out, and a folder whose files would go through it.
#[test]
fn a_link_is_never_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut image = small(folder.path());
    // The link is made first, if the folder's name comes to be the link's.
    replace(&mut image, b"\x02\x02aa", b"\x02\x02ll");
    let link = outside.to_str().unwrap().as_bytes();
    let mut target = b"/tmp".to_vec();
    target.resize(60, 0);
    let mut longer = link.to_vec();
    longer.resize(60, 0);
    replace(&mut image, &target, &longer);
    let ext = Ext::open(region(Arc::new(image))).unwrap();
    let report = copy_all(&ext, &folder.path().join("target"), CopyOptions::default()).unwrap();
    assert_eq!(report.left_out_count, 1, "{:?}", report.left_out);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn what_is_there_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let ext = Ext::open(region(Arc::new(small(folder.path())))).unwrap();
    let (target, outside) = (folder.path().join("target"), folder.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::write(&outside, "precious").unwrap();
    std::os::unix::fs::symlink(&outside, target.join("zz")).unwrap();
    let file = ext.find(b"/zz", false).unwrap();
    let name = Some("zz".as_ref());
    let copied = copy_out(&ext, &file, name, &target, CopyOptions::default(), &mut |_| {});
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&outside).unwrap(), b"precious");
}

/// A directory that holds itself, or a parent, is entered once.
#[test]
fn a_circle_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut image = small(folder.path());
    let ext = Ext::open(region(Arc::new(image.clone()))).unwrap();
    let (inner, file) = (ext.find(b"/aa", false).unwrap(), ext.find(b"/aa/bb..cc", false).unwrap());
    let entry = |inode: u32| [&inode.to_le_bytes()[..], &[0xec, 3, 9 - 3, 1]].concat();
    let from = [&entry(file.number)[..4]].concat();
    let at = image.windows(9).position(|here| here.starts_with(b"bb..cc")).unwrap() - 8;
    assert_eq!(image[at..at + 4], from);
    image[at..at + 4].copy_from_slice(&inner.number.to_le_bytes());
    let ext = Ext::open(region(Arc::new(image))).unwrap();
    let report = copy_all(&ext, &folder.path().join("target"), CopyOptions::default()).unwrap();
    assert_eq!((report.left_out_count, report.found_damage), (1, true));
    assert!(report.left_out[0].contains("two places"), "{:?}", report.left_out);
}

#[test]
fn the_budget_ends_a_file_system_that_reads_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let image = small(folder.path());
    let disk: Arc<dyn silt_files::Disk> = Arc::new(image);
    let target = folder.path().join("target");
    for (bytes, entries, is_enough) in
        [(4 << 20, 100, true), (4 << 20, 2, false), (9000, 100, false), (100, 100, false)]
    {
        let budget = Budget::new(bytes, entries, &SystemEnv::context());
        let _ = fs::remove_dir_all(&target);
        let copied = Ext::open(Region::whole(Arc::clone(&disk), Arc::new(budget)))
            .and_then(|ext| copy_all(&ext, &target, CopyOptions::default()));
        let complete = copied.is_ok_and(|report| report.left_out_count == 0);
        assert_eq!(complete, is_enough, "{bytes} {entries}");
    }
}

/// Bytes changed at random in metadata: no panic, no endless work, nothing outside the folder.
#[test]
fn changed_images_are_errors_at_worst() {
    let folder = tempfile::tempdir().unwrap();
    let clean = small(folder.path());
    let arena = folder.path().join("arena");
    fs::create_dir(&arena).unwrap();
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let used: Vec<usize> = (0..clean.len()).filter(|at| clean[*at] != 0).collect();
    for round in 0..1000 {
        let mut image = clean.clone();
        for _ in 0..=random(6) {
            let at = (used[random(used.len())] + random(4)).min(image.len() - 1);
            image[at] = [0, 1, 0x7f, 0x80, 0xff, random(256).to_le_bytes()[0]][random(6)];
        }
        let budget = Budget::new(32 << 20, 10_000, &SystemEnv::context());
        let disk = Region::whole(Arc::new(image), Arc::new(budget));
        let _ = Layout::read(&disk);
        if let Ok(ext) = Ext::open(disk) {
            let _ = copy_all(&ext, &arena.join("in"), CopyOptions::default());
        }
        let made: Vec<_> = fs::read_dir(&arena).into_iter().flatten().collect();
        assert!(made.len() <= 1, "round {round}: {made:?}");
        if fs::remove_dir_all(&arena).is_err() {
            // Some folder got permissions that keep even its owner out.
            tool("chmod", &["-R", "u+rwx", arena.to_str().unwrap()]);
            fs::remove_dir_all(&arena).unwrap();
        }
        fs::create_dir(&arena).unwrap();
    }
}
