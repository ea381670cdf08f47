//! Agents that count references for a sweep.

use std::time::Duration;

use silt_agent::Group;
use silt_cluster::Name;
use silt_cluster::round::{CountersOptions, HostCounters};
use silt_format::Error;
use siltstone::{Repository, SharedSweepOptions, SharedSweepReport};

use super::connect_with;
use super::round::{ARRIVAL, call};
use crate::cli::BusOptions;
use crate::commands::{Failure, Session};

/// What agents have not counted by then is counted without them.
const LIMIT: Duration = Duration::from_hours(4);

/// The agents of the bus, if there are any that count.
pub struct Agents<'a> {
    session: &'a Session<'a>,
    group: Option<Group>,
}

impl<'a> Agents<'a> {
    /// No agents.
    pub fn none(session: &'a Session<'a>) -> Self {
        Self { session, group: None }
    }

    /// Those of the bus in the configuration; none, with a warning, if it cannot be reached, or if
    /// no host may remove what it has read.
    pub fn connect(session: &'a Session<'a>, repository: &Repository) -> Result<Self, Failure> {
        if repository.is_append_only() {
            session.warn(
                "agents do not count references in an append-only repository: a host that may not \
                 remove anything must not decide what is removed",
            );
            return Ok(Self::none(session));
        }
        match connect_with(session, &BusOptions::default(), repository) {
            Err(Failure::Usage(usage)) => Err(Failure::Usage(usage)),
            Err(failure) => {
                session.warn(&format!("references are counted without agents: {failure}"));
                Ok(Self::none(session))
            }
            Ok(group) => Ok(Self { session, group: Some(group) }),
        }
    }

    /// Deletes chunks of a store that no series refers to.
    pub fn sweep(
        &self,
        repository: &Repository,
        number: u16,
        options: &SharedSweepOptions,
    ) -> Result<SharedSweepReport, Error> {
        let Some(group) = &self.group else { return repository.sweep_store(number, options) };
        let call = |round| {
            let fleet = group.fleet()?;
            let agents = fleet.agents.iter().filter(|agent| agent.allowed.round);
            let agents: Vec<Name> = agents.map(|agent| agent.name.clone()).collect();
            call(self.session, group, &agents, round)
        };
        let times = CountersOptions { patience: ARRIVAL, limit: LIMIT };
        let bus = (&**group.bus(), group.messages());
        let counters = HostCounters::new(repository, bus, &call, times);
        repository.sweep_store_with(number, options, &counters)
    }
}
