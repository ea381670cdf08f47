//! Images that `mke2fs -d` makes, in the flavours that file systems come in.

use std::fs;
use std::os::unix::fs::MetadataExt;

use silt_files::{CopyOptions, FileSystem, Kind, Layout, TableKind};
use siltstone::ErrorKind;

use crate::kit::{self, assert_same, copy_all, make_tree, open, tool, tree};

#[test]
fn what_is_copied_is_what_was_put_in() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    make_tree(&source, 400);
    let flavours: [&[&str]; 8] = [
        &["-t", "ext4"],
        &["-t", "ext4", "-b", "1024", "-g", "1024"],
        &["-t", "ext4", "-O", "inline_data", "-I", "256"],
        &["-t", "ext4", "-O", "^metadata_csum,^64bit,^resize_inode,meta_bg"],
        &["-t", "ext4", "-O", "^extent,^metadata_csum,^64bit,uninit_bg,mmp"],
        &["-t", "ext4", "-O", "sparse_super2,metadata_csum_seed,large_dir"],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext2", "-b", "1024", "-I", "128", "-O", "^dir_index"],
    ];
    for (number, flavour) in flavours.iter().enumerate() {
        let image = folder.path().join(format!("{number}.img"));
        fs::File::create(&image).unwrap().set_len(96 << 20).unwrap();
        let (from, to) = (source.to_str().unwrap(), image.to_str().unwrap());
        tool("mke2fs", &[&["-q", "-F", "-d", from], *flavour, &[to]].concat());
        let target = folder.path().join(format!("{number}.out"));
        let report = copy_all(&open(&image), &target, CopyOptions::default()).unwrap();
        assert_eq!(report.left_out_count, 0, "{flavour:?}: {:?}", report.left_out);
        assert_eq!(report.hard_links, 2, "{flavour:?}");
        // mke2fs cuts times off at the second, and those before 1970 or behind 2038 to 32 bits.
        let (mut copied, mut expected) = (tree(&target, true, false), tree(&source, true, false));
        if flavour.contains(&"inline_data") {
            // Of these mke2fs 1.47.0 drops a hole at the end of a file: `debugfs` shows its size.
            let holes = std::path::Path::new("holes");
            drop((copied.remove(holes), expected.remove(holes)));
        }
        assert_same(&copied, &expected);
        let of = |name: &str| fs::metadata(target.join(name)).unwrap();
        let from = |name: &str| fs::metadata(source.join(name)).unwrap();
        assert_eq!(of("many").mtime(), from("many").mtime(), "{flavour:?}");
        assert_eq!(of("deep/er").mtime(), from("deep/er").mtime(), "{flavour:?}");
        assert!(of("holes").blocks() < 500, "holes are kept: {}", of("holes").blocks());
        assert_eq!(of("deep/er/still/.3").mode() & 0o7777, 0o711, "no foreign setuid bits");
    }
}

#[test]
fn paths_are_found_within_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    make_tree(&source, 100);
    std::os::unix::fs::symlink("loop", source.join("loop")).unwrap();
    std::os::unix::fs::symlink("/deep/er/../../file-0", source.join("around")).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    tool("mke2fs", &["-q", "-d", source.to_str().unwrap(), image.to_str().unwrap()]);
    let ext = open(&image);
    let find = |path: &str| ext.find(path.as_bytes(), true);
    let first = find("/file-0").unwrap().number;
    for path in ["file-0", "//file-0", "/./deep/../file-0", "/../../file-0", "/around"] {
        assert_eq!(find(path).unwrap().number, first, "{path}");
    }
    assert_eq!(find("/short link/still").unwrap().kind, Kind::Directory);
    assert_eq!(find("/deep/up").unwrap().number, ext.root().unwrap().number);
    let link = ext.find(b"/absolute link", false).unwrap();
    assert_eq!(ext.target(&link).unwrap(), b"/etc/passwd");
    // The host's file of this name is not the image's.
    assert_eq!(find("/absolute link").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(find("/file-0/x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(find("/loop").unwrap_err().kind(), ErrorKind::Invalid);
}

/// A disk with a partition table that `sfdisk` makes, and a file system in the partition that
/// begins at `at`.
fn disk(folder: &std::path::Path, table: &str, at: u64) -> Layout {
    let (disk, small) = (folder.join("disk"), folder.join("small"));
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let script = folder.join("script");
    fs::write(&script, table).unwrap();
    let run = format!("sfdisk -q {} < {}", disk.display(), script.display());
    tool("sh", &["-c", &run]);
    fs::File::create(&small).unwrap().set_len(4 << 20).unwrap();
    tool("mke2fs", &["-q", "-L", "here", small.to_str().unwrap()]);
    let bytes = fs::read(&small).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at).unwrap();
    kit::layout(&disk)
}

#[test]
fn partitions_are_found_in_tables_of_both_kinds() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |layout: &Layout| {
        let of = |p: &silt_files::Partition| (p.number, p.offset, p.bytes, p.file_system);
        layout.partitions.iter().map(of).collect::<Vec<_>>()
    };
    let mib = |count: u64| count << 20;
    let gpt = "label: gpt\nstart=2MiB,size=1MiB,name=boot\nstart=8MiB,size=4MiB,name=\"Räume\"\n";
    let found = disk(folder.path(), gpt, mib(8));
    assert_eq!(found.table, TableKind::Gpt);
    assert_eq!(
        shown(&found),
        [(1, mib(2), mib(1), FileSystem::Empty), (2, mib(8), mib(4), FileSystem::Ext)]
    );
    assert_eq!(found.partitions[1].name, "Räume");
    // Two logical partitions; the second is linked from the first's record.
    let mbr = "label: dos\nstart=1MiB,size=1MiB,type=83\nstart=4MiB,size=32MiB,type=5\n\
               start=5MiB,size=2MiB\nstart=16MiB,size=4MiB\n";
    let found = disk(folder.path(), mbr, mib(16));
    assert_eq!(found.table, TableKind::Mbr);
    assert_eq!(
        shown(&found),
        [
            (1, mib(1), mib(1), FileSystem::Empty),
            (5, mib(5), mib(2), FileSystem::Empty),
            (6, mib(16), mib(4), FileSystem::Ext)
        ]
    );
}

#[test]
fn other_contents_are_named() {
    let magic: [(usize, &[u8], &str); 4] = [
        (0, b"XFSB", "XFS"),
        (0x1_0040, b"_BHRfS_M", "btrfs"),
        (512, b"LABELONE", "LVM"),
        (0, b"LUKS\xba\xbe", "LUKS"),
    ];
    for (at, bytes, name) in magic {
        let mut disk = vec![0; 1 << 20];
        disk[at..at + bytes.len()].copy_from_slice(bytes);
        let layout = Layout::read(&kit::region(std::sync::Arc::new(disk))).unwrap();
        let holds = layout.partitions[0].file_system;
        assert!(matches!(holds, FileSystem::Other(_)) && holds.to_string().contains(name));
    }
    // An image of three bytes is no reason to fail.
    let layout = Layout::read(&kit::region(std::sync::Arc::new(vec![1; 3]))).unwrap();
    assert_eq!(layout.partitions[0].file_system, FileSystem::Unknown);
}
