//! `silt tune`: which chunk sizes suit the files of a tree.

use std::fmt::Write as _;

use serde_json::{Value, json};
use silt_format::{Chunking, Error};
use siltstone::{FileChunking, TuneMeasure, TuneOptions, TuneReport, TunedKind, tune};

use super::{Failure, Session};
use crate::cli::Tune;
use crate::{output, snapshot_name};

pub fn run(session: &Session<'_>, args: &Tune) -> Result<u8, Failure> {
    if let Some(series) = &args.reset {
        store(session, series, None)?;
        return Ok(0);
    }
    let rules = args.tree.options(&[&args.path], false)?.rules;
    let bytes_max = snapshot_name::parse_bytes(&args.limit)?;
    let temp = args.temp.clone().unwrap_or_else(super::temporary_folder);
    let options = TuneOptions { rules, bytes_max, temp };
    let report = tune(&session.context, &args.path, &options)?;
    session.reporter.finish();
    if session.global.json {
        report.kinds.iter().for_each(|kind| output::message("tuned_kind", to_json(kind)));
    } else {
        print(&report);
    }
    if let Some(path) = &args.plot {
        let failed = |error| Error::io(format!("write {}", path.display()), error);
        std::fs::write(path, plot(&report)).map_err(failed)?;
    }
    if let Some(series) = &args.apply {
        store(session, series, Some(&report))?;
    }
    if report.unreadable > 0 {
        let files = output::count(report.unreadable, "file");
        output::note(&format!("silt: {files} could not be read"));
    }
    Ok(if report.unreadable > 0 { 3 } else { 0 })
}

/// Stores what is proposed in place of the present setting, or removes that.
fn store(session: &Session<'_>, series: &str, report: Option<&TuneReport>) -> Result<(), Failure> {
    let repository = session.repository_to_change(false)?;
    let name = repository.own_name(series)?;
    let proposal = match report {
        Some(report) => Some(report.proposal(repository.file_chunking(&name)?)),
        None => None,
    };
    repository.set_file_chunking(&name, proposal)?;
    if session.global.json {
        output::message("tuned", json!({"series": series, "chunking": chunking_json(proposal)}));
    } else if proposal.is_some() {
        output::done(&format!("{series}: later backups cut changed files as proposed"));
    } else {
        output::done(&format!("{series}: later backups cut changed files by default"));
    }
    Ok(())
}

fn chunking_json(chunking: Option<FileChunking>) -> Value {
    let Some(chunking) = chunking else { return Value::Null };
    let kinds = siltstone::FileKind::ALL.iter();
    let pairs = kinds.map(|kind| (kind.name().to_owned(), chunking.of(*kind).to_string().into()));
    Value::Object(pairs.collect())
}

fn to_json(kind: &TunedKind) -> Value {
    let bytes = kind.measured_bytes;
    let measure = |it: &TuneMeasure| {
        json!({
            "chunking": it.chunking.to_string(), "saved_bytes_per_s": it.efficiency(bytes).round(),
            "chunks": it.chunks, "saved_bytes": it.saved_bytes(bytes), "duration_ns": it.time_ns,
            "unique_bytes": it.unique_bytes, "selectable": it.is_selectable(),
        })
    };
    json!({
        "kind": kind.kind.name(), "files": kind.files, "bytes": kind.bytes,
        "measured_bytes": bytes, "proposed": kind.proposed.map(|it| it.to_string()),
        "measures": kind.measures.iter().map(measure).collect::<Vec<_>>(),
    })
}

/// Bytes per second as MiB.
fn rate(bytes_per_s: f64) -> String {
    format!("{:.1}", bytes_per_s / f64::from(1 << 20))
}

fn print(report: &TuneReport) {
    let mut rows = Vec::new();
    for kind in &report.kinds {
        for measure in &kind.measures {
            let of_proposed = if kind.proposed == Some(measure.chunking) { "proposed" } else { "" };
            rows.push(vec![
                kind.kind.name().to_owned(),
                output::bytes(kind.measured_bytes),
                measure.chunking.to_string(),
                output::percent(measure.saved_bytes(kind.measured_bytes), kind.measured_bytes),
                rate(measure.efficiency(kind.measured_bytes)),
                if measure.is_selectable() { of_proposed } else { "only measured" }.to_owned(),
            ]);
        }
    }
    output::table(&["KIND", "MEASURED", "CHUNKING", "SAVED", "MiB/s SAVED", ""], &rows, &[1, 3, 4]);
    for kind in report.kinds.iter().filter(|kind| kind.proposed.is_none()) {
        let name = kind.kind.name();
        output::line(&format!("{name}: hardly any duplicates, so nothing is proposed."));
    }
}

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 90.0;
const PANEL: f64 = 140.0;

/// A panel for each kind that has duplicates: MiB saved per second over the binary logarithm of the
/// chunk size.
fn plot(report: &TuneReport) -> String {
    let shown = || report.kinds.iter().filter(|kind| kind.proposed.is_some());
    let height = 40.0 + PANEL * f64::from(u32::try_from(shown().count()).unwrap_or(0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 460 {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"460\" height=\"{height}\" fill=\"white\"/>\n<text x=\"8\" y=\"20\" \
         font-size=\"14\">MiB saved per second over chunk size</text>\n"
    );
    let mut top = 50.0;
    for kind in shown() {
        let of = |it: &TuneMeasure| it.efficiency(kind.measured_bytes);
        let most = kind.measures.iter().map(of).fold(1.0, f64::max);
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{}</text>", top + 10.0, kind.kind.name());
        let _ = writeln!(svg, "<text x=\"420\" y=\"{}\">{}</text>", top + 10.0, rate(most));
        let (base, right) = (top + HEIGHT, 100.0 + WIDTH);
        let _ = writeln!(svg, "<path d=\"M100 {base}H{right}\" stroke=\"#bbb\"/>");
        let _ = writeln!(svg, "<text x=\"88\" y=\"{}\">0</text>", base + 4.0);
        for (is_fixed, colour) in [(true, "#c8702a"), (false, "#1b6ca8")] {
            let ways = kind.measures.iter().filter(|it| size(it.chunking).0 == is_fixed);
            let point = |it: &TuneMeasure| {
                let x = 100.0 + WIDTH * f64::from(size(it.chunking).1.ilog2() - 10) / 5.0;
                format!("{x:.1},{:.1}", top + HEIGHT * (1.0 - of(it) / most))
            };
            let points = ways.map(point).collect::<Vec<_>>().join(" ");
            let line = "fill=\"none\" stroke-width=\"2\"";
            let _ = writeln!(svg, "<polyline points=\"{points}\" stroke=\"{colour}\" {line}/>");
        }
        top += PANEL;
    }
    for (text, x, colour) in [("fixed", 300, "#c8702a"), ("content-defined", 340, "#1b6ca8")] {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"20\" fill=\"{colour}\">{text}</text>");
    }
    for (text, x) in [("1 KiB", 100.0), ("32 KiB", 100.0 + WIDTH)] {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\">{text}</text>", height - 8.0);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Whether chunks are of fixed size, and what size they have or aim at.
fn size(chunking: Chunking) -> (bool, u32) {
    match chunking {
        Chunking::Fixed { bytes } => (true, bytes),
        Chunking::FastCdc { avg, .. } => (false, avg),
    }
}
