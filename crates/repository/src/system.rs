//! The real environment: the system's clock, random numbers and processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_format::Lease;

use crate::env::{Context, Env, Process};
use crate::event::Silent;

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
            boot: format!("{}/{}/{}", machine_id(), boot_id(), process_namespace()),
            id,
            start: process_start(id).unwrap_or(0),
        };
        Self { process, interrupted }
    }

    /// Returns the environment of this process, with no observer and a cancel token that nobody
    /// cancels.
    pub fn context() -> Context {
        let env = Arc::new(Self::new(Arc::new(AtomicBool::new(false))));
        Context::new(env, Arc::new(Silent))
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
            panic!("the system provides no random numbers: {error}");
        }
    }

    fn process(&self) -> Process {
        self.process.clone()
    }

    fn may_be_running(&self, lease: &Lease) -> bool {
        // Machines that were cloned, and containers, may have one name; process numbers count only
        // where they were given.
        if (&lease.host, &lease.boot) != (&self.process.host, &self.process.boot) {
            return true;
        }
        process_start(lease.process).is_some_and(|start| start == lease.process_start)
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

/// What tells this installation from others, if it has been given that (machine-id(5)).
fn machine_id() -> String {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    text.trim().to_owned()
}

/// What tells the processes of this container from others (pid_namespaces(7)).
fn process_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_to_be_gone_only_where_its_number_was_given() {
        let env = SystemEnv::new(Arc::default());
        let Process { host, boot, id, start } = env.process();
        let (session, expires_ns) = ([0; 16], 0);
        let mut lease =
            Lease { session, host, boot, process: id, process_start: start, expires_ns };
        assert!(env.may_be_running(&lease), "this one runs");
        lease.process_start += 1;
        assert!(!env.may_be_running(&lease), "another had the number");
        lease.boot.push('x');
        assert!(env.may_be_running(&lease), "a container, or a clone, with the same name");
        lease.host.push('x');
        assert!(env.may_be_running(&lease));
    }
}
