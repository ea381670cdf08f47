//! `silt optimize`.

use serde_json::json;
use silt_format::Head;
use siltstone::{AllHeads, OptimizeOptions, OptimizeReport, Repository};

use super::each::Each;
use super::{Failure, Session};
use crate::cli::Optimize;
use crate::output;

pub fn run(session: &Session<'_>, args: &Optimize) -> Result<u8, Failure> {
    let shares = [args.min_saved, args.min_container];
    if !shares.iter().all(|percent| (0.0..=100.0).contains(percent)) {
        let message = "--min-saved and --min-container must be between 0 and 100 percent";
        return Err(Failure::Usage(message.to_owned()));
    }
    let options = OptimizeOptions {
        saved_share_min: args.min_saved / 100.0,
        container_share_min: args.min_container / 100.0,
        compression: (!args.deltas_only).then_some(args.compression),
        memory_bytes: session.global.memory << 20,
        dry_run: args.dry_run,
    };
    let repository = session.repository_to_change(args.dry_run)?;
    let (mut saved_bytes, mut done, mut each) = (0, 0_u64, Each::new(session));
    let AllHeads { heads, damaged, .. } = repository.all_heads(&args.series)?;
    each.damaged(&damaged);
    let optimize = |repository: &Repository, head: Head| {
        let optimized = repository.optimize(&head.name, &options).map_err(Failure::from);
        (head, optimized)
    };
    repository.each_beside(heads, optimize, |(head, optimized)| {
        let Some(report) = each.tried(head.shown(), optimized)? else { return Ok(()) };
        session.reporter.finish();
        saved_bytes += report.saved_bytes();
        done += 1;
        print(session, head.shown(), &report, args.dry_run);
        Ok::<_, Failure>(())
    })?;
    if args.dry_run && args.series.is_empty() {
        forecast(session, &repository, &options, &mut each)?;
    }
    if session.global.json {
        let value = json!({"series": done, "saved_bytes": saved_bytes, "dry_run": args.dry_run});
        output::message("summary", value);
    }
    Ok(each.status())
}

/// Prints how much deltas would save in the stores of several series, which hold none.
fn forecast(
    session: &Session<'_>,
    repository: &Repository,
    options: &OptimizeOptions,
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    for store in repository.stores() {
        let forecast = repository.forecast_optimize_store(store.number, options);
        let name = format!("({})", store.shown);
        let Some(report) = each.tried(&name, forecast.map_err(Failure::from))? else { continue };
        session.reporter.finish();
        if report.chunks == 0 {
            continue;
        }
        if session.global.json {
            let value = json!({
                "store": store.shown, "chunks": report.chunks, "deltas": report.deltas,
                "delta_chunk_bytes": report.delta_chunk_bytes, "saved_bytes": report.saved_bytes(),
            });
            output::message("store_forecast", value);
            continue;
        }
        output::outcome(
            true,
            &format!(
                "{}: deltas would save {} ({} of {}), but are not made there",
                store.shown,
                output::bytes(report.saved_bytes()),
                report.deltas,
                output::count(report.chunks, "chunk"),
            ),
        );
    }
    Ok(())
}

/// Prints the result for a series.
fn print(session: &Session<'_>, series: &str, report: &OptimizeReport, dry_run: bool) {
    if session.global.json {
        let value = json!({
            "series": series, "dry_run": dry_run, "chunks": report.chunks,
            "deltas": report.deltas, "delta_chunk_bytes": report.delta_chunk_bytes,
            "rewritten_containers": report.rewritten_containers,
            "rewritten_bytes": report.rewritten_bytes, "removed_bytes": report.removed_bytes,
            "saved_bytes": report.saved_bytes(),
        });
        return output::message("optimized", value);
    }
    let verb = if dry_run { "would save" } else { "saved" };
    let text = format!(
        "{series}: {verb} {} ({} of {} as deltas, {} rewritten)",
        output::bytes(report.saved_bytes()),
        report.deltas,
        output::count(report.chunks, "chunk"),
        output::count(report.rewritten_containers, "container"),
    );
    output::outcome(dry_run, &text);
}
