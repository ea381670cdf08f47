use std::os::unix::fs::PermissionsExt;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

fn written(folder: &Path, bytes: &[u8]) -> TempFile {
    let mut temp = TempFile::create_in(folder).unwrap();
    temp.write_pieces(&[bytes]).unwrap();
    temp
}

fn no_such_rename(_: &Path, _: &Path) -> rustix::io::Result<()> {
    Err(Errno::INVAL)
}

#[test]
fn a_new_file_never_replaces_one() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    written(folder.path(), b"first").publish_new(&target).unwrap();
    let error = written(folder.path(), b"second").publish_new(&target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("target"), "{error}");
    assert_eq!(fs::read(&target).unwrap(), b"first");
    assert_eq!(names(folder.path()), ["target"], "temporary files are gone");
    let mode = fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn replacing_replaces() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    for bytes in [b"first", b"other"] {
        written(folder.path(), bytes).publish_replacing(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), bytes);
    }
    assert_eq!(names(folder.path()), ["target"]);
}

#[test]
fn paths_are_published_like_temporary_files() {
    let folder = tempfile::tempdir().unwrap();
    let (temp, target) = (folder.path().join("temp"), folder.path().join("target"));
    fs::write(&temp, b"first").unwrap();
    publish_new(&temp, &target).unwrap();
    fs::write(&temp, b"second").unwrap();
    assert_eq!(publish_new(&temp, &target).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&target).unwrap(), b"first");
    assert_eq!(names(folder.path()), ["target"], "the loser is gone");
    fs::write(&temp, b"third").unwrap();
    publish_replacing(&temp, &target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"third");
    assert_eq!(publish_replacing(&temp, &target).unwrap_err().kind(), ErrorKind::NotFound);

    fs::write(&temp, b"fourth").unwrap();
    let nowhere = folder.path().join("no-folder/target");
    assert_eq!(publish_new(&temp, &nowhere).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(folder.path()), ["target"], "what could not be published is gone");
}

#[test]
fn links_stand_in_for_a_rename_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let (temp, target) = (folder.path().join("temp"), folder.path().join("target"));
    fs::write(&temp, b"first").unwrap();
    place_new(&temp, &target, no_such_rename).unwrap();
    assert_eq!(names(folder.path()), ["target"]);

    fs::write(&temp, b"second").unwrap();
    let error = place_new(&temp, &target, no_such_rename).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&target).unwrap(), b"first");
    assert_eq!(fs::read(&temp).unwrap(), b"second");
}

#[test]
fn a_link_whose_answer_was_lost_is_recognized() {
    let folder = tempfile::tempdir().unwrap();
    let (temp, target) = (folder.path().join("temp"), folder.path().join("target"));
    fs::write(&temp, b"mine").unwrap();
    fs::hard_link(&temp, &target).unwrap();
    place_new(&temp, &target, no_such_rename).unwrap();
    assert_eq!(names(folder.path()), ["target"]);
    assert_eq!(fs::read(&target).unwrap(), b"mine");
}

#[test]
fn an_unpublished_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let temp = written(folder.path(), b"x");
    assert_eq!(names(folder.path()).len(), 1);
    drop(temp);
    assert_eq!(names(folder.path()).len(), 0);
}

#[test]
fn names_left_by_an_earlier_process_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let first = TempFile::create_in(folder.path()).unwrap();
    let name = first.path().file_name().unwrap().to_str().unwrap();
    let (stem, number) = name.rsplit_once('-').unwrap();
    let number: u64 = number.parse().unwrap();
    // Other tests draw numbers too; enough of the next ones are taken for one to be met.
    for next in number + 1..number + 200 {
        fs::write(folder.path().join(format!("{stem}-{next}")), b"theirs").unwrap();
    }
    let second = written(folder.path(), b"mine");
    assert_eq!(fs::read(second.path()).unwrap(), b"mine");
    drop((first, second));
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(left.into_iter().all(|path| fs::read(path).unwrap() == b"theirs"));
}

#[test]
fn folders_are_made_down_to_the_last() {
    let base = tempfile::tempdir().unwrap();
    let deep = base.path().join("a/b/c");
    create_folders(&deep).unwrap();
    create_folders(&deep).unwrap();
    for folder in ["a", "a/b", "a/b/c"] {
        let mode = fs::metadata(base.path().join(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{folder}");
    }
    fs::write(base.path().join("file"), b"").unwrap();
    for path in ["file", "file/below"] {
        let error = create_folders(&base.path().join(path)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("file"), "{error}");
    }
}

#[test]
fn folders_are_remembered_until_forgotten() {
    let base = tempfile::tempdir().unwrap();
    let folders = Folders::below(base.path());
    let deep = base.path().join("a/b");
    folders.ensure(&deep).unwrap();
    assert!(deep.is_dir());
    fs::remove_dir_all(base.path().join("a")).unwrap();
    folders.ensure(&deep).unwrap();
    assert!(!deep.is_dir(), "a remembered folder is not looked at again");
    folders.forget();
    folders.ensure(&deep).unwrap();
    assert!(deep.is_dir());
}

#[test]
fn the_root_itself_is_never_made() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("unmounted");
    let error = Folders::below(&root).ensure(&root.join("a/b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!root.exists());
}

#[test]
fn a_full_disk_is_named_with_the_way_out() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        let error = before_publishing("write", Path::new("repo/.tmp/x"), kind.into());
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        let start = "no space left in repo/.tmp; nothing was changed. Free some space";
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn pieces_beyond_one_call_are_all_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut temp = TempFile::create_in(folder.path()).unwrap();
    let bytes: Vec<u8> = (0..=250).cycle().take(5 * PIECES_PER_WRITE_MAX).collect();
    let pieces: Vec<&[u8]> = bytes.chunks(1).flat_map(|byte| [byte, &[]]).collect();
    temp.write_pieces(&pieces).unwrap();
    temp.write_pieces(&[]).unwrap();
    temp.write_pieces(&[b"", b""]).unwrap();
    assert_eq!(fs::read(temp.path()).unwrap(), bytes);
}

#[test]
fn files_of_every_size_are_written_whole_with_one_buffer() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let bytes: Vec<u8> = (0..=250).cycle().take(3 * DIRECT_BYTES_MIN + 12_345).collect();
    let mut spare = None;
    for length in [0, 1, 5000, DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, bytes.len() - 1, bytes.len()]
    {
        let mut temp = TempFile::create_in(folder.path()).unwrap();
        let (first, rest) = bytes[..length].split_at(length / 3);
        let pieces: Vec<&[u8]> = std::iter::once(first).chain(rest.chunks(100_001)).collect();
        temp.write_whole(&pieces, &mut spare).unwrap();
        assert!(fs::read(temp.path()).unwrap() == bytes[..length], "{length} bytes");
    }
}

#[test]
fn aligned_pieces_are_followed_by_others() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let bytes: Vec<u8> = (0..=250).cycle().take(3 * DIRECT_BYTES_MIN + 12_345).collect();
    let mut pieces = crate::Pieces::default();
    pieces.extend(&bytes, || None);
    let pieces = pieces.into_pieces();
    let (end, mut spare) = ([9; 5000], None);
    let all = pieces.iter().map(|piece| &**piece).chain([&[][..], &end, &pieces[1]]);
    let all: Vec<&[u8]> = all.collect();
    let [blocks, rest] = split_aligned(&all);
    let count = |pieces: &[&[u8]]| pieces.iter().map(|piece| piece.len()).sum::<usize>();
    assert_eq!(count(&blocks), bytes.len() / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT);
    assert_eq!(blocks.concat().len() + rest.concat().len(), count(&all));
    for pieces in [&all[..], &all[..1], &all[1..], &all[5..]] {
        let mut temp = TempFile::create_in(folder.path()).unwrap();
        temp.write_whole(pieces, &mut spare).unwrap();
        assert!(fs::read(temp.path()).unwrap() == pieces.concat());
    }
}
