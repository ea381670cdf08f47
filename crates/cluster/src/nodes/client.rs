//! A host that asks the processes of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_backup::{NodeAnswers, Wanted};
use silt_format::{Reference, Result};
use silt_repository::env::Context;

use super::messages::{decode_counts, encode_find, encode_similar};
use super::{ASKED_MAX, number_of, service_of};
use crate::index::messages::decode_answer;
use crate::respondent::{Reply, Respondent};
use crate::{Bus, Messages, side_by_side};

/// Nodes that are asked at the same time: a segment's super-chunks have few candidates each.
const AT_ONCE: usize = 8;

/// Asks the processes of storage nodes what they have.
pub struct NodeClient {
    bus: Arc<dyn Bus>,
    messages: Messages,
    context: Context,
    nodes: BTreeMap<u16, Process>,
}

/// The process of a node.
struct Process {
    respondent: Respondent,
    /// Whether it is of a version that knows of no applications.
    is_old: AtomicBool,
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
        let process = |node: &u16| {
            let respondent = Respondent::new(service_of(*node)?, number_of(*node));
            Ok((*node, Process { respondent, is_old: AtomicBool::new(false) }))
        };
        let nodes = nodes.iter().map(process).collect::<Result<_>>()?;
        Ok(Self { bus, messages, context, nodes })
    }

    /// Asks about an application, and a process that does not understand that about all of them.
    fn ask<T>(
        &self,
        (node, application): (u16, u16),
        question: impl Fn(u64, Option<u16>) -> Vec<u8>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let via = (&*self.bus, &self.messages, &self.context);
        let Process { respondent, is_old } = self.nodes.get(&node)?;
        if !is_old.load(Ordering::Relaxed) {
            let question = |nonce| question(nonce, Some(application));
            match respondent.ask(via, question, &read) {
                Reply::Answer(answer) => return Some(answer),
                Reply::Refused => {}
                Reply::Silence => return None,
            }
        }
        let answer = respondent.ask(via, |nonce| question(nonce, None), &read).answer()?;
        is_old.store(true, Ordering::Relaxed);
        Some(answer)
    }

    fn similar_to(&self, of: (u16, u16), handprints: &[Vec<u64>]) -> Option<Vec<usize>> {
        let mut counts = Vec::with_capacity(handprints.len());
        for part in handprints.chunks(ASKED_MAX / 8) {
            let question = |nonce, application| encode_similar(nonce, application, part);
            let read = |answer: &[u8]| decode_counts(answer, part.len());
            counts.extend(self.ask(of, question, read)?);
        }
        Some(counts)
    }

    fn find_in(&self, of: (u16, u16), wanted: &[Wanted]) -> Option<Vec<Option<Reference>>> {
        let mut found = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(ASKED_MAX) {
            let question = |nonce, application| encode_find(nonce, application, part);
            let read = |answer: &[u8]| decode_answer(answer, part.len()).ok();
            found.extend(self.ask(of, question, read)?);
        }
        Some(found)
    }
}

impl NodeAnswers for NodeClient {
    fn similar(&self, application: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>> {
        side_by_side(asked, AT_ONCE, |(node, handprints)| {
            self.similar_to((*node, application), handprints)
        })
    }

    fn find(
        &self,
        application: u16,
        asked: &[(u16, Vec<Wanted>)],
    ) -> Vec<Option<Vec<Option<Reference>>>> {
        side_by_side(asked, AT_ONCE, |(node, wanted)| self.find_in((*node, application), wanted))
    }
}
