//! The sessions of a round overlap at their ends: while the volumes of one are read, predecessors
//! commit and successors begin, as many as the storage answers at once. So the processors need not
//! wait for responses of the storage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use silt_format::Result;
use silt_repository::event::Progress;

use silt_backup::{BackupOptions, BackupSession, ClaimedNames};
use silt_repository::Repository;

/// When no more than this is left to read before it, a session begins: early enough for its
/// requests to be answered, and late enough not to keep the series from others for long.
const NEAR_END_BYTES: u64 = 256 << 20;
/// Most memory of sessions that end at once; one may need more.
const ENDING_BYTES_MAX: u64 = 16 << 20;

/// A session that is to begin.
pub(super) struct Awaited {
    /// The number of its member.
    pub(super) number: usize,
    /// Its series.
    pub(super) series: String,
    /// How its backup is made.
    pub(super) options: BackupOptions,
    /// How much there is to read.
    pub(super) bytes: u64,
}

/// A session that begins ahead of time.
struct Begun<'scope, 'r> {
    number: usize,
    bytes: u64,
    thread: ScopedJoinHandle<'scope, Result<BackupSession<'r>>>,
}

/// The sessions of a round's members, in their order; `T` is what each comes to.
pub(super) struct Sessions<'scope, 'env, 'r, T> {
    scope: &'scope Scope<'scope, 'env>,
    repository: &'r Repository,
    claimed: Arc<ClaimedNames>,
    /// Which sessions there are to begin, in their order.
    awaited: VecDeque<Awaited>,
    begun: VecDeque<Begun<'scope, 'r>>,
    /// The ends of sessions, with the memory that they need.
    ending: VecDeque<(u64, Ending<'scope, T>)>,
    /// How many begin, and how many end, at once.
    at_once: usize,
}

/// The end of a session: under way, or done.
enum Ending<'scope, T> {
    UnderWay(ScopedJoinHandle<'scope, T>),
    Done(T),
}

impl<'scope, 'env, 'r: 'scope, T: Send + 'scope> Sessions<'scope, 'env, 'r, T> {
    /// The sessions of members.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        (repository, claimed): (&'r Repository, &Arc<ClaimedNames>),
        awaited: VecDeque<Awaited>,
    ) -> Self {
        let at_once = repository.objects.storage.requests_at_once();
        let (begun, ending) = (VecDeque::new(), VecDeque::new());
        let claimed = Arc::clone(claimed);
        Self { scope, repository, claimed, awaited, begun, ending, at_once }
    }

    /// The next session, begun now if it was not ahead of time, and its member's number.
    pub(super) fn next(&mut self) -> Option<(usize, Result<BackupSession<'r>>)> {
        if let Some(begun) = self.begun.pop_front() {
            return Some((begun.number, joined(begun.thread)));
        }
        let Awaited { number, series, options, .. } = self.awaited.pop_front()?;
        let begun = BackupSession::begin_claimed(self.repository, &series, options, &self.claimed);
        Some((number, begun))
    }

    /// Begins sessions after this one once the end of what there is to read before them is near.
    pub(super) fn look_ahead(&mut self, progress: Progress) {
        if self.is_alone() {
            return;
        }
        // Of a tree without a parent, nobody knows how much is left.
        let Some(total) = progress.total else { return };
        let left = total.saturating_sub(progress.done);
        while self.begun.len() < self.at_once {
            let before = self.begun.iter().fold(left, |sum, begun| sum.saturating_add(begun.bytes));
            if before > NEAR_END_BYTES {
                return;
            }
            let Some(Awaited { number, series, options, bytes }) = self.awaited.pop_front() else {
                return;
            };
            let (repository, claimed) = (self.repository, Arc::clone(&self.claimed));
            let begin =
                move || BackupSession::begin_claimed(repository, &series, options, &claimed);
            self.begun.push_back(Begun { number, bytes, thread: self.scope.spawn(begin) });
        }
    }

    /// Ends a session, which needs `bytes` of memory for that, while the next ones work; returns
    /// what some before it have come to.
    pub(super) fn end(&mut self, bytes: u64, end: impl FnOnce() -> T + Send + 'scope) -> Vec<T> {
        let mut before = Vec::new();
        let held = |ending: &VecDeque<(u64, _)>| ending.iter().map(|(bytes, _)| bytes).sum::<u64>();
        while self.ending.len() >= self.at_once
            || !self.ending.is_empty() && held(&self.ending) + bytes > ENDING_BYTES_MAX
        {
            before.extend(self.ended());
        }
        let ending = if self.is_alone() {
            Ending::Done(end())
        } else {
            Ending::UnderWay(self.scope.spawn(end))
        };
        self.ending.push_back((bytes, ending));
        before
    }

    /// Whether sessions follow each other on one thread.
    fn is_alone(&self) -> bool {
        self.repository.objects.context.env.is_single_threaded()
    }

    /// The result of the session that ended the longest time ago, if not taken yet.
    pub(super) fn ended(&mut self) -> Option<T> {
        self.ending.pop_front().map(|(_, ending)| match ending {
            Ending::UnderWay(thread) => joined(thread),
            Ending::Done(done) => done,
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
