//! Works on many series side by side.
//!
//! A request to a store far away is mostly waiting, so an operation on many series has several of
//! them under way. What it does to one series is the same as if it were the only one, in the same
//! order; results and events come in the order of the series. With one lane, or on one thread, all
//! work is done one after the other on the caller's thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;

use crate::env::Context;
use crate::event::{Event, Observer, Progress, Warning};
use crate::objects::Objects;
use crate::operation::OperationId;
use crate::sync::lock;

/// Results that may wait for an earlier one, for each lane.
const AHEAD: usize = 2;

/// A repository that can be used by several threads, each with a context of its own.
pub trait Beside: Sync + Sized {
    /// Its objects.
    fn objects(&self) -> &Arc<Objects>;
    /// The same repository with another context.
    #[must_use]
    fn beside(&self, context: Context) -> Self;
}

impl Beside for Arc<Objects> {
    fn objects(&self) -> &Arc<Objects> {
        self
    }

    fn beside(&self, context: Context) -> Self {
        Self::new(Objects::beside(self, context))
    }
}

/// Calls `task` with each item, several at once, and `take` with what each came to, in the order of
/// the items.
///
/// There are as many at once as the storage [answers](silt_storage::Storage::requests_at_once). If
/// `take` fails, tasks that are under way are interrupted and no further one begins.
pub fn each_beside<R: Beside, I: Send, T: Send, E>(
    repository: &R,
    items: Vec<I>,
    task: impl Fn(&R, I) -> T + Sync,
    mut take: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let objects = repository.objects();
    let lanes = objects.context.workers(objects.storage.requests_at_once().min(items.len()));
    if lanes <= 1 {
        return items.into_iter().try_for_each(|item| take(task(repository, item)));
    }
    let context = objects.context.operation_beside();
    let count = items.len();
    let line = Line::new(items, lanes);
    let stopping = Stopping { line: &line, context: &context };
    std::thread::scope(|scope| {
        // Dropped before the scope waits for its threads.
        let _stopping = stopping;
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some((number, item)) = line.next(&context) {
                    let panicking = Panicking(&line);
                    let own = Context { observer: item.1, ..context.clone() };
                    let done = task(&repository.beside(own), item.0);
                    std::mem::forget(panicking);
                    line.done(number, done);
                }
            });
        }
        for number in 0..count {
            // A task that has panicked is the scope's to report.
            let Some(events) = line.begun(number) else { return Ok(()) };
            events.pass_on();
            let Some(done) = line.taken(number) else { return Ok(()) };
            take(done)?;
        }
        Ok(())
    })
}

/// The items, and what was made of those that nobody has taken yet.
struct Line<I, T> {
    state: Mutex<State<I, T>>,
    changed: Condvar,
    ahead_max: usize,
}

struct State<I, T> {
    items: IntoIter<I>,
    /// Number of the next item to work on.
    next: usize,
    /// Number of the result that is taken next.
    awaited: usize,
    events: BTreeMap<usize, Arc<Deferred>>,
    done: BTreeMap<usize, T>,
    is_stopped: bool,
}

impl<I, T> Line<I, T> {
    fn new(items: Vec<I>, lanes: usize) -> Self {
        let state = State {
            items: items.into_iter(),
            next: 0,
            awaited: 0,
            events: BTreeMap::new(),
            done: BTreeMap::new(),
            is_stopped: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), ahead_max: lanes * AHEAD }
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State<I, T>>) -> MutexGuard<'s, State<I, T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The next item, and where its events go; `None` at the end.
    fn next(&self, context: &Context) -> Option<(usize, (I, Arc<Deferred>))> {
        let mut state = lock(&self.state);
        while !state.is_stopped && state.next >= state.awaited + self.ahead_max {
            state = self.wait(state);
        }
        if state.is_stopped {
            return None;
        }
        let item = state.items.next()?;
        let number = state.next;
        state.next += 1;
        let events = Arc::new(Deferred::new(Arc::clone(&context.observer)));
        state.events.insert(number, Arc::clone(&events));
        self.changed.notify_all();
        Some((number, (item, events)))
    }

    fn done(&self, number: usize, done: T) {
        lock(&self.state).done.insert(number, done);
        self.changed.notify_all();
    }

    /// Waits until an item is worked on; `None` if a task has panicked.
    fn begun(&self, number: usize) -> Option<Arc<Deferred>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(events) = state.events.remove(&number) {
                return Some(events);
            }
            if state.is_stopped {
                return None;
            }
            state = self.wait(state);
        }
    }

    /// Waits for the result of an item; `None` if a task has panicked.
    fn taken(&self, number: usize) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(done) = state.done.remove(&number) {
                state.awaited = number + 1;
                self.changed.notify_all();
                return Some(done);
            }
            if state.is_stopped {
                return None;
            }
            state = self.wait(state);
        }
    }

    fn stop(&self) {
        lock(&self.state).is_stopped = true;
        self.changed.notify_all();
    }
}

/// Ends the work when the caller's part of it has ended, however it did.
struct Stopping<'l, I, T> {
    line: &'l Line<I, T>,
    context: &'l Context,
}

impl<I, T> Drop for Stopping<'_, I, T> {
    fn drop(&mut self) {
        self.context.cancel.cancel();
        self.line.stop();
    }
}

/// Wakes the caller if a task panics; forgotten if it does not.
struct Panicking<'l, I, T>(&'l Line<I, T>);

impl<I, T> Drop for Panicking<'_, I, T> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Holds a task's events back until it is the first one that is not taken yet.
struct Deferred {
    to: Arc<dyn Observer>,
    /// `None` once they are passed on.
    held: Mutex<Option<Vec<(OperationId, Held)>>>,
}

enum Held {
    Progress(Progress),
    Warning(Warning),
}

impl Deferred {
    fn new(to: Arc<dyn Observer>) -> Self {
        Self { to, held: Mutex::new(Some(Vec::new())) }
    }

    /// Passes on what was held back, and from now on everything at once.
    fn pass_on(&self) {
        let mut held = lock(&self.held);
        for (operation, event) in held.take().into_iter().flatten() {
            match event {
                Held::Progress(progress) => self.to.event(operation, &Event::Progress(progress)),
                Held::Warning(warning) => self.to.event(operation, &Event::Warning(&warning)),
            }
        }
    }
}

impl Observer for Deferred {
    fn event(&self, operation: OperationId, event: &Event<'_>) {
        let mut held = lock(&self.held);
        let Some(held) = &mut *held else {
            drop(held);
            return self.to.event(operation, event);
        };
        match (event, held.last_mut()) {
            // Of each part only its beginning and how far it is.
            (Event::Progress(now), Some((_, Held::Progress(last))))
                if last.activity == now.activity && last.done > 0 && now.done >= last.done =>
            {
                *last = *now;
            }
            (Event::Progress(now), _) => held.push((operation, Held::Progress(*now))),
            (Event::Warning(warning), _) => {
                held.push((operation, Held::Warning((*warning).clone())));
            }
            // There may be any number of them.
            (Event::LeftOut(_) | Event::Unreliable(_), _) => self.to.event(operation, event),
        }
    }
}
