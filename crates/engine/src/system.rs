//! The real environment: the system's clock, random numbers and processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_format::Lease;

use crate::env::{Env, Process};

/// The real environment.
pub struct SystemEnv {
    process: Process,
    interrupted: Arc<AtomicBool>,
}

impl SystemEnv {
    /// The environment of this process; setting `interrupted` stops its operations.
    pub fn new(interrupted: Arc<AtomicBool>) -> Self {
        let id = std::process::id();
        let process = Process {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot_id(),
            id,
            start: process_start(id).unwrap_or(0),
        };
        Self { process, interrupted }
    }
}

impl Env for SystemEnv {
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    fn now_ns(&self) -> i64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    fn entropy(&self, bytes: &mut [u8]) {
        if let Err(error) = getrandom::fill(bytes) {
            panic!("the system gives no random numbers: {error}");
        }
    }

    fn process(&self) -> Process {
        self.process.clone()
    }

    fn may_be_running(&self, lease: &Lease) -> bool {
        if lease.host != self.process.host {
            return true;
        }
        // After a restart of the host, none of its old processes runs.
        lease.boot == self.process.boot
            && process_start(lease.process).is_some_and(|start| start == lease.process_start)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    #[expect(clippy::disallowed_methods, reason = "this is where waiting happens")]
    fn sleep_ns(&self, nanoseconds: u64) {
        // In short pieces, so that an interrupt is noticed soon.
        let mut left = std::time::Duration::from_nanos(nanoseconds);
        while !left.is_zero() && !self.is_interrupted() {
            let piece = left.min(std::time::Duration::from_millis(200));
            std::thread::sleep(piece);
            left -= piece;
        }
    }
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// When a process started, in clock ticks since the host's start (proc(5), field 22 of stat).
fn process_start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}
