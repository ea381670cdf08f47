//! `silt repo probe`: tests whether a location can hold a repository.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::json;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{Storage, conformance, list_all};
use siltstone::{Activity, Progress};

use crate::commands::{Failure, Session};
use crate::output;

pub fn run(session: &Session<'_>, location: &str) -> std::result::Result<u8, Failure> {
    let base = format!("{}/probe-{:016x}", location.trim_end_matches('/'), session.unique());
    let used: RefCell<Vec<Arc<dyn Storage>>> = RefCell::default();
    // If the location cannot be reached, this fails before the suite does.
    let first = open(session, &base, 0)?;
    first.list("", None)?;
    let failed = suite(session, &base, &used);
    let removed = remove(session, &base, &used.into_inner());
    session.reporter.finish();
    if let Some(check) = failed {
        let message = format!("{location} cannot hold a repository: {check}");
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    removed?;
    if session.global.json {
        output::message("probed", json!({"location": location, "usable": true}));
    } else {
        output::done(&format!("{location} can hold a repository."));
    }
    Ok(0)
}

fn open(session: &Session<'_>, base: &str, number: usize) -> Result<Arc<dyn Storage>> {
    let location = format!("{base}/{number}");
    if location.contains("://") {
        session.opener.open(&location)
    } else {
        session.opener.create(&location, 0)
    }
}

/// Runs the conformance suite; returns the first failure.
fn suite(
    session: &Session<'_>,
    base: &str,
    used: &RefCell<Vec<Arc<dyn Storage>>>,
) -> Option<String> {
    // Its checks fail by panicking; the backtrace is suppressed.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        conformance::run(&|| {
            let number = used.borrow().len() + 1;
            let storage = open(session, base, number)
                .unwrap_or_else(|error| std::panic::panic_any(error.to_string()));
            used.borrow_mut().push(Arc::clone(&storage));
            Box::new(storage)
        });
    }));
    std::panic::set_hook(hook);
    let panic = outcome.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(text.unwrap_or_else(|| "a check failed".to_owned()))
}

/// Removes all objects that the suite created.
fn remove(session: &Session<'_>, base: &str, used: &[Arc<dyn Storage>]) -> Result<()> {
    let mut removed = 0;
    for storage in used {
        let keys = list_all(&**storage, "", None).map(|item| item.map(|(key, _)| key));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        storage.delete(&keys)?;
        removed += keys.len() as u64;
        let progress = Progress::objects(Activity::CleanUp, removed, None);
        session.context.report(progress);
    }
    if !base.contains("://") {
        std::fs::remove_dir_all(base).map_err(|e| Error::io(format!("remove {base}"), e))?;
    }
    Ok(())
}
