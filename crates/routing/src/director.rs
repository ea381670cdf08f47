//! Which nodes have an application.

use std::collections::BTreeMap;

use crate::piece::Application;
use crate::router::{Answers, least_loaded, mean_bytes};

/// The table from applications to nodes. Losing it costs deduplication only.
#[derive(Clone, Debug)]
pub struct Director {
    table: BTreeMap<Application, Vec<usize>>,
    overload: f64,
    slack_bytes: f64,
}

impl Director {
    /// A director that calls a node overloaded when it has stored more than `overload` times the
    /// mean of all nodes and `slack_bytes` more.
    ///
    /// Neither is published for AppDedupe. 1.05 is the limit at which EMC's bins migrate.
    pub fn new(overload: f64, slack_bytes: u64) -> Self {
        Self { table: BTreeMap::new(), overload, slack_bytes: slack_bytes as f64 }
    }

    /// Enters the nodes that are known to have an application.
    pub fn assign(&mut self, application: Application, nodes: Vec<usize>) {
        self.table.insert(application, nodes);
    }

    /// The nodes of an application. The least loaded node of all joins them if there are none, or
    /// if all of them are overloaded (AppDedupe's algorithm 1, as remembered).
    pub fn nodes(&mut self, application: Application, answers: &dyn Answers) -> &[usize] {
        let list = self.table.entry(application).or_default();
        let all: Vec<usize> = (0..answers.nodes()).collect();
        let limit = mean_bytes(&all, answers) * self.overload + self.slack_bytes;
        if list.iter().all(|node| answers.used_bytes(*node) as f64 > limit) {
            let next = least_loaded(all.into_iter(), answers);
            if !list.contains(&next) {
                list.push(next);
            }
        }
        list
    }

    /// How many applications each of `nodes` nodes has.
    pub fn applications(&self, nodes: usize) -> Vec<usize> {
        let count = |node| self.table.values().filter(|list| list.contains(&node)).count();
        (0..nodes).map(count).collect()
    }
}
