//! File trees are replicated.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use siltstone::{BackupOptions, Selector, TreeOptions, TreeVolume, VolumeKind, When};

use crate::kit::*;

pub fn back_up_tree(site: &Site, root: &Path) {
    let mut backup = site.repository.backup("home", BackupOptions::default()).unwrap();
    let options = TreeOptions { ..TreeOptions::default() };
    backup.add_tree("files", root, &options).unwrap();
    backup.finish().unwrap();
}

/// Every entry of the newest tree with its metadata, and the content of files.
pub fn entries(site: &Site) -> Vec<(String, String, Vec<u8>)> {
    let found =
        site.repository.find(&Selector::Time(Some("home".to_owned()), When::Latest)).unwrap();
    let volume = found.volume("files").unwrap();
    let VolumeKind::Tree(tree) = &volume.volume().kind else { panic!("a tree") };
    let reader = TreeVolume::open(&site.repository, volume, 0).unwrap();
    let mut all = vec![(String::new(), format!("{:?} {:?}", tree.counts, tree.users), Vec::new())];
    let mut open = vec![(String::new(), tree.root.clone())];
    while let Some((path, directory)) = open.pop() {
        let mut cursor = reader.entries(&directory);
        while let Some(entry) = reader.next(&mut cursor).unwrap() {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            let mut bytes = Vec::new();
            if !entry.extents.is_empty() {
                bytes = vec![0; usize::try_from(entry.metadata.size).unwrap()];
                reader.read_at(&entry, 0, &mut bytes).unwrap();
            }
            let shown = format!("{:?} {:?} {:?}", entry.metadata, entry.state, entry.extents);
            all.push((path.clone(), shown, bytes));
            open.push((path, entry));
        }
    }
    all.sort();
    all
}

#[test]
fn trees_arrive_with_all_metadata_and_changes_cost_little() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for directory in 0..20 {
        let directory = root.join(format!("directory{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..30_u64 {
            fs::write(directory.join(format!("file{file}")), noise(file, 3000)).unwrap();
        }
    }
    fs::write(root.join("large"), noise(77, SEGMENT + 100_000)).unwrap();
    fs::hard_link(root.join("large"), root.join("also-large")).unwrap();
    symlink("large", root.join("link")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o750)).unwrap();
    let here = site();
    back_up_tree(&here, root);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    assert!(entries(&there) == entries(&here));
    check(&there);

    fs::write(root.join("directory3/file7"), b"changed").unwrap();
    fs::remove_file(root.join("directory4/file8")).unwrap();
    fs::remove_dir_all(root.join("directory5")).unwrap();
    let mut renames = std::process::Command::new("mv");
    renames.arg(root.join("directory6")).arg(root.join("renamed"));
    assert!(renames.status().unwrap().success());
    fs::write(root.join("directory7/a-new-one"), noise(5, 10)).unwrap();
    assert!(fs::metadata(root.join("large")).unwrap().nlink() == 2);
    back_up_tree(&here, root);
    let (sent, served) = send_over(&here, &there, |stream| Box::new(stream));
    assert_eq!(served.unwrap(), 1);
    let (_, traffic) = sent.unwrap();
    assert!(traffic.sent.total() < 60_000, "{traffic:?}");
    assert!(entries(&there) == entries(&here));

    // The replica's pages are the parent's where nothing has changed.
    back_up_tree(&here, root);
    let report = send(&here, &there);
    assert_eq!(report.snapshots[0].sent_bytes, 0);
    assert!(entries(&there) == entries(&here));
    check(&there);
}
