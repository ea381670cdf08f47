//! Which series are backed up in which part of a round, and how long that is expected to take.

use silt_sharing::round::{CostModel, Picking, Schedule, ScheduledVm, StageSeconds};

use super::orders::PlannedSeries;
use super::rates::HostRates;

/// In how many parts a round is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Parts {
    /// So many, unless there are fewer series.
    Number(usize),
    /// As many as are expected to take no more than so many seconds together.
    WithinSeconds(f64),
}

/// A part of a round: which series of which host.
pub(super) struct Part {
    pub(super) number: usize,
    pub(super) series: Vec<Vec<String>>,
    pub(super) predicted_s: [f64; 3],
    pub(super) picking: Picking,
    /// Of how many hosts a measured rate was used.
    pub(super) measured_hosts: usize,
}

/// What a host brings to a round.
#[derive(Clone, Debug, Default)]
pub(super) struct PlannedHost {
    pub(super) series: Vec<PlannedSeries>,
    pub(super) rates: HostRates,
}

impl PlannedHost {
    /// At how many bytes a second it scans a series: as measured, or else as the model says, and
    /// no faster than its own limit.
    #[expect(clippy::cast_precision_loss, reason = "estimates")]
    fn scan_rate(&self, model: &CostModel, series: &PlannedSeries) -> f64 {
        let measured = self.rates.scan_bytes_per_s.map(|rate| rate.max(1) as f64);
        let limit = series.read_bytes_per_s.map(|limit| limit.max(1) as f64);
        measured.unwrap_or(model.read_bytes_per_s).min(limit.unwrap_or(f64::INFINITY))
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates")]
    fn requests(&self) -> f64 {
        self.series.iter().map(|series| series.requests as f64).sum()
    }
}

/// The model with the rates that hosts have measured. Its rate of reading is the highest of a host;
/// for slower ones, the caller makes volumes larger. Its rate of storing is that at which the
/// host with the most requests would take as long as the one that takes longest.
#[expect(clippy::cast_precision_loss, reason = "estimates")]
fn measured(model: &CostModel, hosts: &[PlannedHost]) -> CostModel {
    let all = || hosts.iter().filter(|host| !host.series.is_empty());
    let scan = |host: &PlannedHost| {
        let measured = host.rates.scan_bytes_per_s.map(|rate| rate.max(1) as f64);
        measured.unwrap_or(model.read_bytes_per_s)
    };
    let store = |host: &PlannedHost| {
        let measured = host.rates.store_bytes_per_s.map(|rate| rate.max(1) as f64);
        measured.unwrap_or(model.store_bytes_per_s)
    };
    let read_bytes_per_s = all().map(scan).fold(0.0, f64::max);
    let most = all().map(PlannedHost::requests).fold(0.0, f64::max);
    let longest = all().map(|host| host.requests() / store(host)).fold(0.0, f64::max);
    CostModel {
        read_bytes_per_s: if read_bytes_per_s > 0.0 {
            read_bytes_per_s
        } else {
            model.read_bytes_per_s
        },
        store_bytes_per_s: if longest > 0.0 { most / longest } else { model.store_bytes_per_s },
        ..*model
    }
}

/// Divides the series of all hosts into parts, by the cost model: each part lasts as long as its
/// busiest host. Of the ways to do that, the one is taken that is expected to take the least time.
#[expect(clippy::cast_precision_loss, reason = "estimates")]
pub(super) fn schedule(parts: Parts, expected: &CostModel, planned: &[PlannedHost]) -> Vec<Part> {
    let all: Vec<(usize, &PlannedSeries)> = planned
        .iter()
        .enumerate()
        .flat_map(|(host, planned)| planned.series.iter().map(move |series| (host, series)))
        .collect();
    let model = &measured(expected, planned);
    let vm = |(host, series): &(usize, &PlannedSeries)| {
        let slower = model.read_bytes_per_s / planned[*host].scan_rate(expected, series);
        ScheduledVm {
            machine: *host,
            scan_bytes: series.scan_bytes as f64 * slower,
            requests: series.requests as f64,
        }
    };
    let vms: Vec<ScheduledVm> = all.iter().map(vm).collect();
    let hosts = || planned.iter().filter(|host| !host.series.is_empty());
    let measured_hosts = hosts().filter(|host| host.rates != HostRates::default()).count();
    // What series have grows with what they scan, as far as is known here.
    let index_entries = all.iter().map(|(_, series)| series.scan_bytes as f64).sum::<f64>()
        / model.chunk_bytes.max(1.0)
        / hosts().count().max(1) as f64;
    let (picking, schedule) = match parts {
        Parts::Number(parts) => Schedule::best(model, &vms, index_entries, parts),
        Parts::WithinSeconds(limit_s) => Schedule::best_within(model, &vms, index_entries, limit_s),
    };
    let part = |(number, (vms, stages)): (usize, (&Vec<usize>, &StageSeconds))| {
        let mut series = vec![Vec::new(); planned.len()];
        for vm in vms {
            let (host, planned) = all[*vm];
            series[host].push(planned.series.clone());
        }
        let compare = stages.compare + stages.collect;
        let store = stages.store + stages.send + stages.update + stages.answer;
        let predicted_s = [stages.scan, compare, store];
        Part { number, series, predicted_s, picking, measured_hosts }
    };
    schedule.rounds.iter().zip(&schedule.stages).enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(sizes: &[u64], rates: HostRates) -> PlannedHost {
        let series = sizes.iter().enumerate().map(|(number, bytes)| PlannedSeries {
            series: number.to_string(),
            scan_bytes: bytes << 30,
            requests: bytes << 16,
            read_bytes_per_s: None,
        });
        PlannedHost { series: series.collect(), rates }
    }

    /// With the rates that hosts have, what a part is expected to take is what it takes if they
    /// keep them; and the slow host's series are spread, which those of the model would not do.
    #[test]
    fn rates_that_were_measured_decide_which_series_are_together() {
        let model = CostModel::local(1e9, 1e9, false);
        let slow = HostRates { scan_bytes_per_s: Some(50_000_000), store_bytes_per_s: None };
        let hosts =
            [host(&[8, 8, 8, 8, 8, 8], HostRates::default()), host(&[2, 2, 2, 2, 2, 2], slow)];
        let parts = schedule(Parts::Number(3), &model, &hosts);
        let of_slow: Vec<usize> = parts.iter().map(|part| part.series[1].len()).collect();
        assert_eq!((of_slow, parts[0].measured_hosts), (vec![2, 2, 2], 1));
        for part in &parts {
            let seconds = 4.0 * f64::from(1 << 30) / 50e6;
            assert!((part.predicted_s[0] / seconds - 1.0).abs() < 0.01, "{:?}", part.predicted_s);
        }
        // The host that stores slowly decides, although the other one has more to store.
        let slow = HostRates { scan_bytes_per_s: None, store_bytes_per_s: Some(10_000_000) };
        let hosts = [host(&[8; 6], HostRates::default()), host(&[2; 6], slow)];
        for part in &schedule(Parts::Number(3), &model, &hosts) {
            let seconds = 2.0 * f64::from(2 << 16) * 4096.0 / 10e6;
            assert!((part.predicted_s[2] / seconds - 1.0).abs() < 0.1, "{:?}", part.predicted_s);
        }
        let unknown = [host(&[8; 6], HostRates::default()), host(&[2; 6], HostRates::default())];
        let parts = schedule(Parts::Number(3), &model, &unknown);
        assert!(parts[0].predicted_s[0] < 20.0 && parts[0].measured_hosts == 0);
    }

    #[test]
    fn a_time_limit_decides_how_many_parts_there_are() {
        let model = CostModel::local(1e9, 1e9, false);
        let hosts = [host(&[8, 4, 4, 2], HostRates::default())];
        let total =
            |parts: &[Part]| -> f64 { parts.iter().flat_map(|part| part.predicted_s).sum() };
        let one = total(&schedule(Parts::Number(1), &model, &hosts));
        let loose = schedule(Parts::WithinSeconds(one * 3.0), &model, &hosts);
        let tight = schedule(Parts::WithinSeconds(one * 1.001), &model, &hosts);
        assert!(loose.len() > tight.len() && tight.len() == 1, "{} {}", loose.len(), tight.len());
        assert!(total(&loose) <= one * 3.0);
    }

    #[test]
    fn the_model_takes_the_rates_of_hosts() {
        let model = CostModel::local(500e6, 100e6, false);
        let host = |requests, scan_bytes_per_s, store_bytes_per_s| PlannedHost {
            series: vec![PlannedSeries {
                series: "a".to_owned(),
                scan_bytes: 1 << 30,
                requests,
                read_bytes_per_s: None,
            }],
            rates: HostRates { scan_bytes_per_s, store_bytes_per_s },
        };
        let same = measured(&model, &[host(10, None, None), host(20, None, None)]);
        let rates = |it: &CostModel| (it.read_bytes_per_s, it.store_bytes_per_s.round());
        assert_eq!(rates(&same), (500e6, 100e6));
        assert_eq!(rates(&measured(&model, &[])), (500e6, 100e6));
        // One host stores half as much four times as slowly: it takes twice as long.
        let hosts = [host(1000, Some(900_000_000), Some(25_000_000)), host(2000, None, None)];
        let slower = measured(&model, &hosts);
        assert_eq!(rates(&slower), (900e6, 50e6));
        // Each host is as fast as it is: what is scanned counts more on the slow one.
        let scan = |host: &PlannedHost| host.scan_rate(&model, &host.series[0]);
        assert_eq!((scan(&hosts[0]), scan(&hosts[1])), (900e6, 500e6));
        let mut limited = hosts[0].clone();
        limited.series[0].read_bytes_per_s = Some(1_000_000);
        assert_eq!((scan(&limited), scan(&hosts[1])), (1e6, 500e6));
    }
}
