//! `silt reclaim`.

use serde_json::{Value, json};
use silt_format::{FIRST_NODE, Head};
use siltstone::{
    AllHeads, CommonStore, ReclaimOptions, ReclaimReport, Repository, SharedSweepOptions,
    SweepOptions, SweepReport,
};

use super::cluster::Agents;
use super::each::Each;
use super::{Failure, Session};
use crate::cli::{Reclaim, Sweep};
use crate::{output, snapshot_name};

/// The space that reclaiming a series would free.
#[derive(Clone, Copy, Default)]
pub struct Space {
    /// With the given options.
    pub now_bytes: u64,
    /// In addition, once its deleted snapshots can no longer be brought back.
    pub later_bytes: u64,
}

/// Plans a reclaim twice: as it would be now, and if no deleted snapshot were kept.
pub fn space(
    repository: &Repository,
    series: &str,
    options: &ReclaimOptions,
) -> silt_format::Result<Space> {
    let freed = |options: &ReclaimOptions| {
        repository.plan_reclaim(series, options).map(|plan| plan.forecast().freed_bytes())
    };
    let now_bytes = freed(options)?;
    let all_bytes = freed(&ReclaimOptions { keep_deleted_s: Some(0), ..*options })?;
    Ok(Space { now_bytes, later_bytes: all_bytes.saturating_sub(now_bytes) })
}

/// The default options of a reclaim.
pub fn defaults(session: &Session<'_>) -> ReclaimOptions {
    ReclaimOptions { memory_bytes: session.global.memory << 20, ..ReclaimOptions::default() }
}

pub fn run(session: &Session<'_>, args: &Reclaim) -> Result<u8, Failure> {
    if !(0.0..=100.0).contains(&args.min_dead) {
        return Err(Failure::Usage("--min-dead must be between 0 and 100 percent".to_owned()));
    }
    let keep = args.keep_deleted.as_deref().map(snapshot_name::parse_seconds).transpose()?;
    let mut options = ReclaimOptions {
        dead_share_min: args.min_dead / 100.0,
        grace_s: snapshot_name::parse_seconds(&args.grace)?,
        keep_deleted_s: keep,
        ..defaults(session)
    };
    if args.sweep {
        options.leak_share_max = 0.0;
    }
    let repository = session.repository_to_change(args.dry_run)?;
    let mut each = Each::new(session);
    each.worsen(reclaim(session, &repository, &args.series, &options, args.dry_run)?);
    if args.series.is_empty() {
        let agents = if args.with_agents {
            Agents::connect(session, &repository)?
        } else {
            Agents::none(session)
        };
        for store in repository.stores() {
            let swept = sweep_one(session, &repository, (&store, &agents), options, args.dry_run);
            if store.number >= FIRST_NODE {
                each.tried_store(&store.shown, swept)?;
            } else {
                each.tried(&format!("({})", store.shown), swept)?;
            }
        }
    }
    Ok(each.status())
}

/// Deletes chunks of the shared store, or of a node, that no series refers to.
fn sweep_one(
    session: &Session<'_>,
    repository: &Repository,
    (store, agents): (&CommonStore, &Agents<'_>),
    reclaim: ReclaimOptions,
    dry_run: bool,
) -> Result<(), Failure> {
    let memory_bytes = session.global.memory << 20;
    let spool = super::temporary_folder();
    let options = SharedSweepOptions { spool, memory_bytes, reclaim, dry_run };
    let report = agents.sweep(repository, store.number, &options)?;
    session.reporter.finish();
    if report.slots == 0 && report.reclaimed.freed_bytes() == 0 {
        return Ok(());
    }
    if session.global.json {
        let value = json!({
            "store": store.shown,
            "slots": report.slots,
            "condemned_slots": report.condemned_slots,
            "dead_slots": report.dead_slots,
            "counted_by_agents": report.counted_elsewhere,
            "waiting_for": report.waiting_for,
            "freed_bytes": report.reclaimed.freed_bytes(),
            "dry_run": dry_run,
        });
        output::message("shared_store", value);
        return Ok(());
    }
    let verb = if dry_run { "would free" } else { "freed" };
    let print = |text: &str| output::outcome(dry_run, text);
    print(&format!(
        "{}: {verb} {}; {}, {} of them without a reference",
        store.shown,
        output::bytes(report.reclaimed.freed_bytes()),
        output::count(report.slots, "chunk"),
        report.condemned_slots
    ));
    if dry_run {
        print("  what deleted snapshots alone need is not counted: the run itself drops it before");
    }
    if !report.waiting_for.is_empty() {
        print(&format!(
            "  backups of {} are running; the next reclaim after them deletes these chunks",
            report.waiting_for.join(", ")
        ));
    }
    Ok(())
}

/// Reclaims all or some series. Returns an exit status other than 0 if one
/// failed.
pub fn reclaim(
    session: &Session<'_>,
    repository: &Repository,
    series: &[String],
    options: &ReclaimOptions,
    dry_run: bool,
) -> Result<u8, Failure> {
    let (mut freed, mut later, mut done, mut each) = (0, 0, 0, Each::new(session));
    let AllHeads { heads, damaged, unfinished } = repository.all_heads(series)?;
    each.damaged(&damaged);
    let heads =
        heads.into_iter().map(|head| (head.shown().to_owned(), head.deleted.len(), head.name));
    let unfinished = unfinished.into_iter().map(|name| (name.clone(), 0, name));
    let names: Vec<_> = heads.chain(unfinished).collect();
    let reclaim = |repository: &Repository, series| {
        let (_, _, name): &(String, usize, String) = series;
        let reclaimed = if dry_run {
            repository.plan_reclaim(name, options).map(|plan| plan.forecast().clone())
        } else {
            repository.reclaim(name, options)
        };
        (series, reclaimed.map_err(Failure::from))
    };
    repository.each_beside(names.iter().collect(), reclaim, |(series, reclaimed)| {
        let (shown, deleted, name) = series;
        let Some(report) = each.tried(shown, reclaimed)? else { return Ok(()) };
        // Snapshots that can be brought back still need their space.
        let waiting = deleted.saturating_sub(report.purged.len());
        let more = if dry_run && waiting > 0 {
            let space = space(repository, name, options).map_err(Failure::from);
            each.tried(shown, space)?.map_or(0, |space| space.later_bytes)
        } else {
            0
        };
        session.reporter.finish();
        freed += report.freed_bytes();
        later += more;
        done += 1;
        let is_news = report != ReclaimReport::default() || more > 0;
        // Of many series, only those with changes are listed.
        if is_news || session.global.json || names.len() == 1 {
            print(session, shown, &report, dry_run.then_some(more));
        }
        Ok::<_, Failure>(())
    })?;
    if session.global.json {
        let value = json!({
            "series": done, "freed_bytes": freed, "dry_run": dry_run,
            "later_bytes": dry_run.then_some(later),
        });
        output::message("summary", value);
    } else if names.len() > 1 {
        let verb = if dry_run { "Would free" } else { "Freed" };
        let more = if later > 0 {
            format!(", {} more later", output::bytes(later))
        } else {
            String::new()
        };
        let freed = output::bytes(freed);
        output::outcome(dry_run, &format!("{verb} {freed} in {done} series{more}"));
    }
    Ok(each.status())
}

/// `silt sweep`.
pub fn sweep(session: &Session<'_>, args: &Sweep) -> Result<u8, Failure> {
    let repository = session.repository_to_change(args.dry_run)?;
    let options =
        SweepOptions { memory_bytes: session.global.memory << 20, phases_min: args.phases };
    let mut each = Each::new(session);
    let AllHeads { heads, damaged, .. } = repository.all_heads(&args.series)?;
    each.damaged(&damaged);
    let sweep = |repository: &Repository, head: Head| {
        let swept = repository.sweep(&head.name, options).map_err(Failure::from);
        (head, swept)
    };
    repository.each_beside(heads, sweep, |(head, swept)| {
        let Some(sweep) = each.tried(head.shown(), swept)? else { return Ok(()) };
        if session.global.json {
            let mut value = sweep_json(&sweep);
            value["series"] = json!(head.shown());
            value["dry_run"] = json!(args.dry_run);
            output::message("swept", value);
        } else {
            output::outcome(args.dry_run, &format!("{}: {}", head.shown(), sweep_text(&sweep)));
        }
        Ok::<_, Failure>(())
    })?;
    Ok(each.status())
}

/// `silt recover`.
pub fn recover(session: &Session<'_>, series: &str) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    // Its heads may be what is wrong: then the name is its own.
    let own_name = repository.own_name(series).unwrap_or_else(|_| series.to_owned());
    let recovered = repository.recover(&own_name)?;
    if session.global.json {
        output::message("recovered", json!({"series": series, "recovered": recovered}));
    } else if recovered {
        output::done(&format!("Series {series} continues from its last good head"));
    } else {
        output::done(&format!("Series {series} needs no recovery: its heads are good"));
    }
    Ok(0)
}

fn sweep_json(sweep: &SweepReport) -> Value {
    json!({
        "phases": sweep.phases, "recipes": sweep.recipes, "slots": sweep.slots,
        "dead_slots": sweep.dead_slots, "leaked_slots": sweep.leaked_slots,
    })
}

fn sweep_text(sweep: &SweepReport) -> String {
    let all = output::count(sweep.slots, "chunk");
    format!("{} of {all} dead, {} of them newly found", sweep.dead_slots, sweep.leaked_slots)
}

/// Prints the result for a series; of a dry run, also the bytes that are freed later.
fn print(session: &Session<'_>, series: &str, report: &ReclaimReport, later: Option<u64>) {
    let dry_run = later.is_some();
    if session.global.json {
        let ids: Vec<String> = report.purged.iter().map(ToString::to_string).collect();
        let sweep = report.sweep.as_ref().map(sweep_json);
        let value = json!({
            "series": series,
            "dry_run": dry_run,
            "purged": ids,
            "dropped_containers": report.dropped_containers,
            "rewritten_containers": report.rewritten_containers,
            "rewritten_bytes": report.rewritten_bytes,
            "dropped_packs": report.dropped_packs,
            "removed_objects": report.removed_objects,
            "removed_bytes": report.removed_bytes,
            "freed_bytes": report.freed_bytes(),
            "later_bytes": later,
            "dead_slots_left": report.dead_slots_left,
            "sweep": sweep,
        });
        output::message("reclaimed", value);
        return;
    }
    let verb = if dry_run { "would free" } else { "freed" };
    let print = |text: &str| output::outcome(dry_run, text);
    print(&format!(
        "{series}: {verb} {} ({} dropped, {} rewritten, {} dropped, {} removed)",
        output::bytes(report.freed_bytes()),
        output::count(report.dropped_containers, "container"),
        report.rewritten_containers,
        output::count(report.dropped_packs, "recipe pack"),
        output::count(report.removed_objects, "object"),
    ));
    if let Some(sweep) = report.sweep {
        print(&format!("  exact sweep: {}", sweep_text(&sweep)));
    }
    if let Some(later) = later.filter(|later| *later > 0) {
        print(&format!(
            "  {} more once deleted snapshots can no longer be brought back; --keep-deleted 0 \
             frees it now",
            output::bytes(later)
        ));
    }
}
