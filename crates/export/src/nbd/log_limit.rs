//! Limits the messages that clients can cause in a server's log.

use std::sync::Mutex;

use crate::catalog::lock;

/// Most messages in a period.
const MESSAGES_MAX: usize = 20;
/// How long a period is.
const PERIOD_NS: i64 = 60_000_000_000;

/// Counts the messages that clients' requests cause.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Period>);

#[derive(Debug, Default)]
struct Period {
    began_ns: Option<i64>,
    logged: Vec<String>,
    left_out: u64,
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
    /// Decides on a message at a time. A message is logged once in a period.
    pub fn judge(&self, now_ns: i64, message: &str) -> Verdict {
        let mut period = lock(&self.0);
        let is_over = period.began_ns.is_none_or(|began_ns| {
            // A clock that was set back begins a period, too.
            !(0..PERIOD_NS).contains(&now_ns.saturating_sub(began_ns))
        });
        if is_over {
            let before = std::mem::take(&mut *period);
            *period = Period { began_ns: Some(now_ns), ..Period::default() };
            period.logged.push(message.to_owned());
            let is_complete = before.left_out == 0;
            return if is_complete { Verdict::Log } else { Verdict::LogAfter(before.left_out) };
        }
        let is_known = period.logged.iter().any(|logged| logged == message);
        if is_known || period.logged.len() >= MESSAGES_MAX {
            period.left_out += 1;
            return Verdict::LeaveOut;
        }
        period.logged.push(message.to_owned());
        Verdict::Log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_so_many_messages() {
        let limit = LogLimit::default();
        let logged = |now_ns, times: u64| {
            let verdicts = (0..times).map(|time| limit.judge(now_ns, &time.to_string()));
            verdicts.filter(|verdict| *verdict == Verdict::Log).count()
        };
        assert_eq!(logged(5, 1000), 20);
        assert_eq!(logged(PERIOD_NS, 1000), 0);
        assert_eq!(limit.judge(PERIOD_NS + 5, "later"), Verdict::LogAfter(1980));
        assert_eq!(logged(PERIOD_NS + 6, 1000), 19);
        assert_eq!(limit.judge(0, "earlier"), Verdict::LogAfter(981), "a clock that was set back");
        assert_eq!(limit.judge(PERIOD_NS, "later"), Verdict::Log);
    }

    #[test]
    fn a_message_is_logged_once_in_a_period() {
        let limit = LogLimit::default();
        assert_eq!(limit.judge(1, "no such export"), Verdict::Log);
        for _ in 0..50 {
            assert_eq!(limit.judge(2, "no such export"), Verdict::LeaveOut);
        }
        assert_eq!(limit.judge(3, "damage"), Verdict::Log, "repetitions leave room for others");
        assert_eq!(limit.judge(PERIOD_NS + 1, "no such export"), Verdict::LogAfter(50));
    }
}
