//! Figure 5.1: streams that one node deduplicates at the same time, with real threads and locks.

use std::time::Instant;

use silt_routing::{Domains, Grain, Node, NodeOptions, Piece};

use super::feed::{Chunking, Data};
use silt_report::{Line, Table, number, plot_values};

/// Streams that are compared.
const STREAMS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Super-chunks by streams; each stream is of one application, as far as there are as many.
fn streams(data: &Data, count: usize) -> Vec<Vec<Piece>> {
    let mut streams: Vec<Vec<Piece>> = vec![Vec::new(); count];
    let mut numbers = vec![0; data.sets.len()];
    data.feed(Chunking::Units(4), Grain::Bytes(1 << 20), &mut |mut piece| {
        let application = usize::from(piece.application.0);
        let own: Vec<usize> =
            (0..count).filter(|stream| stream % data.sets.len() == application).collect();
        let number = &mut numbers[application];
        *number += 1;
        let stream = own.get(*number % own.len().max(1)).copied().unwrap_or(application % count);
        piece.stream = u32::try_from(stream).unwrap_or(0);
        streams[stream].push(piece);
    });
    streams
}

/// Gigabytes a second of all streams together.
fn rate(node: &Node, streams: &[Vec<Piece>]) -> f64 {
    let bytes: u64 = streams.iter().flatten().map(Piece::bytes).sum();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for stream in streams {
            scope.spawn(move || {
                for piece in stream {
                    node.store(piece);
                }
            });
        }
    });
    bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9) / 1e9
}

/// The four curves.
pub fn table(data: &Data) -> (Table, String) {
    let columns = ["streams", "naive, cold GB/s", "naive, warm", "by application, cold", "warm"];
    let mut table =
        Table::new("Figure 5.1: streams that a node deduplicates at the same time", &columns);
    let names = ["naive, cold", "naive, warm", "by application, cold", "by application, warm"];
    let mut lines =
        names.map(|name| Line { name: name.to_owned(), points: Vec::new(), is_published: false });
    for count in STREAMS {
        let streams = streams(data, count);
        let mut rates = Vec::new();
        for domains in [Domains::One, Domains::PerApplication] {
            let node = Node::new(NodeOptions { domains, ..NodeOptions::default() });
            // First everything is new and nothing cached, then everything is known.
            rates.extend([rate(&node, &streams), rate(&node, &streams)]);
        }
        let mut cells = vec![count.to_string()];
        cells.extend(rates.iter().map(|rate| number(*rate)));
        table.row(cells);
        for (line, rate) in lines.iter_mut().zip(rates) {
            line.points.push((count as f64, rate));
        }
    }
    table.note(
        "Outputs, times of this machine. Looking fingerprints up alone: reading, chunking and \
         fingerprints are not counted, as they are not in the published figure as far as it \
         says. Published: 6.2 GB/s by application and warm on 8 logical processors, 5.5 GB/s \
         beyond 16 streams; by application is faster than naive, warm faster than cold. All seven \
         sets instead of the VM set, which is one application and would have one lock either way.",
    );
    let names = ("streams", "GB/s");
    (table, plot_values("Figure 5.1: streams of one node", names, 0.0, &lines))
}
