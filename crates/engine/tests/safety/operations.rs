//! Several operations at once in a process: each is named in its events and stopped alone. Plans
//! that are executed later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use silt_format::ErrorKind;
use silt_storage::MemoryStorage;
use siltstone::{
    Activity, BackupOptions, CancelToken, Context, DeleteMethod, Event, Observer, OperationId,
    Progress, Unit,
};

use crate::deletion::Series;
use crate::kit::{self, MemorySource, World};

/// Notes progress by operation, and cancels a token when one operation first reports.
#[derive(Default)]
struct Watch {
    seen: Mutex<BTreeMap<OperationId, Vec<Progress>>>,
    cancelled: Mutex<Option<(OperationId, CancelToken)>>,
}

impl Observer for Watch {
    fn event(&self, operation: OperationId, event: &Event<'_>) {
        let Event::Progress(progress) = event else { return };
        self.seen.lock().unwrap().entry(operation).or_default().push(*progress);
        if let Some((id, token)) = &*self.cancelled.lock().unwrap()
            && *id == operation
        {
            token.cancel();
        }
    }
}

#[test]
fn an_operation_is_named_in_its_events_and_stopped_alone() {
    let (world, watch) = (World::new(1), Arc::new(Watch::default()));
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage, &world).unwrap();
    let process = Context::new(world, Arc::clone(&watch) as _);
    let (one, other) = (process.operation(), process.operation());
    *watch.cancelled.lock().unwrap() = Some((one.id, one.cancel.clone()));
    let image = kit::image(3, 1500);
    let backup = |context: &Context, series: &str| {
        let repository = repository.for_operation(context.clone());
        let mut session = repository.backup(series, BackupOptions::default())?;
        session.add_volume("disk", &MemorySource::new(&image), None)?;
        session.finish().map(drop)
    };
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| backup(&one, "stopped"));
        backup(&other, "whole").unwrap();
        let error = stopped.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    });
    assert!(one.is_interrupted() && !other.is_interrupted() && !process.is_interrupted());
    let seen = watch.seen.lock().unwrap();
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [one.id, other.id]);
    let whole = seen[&other.id].last().unwrap();
    assert_eq!((whole.activity, whole.unit), (Activity::Backup, Unit::Bytes));
    assert_eq!((whole.done, whole.total), (image.len() as u64, Some(image.len() as u64)));
    assert!(seen[&one.id].last().unwrap().done < image.len() as u64);
    drop(seen);
    // What the stopped one has uploaded is used by the next.
    backup(&other, "stopped").unwrap();
}

#[test]
fn a_plan_to_reclaim_says_what_its_execution_does() {
    let series = Series::new(5);
    let options = siltstone::ReclaimOptions { leak_share_max: 9.0, ..kit::THOROUGH };
    series.repository.delete("vm", &series.ids[1..4], DeleteMethod::Exact).unwrap();
    let before = series.names("");
    let plan = series.repository.plan_reclaim("vm", &options).unwrap();
    assert_eq!(series.names(""), before, "a plan changes nothing");
    assert!(!plan.needs_sweep() && !plan.rewritten_containers().is_empty());
    let report = series.repository.execute_reclaim(&plan).unwrap();
    let forecast = plan.forecast();
    assert_eq!(report.purged, forecast.purged);
    assert_eq!(report.dropped_containers, plan.dropped_containers().len() as u64);
    assert_eq!(report.rewritten_containers, plan.rewritten_containers().len() as u64);
    assert_eq!(report.dropped_packs, forecast.dropped_packs);
    // It has changed the series, so it can't be executed again.
    let again = series.repository.execute_reclaim(&plan).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict, "{again}");
}

#[test]
fn a_plan_is_not_executed_once_somebody_has_changed_the_series() {
    let series = Series::new(4);
    series.repository.delete("vm", &series.ids[..2], DeleteMethod::Approximate).unwrap();
    let plan = series.repository.plan_reclaim("vm", &kit::THOROUGH).unwrap();
    // It would be purged by the plan.
    series.repository.undelete("vm", series.ids[0]).unwrap();
    let refused = series.repository.execute_reclaim(&plan).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let found = kit::latest(&series.repository, "vm").unwrap();
    assert_eq!(found.snapshot.id, series.ids[3]);
    let report = series.repository.check(&siltstone::CheckOptions::default()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}
