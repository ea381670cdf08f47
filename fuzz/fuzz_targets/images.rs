//! A small disk of ext4 with bytes changed: partition tables, file systems, journals.
//!
//! The input is a list of changes, two bytes of place and one of value, put into an image that
//! `mke2fs` made; so most inputs pass the first checks. The budget ends what leads in circles.
#![no_main]

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use silt_files::{Budget, Ext, Inode, Kind, Layout, Region};
use siltstone::SystemEnv;

/// Bytes and directory entries that one input may read.
const BYTES_MAX: u64 = 8 << 20;
const ENTRIES_MAX: u64 = 10_000;
const DEPTH_MAX: usize = 20;

fn image() -> &'static Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("silt-fuzz-{}", std::process::id()));
        let tree = folder.join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(tree.join("a/file"), vec![1; 9000]).unwrap();
        std::os::unix::fs::symlink("x".repeat(100), tree.join("link")).unwrap();
        let disk = folder.join("disk");
        std::fs::File::create(&disk).unwrap().set_len(2 << 20).unwrap();
        let made = std::process::Command::new("/sbin/mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-d"])
            .args([&tree, &disk])
            .status();
        assert!(made.unwrap().success());
        let mut bytes = std::fs::read(&disk).unwrap();
        // Says that the journal was not emptied.
        bytes[1024 + 0x60] |= 4;
        std::fs::remove_dir_all(folder).unwrap();
        bytes
    })
}

fn walk(ext: &Ext, inode: &Inode, depth: usize) {
    match inode.kind {
        Kind::Directory if depth < DEPTH_MAX => {
            let mut found = Vec::new();
            drop(ext.entries(inode, &mut |entry| {
                found.push(entry);
                Ok(())
            }));
            for entry in found {
                if let Ok(inode) = ext.inode(entry.inode) {
                    walk(ext, &inode, depth + 1);
                }
            }
        }
        Kind::File => drop(ext.read(inode, &mut [0; 4096], &mut |_, _| Ok(()))),
        Kind::Symlink => drop(ext.target(inode)),
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = image().clone();
    for change in data.chunks_exact(4) {
        // Metadata lie at the front.
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]))
            | usize::from(change[2] & 0xf) << 16;
        let place = at % bytes.len();
        bytes[place] = change[3];
    }
    let budget = Budget::new(BYTES_MAX, ENTRIES_MAX, &SystemEnv::context());
    let disk = Region::whole(Arc::new(bytes), Arc::new(budget));
    drop(Layout::read(&disk));
    if let Ok(ext) = Ext::open(disk)
        && let Ok(root) = ext.root()
    {
        walk(&ext, &root, 0);
        drop(ext.find(b"/a/../link/x", true));
    }
});
