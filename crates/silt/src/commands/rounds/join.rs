//! This host's part in a round of several hosts.

use std::time::Duration;

use silt_agent::{Group, host_name};
use silt_cluster::round::{HostRates, HostSeries, PlannedSeries, RoundHost, RoundHostOptions};
use silt_format::Error;
use siltstone::{Activity, BackupReport, RoundMember, RoundOptions};

use super::forecast;
use super::run::Rounds;
use crate::commands::made_here::MeasuredHere;
use crate::commands::{Failure, temporary_folder};

/// Without a question for so long, before the first one and after it, the host does without the
/// coordinator. One that is there asks soon after it has called; later it may be reading or writing
/// the index of the shared store.
const PATIENCE: [Duration; 2] = [Duration::from_mins(3), Duration::from_mins(10)];

impl HostSeries for Rounds<'_> {
    fn plan(&self) -> Result<Vec<PlannedSeries>, Error> {
        let plan = forecast::plan(&self.repository, self.fleet, &self.args.rounds);
        let plan = plan.map_err(|failure| Error::invalid(failure.to_string()))?;
        let stages = [Activity::Scan, Activity::Backup];
        stages.iter().for_each(|stage| self.session.reporter.expect(*stage, &plan.sizes_from(0)));
        let limit = self.session.global.limit_read.as_ref();
        let series = plan.names.iter().zip(&plan.vms);
        let planned = series.map(|(series, vm)| PlannedSeries {
            series: series.clone(),
            scan_bytes: forecast::whole(vm.scan_bytes),
            requests: forecast::whole(vm.requests),
            read_bytes_per_s: limit.map(|limit| limit.bytes_per_s),
        });
        Ok(planned.collect())
    }

    fn open(&self, series: &str) -> Result<RoundMember<'_>, Error> {
        let found = self.fleet.series.get_key_value(series);
        let unknown = || Error::invalid(format!("this host has no series '{series}'"));
        let (name, found) = found.ok_or_else(unknown)?;
        self.open_member(name, found)
    }

    fn rates(&self) -> HostRates {
        MeasuredHere::new(self.session, &self.repository).rates()
    }

    fn measured(&self, rates: HostRates) {
        MeasuredHere::new(self.session, &self.repository).note(rates);
    }

    fn ended(&self, series: &str, report: &Result<BackupReport, Error>) {
        self.session.reporter.finish();
        match report {
            Ok(report) => self.made(series, report),
            Err(error) => self.failed(series, error),
        }
    }
}

impl Rounds<'_> {
    /// Takes part in a round until it is over.
    pub fn join(&self, round: &str) -> Result<u8, Failure> {
        let malformed = || Failure::Usage(format!("'{round}' is not the id of a round"));
        let round = u64::from_str_radix(round, 16).map_err(|_| malformed())?;
        let agent = self.session.chosen.agent.as_ref();
        let bus = agent.and_then(|agent| agent.bus.as_ref());
        let no_bus = || Failure::Usage("the table [agent.bus] is missing".to_owned());
        let bus = bus.ok_or_else(no_bus)?;
        let named = agent.and_then(|agent| agent.name.clone());
        let env = &self.session.context.env;
        let host = named.map_or_else(|| host_name(&env.process().host), Ok)?;
        let group = Group::connect(bus, &host, env, &self.repository)?;
        let options = RoundHostOptions {
            round,
            host,
            round_options: RoundOptions {
                folder: self.args.rounds.temp.clone().unwrap_or_else(temporary_folder),
                // Sorting goes on beside scanning and storing.
                memory_bytes: self.session.global.memory << 19,
                spool: self.args.rounds.spool,
            },
            patience: PATIENCE,
        };
        let host = RoundHost::new(&self.repository, self, &options);
        let has_ended = host.run(&**group.bus(), group.messages())?;
        self.session.reporter.finish();
        Ok(if has_ended { self.code.get() } else { 1 })
    }
}
