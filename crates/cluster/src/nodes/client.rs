//! A host that asks the processes of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_backup::{NodeAnswers, Wanted};
use silt_format::{Reference, Result};
use silt_repository::env::Context;

use super::messages::{decode_counts, encode_find, encode_similar};
use super::{ASKED_MAX, number_of, service_of};
use crate::index::messages::decode_answer;
use crate::respondent::Respondent;
use crate::{Bus, Messages, side_by_side};

/// Nodes that are asked at the same time: a segment's super-chunks have few candidates each.
const AT_ONCE: usize = 8;

/// Asks the processes of storage nodes what they have.
pub struct NodeClient {
    bus: Arc<dyn Bus>,
    messages: Messages,
    context: Context,
    nodes: BTreeMap<u16, Respondent>,
}

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "NodeClient({} nodes)", self.nodes.len())
    }
}

impl NodeClient {
    /// A client of the nodes with these numbers.
    pub fn new(
        bus: Arc<dyn Bus>,
        messages: Messages,
        context: Context,
        nodes: &[u16],
    ) -> Result<Self> {
        let respondent = |node: &u16| {
            service_of(*node).map(|service| (*node, Respondent::new(service, number_of(*node))))
        };
        let nodes = nodes.iter().map(respondent).collect::<Result<_>>()?;
        Ok(Self { bus, messages, context, nodes })
    }

    fn ask<T>(
        &self,
        node: u16,
        question: impl FnOnce(u64) -> Vec<u8>,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let via = (&*self.bus, &self.messages, &self.context);
        self.nodes.get(&node)?.ask(via, question, read)
    }

    fn similar_to(&self, node: u16, handprints: &[Vec<u64>]) -> Option<Vec<usize>> {
        let mut counts = Vec::with_capacity(handprints.len());
        for part in handprints.chunks(ASKED_MAX / 8) {
            let read = |answer: &[u8]| decode_counts(answer, part.len());
            counts.extend(self.ask(node, |nonce| encode_similar(nonce, part), read)?);
        }
        Some(counts)
    }

    fn find_in(&self, node: u16, wanted: &[Wanted]) -> Option<Vec<Option<Reference>>> {
        let mut found = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(ASKED_MAX) {
            let read = |answer: &[u8]| decode_answer(answer, part.len()).ok();
            found.extend(self.ask(node, |nonce| encode_find(nonce, part), read)?);
        }
        Some(found)
    }
}

impl NodeAnswers for NodeClient {
    fn similar(&self, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>> {
        side_by_side(asked, AT_ONCE, |(node, handprints)| self.similar_to(*node, handprints))
    }

    fn find(&self, asked: &[(u16, Vec<Wanted>)]) -> Vec<Option<Vec<Option<Reference>>>> {
        side_by_side(asked, AT_ONCE, |(node, wanted)| self.find_in(*node, wanted))
    }
}
