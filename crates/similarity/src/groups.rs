//! Groups of alike vectors: locality-sensitive hashing for Euclidean distance.
//!
//! A function is `floor((a·v + b) / w)` with `a` drawn from the normal distribution, which is
//! 2-stable, and `b` from `[0, w)`. A table joins several functions; vectors that agree in all
//! functions of any table are candidates for one group. Near vectors agree more often than far
//! ones.

use std::collections::{HashMap, HashSet};
use std::mem::size_of;

use crate::mix::{drawn, mix};

/// Parameters of groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupParameters {
    /// Number of tables: more of them find more.
    pub tables: usize,
    /// Number of functions of a table: more of them find only what is nearer.
    pub functions: usize,
    /// The width `w` of a function's steps, in units of the vectors, above 0.
    pub width: f64,
    /// Decides all functions.
    pub seed: u64,
}

impl Default for GroupParameters {
    fn default() -> Self {
        Self { tables: 4, functions: 3, width: 4.0, seed: 0 }
    }
}

/// One function.
struct Step {
    direction: Vec<f64>,
    offset: f64,
}

/// Puts numbered vectors into buckets, and finds those that share one with a vector.
pub struct Groups {
    tables: Vec<Vec<Step>>,
    width: f64,
    buckets: Vec<HashMap<u64, Vec<u32>>>,
}

impl Groups {
    /// Empty groups of vectors with this many numbers.
    pub fn new(dimensions: usize, parameters: GroupParameters) -> Self {
        let GroupParameters { tables, functions, width, seed } = parameters;
        let mut numbers = (0_u64..).map(|place| unit(drawn(seed, place)));
        let mut next = || numbers.next().unwrap_or(0.5);
        // Box and Muller's method.
        let mut normal = || {
            let radius = f64::sqrt(-2.0 * f64::ln(1.0 - next()));
            radius * f64::cos(std::f64::consts::TAU * next())
        };
        let mut step = |place: usize| Step {
            direction: (0..dimensions).map(|_| normal()).collect(),
            offset: unit(mix(seed ^ mix(place as u64 + 1))) * width,
        };
        let table = |table: usize| (0..functions).map(|at| step(table * functions + at)).collect();
        Self {
            tables: (0..tables).map(table).collect(),
            width,
            buckets: (0..tables).map(|_| HashMap::new()).collect(),
        }
    }

    /// The bucket of a vector in each table. Numbers that the vector lacks count as 0.
    pub fn buckets(&self, vector: &[f64]) -> Vec<u64> {
        let bucket = |steps: &Vec<Step>| {
            steps.iter().fold(0, |hash, step| {
                let product: f64 = step.direction.iter().zip(vector).map(|(a, v)| a * v).sum();
                mix(hash ^ f64::floor((product + step.offset) / self.width).to_bits())
            })
        };
        self.tables.iter().map(bucket).collect()
    }

    /// Adds a vector under a number.
    pub fn add(&mut self, number: u32, vector: &[f64]) {
        let places = self.buckets(vector);
        for (buckets, place) in self.buckets.iter_mut().zip(places) {
            buckets.entry(place).or_default().push(number);
        }
    }

    /// Memory in bytes: functions, buckets and numbers, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        let steps = self.tables.iter().flatten();
        let functions: usize = steps.map(|step| (step.direction.len() + 1) * 8).sum();
        let slot = size_of::<(u64, Vec<u32>)>() + 1;
        let numbers = |table: &HashMap<u64, Vec<u32>>| -> usize {
            table.values().map(|bucket| bucket.capacity() * 4).sum()
        };
        let tables = self.buckets.iter().map(|table| table.capacity() * slot + numbers(table));
        functions + tables.sum::<usize>()
    }

    /// The numbers of the vectors that share a bucket with this one, in ascending order.
    pub fn alike(&self, vector: &[f64]) -> Vec<u32> {
        let places = self.buckets(vector);
        let found = self.buckets.iter().zip(places).filter_map(|(all, place)| all.get(&place));
        let found: HashSet<u32> = found.flatten().copied().collect();
        let mut found: Vec<u32> = found.into_iter().collect();
        found.sort_unstable();
        found
    }
}

/// A number of `[0, 1)` from the top bits.
fn unit(bits: u64) -> f64 {
    let [high, low] = [(bits >> 32), (bits >> 12) & 0xf_ffff].map(|part| {
        let bytes = part.to_le_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    });
    (f64::from(high) + f64::from(low) / f64::from(1 << 20)) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors around a hundred centres, and their centres.
    fn vectors() -> Vec<(usize, Vec<f64>)> {
        let number = |seed: u64, place: u64| unit(drawn(seed, place));
        (0..1000_u64)
            .map(|at| {
                let centre = at % 100;
                let vector =
                    (0..6).map(|axis| number(centre, axis) * 200.0 + number(at + 1000, axis) - 0.5);
                (usize::try_from(centre).unwrap_or(0), vector.collect())
            })
            .collect()
    }

    fn distance(one: &[f64], other: &[f64]) -> f64 {
        f64::sqrt(one.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum())
    }

    /// Against comparing all: nearly all near ones are found, and of the far ones hardly any. Fails
    /// if the buckets do not depend on the vector: then all are alike, or only equal numbers are.
    #[test]
    fn what_is_near_is_alike_and_what_is_far_is_not() {
        let all = vectors();
        let mut groups = Groups::new(6, GroupParameters::default());
        for (number, (_, vector)) in (0..).zip(&all) {
            groups.add(number, vector);
        }
        let (mut near, mut found_near, mut far, mut found_far) = (0, 0, 0, 0);
        for (_, vector) in &all {
            let alike: HashSet<u32> = groups.alike(vector).into_iter().collect();
            for (number, (_, other)) in (0..).zip(&all) {
                let distance = distance(vector, other);
                let is_found = usize::from(alike.contains(&number));
                if distance < 1.5 {
                    (near, found_near) = (near + 1, found_near + is_found);
                } else if distance > 20.0 {
                    (far, found_far) = (far + 1, found_far + is_found);
                }
            }
        }
        assert!(near > 5000 && far > 900_000, "{near}, {far}");
        assert!(found_near * 100 > near * 90, "{found_near} of {near}");
        assert!(found_far * 100 < far, "{found_far} of {far}");
    }

    #[test]
    fn a_vector_finds_itself_and_seeds_differ() {
        let one = Groups::new(2, GroupParameters::default());
        let other = Groups::new(2, GroupParameters { seed: 1, ..GroupParameters::default() });
        assert_eq!(one.buckets(&[1.0, 70.0]), one.buckets(&[1.0, 70.0]));
        assert_ne!(one.buckets(&[1.0, 70.0]), other.buckets(&[1.0, 70.0]));
        assert_eq!(one.buckets(&[]).len(), 4);
    }

    #[test]
    fn memory_grows_with_the_vectors() {
        let mut groups = Groups::new(2, GroupParameters::default());
        let empty = groups.bytes();
        assert_eq!(empty, 4 * 3 * 3 * 8, "twelve functions of two numbers and an offset");
        for number in 0..1000_u32 {
            groups.add(number, &[f64::from(number) * 100.0, 0.0]);
        }
        assert!(groups.bytes() > empty + 4 * 1000 * 33, "{}", groups.bytes());
    }
}
