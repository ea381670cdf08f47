//! `silt check`.

use serde_json::{Value, json};
use silt_format::Id;
use silt_format::number::to_u64;
use silt_location::Locks;
use siltstone::{
    Activity, Affected, CheckOptions, CheckReport, Damage, DataCheck, Progress, Repository,
};

use super::{Failure, Session, short, spans};
use crate::advice::with_advice;
use crate::cli::Check;
use crate::output;

/// Maximum number of paths printed per volume; JSON has more.
const PATHS_SHOWN: usize = 20;
/// Maximum number of ranges printed per volume; JSON has more.
const SPANS_SHOWN: usize = 8;

pub fn run(session: &Session<'_>, args: &Check) -> Result<u8, Failure> {
    let data = match &args.read_data_subset {
        Some(text) => DataCheck::Percent(parse_percent(text)?),
        None if args.read_data => DataCheck::All,
        None => DataCheck::None,
    };
    let repository = session.repository()?;
    let own_name = |name: &String| repository.own_name(name);
    let options = CheckOptions {
        series: args.series.iter().map(own_name).collect::<Result<_, _>>()?,
        data,
        restart: args.restart,
        jobs: session.global.jobs,
    };
    if options.data != DataCheck::None && !session.global.quiet {
        expect(session, &repository, &options)?;
    }
    let mut report = repository.check(&options)?;
    show_names(&repository, &mut report);
    let locks = session.opener.extend_locks(&|done| {
        session.context.check_interrupted()?;
        session.context.report(Progress::objects(Activity::ExtendLocks, done, None));
        Ok(())
    })?;
    session.reporter.finish();
    if session.global.json {
        print_json(&report, locks);
    } else {
        print(&report);
        if let Some(Locks { objects, extended, overwritten }) = locks {
            output::done(&format!(
                "Extended {} of {}.",
                output::count(extended, "lock"),
                output::count(objects, "object")
            ));
            if overwritten > 0 {
                output::line(&format!(
                    "Found {} overwritten by `silt copies heal` or by someone else. The first and \
                     the newest version of each stay locked; see `silt repo rollback --dry-run`.",
                    output::count(overwritten, "object")
                ));
            }
        }
    }
    let found = |is_away| {
        report.damage.iter().any(|damage| !damage.is_harmless && damage.is_away == is_away)
    };
    Ok(match (found(false), found(true)) {
        (true, _) => 5,
        (false, true) => 1,
        (false, false) => 0,
    })
}

/// Replaces the own names of series in a report by those that are shown.
fn show_names(repository: &Repository, report: &mut CheckReport) {
    for affected in report.damage.iter_mut().flat_map(|damage| &mut damage.affected) {
        let id = repository.series_id(&affected.series);
        // A head that cannot be read has no other name.
        if let Some(head) = repository.head(id).ok().flatten() {
            head.shown().clone_into(&mut affected.series);
        }
    }
}

/// Announces the bytes to verify, for progress. A series whose pass is continued has fewer; its
/// own total then counts.
fn expect(
    session: &Session<'_>,
    repository: &Repository,
    options: &CheckOptions,
) -> Result<(), Failure> {
    let share = match options.data {
        DataCheck::None => return Ok(()),
        DataCheck::All => 1.0,
        DataCheck::Percent(percent) => percent / 100.0,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an estimate, not negative"
    )]
    let part = |bytes: u64| Some((bytes as f64 * share) as u64);
    let (shared, series) = repository.container_bytes(&options.series)?;
    let shared = options.series.is_empty().then_some(shared);
    let parts = shared.into_iter().chain(series).filter(|bytes| *bytes > 0);
    let parts: Vec<_> = parts.map(part).collect();
    session.reporter.expect(Activity::Check, &parts);
    Ok(())
}

fn parse_percent(text: &str) -> Result<f64, Failure> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>().ok();
    number.filter(|percent| *percent > 0.0 && *percent <= 100.0).ok_or_else(|| {
        Failure::Usage(format!("'{text}' is not a share; use a percentage such as 5%, up to 100%"))
    })
}

fn print_json(report: &CheckReport, locks: Option<Locks>) {
    for damage in &report.damage {
        let affected: Vec<Value> = damage.affected.iter().map(affected_json).collect();
        let value = json!({
            "object": damage.object,
            "error": with_advice(&damage.error, damage.advice.as_ref()),
            "affected": affected,
            "harmless": damage.is_harmless,
            "away": damage.is_away,
        });
        output::message("damage", value);
    }
    output::message(
        "summary",
        json!({
            "series": report.series,
            "snapshots": report.snapshots,
            "recipes": report.recipes,
            "containers": report.containers,
            "verified_containers": report.verified_containers,
            "verified_bytes": report.verified_bytes,
            "resumed": report.resumed,
            "unreferenced_objects": report.unreferenced,
            "damaged_objects": report.damage.iter().filter(|damage| !damage.is_harmless).count(),
            "locks_extended": locks.map(|locks| locks.extended),
            "overwritten_objects": locks.map(|locks| locks.overwritten),
        }),
    );
}

fn affected_json(affected: &Affected) -> Value {
    let paths = affected.paths.iter().map(|path| String::from_utf8_lossy(path));
    json!({
        "series": affected.series,
        "snapshot": affected.snapshot.map(|id| id.to_string()),
        "volume": affected.volume,
        "bytes": affected.bytes,
        "spans": spans(&affected.spans),
        "paths": paths.collect::<Vec<_>>(),
        "path_count": affected.path_count,
    })
}

fn print(report: &CheckReport) {
    output::done(&format!(
        "Checked {} series, {}, {}, {}.",
        report.series,
        output::count(report.snapshots, "snapshot"),
        output::count(report.recipes, "recipe"),
        output::count(report.containers, "container")
    ));
    if report.verified_bytes > 0 {
        let went_on = if report.resumed { ", continuing an interrupted pass" } else { "" };
        output::done(&format!(
            "Read and verified {} with {}{went_on}.",
            output::count(report.verified_containers, "container"),
            output::bytes(report.verified_bytes)
        ));
    }
    if report.unreferenced > 0 {
        let objects = output::count(report.unreferenced, "unused object");
        output::done(&format!("Found {objects} of interrupted backups; this is harmless."));
    }
    let (harmless, damage): (Vec<&Damage>, Vec<&Damage>) =
        report.damage.iter().partition(|damage| damage.is_harmless);
    for damage in harmless {
        output::done(&format!(
            "{} is damaged, but no living snapshot needs the damaged part; `silt reclaim --sweep \
             --min-dead 0` removes it.",
            damage.object
        ));
    }
    if damage.is_empty() {
        let more = if report.damage.is_empty() { "" } else { " that affects a snapshot" };
        output::done(&format!("No damage found{more}."));
        return;
    }
    let (away, damage): (Vec<&Damage>, Vec<&Damage>) =
        damage.into_iter().partition(|damage| damage.is_away);
    away.iter().for_each(|node| print_damage("UNREACHABLE", node));
    if !away.is_empty() {
        output::line(
            "What needs these nodes can be restored again when they are back. If a node is lost \
             for good, `silt node remove NAME --lost` lets the next backups store again what they \
             need of it.",
        );
    }
    if damage.is_empty() {
        return;
    }
    damage.into_iter().for_each(|damage| print_damage("DAMAGED", damage));
    output::line(
        "The next backup stores the lost data that it needs again. To restore the rest of a \
         damaged disk, use `silt restore --salvage`.",
    );
}

fn print_damage(what: &str, damage: &Damage) {
    let error = with_advice(&damage.error, damage.advice.as_ref());
    // Such errors begin with the node's name.
    let object = if damage.is_away { "" } else { damage.object.as_str() };
    let colon = if damage.is_away { "" } else { ": " };
    output::line(&format!("{what} {object}{colon}{error}"));
    if damage.affected.is_empty() {
        let nobody = if damage.is_away { "no snapshot that was checked" } else { "unknown" };
        output::line(&format!("  affects: {nobody}"));
    }
    for affected in &damage.affected {
        let Some(snapshot) = affected.snapshot else {
            output::line(&format!("  affects all of series '{}'", affected.series));
            continue;
        };
        let Some(volume) = &affected.volume else {
            let (series, id) = (&affected.series, short(snapshot));
            output::line(&format!("  affects all of snapshot {id} of series '{series}'"));
            continue;
        };
        if affected.path_count > 0 {
            print_paths(affected, snapshot, volume);
            continue;
        }
        let shown = affected.spans.iter().take(SPANS_SHOWN);
        let ranges: Vec<String> =
            shown.map(|s| format!("{}..{}", s.offset, s.offset + s.length)).collect();
        let more = if affected.spans.len() > SPANS_SHOWN { ", ..." } else { "" };
        output::line(&format!(
            "  affects {} of {}@{} volume '{volume}': bytes {}{more}",
            output::bytes(affected.bytes),
            affected.series,
            short(snapshot),
            ranges.join(", ")
        ));
    }
}

/// The files of a tree that damage hurts, one a line.
fn print_paths(affected: &Affected, snapshot: Id, volume: &str) {
    output::line(&format!(
        "  affects {} of {}@{} volume '{volume}':",
        output::count(affected.path_count, "entry"),
        affected.series,
        short(snapshot)
    ));
    for path in affected.paths.iter().take(PATHS_SHOWN) {
        output::line(&format!("    {}", String::from_utf8_lossy(path).escape_debug()));
    }
    let more = affected.path_count - to_u64(affected.paths.len().min(PATHS_SHOWN));
    if more > 0 {
        output::line(&format!("    and {more} more"));
    }
}
