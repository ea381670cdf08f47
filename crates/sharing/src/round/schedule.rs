//! Assigns series to rounds.
//!
//! With more rounds, each volume and its copy-on-write snapshot are held for a shorter time, but
//! all rounds together take longer, because each reads the index. Finds the largest number of
//! rounds within a time limit, as in dual bin packing (Assmann et al., 1984).

use silt_format::number::to_u64;

use super::cost::{CostModel, RoundLoad, StageSeconds};

/// A volume to be scheduled.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledVm {
    /// The machine that it is on, from 0.
    pub machine: usize,
    /// Bytes that a scan reads.
    pub scan_bytes: f64,
    /// Chunks that are expected to be new to its series.
    pub requests: f64,
}

/// How volumes are assigned to rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picking {
    /// Largest volume first, each to the round that takes the least time so far.
    Least,
    /// Largest volume first, each to the round that takes the least time with it.
    LeastAfter,
    /// The volumes of the busiest machine first, each to the round that grows the least; then
    /// volumes are moved as long as that saves time. Rounds last as long as their busiest machine,
    /// so that the first machine's volumes set their lengths and the others' find room within them.
    Envelope,
}

impl Picking {
    /// All ways, the simplest first.
    const ALL: [Self; 3] = [Self::Least, Self::LeastAfter, Self::Envelope];

    /// The name of the algorithm in the papers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Least => "A0",
            Self::LeastAfter => "A1",
            Self::Envelope => "A2",
        }
    }
}

/// An assignment of volumes to rounds, with the predicted times.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The volumes of each round, as indices into `vms`; empty rounds are left out.
    pub rounds: Vec<Vec<usize>>,
    /// The predicted times of each round.
    pub stages: Vec<StageSeconds>,
}

impl Schedule {
    /// The sum of all rounds, in seconds.
    pub fn total_s(&self) -> f64 {
        self.stages.iter().map(StageSeconds::total).sum()
    }

    /// How long a byte of the volumes is held on average, in seconds.
    pub fn mean_held_s(&self, model: &CostModel, vms: &[ScheduledVm]) -> f64 {
        let rounds = self.rounds.iter().zip(&self.stages);
        let held: f64 = rounds
            .map(|(round, stages)| {
                let bytes: f64 = round.iter().map(|vm| vms[*vm].scan_bytes).sum();
                bytes * model.held_s(stages)
            })
            .sum();
        let bytes: f64 = vms.iter().map(|vm| vm.scan_bytes).sum();
        if bytes > 0.0 { held / bytes } else { 0.0 }
    }

    /// Assigns the volumes to `rounds` rounds; `index_entries` is the number of one machine.
    pub fn of(
        model: &CostModel,
        vms: &[ScheduledVm],
        index_entries: f64,
        rounds: usize,
        picking: Picking,
    ) -> Self {
        let machines = vms.iter().map(|vm| vm.machine + 1).max().unwrap_or(1);
        let empty = Filling::new(machines, index_entries);
        let mut fillings = vec![empty; rounds.max(1)];
        let mut place = vec![0; vms.len()];
        let order = order(vms, machines, picking);
        let busiest = order.first().map(|vm| vms[*vm].machine);
        for vm in order {
            let is_envelope = picking == Picking::Envelope && Some(vms[vm].machine) != busiest;
            let cost = |filling: &Filling| match picking {
                Picking::Least => filling.seconds(model),
                _ if is_envelope => filling.growth(model, &vms[vm]),
                _ => filling.seconds_with(model, &vms[vm]),
            };
            let costs: Vec<f64> = fillings.iter().map(cost).collect();
            let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
            // Of the rounds that grow as little, the one where the machine has least to do.
            let tolerance = if is_envelope { least.abs() * 1e-6 + 1e-9 } else { 0.0 };
            let own =
                |at: usize| if is_envelope { fillings[at].requests[vms[vm].machine] } else { 0.0 };
            let candidates = (0..fillings.len()).filter(|at| costs[*at] <= least + tolerance);
            place[vm] = candidates.min_by(|a, b| own(*a).total_cmp(&own(*b))).unwrap_or(0);
            fillings[place[vm]].add(&vms[vm]);
        }
        if picking == Picking::Envelope {
            improve(model, vms, &mut fillings, &mut place);
        }
        let mut schedule = Self { rounds: Vec::new(), stages: Vec::new() };
        for (number, filling) in fillings.iter().enumerate() {
            let round: Vec<usize> = (0..vms.len()).filter(|vm| place[*vm] == number).collect();
            if !round.is_empty() {
                schedule.rounds.push(round);
                schedule.stages.push(model.stages(&filling.load()));
            }
        }
        schedule
    }

    /// Assigns the volumes to `rounds` rounds in each way of picking, and returns the way whose
    /// rounds together take the least time.
    pub fn best(
        model: &CostModel,
        vms: &[ScheduledVm],
        index_entries: f64,
        rounds: usize,
    ) -> (Picking, Self) {
        let of = |picking| (picking, Self::of(model, vms, index_entries, rounds, picking));
        let total = |it: &(Picking, Self)| it.1.total_s();
        best(Picking::ALL.map(of), total)
    }

    /// The same for the most rounds that together take at most `limit_s`: returns the way that
    /// holds volumes for the least time.
    pub fn best_within(
        model: &CostModel,
        vms: &[ScheduledVm],
        index_entries: f64,
        limit_s: f64,
    ) -> (Picking, Self) {
        let of = |picking| (picking, Self::within(model, vms, index_entries, limit_s, picking));
        best(Picking::ALL.map(of), |it| it.1.mean_held_s(model, vms))
    }

    /// The largest number of rounds that together take at most `limit_s`, found by binary search;
    /// one round if even that takes longer.
    pub fn within(
        model: &CostModel,
        vms: &[ScheduledVm],
        index_entries: f64,
        limit_s: f64,
        picking: Picking,
    ) -> Self {
        let machines = vms.iter().map(|vm| vm.machine + 1).max().unwrap_or(1);
        let mut volumes = vec![0_usize; machines];
        vms.iter().for_each(|vm| volumes[vm.machine] += 1);
        let of_a_machine = volumes.into_iter().max().unwrap_or(1);
        let (mut least, mut most) = (1, vms.len().min(2 * of_a_machine).max(1));
        while most > least {
            let rounds = (most + least).div_ceil(2);
            let schedule = Self::of(model, vms, index_entries, rounds, picking);
            if schedule.total_s() > limit_s {
                most = rounds - 1;
            } else {
                least = rounds;
            }
        }
        Self::of(model, vms, index_entries, most, picking)
    }
}

/// The one with the least cost; of equal ones, the last.
fn best(
    all: [(Picking, Schedule); 3],
    cost: impl Fn(&(Picking, Schedule)) -> f64,
) -> (Picking, Schedule) {
    let [mut best, rest @ ..] = all;
    for other in rest {
        if cost(&other) <= cost(&best) {
            best = other;
        }
    }
    best
}

/// The order in which volumes are placed.
fn order(vms: &[ScheduledVm], machines: usize, picking: Picking) -> Vec<usize> {
    let mut of_machine = vec![0.0; machines];
    vms.iter().for_each(|vm| of_machine[vm.machine] += vm.requests + vm.scan_bytes);
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&vms[*a], &vms[*b]);
        let by_size = (b.requests + b.scan_bytes).total_cmp(&(a.requests + a.scan_bytes));
        let by_machine = of_machine[b.machine].total_cmp(&of_machine[a.machine]);
        let by_machine = by_machine.then(a.machine.cmp(&b.machine));
        if picking == Picking::Envelope { by_machine.then(by_size) } else { by_size }
    });
    order
}

/// Moves volumes from round to round while that saves time; a few passes.
fn improve(model: &CostModel, vms: &[ScheduledVm], fillings: &mut [Filling], place: &mut [usize]) {
    const PASSES: usize = 4;
    for _ in 0..PASSES {
        let mut moved = false;
        for (vm, at) in vms.iter().zip(place.iter_mut()) {
            let from = &fillings[*at];
            // Only the busiest machine's volumes make a round as long as it is.
            let busiest = from.requests.iter().copied().fold(0.0, f64::max);
            if from.requests[vm.machine] < busiest {
                continue;
            }
            let mut without = from.clone();
            without.remove(vm);
            let (before, after) = (from.seconds(model), without.seconds(model));
            // A round that would be empty, or one that would become longer than this, is no gain.
            if after == 0.0 {
                continue;
            }
            let others = (0..fillings.len()).filter(|number| number != at);
            let others =
                others.filter(|number| fillings[*number].seconds_with(model, vm) <= before);
            let grows = |number: usize| fillings[number].growth(model, vm);
            let best = others.min_by(|a, b| grows(*a).total_cmp(&grows(*b)));
            let saved = before - after - 1e-9;
            let Some(best) = best.filter(|best| grows(*best) < saved) else { continue };
            fillings[*at] = without;
            fillings[best].add(vm);
            (*at, moved) = (best, true);
        }
        if !moved {
            return;
        }
    }
}

/// What is in a round so far.
#[derive(Clone)]
struct Filling {
    requests: Vec<f64>,
    scan_bytes: Vec<f64>,
    index_entries: f64,
    load: RoundLoad,
}

impl Filling {
    fn new(machines: usize, index_entries: f64) -> Self {
        let load = RoundLoad { index_entries, ..RoundLoad::default() };
        Self { requests: vec![0.0; machines], scan_bytes: vec![0.0; machines], index_entries, load }
    }

    fn add(&mut self, vm: &ScheduledVm) {
        self.load = self.load_with(vm);
        self.requests[vm.machine] += vm.requests;
        self.scan_bytes[vm.machine] += vm.scan_bytes;
    }

    fn remove(&mut self, vm: &ScheduledVm) {
        self.requests[vm.machine] -= vm.requests;
        self.scan_bytes[vm.machine] -= vm.scan_bytes;
        let machines = silt_to_f64(self.requests.len());
        let index_entries = self.index_entries;
        self.load = RoundLoad {
            requests: self.requests.iter().sum::<f64>() / machines,
            requests_max: self.requests.iter().copied().fold(0.0, f64::max),
            scan_bytes_max: self.scan_bytes.iter().copied().fold(0.0, f64::max),
            index_entries,
        };
    }

    fn load(&self) -> RoundLoad {
        self.load
    }

    fn load_with(&self, vm: &ScheduledVm) -> RoundLoad {
        let machines = silt_to_f64(self.requests.len());
        RoundLoad {
            requests: self.load.requests + vm.requests / machines,
            requests_max: self.load.requests_max.max(self.requests[vm.machine] + vm.requests),
            scan_bytes_max: self
                .load
                .scan_bytes_max
                .max(self.scan_bytes[vm.machine] + vm.scan_bytes),
            index_entries: self.index_entries,
        }
    }

    /// What the round takes; one without volumes is not held at all.
    fn seconds(&self, model: &CostModel) -> f64 {
        if self.load.requests == 0.0 && self.load.scan_bytes_max == 0.0 {
            return 0.0;
        }
        model.stages(&self.load).total()
    }

    /// How much longer it takes with a volume more.
    fn growth(&self, model: &CostModel, vm: &ScheduledVm) -> f64 {
        self.seconds_with(model, vm) - self.seconds(model)
    }

    fn seconds_with(&self, model: &CostModel, vm: &ScheduledVm) -> f64 {
        model.stages(&self.load_with(vm)).total()
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of machines and rounds are small")]
fn silt_to_f64(number: usize) -> f64 {
    to_u64(number) as f64
}

/// The sizes that determine the memory of a machine in rounds over its volumes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundMemory {
    /// Changed bytes of one volume.
    pub changed_bytes: f64,
    /// Number of volumes on a machine.
    pub volumes: f64,
    /// Size of a chunk over that of a record.
    pub ratio: f64,
    /// Number of partitions of the index on a machine.
    pub partitions: f64,
    /// Number of snapshots that are kept.
    pub snapshots: f64,
    /// Share of the changed chunks that are new.
    pub new_share: f64,
}

impl RoundMemory {
    /// Memory of a machine in bytes if its volumes are backed up in this many rounds, by the
    /// corrected formula of the low-profile deduplication slides: a partition of the requests, one
    /// of the index, and the round's summaries.
    pub fn bytes(&self, rounds: usize) -> f64 {
        let (rounds, partitions) = (silt_to_f64(rounds), self.partitions);
        let records = self.changed_bytes * self.volumes / self.ratio;
        let summaries = self.snapshots * self.new_share / partitions;
        records * (1.0 / (rounds * partitions) + summaries + 1.0 / rounds)
    }
}

/// The fewest rounds, of at most `rounds_max`, whose memory is at most `limit_bytes`.
pub fn rounds_for_memory(
    limit_bytes: f64,
    rounds_max: usize,
    memory_bytes: impl Fn(usize) -> f64,
) -> Option<usize> {
    (1..=rounds_max).find(|rounds| memory_bytes(*rounds) <= limit_bytes)
}

#[cfg(test)]
mod tests {
    use super::{Picking, RoundMemory, Schedule, ScheduledVm, rounds_for_memory};
    use crate::round::CostModel;

    /// Volumes of very different sizes, on machines of which some have far more than others.
    fn skewed(machines: usize, of_each: usize) -> Vec<ScheduledVm> {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f64::from(u32::try_from(state >> 40).unwrap_or(0)) / f64::from(1 << 24)
        };
        let vm = |machine: usize, size: f64| ScheduledVm {
            machine,
            scan_bytes: size,
            requests: size / 4096.0,
        };
        (0..machines * of_each)
            .map(|number| {
                let machine = number % machines;
                let weight = if machine == 0 { 3.0 } else { 1.0 };
                vm(machine, weight * 8.8e9 / 2.0 / (0.05 + random()))
            })
            .collect()
    }

    #[test]
    fn every_volume_is_in_one_round() {
        let vms = skewed(10, 25);
        for picking in [Picking::Least, Picking::LeastAfter, Picking::Envelope] {
            let schedule = Schedule::of(&CostModel::published(), &vms, 1e8, 12, picking);
            let mut all: Vec<usize> = schedule.rounds.concat();
            all.sort_unstable();
            assert_eq!(all, (0..vms.len()).collect::<Vec<_>>());
            assert_eq!(schedule.rounds.len(), schedule.stages.len());
        }
    }

    #[test]
    fn better_picking_takes_less_time_and_holds_volumes_for_less() {
        let (model, vms) = (CostModel::published(), skewed(20, 25));
        let one = Schedule::of(&model, &vms, 1e8, 1, Picking::Least).total_s();
        let of = |picking| Schedule::within(&model, &vms, 1e8, one * 1.25, picking);
        let all = [Picking::Least, Picking::LeastAfter, Picking::Envelope].map(of);
        all.iter().for_each(|schedule| assert!(schedule.total_s() <= one * 1.25));
        let held = all.each_ref().map(|schedule| schedule.mean_held_s(&model, &vms));
        assert!(held[1] <= held[0] && held[2] < held[1], "{held:?}");
        let same = [Picking::Least, Picking::LeastAfter, Picking::Envelope]
            .map(|picking| Schedule::of(&model, &vms, 1e8, 12, picking).total_s());
        assert!(same[1] <= same[0] && same[2] <= same[1], "{same:?}");
    }

    /// No way of picking is the best for all loads; the choice is never worse than any.
    #[test]
    fn the_best_way_of_picking_is_chosen() {
        let model = CostModel::published();
        let mut chosen = Vec::new();
        for (machines, of_each, rounds) in
            [(1, 7, 3), (2, 3, 2), (3, 4, 5), (5, 9, 4), (10, 25, 12), (4, 2, 3), (6, 5, 2)]
        {
            let vms = skewed(machines, of_each);
            let (picking, best) = Schedule::best(&model, &vms, 1e8, rounds);
            let of = |picking| Schedule::of(&model, &vms, 1e8, rounds, picking).total_s();
            let least = Picking::ALL.map(of).into_iter().fold(f64::INFINITY, f64::min);
            assert!(best.total_s() <= least && of(picking) <= least, "{machines} {of_each}");
            chosen.push(picking.name());
            let limit = 1.3 * Schedule::of(&model, &vms, 1e8, 1, Picking::Least).total_s();
            let (_, held) = Schedule::best_within(&model, &vms, 1e8, limit);
            assert!(held.total_s() <= limit);
            let held = held.mean_held_s(&model, &vms);
            for picking in Picking::ALL {
                let other = Schedule::within(&model, &vms, 1e8, limit, picking);
                assert!(held <= other.mean_held_s(&model, &vms), "{machines} {of_each}");
            }
        }
        assert!(chosen.contains(&"A2"), "{chosen:?}");
    }

    #[test]
    fn a_limit_that_cannot_be_kept_gives_one_round() {
        let vms = skewed(2, 3);
        let schedule = Schedule::within(&CostModel::published(), &vms, 1e8, 1.0, Picking::Envelope);
        assert_eq!(schedule.rounds.len(), 1);
        let none = Schedule::within(&CostModel::published(), &[], 0.0, 1.0, Picking::Envelope);
        assert!(none.rounds.is_empty());
    }

    /// The slides' cluster: 8.8 GB changed in each of 25 volumes of a machine. 12 rounds take 144
    /// MB by the formula (they report 90), and 100 MB need 18.
    #[test]
    fn the_number_of_rounds_follows_from_memory() {
        let machine = RoundMemory {
            changed_bytes: 8.8e9,
            volumes: 25.0,
            ratio: 136.0,
            partitions: 400.0,
            snapshots: 10.0,
            new_share: 0.228,
        };
        let memory = |rounds| machine.bytes(rounds);
        assert!((memory(12) / 1e6 - 144.0).abs() < 1.0, "{}", memory(12));
        assert_eq!(rounds_for_memory(100e6, 100, memory), Some(18));
        assert_eq!(rounds_for_memory(1e6, 100, memory), None);
    }
}
