//! The examples do what they say.

use std::process::Command;
use std::sync::Arc;

use siltstone::source::{SourceOptions, open_source};
use siltstone::storage::LocalStorage;
use siltstone::{BackupOptions, Config, Protection, Repository, SystemEnv};

#[path = "../../examples/custom_source.rs"]
#[expect(dead_code, reason = "an example has a main function")]
mod custom_source;
#[path = "../../examples/superblock.rs"]
#[expect(dead_code, reason = "an example has a main function")]
mod superblock;

#[test]
fn a_program_of_sixty_lines_backs_up_a_source_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    custom_source::run(&folder.path().join("repository")).unwrap();
    let text = include_str!("../../examples/custom_source.rs");
    let code = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert!(code.count() < 60);
}

#[test]
fn a_file_system_is_named_without_restoring_it() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, repository) = (folder.path().join("disk.raw"), folder.path().join("repository"));
    std::fs::File::create(&disk).unwrap().set_len(48 << 20).unwrap();
    let made = Command::new("mke2fs")
        .env("PATH", "/sbin:/usr/sbin:/usr/bin:/bin")
        .args(["-q", "-t", "ext4", "-b", "4096", "-L", "letters"])
        .arg(&disk)
        .status();
    assert!(made.unwrap().success());
    let storage = Arc::new(LocalStorage::create(&repository).unwrap());
    let opened =
        Repository::init(storage, SystemEnv::context(), Config::default(), &Protection::None, None);
    let opened = opened.unwrap();
    let mut backup = opened.backup("vm", BackupOptions::default()).unwrap();
    let source = open_source(&disk, &SourceOptions::default()).unwrap();
    backup.add_volume("root", &*source, None).unwrap();
    backup.finish().unwrap();
    let text = superblock::run(repository.to_str().unwrap(), "vm", "root", "").unwrap();
    assert_eq!(text, "'letters', 48 MiB in 12288 blocks");
}
