//! What a service tells systemd: that it is ready, that it is alive, that it ends (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of the service manager. Where there is none, nothing is told.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often the service must say that it is alive.
    watchdog_ns: Option<i64>,
    fed_ns: Option<i64>,
    told: String,
}

impl Notifier {
    /// The manager that `NOTIFY_SOCKET` names, and the watchdog of `WATCHDOG_USEC` if
    /// `WATCHDOG_PID` is this process or unset.
    pub fn new(socket: Option<&str>, watchdog_us: Option<u64>, watchdog_pid: Option<u32>) -> Self {
        let address = |path: &str| match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(path),
        };
        let address = socket.and_then(|path| address(path).ok());
        let socket = address.and_then(|it| Some((UnixDatagram::unbound().ok()?, it)));
        let is_meant = watchdog_pid.is_none_or(|pid| pid == std::process::id());
        let half = watchdog_us.filter(|us| *us > 0 && is_meant).map(|us| us.saturating_mul(500));
        let watchdog_ns = half.and_then(|ns| i64::try_from(ns).ok());
        Self { socket, watchdog_ns, fed_ns: None, told: String::new() }
    }

    /// The service is ready.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// The service ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// What the service does, in one line; told if it is new.
    pub fn status(&mut self, text: String) {
        if text != self.told {
            self.send(&format!("STATUS={}", text.replace('\n', " ")));
            self.told = text;
        }
    }

    /// The service is alive; told twice in the time of the watchdog.
    pub fn alive(&mut self, now_ns: i64) {
        let Some(watchdog_ns) = self.watchdog_ns else { return };
        // A clock that was set back is no reason to be silent.
        let is_due = |fed_ns: i64| !(fed_ns..fed_ns.saturating_add(watchdog_ns)).contains(&now_ns);
        if self.fed_ns.is_none_or(is_due) {
            self.send("WATCHDOG=1");
            self.fed_ns = Some(now_ns);
        }
    }

    /// A manager that does not listen is no reason to stop.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 200];
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    #[test]
    fn systemd_is_told_by_a_path_or_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify").to_str().unwrap().to_owned();
        let name = format!("@silt-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let sockets = [
            (path.clone(), UnixDatagram::bind(&path).unwrap()),
            (name, UnixDatagram::bind_addr(&abstract_name).unwrap()),
        ];
        for (address, socket) in sockets {
            socket.set_nonblocking(true).unwrap();
            let mut notifier = Notifier::new(Some(&address), Some(20_000_000), None);
            notifier.ready();
            assert_eq!(received(&socket).unwrap(), "READY=1");
            notifier.status("one\ntwo".to_owned());
            assert_eq!(received(&socket).unwrap(), "STATUS=one two");
            notifier.status("one\ntwo".to_owned());
            assert_eq!(received(&socket), None);
            let second = 1_000_000_000;
            for (at_s, expected) in [(0, true), (9, false), (10, true), (19, false), (3, true)] {
                notifier.alive(at_s * second);
                assert_eq!(received(&socket).is_some(), expected, "{at_s}");
            }
            notifier.stopping();
            assert_eq!(received(&socket).unwrap(), "STOPPING=1");
        }
    }

    #[test]
    fn without_a_manager_nothing_is_told() {
        let other = Some(std::process::id() + 1);
        assert!(Notifier::new(None, Some(1), other).watchdog_ns.is_none());
        let mut notifier = Notifier::new(Some("/nonexistent/socket"), Some(1), None);
        notifier.alive(1);
        notifier.ready();
    }
}
