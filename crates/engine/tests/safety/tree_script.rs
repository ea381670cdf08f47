//! Directories in which something happens while they are walked.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use silt_format::Result;
use silt_format::tree::{Metadata, Timestamp};
use silt_tree::{
    FileSource, FileSystemTraits, Found as Seen, Owners, Rules, Step, TreeSource, Walk,
};

/// A moment of a walk, with the name of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At<'n> {
    /// Behind the status of the name, before anything else of it.
    Step(&'n str),
    /// Behind its attributes.
    Completed(&'n str),
    /// Behind the first bytes that are read of it, and behind all others: how many.
    Read(&'n str, usize),
    /// Behind all of it, before the next step.
    Done(&'n str),
}

type Hook = Arc<dyn Fn(At<'_>) + Send + Sync>;
type Event = Box<dyn FnOnce() + Send>;

/// A directory in which something happens while it is walked.
pub struct Scripted {
    walk: Walk,
    hook: Hook,
    /// The inode numbers that names have instead of their own.
    pub numbers: HashMap<&'static str, u64>,
    /// Whether it is known when files were created.
    pub tells_births: bool,
    /// The number that the entry of the last step really has.
    real: u64,
    last: Option<String>,
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

impl Scripted {
    /// A directory, and what is called at every moment.
    pub fn new(root: &Path, hook: impl Fn(At<'_>) + Send + Sync + 'static) -> Self {
        let walk = Walk::open(root, &Rules::default()).unwrap();
        let (hook, numbers) = (Arc::new(hook), HashMap::new());
        Self { walk, hook, numbers, tells_births: true, real: 0, last: None }
    }

    fn renumber(&mut self, found: &mut Seen) {
        self.real = found.metadata.inode;
        if let Some(number) = self.numbers.get(&*text(&found.name)) {
            found.metadata.inode = *number;
        }
    }
}

impl TreeSource for Scripted {
    fn next(&mut self) -> Result<Option<Step>> {
        if let Some(last) = self.last.take() {
            (self.hook)(At::Done(&last));
        }
        let mut step = self.walk.next()?;
        if let Some(Step::Entry(found)) = &mut step {
            self.renumber(found);
            let name = text(&found.name);
            (self.hook)(At::Step(&name));
            self.last = Some(name);
        }
        Ok(step)
    }
    fn complete(&mut self, found: &mut Seen) -> bool {
        let is_renumbered = self.numbers.contains_key(&*text(&found.name));
        if is_renumbered {
            found.metadata.inode = self.real;
        }
        let is_there = self.walk.complete(found);
        if is_renumbered {
            self.renumber(found);
        }
        (self.hook)(At::Completed(&text(&found.name)));
        is_there
    }
    fn open_file(&mut self, found: &Seen) -> Result<Box<dyn FileSource>> {
        let mut metadata = found.metadata.clone();
        if self.numbers.contains_key(&*text(&found.name)) {
            metadata.inode = self.real;
        }
        let real = Seen { name: found.name.clone(), metadata, problem: None };
        let file = TreeSource::open_file(&mut self.walk, &real)?;
        Ok(Box::new(ScriptedFile(file, text(&found.name), self.hook.clone())))
    }
    fn born(&self) -> Option<Timestamp> {
        self.walk.born().filter(|_| self.tells_births)
    }
    fn vanished(&self) -> u64 {
        self.walk.vanished()
    }
    fn traits(&self, file_system: u16) -> FileSystemTraits {
        self.walk.traits(file_system)
    }
    fn owners(&self) -> Owners {
        Owners::default()
    }
}

struct ScriptedFile(Box<dyn FileSource>, String, Hook);

impl FileSource for ScriptedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let read = self.0.read_at(offset, buffer);
        (self.2)(At::Read(&self.1, *read.as_ref().unwrap_or(&0)));
        read
    }
    fn status(&self) -> Result<Metadata> {
        self.0.status()
    }
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        self.0.next_data(offset, size)
    }
}

/// What happens once, each at its moment; the count of a read is 0 here.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<HashMap<At<'static>, Event>>>);

impl Events {
    /// Adds something that is to happen.
    pub fn add(&self, at: At<'static>, event: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap().insert(at, Box::new(event));
    }

    /// Lets happen what is to happen now.
    pub fn reach(&self, at: At<'_>) {
        let now = if let At::Read(name, _) = at { At::Read(name, 0) } else { at };
        let mut waiting = self.0.lock().unwrap();
        let found = waiting.keys().find(|waiting| **waiting == now).copied();
        let event = found.and_then(|found| waiting.remove(&found));
        drop(waiting);
        event.into_iter().for_each(|event| event());
    }

    /// Whether everything has happened.
    pub fn have_happened(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}
