//! Files of a tree that are opened by their paths.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use silt_format::{ErrorKind, Result};
use silt_tree::{LocalTree, Rules, TreeOrigin};

use crate::kit::Scratch;

fn read(tree: &LocalTree, path: &[u8]) -> Result<Vec<u8>> {
    let mut content = vec![0; 64];
    let read = tree.open_file(path)?.read_at(0, &mut content)?;
    content.truncate(read);
    Ok(content)
}

fn refused(tree: &LocalTree, path: &[u8]) -> ErrorKind {
    read(tree, path).map(|content| panic!("{path:?} is {content:?}")).unwrap_err().kind()
}

#[test]
fn files_are_opened_by_their_paths_and_nothing_outside_of_the_tree() {
    let scratch = Scratch::new();
    let root = scratch.folder("tree");
    fs::create_dir_all(root.join("a/b")).unwrap();
    for (path, content) in [("top", "1"), ("a/file", "2"), ("a/b/file", "3"), ("a/b/other", "4")] {
        fs::write(root.join(path), content).unwrap();
    }
    fs::write(scratch.path("secret"), "outside").unwrap();
    let tree = LocalTree::new(&root, &Rules::default());
    let files: [(&[u8], &[u8]); 5] = [
        (b"a/b/other", b"4"),
        (b"a/b/file", b"3"),
        (b"top", b"1"),
        (b"a/file", b"2"),
        (b"top", b"1"),
    ];
    for (path, content) in files {
        assert_eq!(read(&tree, path).unwrap(), content);
    }
    // A file is that of its name now, also in the directory that was used last.
    fs::write(root.join("a/new"), "5").unwrap();
    assert_eq!(read(&tree, b"a/file").unwrap(), b"2");
    fs::remove_file(root.join("a/file")).unwrap();
    assert_eq!(refused(&tree, b"a/file"), ErrorKind::NotFound);
    assert_eq!(read(&tree, b"a/new").unwrap(), b"5");
    assert_eq!(refused(&tree, b"a/b"), ErrorKind::Conflict);

    symlink("../secret", root.join("link")).unwrap();
    symlink("..", root.join("up")).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for path in [&b"link"[..], b"up/secret", b"../secret", b"a/../../secret", b"pipe/file"] {
        refused(&tree, path);
    }
    // A pipe without a writer is not waited for.
    assert_eq!(refused(&tree, b"pipe"), ErrorKind::Conflict);
}

#[test]
fn a_file_is_opened_below_a_path_of_any_length() {
    let scratch = Scratch::new();
    let root = scratch.folder("tree");
    let name = "n".repeat(250);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, Path::new(&root), flags, Mode::empty()).unwrap();
    let mut path = Vec::new();
    for _ in 0..40 {
        mkdirat(&directory, name.as_str(), Mode::RWXU).unwrap();
        directory = openat(&directory, name.as_str(), flags, Mode::empty()).unwrap();
        path.extend_from_slice(name.as_bytes());
        path.push(b'/');
    }
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(&directory, "file", create, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    path.extend_from_slice(b"file");
    assert!(path.len() > 10_000);
    assert_eq!(read(&LocalTree::new(&root, &Rules::default()), &path).unwrap(), b"deep");
}
