//! What a backup tells of a file tree while it walks it.

use std::fs;
use std::sync::{Arc, Mutex};

use silt_format::Result;
use silt_format::tree::Timestamp;
use silt_storage::MemoryStorage;
use silt_tree::{
    FileSource, FileSystemTraits, Found as Seen, Owners, Rules, Step, TreeSource, Trust, Walk,
};
use siltstone::{
    BackupOptions, Config, Context, Event, Observer, OperationId, Protection, Repository,
    SystemEnv, TreeOptions,
};

use crate::tree_kit::Scratch;

/// A directory in which directories called `share` and `disk` are on file systems of their own.
struct Mounts(Walk);

impl TreeSource for Mounts {
    fn next(&mut self) -> Result<Option<Step>> {
        let mut step = self.0.next()?;
        if let Some(Step::Enter(found)) = &mut step {
            found.metadata.file_system = match &*found.name {
                b"disk" => 1,
                b"share" => 2,
                _ => 0,
            };
        }
        Ok(step)
    }
    fn complete(&mut self, found: &mut Seen) -> bool {
        self.0.complete(found)
    }
    fn open_file(&mut self, found: &Seen) -> Result<Box<dyn FileSource>> {
        TreeSource::open_file(&mut self.0, found)
    }
    fn born(&self) -> Option<Timestamp> {
        self.0.born()
    }
    fn vanished(&self) -> u64 {
        self.0.vanished()
    }
    fn traits(&self, file_system: u16) -> FileSystemTraits {
        let name = ["NFS", "FAT"].get(usize::from(file_system / 2)).copied();
        let (has_unstable_inodes, has_unstable_changed) = (file_system == 2, file_system != 1);
        let name = name.filter(|_| file_system != 1);
        FileSystemTraits { name, has_unstable_inodes, has_unstable_changed }
    }
    fn directory_path(&self) -> Vec<u8> {
        self.0.directory_path()
    }
    fn owners(&self) -> Owners {
        Owners::default()
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        let text = match event {
            Event::Unreliable(it) => {
                let path = String::from_utf8_lossy(it.path);
                let name = path.rsplit('/').next().unwrap();
                format!("{name}: {} {} {}", it.file_system, it.ignores_inode, it.ignores_changed)
            }
            Event::LeftOut(it) => {
                let path = String::from_utf8_lossy(it.path);
                format!("{}: {}", path.rsplit('/').next().unwrap(), it.why.name())
            }
            _ => return,
        };
        self.0.lock().unwrap().push(text);
    }
}

fn told(options: &TreeOptions) -> Vec<String> {
    let scratch = Scratch::new();
    let root = scratch.folder("home");
    for folder in ["a/share", "b/disk", "c/share", "d"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("file.tmp"), "text").unwrap();
    }
    let told = Arc::new(Told::default());
    let context = Context::new(SystemEnv::context().env, told.clone());
    let (storage, config) = (Arc::new(MemoryStorage::new()), Config::default());
    let repository = Repository::init(storage, context, config, &Protection::None, None).unwrap();
    let mut session = repository.backup("home", BackupOptions::default()).unwrap();
    let source = Box::new(Mounts(Walk::open(&root, &options.rules).unwrap()));
    session.add_tree_from("files", "mounts", source, options).unwrap();
    session.finish().unwrap();
    std::mem::take(&mut *told.0.lock().unwrap())
}

#[test]
fn each_unreliable_file_system_is_named_once() {
    let options = TreeOptions::default();
    assert_eq!(told(&options), ["home: NFS false true", "share: FAT true true"]);
    let reread = TreeOptions { reread: true, ..TreeOptions::default() };
    assert!(told(&reread).is_empty(), "all files are read");
    let trust = Trust { ignore_changed: true, ..Trust::default() };
    let asked = TreeOptions { trust, ..TreeOptions::default() };
    assert_eq!(told(&asked), ["share: FAT true true"]);
}

#[test]
fn entries_that_are_left_out_are_named_if_that_is_asked_for() {
    let mut rules = Rules::default();
    rules.exclude("*.tmp", false).unwrap();
    let options = TreeOptions { rules, reread: true, ..TreeOptions::default() };
    assert!(told(&options).is_empty());
    let asked = TreeOptions { name_left_out: true, ..options };
    assert_eq!(told(&asked), ["file.tmp: pattern"; 4]);
}
