//! `silt popular`.

use serde_json::json;
use silt_format::Head;
use siltstone::{PopularOptions, PopularReport, Repository, SharePolicy};

use super::{Failure, Session, reclaim};
use crate::cli::{PopularBuild, PopularChoice};
use crate::output;

pub fn plan(session: &Session<'_>, args: &PopularChoice) -> Result<u8, Failure> {
    let repository = session.repository_to_change(true)?;
    let report = repository.build_popular(&options(session, args, true)?)?;
    let (_, series) = repository.container_bytes(&[])?;
    session.reporter.finish();
    print(session, &report, Some(&Savings::of(&report, series.iter().sum())));
    Ok(0)
}

pub fn build(session: &Session<'_>, args: &PopularBuild) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    let options = options(session, &args.choice, false)?;
    let report = repository.build_popular(&options)?;
    session.reporter.finish();
    print(session, &report, None);
    if !args.no_repoint {
        let linked = repoint(session, &repository, &options)?;
        let freed = free(session, &repository)?;
        let written = report.stored_bytes + linked;
        if session.global.json {
            let value = json!({"written_bytes": written, "freed_bytes": freed});
            output::message("summary", value);
        } else {
            output::done(&format!(
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
    let (mut freed, options) = (0, reclaim::defaults(session));
    let reclaim = |repository: &Repository, head: Head| repository.reclaim(&head.name, &options);
    repository.each_beside(repository.heads(&[])?, reclaim, |report| {
        freed += report?.removed_bytes;
        session.reporter.finish();
        Ok::<_, Failure>(())
    })?;
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
    let repoint = |repository: &Repository, head: Head| {
        let repointed = repository.repoint(&head.name, &options.spool);
        (head, repointed)
    };
    repository.each_beside(repository.heads(&[])?, repoint, |(head, report)| {
        let report = report?;
        session.reporter.finish();
        written += report.stored_bytes;
        if session.global.json {
            let value = json!({
                "series": head.shown(),
                "linked_chunks": report.linked_chunks,
                "linked_bytes": report.linked_bytes,
                "rewritten_containers": report.rewritten_containers,
                "stored_bytes": report.stored_bytes,
            });
            output::message("repointed", value);
        } else {
            output::done(&format!(
                "{}: replaced {}, {}, by links to the shared store ({} rewritten)",
                head.shown(),
                output::count(report.linked_chunks, "chunk"),
                output::bytes(report.linked_bytes),
                output::count(report.rewritten_containers, "container")
            ));
        }
        Ok::<_, Failure>(())
    })?;
    Ok(written)
}

/// What sharing would free and take, estimated from the average size of a stored chunk.
struct Savings {
    /// Private copies that links would replace.
    freed_bytes: u64,
    /// Their only copies in the shared store.
    shared_bytes: u64,
}

impl Savings {
    /// `stored_bytes` are those of the containers of all series.
    fn of(report: &PopularReport, stored_bytes: u64) -> Self {
        // As the choice goes: chunks that most series have come first.
        let (mut left, mut copies) = (report.chosen_chunks, 0_u64);
        let by_series: Vec<(u64, u64)> =
            (1..).zip(report.chunks_by_series.iter().copied()).skip(1).collect();
        for (series, chunks) in by_series.into_iter().rev() {
            let taken = left.min(chunks);
            left -= taken;
            copies += taken * series;
        }
        let part = |chunks: u64| {
            let bytes = u128::from(chunks) * u128::from(stored_bytes);
            let bytes = bytes / u128::from(report.private_slots.max(1));
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let copied = report.chosen_chunks.saturating_sub(report.present_chunks);
        // Series that refer to the shared store already have no copy to free.
        let copies = copies.min(report.private_slots);
        Self { freed_bytes: part(copies), shared_bytes: part(copied) }
    }
}

/// Prints the counts; of a plan also what it would save.
fn print(session: &Session<'_>, report: &PopularReport, savings: Option<&Savings>) {
    let dry_run = savings.is_some();
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
            "estimated_freed_bytes": savings.map(|savings| savings.freed_bytes),
            "estimated_shared_bytes": savings.map(|savings| savings.shared_bytes),
        });
        output::message("popular", value);
        return;
    }
    if session.global.quiet && !dry_run {
        return;
    }
    output::line(&format!(
        "{} in {} series, {} counted per series",
        output::count(report.unique_chunks, "distinct chunk"),
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
        "Chosen: {}, each in at least {} series; {} of them already shared",
        output::count(report.chosen_chunks, "chunk"),
        report.series_min,
        report.present_chunks
    ));
    if let Some(&Savings { freed_bytes, shared_bytes }) = savings {
        output::line(&format!(
            "Sharing them would free about {} of the series and write about {} to the shared \
             store: {} less in all",
            output::bytes(freed_bytes),
            output::bytes(shared_bytes),
            output::bytes(freed_bytes.saturating_sub(shared_bytes))
        ));
    }
    if !dry_run {
        output::line(&format!(
            "Copied {}: {}, {} stored",
            output::count(report.copied_chunks, "chunk"),
            output::bytes(report.copied_bytes),
            output::bytes(report.stored_bytes)
        ));
    }
}
