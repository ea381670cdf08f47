//! Changes of a file tree in the middle of its backup.

use crate::random::Random;
use crate::tree::MemoryTree;

/// One change of a tree in the middle of its backup.
#[derive(Clone)]
pub struct Race {
    /// Which entry changes.
    pub inode: u64,
    /// When.
    pub moment: Moment,
    /// How.
    pub random: Random,
}

/// When an entry changes, as its backup goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// After its metadata was read. Then time passes.
    Completed,
    /// Right before it is opened.
    Opened,
    /// While it is read.
    Read,
    /// After it was read, before its status is looked at once more.
    Status,
    /// After its backup.
    Done,
}

impl Race {
    /// A change of one entry of a tree. If times are coarse, a file is not changed while it is
    /// read: nothing shows that.
    pub fn draw(tree: &MemoryTree, tick_ns: i64, random: &mut Random) -> Self {
        let mut moments = vec![Moment::Completed, Moment::Opened, Moment::Status, Moment::Done];
        if tick_ns <= 10_000_000 {
            moments.push(Moment::Read);
        }
        let (inode, moment) = (tree.some_number(random), random.of(&moments));
        Self { inode, moment, random: Random(random.bits()) }
    }
}
