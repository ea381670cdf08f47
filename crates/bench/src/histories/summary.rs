//! What all histories of a list have come to.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// What a history that failed has found.
pub const LOST: &str = "LOST";
pub const LEAKED: &str = "LEAKED";

#[derive(Default, Debug, PartialEq, Eq)]
pub struct Summary {
    ok: usize,
    /// By what they have found; whatever else went wrong is in none of both.
    lost: usize,
    leaked: usize,
    failed: usize,
    snapshots: usize,
    /// What happened in them, and how often.
    done: BTreeMap<String, usize>,
}

/// The seed of a line.
pub fn seed(line: &str) -> Option<u64> {
    line.strip_prefix("seed ")?.split_once(':')?.0.parse().ok()
}

impl Summary {
    /// Reads the list of histories, for those with these seeds.
    pub fn of(list: &str, seeds: &Range<u64>) -> Self {
        let mut summary = Self::default();
        let is_meant = |line: &&str| seed(line).is_some_and(|seed| seeds.contains(&seed));
        for line in list.lines().filter(is_meant) {
            let found = line.split_once(": ").map_or("", |(_, found)| found);
            if let Some(ok) = found.strip_prefix("ok, ") {
                summary.ok += 1;
                summary.snapshots += number(ok);
            } else {
                summary.lost += usize::from(found.starts_with(LOST));
                summary.leaked += usize::from(found.starts_with(LEAKED));
                summary.failed += 1;
            }
            // A failure may have any text, so from the end.
            let done = line.rsplit("; ").nth(1).unwrap_or_default();
            for (step, times) in done.split(", ").filter_map(|one| one.split_once(' ')) {
                *summary.done.entry(step.to_owned()).or_default() += number(times);
            }
        }
        summary
    }
}

fn number(text: &str) -> usize {
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ok, lost, leaked, failed, snapshots, done } = self;
        writeln!(
            out,
            "{} histories: {ok} ok with {snapshots} snapshots, {lost} have lost something, \
             {leaked} have left something behind, {} failed in other ways",
            ok + failed,
            failed - lost - leaked
        )?;
        let done: Vec<_> = done.iter().map(|(step, times)| format!("{step} {times}")).collect();
        write!(out, "{}", done.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_summed_up() {
        let list = "seed 1: ok, 7 snapshots, 5 of them reported, settled in 2.0 s; 3 hosts, 4 \
                    series; bus 1, kill 2; 8.1 s\n\
                    seed 2: LOST: vm has lost one; or not; 2 hosts, 2 series; kill 1; 9 s\n\
                    seed 3: LEAKED: after everything: {}; 2 hosts, 2 series; bus-lost 1; 9 s\n\
                    seed 4: FAILED: it is late; 2 hosts, 2 series; kill 3; 9 s\n\
                    seed 50: FAILED: it is late; 2 hosts, 2 series; kill 3; 9 s\n";
        let done = [("bus", 1), ("bus-lost", 1), ("kill", 6)];
        let done = done.map(|(step, times)| (step.to_owned(), times)).into();
        let expected = Summary { ok: 1, lost: 1, leaked: 1, failed: 3, snapshots: 7, done };
        assert_eq!(Summary::of(list, &(1..50)), expected);
    }
}
