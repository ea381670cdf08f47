//! What a whole run has done: all its volumes and series, not only the current one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use siltstone::{Activity, Progress, Unit};

/// The rate is computed over this long.
const WINDOW: Duration = Duration::from_secs(5);
/// Samples of the rate are at least this far apart, so that there are few.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// The parts of one activity: volumes, or series.
struct Lane {
    activity: Activity,
    /// Whether the run was announced: then its total counts.
    is_planned: bool,
    /// Bytes of the parts that have not begun; `None` for unknown ones.
    left: VecDeque<Option<u64>>,
    /// What the parts before the current one came to.
    ended: Amounts,
    /// Parts before the current one.
    parts_ended: usize,
    current: Option<Progress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    done: u64,
    new_bytes: u64,
    stored_bytes: u64,
    entries: u64,
}

impl Lane {
    fn new(activity: Activity, is_planned: bool) -> Self {
        let (left, ended) = (VecDeque::new(), Amounts::default());
        Self { activity, is_planned, left, ended, parts_ended: 0, current: None }
    }

    fn amounts(&self) -> Amounts {
        let Some(current) = self.current else { return self.ended };
        Amounts {
            done: self.ended.done + current.done,
            new_bytes: self.ended.new_bytes + current.new_bytes,
            stored_bytes: self.ended.stored_bytes + current.stored_bytes,
            entries: self.ended.entries + current.entries,
        }
    }

    fn total(&self) -> Option<u64> {
        let current = match self.current {
            None => 0,
            Some(current) => current.total?,
        };
        let left = self.left.iter().try_fold(0_u64, |sum, part| Some(sum + (*part)?))?;
        Some(self.ended.done + current + left)
    }

    fn end_part(&mut self) {
        self.ended = self.amounts();
        self.parts_ended += usize::from(self.current.take().is_some());
    }

    fn update(&mut self, mut progress: Progress) {
        // A last segment counts in full although it can be shorter.
        progress.done = progress.total.map_or(progress.done, |total| progress.done.min(total));
        let begins = self
            .current
            .is_some_and(|current| goes_back(current, progress) || is_start(current, progress));
        if begins {
            self.end_part();
        }
        if begins && !self.is_planned {
            (self.ended, self.parts_ended) = (Amounts::default(), 0);
        }
        if self.current.is_none() {
            self.left.pop_front();
        }
        self.current = Some(progress);
    }
}

fn goes_back(current: Progress, next: Progress) -> bool {
    next.done < current.done || next.entries < current.entries
}

/// Whether a part begins although the one before has done nothing: an empty volume.
fn is_start(current: Progress, next: Progress) -> bool {
    next.done == 0 && next.entries == 0 && current.done == 0 && current.total == Some(0)
}

/// What a run has done at some moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// The current activity.
    pub activity: Activity,
    /// The current volume or series of that activity, from 1, and how many there are.
    pub part: (usize, usize),
    pub unit: Unit,
    pub done: u64,
    pub total: Option<u64>,
    pub new_bytes: u64,
    pub stored_bytes: u64,
    pub entries: u64,
    /// Per second, over the last seconds.
    pub rate: u64,
    /// `None` if the total is unknown, or nothing was done lately.
    pub seconds_left: Option<u64>,
}

/// The activities of a run.
pub struct Run {
    lanes: Vec<Lane>,
    /// What was done at some moments.
    samples: VecDeque<(Instant, u64)>,
    /// The activity of the samples; `None` for all that was announced.
    samples_of: Option<Activity>,
}

impl Run {
    pub fn new() -> Self {
        Self { lanes: Vec::new(), samples: VecDeque::new(), samples_of: None }
    }

    /// Announces parts of an activity by their bytes.
    pub fn expect(&mut self, activity: Activity, parts: &[Option<u64>]) {
        let lane = self.lane(activity, true);
        lane.is_planned = true;
        lane.left.extend(parts);
    }

    /// Counts the current part as ended, and drops those that were announced before the last
    /// `left` ones: they failed.
    pub fn end_parts(&mut self, activity: Activity, left: usize) {
        let lane = self.lane(activity, true);
        lane.end_part();
        let dropped = lane.left.len().saturating_sub(left);
        lane.left.drain(..dropped);
    }

    fn lane(&mut self, activity: Activity, is_planned: bool) -> &mut Lane {
        let known = self.lanes.iter().position(|lane| lane.activity == activity);
        let at = known.unwrap_or_else(|| {
            self.lanes.push(Lane::new(activity, is_planned));
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Takes note of progress.
    pub fn update(&mut self, progress: Progress, now: Instant) -> Shown {
        let lane = self.lane(progress.activity, false);
        lane.update(progress);
        let amounts = lane.amounts();
        let is_planned = lane.is_planned;
        let number = lane.parts_ended + 1;
        let part = (number, number + lane.left.len());
        let (done, total) = if is_planned {
            let planned = || self.lanes.iter().filter(|lane| lane.is_planned);
            let done = planned().map(|lane| lane.amounts().done).sum();
            (done, planned().try_fold(0, |sum, lane| Some(sum + lane.total()?)))
        } else {
            (amounts.done, lane.total())
        };
        let rate = self.rate((!is_planned).then_some(progress.activity), done, now);
        let left = total.map(|total| total.saturating_sub(done));
        // A tree of empty files has no bytes to be measured by.
        let seconds_left = left.filter(|left| rate > 0 || *left == 0 && done > 0);
        Shown {
            activity: progress.activity,
            part,
            unit: progress.unit,
            done,
            total,
            new_bytes: amounts.new_bytes,
            stored_bytes: amounts.stored_bytes,
            entries: amounts.entries,
            rate,
            seconds_left: seconds_left.map(|left| left.div_ceil(rate.max(1))),
        }
    }

    /// What is done per second, from the samples of the last seconds.
    fn rate(&mut self, of: Option<Activity>, done: u64, now: Instant) -> u64 {
        let goes_back = self.samples.back().is_some_and(|(_, before)| *before > done);
        if self.samples_of != of || goes_back {
            self.samples.clear();
            self.samples_of = of;
        }
        let is_due =
            self.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= SAMPLE_EVERY);
        if is_due {
            self.samples.push_back((now, done));
        }
        // One that is older than the window stays, to compare with.
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
        let Some((at, before)) = self.samples.front() else { return 0 };
        let milliseconds = now.duration_since(*at).as_millis();
        if milliseconds == 0 {
            return 0;
        }
        u64::try_from(u128::from(done - before) * 1000 / milliseconds).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "moments to count from; nothing is measured")]
mod tests {
    use super::*;

    fn backup(done: u64, total: u64) -> Progress {
        let mut progress = Progress::bytes(Activity::Backup, done, Some(total));
        progress.new_bytes = done / 10;
        progress.entries = done / 50;
        progress
    }

    #[test]
    fn volumes_add_up_to_the_run() {
        let (mut run, start) = (Run::new(), Instant::now());
        run.expect(Activity::Backup, &[Some(1000), Some(50), Some(3000)]);
        let shown = run.update(backup(0, 1000), start);
        assert_eq!((shown.done, shown.total, shown.part), (0, Some(4050), (1, 3)));
        assert_eq!((shown.rate, shown.seconds_left), (0, None), "nothing is known yet");
        let shown = run.update(backup(1000, 1000), start + Duration::from_secs(1));
        assert_eq!((shown.rate, shown.seconds_left), (1000, Some(4)));
        // The second volume is smaller, and its last segment counts in full.
        run.update(backup(0, 50), start + Duration::from_secs(2));
        let shown = run.update(backup(64, 50), start + Duration::from_secs(2));
        assert_eq!((shown.done, shown.total, shown.part), (1050, Some(4050), (2, 3)));
        assert_eq!((shown.new_bytes, shown.entries), (106, 21), "of all volumes");
        run.update(backup(0, 2950), start + Duration::from_secs(2));
        let shown = run.update(backup(2950, 2950), start + Duration::from_secs(4));
        assert_eq!((shown.done, shown.total), (4000, Some(4000)), "the real size counts");
        assert_eq!(shown.seconds_left, Some(0));
    }

    #[test]
    fn a_larger_volume_after_a_smaller_one_is_another() {
        let (mut run, start) = (Run::new(), Instant::now());
        run.expect(Activity::Restore, &[Some(10), Some(100)]);
        let restore = |done, total| Progress::bytes(Activity::Restore, done, Some(total));
        run.update(restore(0, 10), start);
        run.update(restore(10, 10), start);
        run.update(restore(0, 100), start);
        assert_eq!(run.update(restore(20, 100), start).done, 30);
    }

    #[test]
    fn a_tree_of_empty_files_is_one_part() {
        let (mut run, now) = (Run::new(), Instant::now());
        let tree = |entries| Progress { entries, ..Progress::bytes(Activity::Restore, 0, Some(0)) };
        for entries in [1, 32, 64] {
            let shown = run.update(tree(entries), now);
            assert_eq!((shown.part, shown.entries), ((1, 1), entries));
            assert_eq!(shown.seconds_left, None);
        }
        run.expect(Activity::Restore, &[Some(0)]);
        let shown = run.update(tree(10), now);
        assert_eq!((shown.part, shown.entries), ((2, 2), 74), "the next tree");
    }

    #[test]
    fn scans_and_backups_of_a_round_are_one_run() {
        let (mut run, now) = (Run::new(), Instant::now());
        for activity in [Activity::Scan, Activity::Backup] {
            run.expect(activity, &[Some(100), Some(100)]);
        }
        let scan = |done| Progress::bytes(Activity::Scan, done, Some(100));
        assert_eq!(run.update(scan(100), now).total, Some(400));
        // The second volume cannot be read.
        run.end_parts(Activity::Scan, 0);
        let share = Progress::bytes(Activity::Share, 7, Some(70));
        assert_eq!(run.update(share, now).total, Some(70), "it was not announced");
        let shown = run.update(backup(50, 100), now);
        assert_eq!((shown.done, shown.total), (150, Some(300)));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (mut run, start) = (Run::new(), Instant::now());
        run.expect(Activity::Backup, &[Some(1_000_000)]);
        let mut shown = run.update(backup(0, 1_000_000), start);
        for second in 1..=20_u64 {
            let done = second.min(10) * 1000 + second.saturating_sub(10) * 10;
            shown = run.update(backup(done, 1_000_000), start + Duration::from_secs(second));
        }
        assert_eq!(shown.rate, 10);
        assert!(run.samples.len() < 30);
    }

    #[test]
    fn an_unknown_size_leaves_the_total_open() {
        let (mut run, now) = (Run::new(), Instant::now());
        run.expect(Activity::Backup, &[Some(100), None]);
        let shown = run.update(backup(10, 100), now);
        assert_eq!((shown.done, shown.total, shown.seconds_left), (10, None, None));
    }
}
