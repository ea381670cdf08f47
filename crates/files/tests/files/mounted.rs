//! Images as a running guest leaves them, compared with what the kernel makes of them.

use std::fs;
use std::path::{Path, PathBuf};

use silt_files::CopyOptions;

use crate::kit::{assert_same, can_mount, copy_all, make_tree, open, tool, tree};

/// A mounted image; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: &Path, options: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        let (image, place) = (image.to_str().unwrap(), at.to_str().unwrap());
        tool("mount", &["-o", &format!("loop,{options}"), image, place]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[self.0.to_str().unwrap()]);
    }
}

/// Files are made, deleted and made again while the image is mounted; at the end a copy of the
/// image is as after a loss of power, with `sync` before or without.
fn dirty_image(folder: &Path, flavour: &[&str], options: &str) -> PathBuf {
    let image = folder.join("image");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    fs::File::create(&image).unwrap().set_len(160 << 20).unwrap();
    tool("mke2fs", &[&["-q", "-F"], flavour, &[&text(&image)]].concat());
    let crashed = folder.join("crashed");
    let place = folder.join("mounted");
    let _mounted = Mounted::new(&image, &place, options);
    let sync = || tool("sync", &["-f", &text(&place)]);
    // Metadata that are logged, then revoked, and whose blocks hold files' data next.
    for round in 0..3 {
        for number in 0..150 {
            let below = place.join(format!("gone-{number}"));
            fs::create_dir(&below).unwrap();
            fs::write(below.join("file"), [round; 300]).unwrap();
        }
        sync();
        for number in 0..150 {
            fs::remove_dir_all(place.join(format!("gone-{number}"))).unwrap();
        }
        sync();
        fs::write(place.join(format!("big-{round}")), vec![round | 0x40; 20 << 20]).unwrap();
        sync();
    }
    make_tree(&place.join("tree"), 1000);
    // Blocks that were allocated and never written read as zeros.
    fs::remove_file(place.join("big-0")).unwrap();
    sync();
    if flavour.contains(&"ext4") {
        tool("fallocate", &["-l", "15MiB", &text(&place.join("allocated"))]);
    }
    // A block that begins with the journal's magic number.
    let mut magic = vec![5; 4096];
    magic[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    fs::write(place.join("magic"), &magic).unwrap();
    sync();
    fs::write(place.join("maybe"), "in a transaction that may not be committed").unwrap();
    tool("cp", &["--sparse=always", &text(&image), &text(&crashed)]);
    crashed
}

#[test]
fn a_journal_is_replayed_as_the_kernel_does() {
    if !can_mount() {
        return;
    }
    let flavours: [(&[&str], &str); 6] = [
        (&["-t", "ext4"], "noatime"),
        (&["-t", "ext4", "-b", "1024"], "noatime"),
        (&["-t", "ext4", "-O", "bigalloc,inline_data"], "noatime"),
        (&["-t", "ext4", "-O", "^metadata_csum"], "noatime,data=journal"),
        (&["-t", "ext4", "-O", "^64bit"], "noatime,journal_checksum"),
        (&["-t", "ext3", "-J", "size=8"], "noatime,data=journal"),
    ];
    for (flavour, options) in flavours {
        let folder = tempfile::tempdir().unwrap();
        let crashed = dirty_image(folder.path(), flavour, options);
        let head = tool("dumpe2fs", &["-h", crashed.to_str().unwrap()]);
        assert!(head.contains("needs_recovery"), "{flavour:?}");
        let target = folder.path().join("out");
        let report = copy_all(&open(&crashed), &target, CopyOptions::default()).unwrap();
        assert_eq!(report.left_out_count, 0, "{flavour:?}: {:?}", report.left_out);
        let _mounted = Mounted::new(&crashed, &folder.path().join("replayed"), "noatime");
        let expected = tree(&folder.path().join("replayed"), true, true);
        assert!(expected.len() > 2000);
        assert_same(&tree(&target, true, true), &expected);
    }
}
