//! The tables of what the schemes do.

use super::feed::{Chunking, Data};
use super::sets::{PROFILES, UNIT_BYTES};
use super::ways::{Outcome, Setting, Way, exact, run};
use silt_report::{Line, Table, number, percent, plot_values};

/// Bytes of an entry, as published: Extreme Binning, and all others.
const BIN_ENTRY_BYTES: f64 = 48.0;
const ENTRY_BYTES: f64 = 40.0;
/// Bytes of a Bloom filter for a different chunk of 8 KB, as the published rows imply.
const BLOOM_BYTES: f64 = 4.0;
/// Representatives of a super-chunk, as published.
pub const HANDPRINT: usize = 8;
/// Representatives that are compared.
const HANDPRINTS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Table 5.1: what the sets are.
pub fn sets(data: &Data) -> Table {
    let columns = [
        "set",
        "published GB (input)",
        "published ratio CDC / SC (input)",
        "GB here",
        "files",
        "ratio at 1 KiB",
        "at 4 KiB",
        "at 8 KiB",
    ];
    let mut table = Table::new("Table 5.1: the sets (input)", &columns);
    for &set in &data.sets {
        let (profile, stream) = (&PROFILES[set], data.stream(set, Chunking::Units(4)));
        let one = Data { sets: vec![set], ..data.clone() };
        let ratio = |units| stream.bytes() as f64 / exact(&one, Chunking::Units(units)) as f64;
        table.row(vec![
            profile.name.to_owned(),
            number(profile.gigabytes),
            profile.published.to_owned(),
            number(stream.bytes() as f64 / 1e9),
            stream.files().to_string(),
            number(ratio(1)),
            number(ratio(4)),
            number(ratio(8)),
        ]);
    }
    table.note(
        "The published sets cannot be had. These are drawn from a seed: generations of files that \
         are replaced or changed by blocks of 16 KiB. The shares that change were chosen so that \
         the ratios are near the published ones, so the ratios are inputs. Nothing is inserted \
         in a stream, so static and content-defined chunks find the same.",
    );
    table
}

/// Table 5.2: memory of the indexes of one node, scaled to the published sizes.
pub fn memory(data: &Data) -> Table {
    let columns = [
        "set",
        "Bloom filter MB (formula)",
        "Extreme Binning MB",
        "duplicates found %",
        "Produck MB",
        "Sigma MB",
        "duplicates found %",
        "AppDedupe MB",
        "duplicates found %",
        "its table, measured MB",
        "published (output)",
    ];
    let published = [
        "9.9, 118.5, 763.1, 6.1, 6.2",
        "37, 0.0472, 2800, 38.6, 23.1",
        "52.3, 2.45, 3900, 47.1, 34.2",
        "162, 0.1036, 12600, 101.4, 106.8",
        "74.8, 7, 5600, 53, 49.5",
        "25, n/a, 1900, 14.3, 15.6",
        "11.3, n/a, 852.8, 6.9, 7.1",
    ];
    let mut table =
        Table::new("Table 5.2: memory of one node's indexes at the published sizes", &columns);
    for (&set, published) in data.sets.iter().zip(published) {
        let one = Data { sets: vec![set], ..data.clone() };
        let scale = PROFILES[set].gigabytes * 1e9 / data.stream(set, Chunking::Own).bytes() as f64;
        let megabytes = |bytes: f64| number(bytes * scale / 1e6);
        let unique =
            |units: u64| exact(&one, Chunking::Units(units)) as f64 / (units * UNIT_BYTES) as f64;
        let alone = |way: Way, chunking| {
            let setting = Setting { nodes: 1, chunking, handprint: HANDPRINT };
            run(way, &one, setting, exact(&one, chunking))
        };
        let sigma = alone(Way::Sigma, Chunking::Units(4));
        let ours = alone(Way::AppDedupe, Chunking::Own);
        let bins = PROFILES[set]
            .has_files
            .then(|| alone(Way::ExtremeBinning, Chunking::Units(4)))
            .map(|it| (megabytes(it.entries as f64 * BIN_ENTRY_BYTES), percent(it.found())));
        let (bins, found) = bins.unwrap_or_else(|| ("no files".to_owned(), "-".to_owned()));
        table.row(vec![
            PROFILES[set].name.to_owned(),
            megabytes(unique(8) * BLOOM_BYTES),
            bins,
            found,
            megabytes(unique(1) * ENTRY_BYTES),
            megabytes(sigma.entries as f64 * ENTRY_BYTES),
            percent(sigma.found()),
            megabytes(ours.entries as f64 * ENTRY_BYTES),
            percent(ours.found()),
            megabytes(ours.index_bytes as f64),
            published.to_owned(),
        ]);
    }
    table.note(
        "Published, in this order: stateless and stateful (Bloom filter), Extreme Binning, \
         Produck, Sigma, AppDedupe, in MB, for at least 95 % of the duplicates. Entries are \
         counted in the product's nodes and have the published sizes: 48 bytes in Extreme \
         Binning, 40 in the others; the measured column is the table as it is in memory. The \
         filter is a formula, 4 bytes a different chunk of 8 KB, which the published rows imply. \
         Produck's total is printed as 2.84 GB; its rows add up to 28.4.",
    );
    table
}

/// Table 5.3: three nodes.
pub fn three_nodes(data: &Data) -> Table {
    let columns = [
        "scheme",
        "applications a node",
        "capacity, of exact",
        "published (output)",
        "DS",
        "published (output)",
        "NEDR",
        "published (output)",
        "looked up, of the chunks",
    ];
    let rows = [
        (Way::AppAware, "1.00", "1.84", "0.45"),
        (Way::Sigma, "1.08", "0.05", "0.87"),
        (Way::AppDedupe, "1.01", "0.07", "0.95"),
        (Way::NodeZero, "-", "-", "-"),
        (Way::NoHandprint, "-", "-", "-"),
        (Way::OneRepresentative, "-", "-", "-"),
    ];
    let mut table = Table::new("Table 5.3: three nodes, all sets, chunks of 4 KiB", &columns);
    let chunking = Chunking::Units(4);
    let exact = exact(data, chunking);
    for (way, capacity, skew, nedr) in rows {
        let setting = Setting { nodes: 3, chunking, handprint: HANDPRINT };
        let outcome = run(way, data, setting, exact);
        table.row(vec![
            way.name().to_owned(),
            applications(way, data, setting),
            number(1.0 / outcome.ndr()),
            capacity.to_owned(),
            number(outcome.skew()),
            skew.to_owned(),
            number(outcome.nedr()),
            nedr.to_owned(),
            number(outcome.looked_up()),
        ]);
    }
    table.note(
        "Nodes of the product in one process: no times, which the paper gives for machines in a \
         network. Published capacities are 610, 657 and 618 GB, of 609.5 GB that one node stores. \
         A NEDR of 0.45 does not follow from a DS of 1.84 with three nodes, which gives 0.48 at \
         least.",
    );
    table
}

/// How many applications each node has stored something of.
fn applications(way: Way, data: &Data, setting: Setting) -> String {
    let mut router = way.router(1 << 10, setting.handprint);
    let cluster = silt_routing::Cluster::new(setting.nodes, way.options(setting.handprint));
    let mut seen = std::collections::BTreeSet::new();
    data.feed(setting.chunking, router.grain(), &mut |piece| {
        let (node, _) = cluster.back_up(&mut *router, &piece);
        seen.insert((node, piece.application));
    });
    let count = |node: usize| seen.iter().filter(|(at, _)| *at == node).count().to_string();
    (0..setting.nodes).map(count).collect::<Vec<_>>().join(":")
}

/// Figure 5.4: what handprints find, on the Linux set.
pub fn handprints(seed: u64, super_chunks: u64) -> (Table, String) {
    let columns = ["nodes", "representatives", "NDR", "DS", "looked up, of the chunks"];
    let mut table = Table::new("Figure 5.4: NDR over the handprint, Linux set", &columns);
    let mut lines = Vec::new();
    for nodes in [4, 16, 64] {
        // The set's ratio is about 8.
        let bytes = (super_chunks << 20) as f64 * nodes as f64 * 8.0;
        let data = Data::one(0, seed, bytes);
        let chunking = Chunking::Units(4);
        let exact = exact(&data, chunking);
        let mut points = Vec::new();
        for handprint in HANDPRINTS {
            let outcome = run(Way::Sigma, &data, Setting { nodes, chunking, handprint }, exact);
            points.push((handprint as f64, outcome.ndr()));
            table.row(vec![
                nodes.to_string(),
                handprint.to_string(),
                number(outcome.ndr()),
                number(outcome.skew()),
                number(outcome.looked_up()),
            ]);
        }
        lines.push(Line { name: format!("{nodes} nodes"), points, is_published: false });
    }
    table.note(
        "All columns are outputs. With one application the first tier has no choice, so this is \
         routing over all nodes. The paper gives no numbers: it finds an improvement up to 8 and \
         chooses 8. The improvement ends where almost every super-chunk has a representative in \
         common with the one that it resembles.",
    );
    let names = ("representatives", "normalised deduplication ratio");
    (table, plot_values("Figure 5.4: NDR over the handprint", names, 0.0, &lines))
}

/// Figure 5.5 and 5.6, of outcomes of all schemes and numbers of nodes.
pub fn over_nodes(outcomes: &[Outcome], title: &str) -> (Table, String, String) {
    let columns = [
        "scheme",
        "nodes",
        "NDR",
        "NEDR",
        "DS",
        "looked up, of the chunks",
        "before routing",
        "messages a super-chunk",
        "super-chunks a node",
    ];
    let mut table = Table::new(title, &columns);
    let (mut effective, mut asked): (Vec<Line>, Vec<Line>) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        let name = outcome.way.name();
        let messages = outcome.questions.messages as f64 / (outcome.logical >> 20).max(1) as f64;
        table.row(vec![
            name.to_owned(),
            outcome.nodes.to_string(),
            number(outcome.ndr()),
            number(outcome.nedr()),
            number(outcome.skew()),
            number(outcome.looked_up()),
            number(outcome.questions.prints as f64 / outcome.chunks as f64),
            number(messages),
            ((outcome.exact / outcome.nodes as u64) >> 20).to_string(),
        ]);
        for (lines, value) in [(&mut effective, outcome.nedr()), (&mut asked, outcome.looked_up())]
        {
            let point = ((outcome.nodes as f64).log2(), value);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: name.to_owned(),
                    points: vec![point],
                    is_published: false,
                }),
            }
        }
    }
    let x = "nodes, power of two";
    let effective = plot_values("Figure 5.5: NEDR over the nodes", (x, "NEDR"), 0.0, &effective);
    let names = (x, "fingerprints looked up, of the chunks");
    let asked = plot_values("Figure 5.6: fingerprints looked up", names, 0.0, &asked);
    (table, effective, asked)
}

/// What routing by super-chunks loses if they begin elsewhere in the next backup.
pub fn alignment(data: &Data, nodes: usize) -> Table {
    let columns = ["scheme", "super-chunks begin", "NDR", "NEDR", "DS"];
    let title = format!("Sensitivity: where super-chunks begin, {nodes} nodes");
    let mut table = Table::new(&title, &columns);
    let chunking = Chunking::Units(4);
    let exact = exact(data, chunking);
    for way in [Way::AppDedupe, Way::Sigma, Way::Stateful, Way::Produck, Way::Stateless] {
        for is_aligned in [true, false] {
            let data = Data { is_aligned, ..data.clone() };
            let outcome = run(way, &data, Setting { nodes, chunking, handprint: HANDPRINT }, exact);
            let begin = if is_aligned { "as in the backup before" } else { "elsewhere" };
            table.row(vec![
                way.name().to_owned(),
                begin.to_owned(),
                number(outcome.ndr()),
                number(outcome.nedr()),
                number(outcome.skew()),
            ]);
        }
    }
    table.note(
        "The paper does not say where a super-chunk ends but for its size. In the other tables a \
         backup ends one, so that those of the next backup begin at the same places, as long as \
         nothing was inserted. Without that, a super-chunk has parts of two of the backup before, \
         which may be on two nodes. Boundaries by content, as EMC's, are between the two.",
    );
    table
}
