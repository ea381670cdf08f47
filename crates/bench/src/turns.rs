//! Several ways of the same work by turns. Each turn has all of them, in a random order, so that a
//! machine that is shared and changes its speed treats all alike.

use crate::Result;
use crate::numbers::{median, mixed, quartiles};

/// Measures every way once a turn. Returns what each way had in each turn.
pub fn by_turns<T>(
    ways: usize,
    turns: usize,
    mut measure: impl FnMut(usize, usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = (0..ways).map(|_| Vec::new()).collect();
    for turn in 0..turns {
        for way in order(ways, turn) {
            all[way].push(measure(turn, way)?);
        }
    }
    Ok(all)
}

/// The ways in the order of a turn, which looks random and is the same in every run.
fn order(ways: usize, turn: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ways).collect();
    order.sort_by_key(|way| mixed((turn as u64) << 32 | *way as u64));
    order
}

/// How fast one way is by the other, which had the same turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// By the median of each.
    pub of_medians: f64,
    /// Between what a quarter and three quarters of the turns are.
    pub quartiles: [f64; 2],
}

impl Share {
    /// Of seconds in each turn.
    pub fn new(own_s: &[f64], other_s: &[f64]) -> Self {
        let shares: Vec<f64> = own_s.iter().zip(other_s).map(|(own, other)| other / own).collect();
        let of_medians = median(other_s.to_vec()) / median(own_s.to_vec());
        Self { of_medians, quartiles: quartiles(&shares) }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, high] = self.quartiles;
        write!(out, "{:.2} ({low:.2} to {high:.2})", self.of_medians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_has_every_way_in_an_order_of_its_own() {
        let mut asked = Vec::new();
        let all = by_turns(6, 20, |turn, way| {
            asked.push((turn, way));
            Ok(turn)
        });
        assert_eq!(all.unwrap(), vec![(0..20).collect::<Vec<_>>(); 6]);
        let turns: Vec<Vec<usize>> =
            asked.chunks(6).map(|turn| turn.iter().map(|(_, way)| *way).collect()).collect();
        let orders: std::collections::BTreeSet<_> = turns.iter().collect();
        assert!(orders.len() > 15, "{orders:?}");
        // No way is always before another.
        let is_first = |way: usize| turns.iter().filter(|turn| turn[0] == way).count();
        assert!((0..6).all(|way| (1..10).contains(&is_first(way))), "{turns:?}");
    }

    #[test]
    fn shares_are_those_of_medians_with_the_middle_half_of_the_turns() {
        let share = Share::new(&[10.0, 4.0, 5.0, 8.0], &[5.0, 4.0, 4.0, 4.0]);
        assert_eq!(share, Share { of_medians: 0.5, quartiles: [0.5, 1.0] });
        assert_eq!(share.to_string(), "0.50 (0.50 to 1.00)");
    }
}
