//! Limits the messages that clients can cause in a server's log.

use std::sync::Mutex;

use crate::catalog::lock;

/// Most messages in a period.
const MESSAGES_MAX: u64 = 20;
/// How long a period is.
const PERIOD_NS: i64 = 60_000_000_000;

/// Counts the messages that clients' requests cause.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Period>);

#[derive(Debug, Default)]
struct Period {
    began_ns: Option<i64>,
    count: u64,
}

/// The decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is logged.
    Log,
    /// Log it, after a note of how many were omitted before it.
    LogAfter(u64),
    /// It is left out.
    LeaveOut,
}

impl LogLimit {
    /// Decides on a message at a time.
    pub fn judge(&self, now_ns: i64) -> Verdict {
        let mut period = lock(&self.0);
        let is_over = period.began_ns.is_none_or(|began_ns| {
            // A clock that was set back begins a period, too.
            !(0..PERIOD_NS).contains(&now_ns.saturating_sub(began_ns))
        });
        let left_out = period.count.saturating_sub(MESSAGES_MAX);
        if is_over {
            *period = Period { began_ns: Some(now_ns), count: 1 };
            return if left_out > 0 { Verdict::LogAfter(left_out) } else { Verdict::Log };
        }
        period.count += 1;
        if period.count > MESSAGES_MAX { Verdict::LeaveOut } else { Verdict::Log }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_so_many_messages() {
        let limit = LogLimit::default();
        let logged = |now_ns, times: u64| {
            let verdicts = (0..times).map(|_| limit.judge(now_ns));
            verdicts.filter(|verdict| *verdict == Verdict::Log).count()
        };
        assert_eq!(logged(5, 1000), 20);
        assert_eq!(logged(PERIOD_NS, 1000), 0);
        assert_eq!(limit.judge(PERIOD_NS + 5), Verdict::LogAfter(1980));
        assert_eq!(logged(PERIOD_NS + 6, 1000), 19);
        assert_eq!(limit.judge(0), Verdict::LogAfter(981), "a clock that was set back");
        assert_eq!(limit.judge(PERIOD_NS), Verdict::Log);
    }
}
