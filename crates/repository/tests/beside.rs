//! Work on many series side by side.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use silt_format::{Config, ErrorKind};
use silt_storage::MemoryStorage;

use silt_repository::beside::each_beside;
use silt_repository::env::Context;
use silt_repository::event::{Activity, Event, Observer, Progress, Silent, Warning};
use silt_repository::open::Protection;
use silt_repository::operation::OperationId;
use silt_repository::repository::Repository;
use silt_repository::sync::lock;
use silt_repository::system::SystemEnv;

/// Results that may wait for an earlier one, for each lane.
const AHEAD: usize = 2;

/// Writes down the texts of warnings, and how far the progress is.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Observer for Heard {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        lock(&self.0).push(match event {
            Event::Progress(progress) => progress.done.to_string(),
            Event::Warning(warning) => warning.to_string(),
            _ => return,
        });
    }
}

fn repository(observer: Arc<dyn Observer>) -> Repository {
    let storage = Arc::new(MemoryStorage::new().at_once(4));
    let context = Context { observer, ..SystemEnv::context() };
    Repository::init(storage, context, Config::default(), &Protection::None, None).unwrap()
}

#[test]
fn tasks_run_at_once_and_results_and_events_come_in_order() {
    let heard = Arc::new(Heard::default());
    let (repository, together) = (repository(Arc::clone(&heard) as _), Barrier::new(4));
    let mut taken = Vec::new();
    let task = |repository: &Repository, number: u64| {
        // Four at once, or this waits for ever; the last of them is done first.
        together.wait();
        (0..10).for_each(|done| {
            let progress = Progress::bytes(Activity::Check, number * 100 + done, None);
            repository.objects.context.report(progress);
        });
        repository.warn(Warning::new(ErrorKind::Corrupt, format!("{number}")));
        number
    };
    each_beside(&repository, (0..32).collect(), task, |number| {
        let last = lock(&heard.0).last().cloned();
        assert_eq!(last, Some(number.to_string()), "its events are known, and no later ones");
        taken.push(number);
        Ok::<_, ()>(())
    })
    .unwrap();
    assert!(taken.iter().copied().eq(0..32));
    let heard = lock(&heard.0);
    let warned: Vec<&String> =
        heard.iter().filter(|text| text.parse::<u64>().unwrap() < 32).collect();
    assert!(warned.len() >= 32);
    assert!(heard.iter().any(|text| text == "3109"), "the last progress of each");
}

#[test]
fn an_error_interrupts_what_is_under_way_and_begins_nothing_more() {
    let repository = repository(Arc::new(Silent));
    let begun = AtomicUsize::new(0);
    let task = |repository: &Repository, number: usize| {
        begun.fetch_add(1, Ordering::SeqCst);
        while number > 2 && !repository.objects.context.is_interrupted() {
            std::thread::yield_now();
        }
        number
    };
    let failed = each_beside(&repository, (0..1000).collect(), task, |number| {
        if number == 2 { Err(number) } else { Ok(()) }
    });
    assert_eq!(failed, Err(2));
    assert!(begun.load(Ordering::SeqCst) <= 2 + 4 * AHEAD + 4, "{begun:?}");
    assert!(!repository.objects.context.is_interrupted(), "only the tasks are");
}

#[test]
fn few_results_wait_for_one_that_takes_long() {
    let repository = repository(Arc::new(Silent));
    let begun = AtomicUsize::new(0);
    let task = |_: &Repository, number: usize| {
        let before = begun.fetch_add(1, Ordering::SeqCst);
        if number == 0 {
            while begun.load(Ordering::SeqCst) < 4 * AHEAD {
                std::thread::yield_now();
            }
        }
        before
    };
    let mut most_before_the_first = None;
    each_beside(&repository, (0..100).collect(), task, |_| {
        most_before_the_first.get_or_insert(begun.load(Ordering::SeqCst));
        Ok::<_, ()>(())
    })
    .unwrap();
    assert!(most_before_the_first.unwrap() <= 4 * AHEAD + 4, "{most_before_the_first:?}");
    assert_eq!(begun.load(Ordering::SeqCst), 100);
}

#[test]
fn a_panic_of_a_task_or_of_the_caller_ends_all() {
    let repository = repository(Arc::new(Silent));
    let panics = |in_task: bool| {
        let work = || {
            each_beside(
                &repository,
                (0..100).collect(),
                |_, number: usize| assert!(!in_task || number != 7),
                |()| {
                    assert!(in_task);
                    Ok::<_, ()>(())
                },
            )
        };
        catch_unwind(AssertUnwindSafe(work)).is_err()
    };
    assert!(panics(true));
    assert!(panics(false));
}
