//! What an agent will do: settings with everything that they leave open.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::TimeZone;
use silt_cluster::{AgentOptions, Allowed, Calendar, Name, Task, Work};
use silt_format::Result;
use silt_terminal::failure::Failure;

use crate::settings::{ALL_OBEYED, AgentSettings, Obeyed, Schedule};

/// After how many seconds without a director an agent works alone.
const ALONE_AFTER_S: u64 = 15 * 60;

/// What an agent will do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: Name,
    /// The time zone of its schedules.
    pub zone: TimeZone,
    /// What it does, backups first.
    pub tasks: Vec<Task>,
    /// How it works.
    pub settings: AgentSettings,
}

impl Plan {
    /// The plan of a host with these series, and the schedules that they have of their own.
    ///
    /// Fails with a usage error if there would be nothing to do.
    pub fn new(
        settings: AgentSettings,
        host: &str,
        series: &BTreeMap<String, Option<Schedule>>,
    ) -> Result<Self, Failure> {
        let spread = Duration::from_secs(settings.spread.unwrap_or(0));
        let task = |work: Work, schedule: Option<&Schedule>| Task {
            work,
            when: schedule.and_then(Schedule::calendar).cloned(),
            spread,
        };
        let backup = |(name, own): (&String, &Option<Schedule>)| {
            let work = Work::Backup { series: name.clone() };
            task(work, own.as_ref().or(settings.backup.as_ref()))
        };
        let mut tasks: Vec<Task> = series.iter().map(backup).collect();
        let others = [
            (Work::Forget, &settings.forget),
            (Work::Reclaim, &settings.reclaim),
            (Work::Optimize, &settings.optimize),
            (Work::Check, &settings.check),
            (Work::Replicate, &settings.replicate),
            (Work::Round, &settings.round),
        ];
        let scheduled = others.into_iter().filter(|(_, schedule)| schedule.is_some());
        tasks.extend(scheduled.map(|(work, schedule)| task(work, schedule.as_ref())));
        if tasks.iter().all(|task| task.when.is_none()) && settings.bus.is_none() {
            let message = "the agent has nothing to do: give [agent] a schedule, such as \
                           backup = \"daily\", and the profile series";
            return Err(Failure::Usage(message.to_owned()));
        }
        let name = settings.name.clone().map_or_else(|| host_name(host), Ok)?;
        Ok(Self { name, zone: TimeZone::system(), tasks, settings })
    }

    /// The commands that it obeys.
    pub fn obeyed(&self) -> Vec<Obeyed> {
        self.settings.allow.clone().unwrap_or_else(|| ALL_OBEYED.to_vec())
    }

    /// How many runs it has at once.
    pub fn parallel(&self) -> usize {
        self.settings.parallel.unwrap_or(1)
    }

    /// After how many seconds without a director it works alone.
    pub fn alone_after_s(&self) -> u64 {
        self.settings.alone_after.unwrap_or(ALONE_AFTER_S)
    }

    /// Whether it may be the director.
    pub fn leads(&self) -> bool {
        self.settings.leads.unwrap_or(true)
    }

    /// The same for the agent's core.
    pub fn options(&self) -> AgentOptions {
        let obeyed = self.obeyed();
        let obeys = |command| obeyed.contains(&command);
        let mut tasks = self.tasks.clone();
        let backs_up = tasks.iter().any(|task| task.work.series().is_some());
        if backs_up && obeys(Obeyed::Round) && self.settings.bus.is_some() {
            // A coordinator asks for it.
            let work = Work::Join { round: 0 };
            tasks.push(Task { work, when: None, spread: Duration::ZERO });
        }
        AgentOptions {
            tasks,
            zone: self.zone.clone(),
            parallel: self.parallel(),
            has_bus: self.settings.bus.is_some(),
            alone_after: Duration::from_secs(self.alone_after_s()),
            leads: self.leads(),
            limit: self.settings.limit.unwrap_or(0),
            allowed: Allowed {
                backup: obeys(Obeyed::Backup),
                cancel: obeys(Obeyed::Cancel),
                round: obeys(Obeyed::Round),
            },
            ..AgentOptions::new(self.name.clone())
        }
    }
}

/// The name of a host as one on the bus, which has no dots.
pub fn host_name(host: &str) -> Result<Name> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    Name::new(host.chars().take(80).map(plain).collect::<String>())
}

/// The next times of a schedule.
pub fn next_times(calendar: &Calendar, zone: &TimeZone, now_ns: i64, count: usize) -> Vec<i64> {
    let mut from = jiff::Timestamp::from_nanosecond(now_ns.into()).ok();
    let mut times = Vec::new();
    while let Some(next) = from.filter(|_| times.len() < count) {
        from = calendar.next(next, zone);
        times.extend(from.and_then(|at| i64::try_from(at.as_nanosecond()).ok()));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(text: &str) -> Schedule {
        Schedule::At(text.parse().unwrap())
    }

    #[test]
    fn a_series_has_its_own_schedule_or_that_of_all() {
        let settings = AgentSettings {
            backup: Some(schedule("daily")),
            check: Some(schedule("weekly")),
            ..AgentSettings::default()
        };
        let series = [
            ("a".to_owned(), None),
            ("b".to_owned(), Some(schedule("hourly"))),
            ("c".to_owned(), Some(Schedule::Never)),
        ];
        let plan = Plan::new(settings, "web1.example.org", &series.into()).ok().unwrap();
        assert_eq!(plan.name.as_str(), "web1-example-org");
        let shown =
            |task: &Task| (task.work.to_string(), task.when.as_ref().map(ToString::to_string));
        let tasks: Vec<_> = plan.tasks.iter().map(shown).collect();
        let task = |work: &str, when: Option<&str>| (work.to_owned(), when.map(str::to_owned));
        let expected = [
            task("backup of 'a'", Some("daily")),
            task("backup of 'b'", Some("hourly")),
            task("backup of 'c'", None),
            task("check", Some("weekly")),
        ];
        assert_eq!(tasks, expected);
        assert!(!plan.options().has_bus && plan.options().allowed == Allowed::default());
    }

    #[test]
    fn times_follow_each_other_until_there_are_no_more() {
        let calendar: Calendar = "2026-11-23 01,02,03:00".parse().unwrap();
        let now_ns = 1_795_395_600_000_000_000; // 2026-11-23T01:00:00Z
        let times = next_times(&calendar, &TimeZone::UTC, now_ns, 3);
        assert_eq!(times, [now_ns + 3_600_000_000_000, now_ns + 7_200_000_000_000]);
    }
}
