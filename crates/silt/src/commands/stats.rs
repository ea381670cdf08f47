//! `silt stats`.

use serde_json::json;
use silt_format::Level;
use siltstone::SeriesStats;

use super::{Failure, Session, levels_json};
use crate::cli::Snapshots;
use crate::output;

pub fn run(session: &Session<'_>, args: &Snapshots) -> Result<u8, Failure> {
    let repository = session.repository_to_list()?;
    let mut all = repository.stats(&args.series)?;
    if args.series.is_empty() {
        all.extend(repository.shared_stats()?);
        all.extend(repository.node_status()?.into_iter().map(|node| SeriesStats {
            name: format!("(node {})", node.name),
            containers: node.containers,
            container_bytes: node.container_bytes,
            ..SeriesStats::default()
        }));
    }
    let mut total = SeriesStats { name: "total".to_owned(), ..SeriesStats::default() };
    for stats in &all {
        total.snapshots += stats.snapshots;
        total.logical_bytes += stats.logical_bytes;
        total.data_bytes += stats.data_bytes;
        total.levels.merge(&stats.levels);
        total.containers += stats.containers;
        total.container_bytes += stats.container_bytes;
        total.delta_bases += stats.delta_bases;
        total.deltas += stats.deltas;
        total.delta_chunk_bytes += stats.delta_chunk_bytes;
        total.delta_bytes += stats.delta_bytes;
        total.metadata_bytes += stats.metadata_bytes;
    }
    if session.global.json {
        all.iter().for_each(|stats| print_json("series", stats));
        print_json("summary", &total);
        return Ok(0);
    }
    let mut rows: Vec<Vec<String>> = all.iter().map(row).collect();
    rows.push(row(&total));
    let header = ["SERIES", "SNAPSHOTS", "SIZE", "DATA", "UNIQUE", "STORED", "METADATA", "OF DATA"];
    output::table(&header, &rows, &[1, 2, 3, 4, 5, 6, 7]);
    if total.deltas > 0 {
        output::line(&format!(
            "{} chunks of {} are stored as deltas in {}; {} chunks stay for them.",
            total.deltas,
            output::bytes(total.delta_chunk_bytes),
            output::bytes(total.delta_bytes),
            total.delta_bases,
        ));
    }
    Ok(0)
}

fn row(stats: &SeriesStats) -> Vec<String> {
    let stored = stats.container_bytes + stats.metadata_bytes;
    vec![
        stats.name.clone(),
        stats.snapshots.to_string(),
        output::bytes(stats.logical_bytes),
        output::bytes(stats.data_bytes),
        output::bytes(stats.levels.get(Level::New)),
        output::bytes(stats.container_bytes),
        output::bytes(stats.metadata_bytes),
        output::percent(stored, stats.data_bytes),
    ]
}

fn print_json(message_type: &str, stats: &SeriesStats) {
    let value = json!({
        "name": stats.name,
        "snapshots": stats.snapshots,
        "logical_bytes": stats.logical_bytes,
        "data_bytes": stats.data_bytes,
        "levels": levels_json(&stats.levels),
        "containers": stats.containers,
        "container_bytes": stats.container_bytes,
        "delta_bases": stats.delta_bases,
        "deltas": stats.deltas,
        "delta_chunk_bytes": stats.delta_chunk_bytes,
        "delta_bytes": stats.delta_bytes,
        "metadata_bytes": stats.metadata_bytes,
    });
    output::message(message_type, value);
}
