//! The sessions of a round overlap at their ends: while the volumes of one are read, its
//! predecessor commits and its successor begins. So the processors need not wait for responses of
//! the storage.

use std::thread::{Scope, ScopedJoinHandle};

use silt_format::Result;
use silt_repository::event::Progress;

use silt_backup::{BackupOptions, BackupSession};
use silt_repository::Repository;

/// When no more than this is left to read, the next session begins: early enough for its requests
/// to be answered, and late enough not to keep the series from others for long.
const NEAR_END_BYTES: u64 = 256 << 20;

/// The sessions of a round's members, in their order; `T` is what each comes to.
pub(super) struct Sessions<'scope, 'env, 'r, T> {
    scope: &'scope Scope<'scope, 'env>,
    repository: &'r Repository,
    /// Which sessions there are to begin, by their members' numbers, the next one last.
    awaited: Vec<(usize, String, BackupOptions)>,
    begun: Option<(usize, ScopedJoinHandle<'scope, Result<BackupSession<'r>>>)>,
    ending: Option<Ending<'scope, T>>,
}

/// The end of a session: under way, or done.
enum Ending<'scope, T> {
    UnderWay(ScopedJoinHandle<'scope, T>),
    Done(T),
}

impl<'scope, 'env, 'r: 'scope, T: Send + 'scope> Sessions<'scope, 'env, 'r, T> {
    /// The sessions of `members`, by their numbers, series and options.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        repository: &'r Repository,
        members: impl DoubleEndedIterator<Item = (usize, String, BackupOptions)>,
    ) -> Self {
        let awaited = members.rev().collect();
        Self { scope, repository, awaited, begun: None, ending: None }
    }

    /// The next session, begun now if it was not ahead of time, and its member's number.
    pub(super) fn next(&mut self) -> Option<(usize, Result<BackupSession<'r>>)> {
        if let Some((number, begun)) = self.begun.take() {
            return Some((number, joined(begun)));
        }
        let (number, series, options) = self.awaited.pop()?;
        Some((number, BackupSession::begin(self.repository, &series, options)))
    }

    /// Begins the session after this one once the end of what this one has to read is near.
    pub(super) fn look_ahead(&mut self, progress: Progress) {
        let left = progress.total.unwrap_or(0).saturating_sub(progress.done);
        if left > NEAR_END_BYTES || self.begun.is_some() || self.is_alone() {
            return;
        }
        if let Some((number, series, options)) = self.awaited.pop() {
            let repository = self.repository;
            let begin = move || BackupSession::begin(repository, &series, options);
            self.begun = Some((number, self.scope.spawn(begin)));
        }
    }

    /// Ends a session while the next one works; returns what the one before it has come to.
    pub(super) fn end(&mut self, end: impl FnOnce() -> T + Send + 'scope) -> Option<T> {
        let before = self.ended();
        let ending = if self.is_alone() {
            Ending::Done(end())
        } else {
            Ending::UnderWay(self.scope.spawn(end))
        };
        self.ending = Some(ending);
        before
    }

    /// Whether sessions follow each other on one thread.
    fn is_alone(&self) -> bool {
        self.repository.objects.context.env.is_single_threaded()
    }

    /// The result of the session that ended last, if not taken yet.
    pub(super) fn ended(&mut self) -> Option<T> {
        self.ending.take().map(|ending| match ending {
            Ending::UnderWay(thread) => joined(thread),
            Ending::Done(done) => done,
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
