//! What the paper claims, and what this run says of it.

use super::ways::{Outcome, Way};
use silt_report::{Table, number};

/// Outcomes of a scheme with most nodes.
fn last(outcomes: &[Outcome], way: Way) -> Option<&Outcome> {
    outcomes.iter().filter(|it| it.way == way).max_by_key(|it| it.nodes)
}

/// The mean of AppDedupe's NEDR over the other's, over all numbers of nodes.
fn mean_ratio(outcomes: &[Outcome], way: Way) -> Option<f64> {
    let ours = outcomes.iter().filter(|it| it.way == Way::AppDedupe);
    let ratios: Vec<f64> = ours
        .filter_map(|our| {
            let other = outcomes.iter().find(|it| it.way == way && it.nodes == our.nodes)?;
            Some(our.nedr() / other.nedr())
        })
        .collect();
    (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
}

/// Why a claim may not hold.
const REASONS: &str = "Each figure is computed from the outcomes below. Where a claim does not \
    hold, the data may be why: the published sets cannot be had. A rule may be why, too, which is \
    not published: here a node joins an application only when all of the application's nodes are \
    overloaded. So with many nodes, what was stored before is looked for among other candidates \
    later, and the newest nodes have least at the end; Sigma-Dedupe has all nodes from the start. \
    The table of changed rules, a rule at a time, says what each of them costs.";

/// The claims of the paper. `files` are outcomes on the sets with files.
pub fn table(outcomes: &[Outcome], files: &[Outcome]) -> Table {
    let mut table = Table::new(
        "What the paper claims, and what holds here",
        &["claim", "published (output)", "here (output)", "verdict"],
    );
    let mut row = |claim: &str, published: &str, here: Option<f64>, holds: bool| {
        let here_text = here.map_or("no run".to_owned(), number);
        let verdict = match (here, holds) {
            (None, _) => "-",
            (_, true) => "holds",
            (_, false) => "does not hold",
        };
        let cells = [claim, published, &here_text, verdict];
        table.row(cells.map(str::to_owned).to_vec());
    };
    let ratio =
        |all: &[Outcome], way| Some(last(all, Way::AppDedupe)?.nedr() / last(all, way)?.nedr());
    for (way, published, claim) in [
        (Way::Stateful, "1.031", "AppDedupe's NEDR, of EMC stateful's, most nodes"),
        (Way::Stateless, "up to 1.505", "the same, of EMC stateless's"),
        (Way::Produck, "1.282", "the same, of Produck's"),
        (Way::Sigma, "1.118", "the same, of Sigma-Dedupe's"),
    ] {
        let here = ratio(outcomes, way);
        row(claim, published, here, here.is_some_and(|here| here > 1.0));
    }
    let here = ratio(files, Way::ExtremeBinning);
    row(
        "the same, of Extreme Binning's, on the five sets with files",
        "up to 1.727",
        here,
        here.is_some_and(|here| here > 1.0),
    );
    let here = mean_ratio(outcomes, Way::Stateful);
    row(
        "the same, of EMC stateful's, the mean over all numbers of nodes",
        "1.036",
        here,
        here.is_some_and(|here| here > 1.0),
    );
    let nedr = |way| last(outcomes, way).map(Outcome::nedr);
    let (produck, stateless) = (nedr(Way::Produck), nedr(Way::Stateless));
    row(
        "EMC stateless is below Produck: its NEDR, of Produck's",
        "below 1",
        stateless.zip(produck).map(|(one, other)| one / other),
        stateless.zip(produck).is_some_and(|(one, other)| one < other),
    );
    let here = last(outcomes, Way::AppDedupe).map(Outcome::looked_up);
    row(
        "fingerprints that AppDedupe looks up, of the chunks, at any number of nodes",
        "1.25",
        here,
        here.is_some_and(|here| here <= 1.26),
    );
    let here =
        last(outcomes, Way::Stateful).map(|it| (it.looked_up() - 1.0) * 8.0 / it.nodes as f64);
    row(
        "EMC stateful asks every node for one fingerprint in eight: its questions, of that",
        "linear in the nodes",
        here,
        here.is_some_and(|here| (0.9..1.1).contains(&here)),
    );
    table.note(REASONS);
    table
}
