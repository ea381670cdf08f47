//! Drawing histories of agents.

use crate::plan::{AgentHost, Fault, Plan, Series, Trouble, Wrong, fault};
use crate::random::Random;

/// Agents begin between 14:13 and 16:13 UTC, and things go wrong for eight hours: the last three
/// are due once, so that only what was missed is made up for. The second ends early, as only the
/// first runs have faults, and each snapshot is restored in the end.
const SCHEDULES: [&str; 6] = ["*:17", "15..18:00/20", "0/3:05", "17:05", "19:40", "21:30"];

impl Plan {
    /// Adds agents to the hosts.
    pub(crate) fn add_agents(&mut self, random: &mut Random) {
        self.hosts.truncate(random.below(3));
        let limit = random.below(3);
        let bus_faults = random.of(&[0, 20, 100, 300]);
        let shared = random.of(&SCHEDULES);
        for number in 0..2 + random.below(2) {
            let mut tasks = Vec::new();
            if number < 2 && !random.once_in(4) {
                tasks.push((Series::ALL[number], random.of(&SCHEDULES)));
            } else {
                tasks.push((Series::Vm, shared));
            }
            // One clock stamps the files and is read by all hosts.
            let is_skewed = self.tick_ms == 0 && random.once_in(2);
            let skew_minutes = if is_skewed { random.of(&[60, -60, 7, -7, 15, -25]) } else { 0 };
            let troubles = (0..random.below(5)).map(|_| trouble(random)).collect();
            let runs = (0..random.below(8)).map(|_| faults(self.folders, random)).collect();
            let reclaims = random.once_in(3).then_some("0/2:30");
            let agent =
                AgentHost { skew_minutes, tasks, reclaims, limit, bus_faults, troubles, runs };
            self.agents.push(agent);
        }
    }
}

fn trouble(random: &mut Random) -> Trouble {
    Trouble {
        after_minutes: random.of(&[3, 20, 45, 90]),
        loses_bus: random.once_in(4),
        forgets: random.once_in(4),
        down_minutes: random.of(&[0, 0, 5, 70]),
    }
}

/// The faults of a run. Agents do not outlast long ones.
fn faults(folders: bool, random: &mut Random) -> Vec<Fault> {
    let one = |random: &mut Random| {
        let Fault { at, what } = fault(folders, random);
        let what = match what {
            Wrong::Sleep(minutes) => Wrong::Sleep(minutes % 40),
            Wrong::Away(minutes) => Wrong::Away(minutes % 40),
            other => other,
        };
        Fault { at, what }
    };
    (0..random.below(3)).map(|_| one(random)).collect()
}
