//! `silt popular`.

use serde_json::json;
use siltstone::{PopularOptions, PopularReport, Repository, SharePolicy};

use super::{Failure, Session, reclaim};
use crate::cli::{PopularBuild, PopularChoice};
use crate::output;

pub fn plan(session: &Session<'_>, args: &PopularChoice) -> Result<u8, Failure> {
    let repository = session.repository_to_change(true)?;
    let report = repository.build_popular(&options(session, args, true)?)?;
    session.reporter.finish();
    print(session, &report, true);
    Ok(0)
}

pub fn build(session: &Session<'_>, args: &PopularBuild) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    let options = options(session, &args.choice, false)?;
    let report = repository.build_popular(&options)?;
    session.reporter.finish();
    print(session, &report, false);
    if !args.no_repoint {
        let linked = repoint(session, &repository, &options)?;
        let freed = free(session, &repository)?;
        let written = report.stored_bytes + linked;
        if session.global.json {
            let value = json!({"written_bytes": written, "freed_bytes": freed});
            output::message("summary", value);
        } else {
            output::line(&format!(
                "Wrote {}, freed {}",
                output::bytes(written),
                output::bytes(freed)
            ));
        }
    }
    Ok(0)
}

/// Frees the space of replaced chunks; returns the number of bytes freed.
fn free(session: &Session<'_>, repository: &Repository) -> Result<u64, Failure> {
    let mut freed = 0;
    for head in repository.heads(&[])? {
        freed += repository.reclaim(&head.name, &reclaim::defaults(session))?.removed_bytes;
        session.reporter.finish();
    }
    Ok(freed)
}

fn options(
    session: &Session<'_>,
    args: &PopularChoice,
    dry_run: bool,
) -> Result<PopularOptions, Failure> {
    if !(0.0..=100.0).contains(&args.share) {
        return Err(Failure::Usage("--share must be between 0 and 100 percent".to_owned()));
    }
    let policy = if args.duplicates {
        SharePolicy::Duplicates
    } else {
        SharePolicy::Popular(args.share / 100.0)
    };
    Ok(PopularOptions {
        policy,
        spool: args.temp.clone().unwrap_or_else(super::temporary_folder),
        memory_bytes: session.global.memory << 20,
        dry_run,
    })
}

/// Replaces private copies by links; returns the number of bytes written.
fn repoint(
    session: &Session<'_>,
    repository: &Repository,
    options: &PopularOptions,
) -> Result<u64, Failure> {
    let mut written = 0;
    for head in repository.heads(&[])? {
        let report = repository.repoint(&head.name, &options.spool)?;
        session.reporter.finish();
        written += report.stored_bytes;
        if session.global.json {
            let value = json!({
                "series": head.name,
                "linked_chunks": report.linked_chunks,
                "linked_bytes": report.linked_bytes,
                "rewritten_containers": report.rewritten_containers,
                "stored_bytes": report.stored_bytes,
            });
            output::message("repointed", value);
        } else {
            output::line(&format!(
                "{}: {} in {} chunks are now links to the shared store ({} containers rewritten)",
                head.name,
                output::bytes(report.linked_bytes),
                report.linked_chunks,
                report.rewritten_containers
            ));
        }
    }
    Ok(written)
}

fn print(session: &Session<'_>, report: &PopularReport, dry_run: bool) {
    if session.global.json {
        let value = json!({
            "dry_run": dry_run,
            "series": report.series,
            "unique_chunks": report.unique_chunks,
            "private_chunks": report.private_chunks(),
            "chunks_by_series": report.chunks_by_series,
            "private_slots": report.private_slots,
            "shared_slots": report.shared_slots,
            "series_min": report.series_min,
            "chosen_chunks": report.chosen_chunks,
            "present_chunks": report.present_chunks,
            "copied_chunks": report.copied_chunks,
            "copied_bytes": report.copied_bytes,
            "stored_bytes": report.stored_bytes,
        });
        output::message("popular", value);
        return;
    }
    output::line(&format!(
        "{} distinct chunks in {} series, {} counted per series",
        report.unique_chunks,
        report.series,
        report.private_chunks()
    ));
    let rows: Vec<Vec<String>> = (1..)
        .zip(&report.chunks_by_series)
        .map(|(series, chunks): (u64, _)| vec![format!("  {series}"), chunks.to_string()])
        .collect();
    output::table(&["  in series", "chunks"], &rows, &[0, 1]);
    if report.chosen_chunks == 0 {
        output::line("No chunk was chosen: none is in two series, or the share is too small");
        return;
    }
    output::line(&format!(
        "Chosen: {} chunks, each in at least {} series; {} were already shared",
        report.chosen_chunks, report.series_min, report.present_chunks
    ));
    if !dry_run {
        output::line(&format!(
            "Copied {} chunks, {} in {} stored",
            report.copied_chunks,
            output::bytes(report.copied_bytes),
            output::bytes(report.stored_bytes)
        ));
    }
}
