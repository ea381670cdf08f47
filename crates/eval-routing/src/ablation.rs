//! Which rule of AppDedupe costs what: each is changed by itself.

use silt_report::{Table, number};

use super::ways::{Outcome, Way};

/// The table. `outcomes` are of AppDedupe, of what it is compared with, and of all changes.
pub fn table(outcomes: &[Outcome], nodes: usize) -> Table {
    let columns =
        ["scheme, or what is changed in AppDedupe", "NDR", "DS", "NEDR", "of AppDedupe's"];
    let title =
        format!("Why the order of figure 5.5 is another one: a rule at a time, {nodes} nodes");
    let mut table = Table::new(&title, &columns);
    let ours = outcomes.iter().find(|it| it.way == Way::AppDedupe).map_or(1.0, Outcome::nedr);
    for outcome in outcomes {
        table.row(vec![
            outcome.way.name().to_owned(),
            number(outcome.ndr()),
            number(outcome.skew()),
            number(outcome.nedr()),
            number(outcome.nedr() / ours),
        ]);
    }
    table.note(
        "All columns are outputs. NEDR is NDR less what nodes that are used unequally cost. The \
         last row is AppDedupe with everything that the paper spares: what it loses is lost by \
         routing super-chunks as wholes.",
    );
    table
}
