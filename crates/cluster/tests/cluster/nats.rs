//! The bus over a real NATS server.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::{Bus, NatsBus, NatsOptions};
use silt_format::ErrorKind;
use silt_repository::env::Env;
use silt_repository::system::SystemEnv;
use tempfile::TempDir;

use crate::conformance::{SECOND, SHORT, Site, conforms, job, name};

/// Whether there is such a program; where it is required there must be.
pub fn is_there() -> bool {
    if Command::new("nats-server").arg("--version").output().is_ok() {
        return true;
    }
    #[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    assert!(!required.split(' ').any(|name| name == "nats"), "it is required");
    eprintln!("SKIPPED: nats-server is missing");
    false
}

/// A server of its own, which ends when this is dropped.
pub struct Server {
    child: Mutex<Child>,
    port: u16,
    place: TempDir,
}

fn start(port: u16, place: &std::path::Path) -> Child {
    let mut command = Command::new("nats-server");
    command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(place);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Server {
    /// `None`, if there is no such program.
    pub fn start() -> Option<Self> {
        if !is_there() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Mutex::new(start(port, place.path()));
        Some(Self { child, port, place })
    }

    fn stop(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn start_again(&self) {
        *self.child.lock().unwrap() = start(self.port, self.place.path());
    }

    fn options(&self, member: &str) -> NatsOptions {
        NatsOptions {
            sign_of_life: 6 * SECOND,
            // Where the machine is busy, some steps take seconds.
            repeats: 8 * SECOND,
            ..NatsOptions::new(format!("nats://127.0.0.1:{}", self.port), name(member))
        }
    }

    pub fn connect(&self, member: &str) -> NatsBus {
        eventually(|| NatsBus::connect(self.options(member), env()).ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn env() -> Arc<dyn Env> {
    Arc::new(SystemEnv::new(Arc::default()))
}

/// Tries until something comes.
pub fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..300 {
        if let Some(found) = attempt() {
            return found;
        }
        wait(Duration::from_millis(50));
    }
    panic!("it never came");
}

pub fn wait(time: Duration) {
    env().sleep_ns(u64::try_from(time.as_nanos()).unwrap());
}

impl Site for Server {
    fn member(&self) -> Arc<dyn Bus> {
        Arc::new(self.connect("host-a"))
    }
    fn pass(&self, time: Duration) {
        wait(time);
    }
    fn sign_of_life(&self) -> Duration {
        self.options("host-a").sign_of_life
    }
    fn repeats(&self) -> Duration {
        self.options("host-a").repeats
    }
}

#[test]
fn the_bus_over_nats_conforms() {
    if let Some(server) = Server::start() {
        conforms(&server);
    }
}

#[test]
fn jobs_and_leases_outlive_a_server_that_is_killed() {
    let Some(server) = Server::start() else { return };
    let bus = server.connect("host-a");
    bus.offer(&job("web1", "kept")).unwrap();
    let held = bus.acquire(&name("director"), 60 * SECOND).unwrap().unwrap();
    server.stop();
    let error = bus.offer(&job("web2", "nobody")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.start_again();
    let taken = eventually(|| bus.take(&name("backup"), SHORT).ok().flatten());
    assert_eq!(taken.job, job("web1", "kept"));
    assert!(bus.acquire(&name("director"), SECOND).unwrap().is_none());
    bus.release(held).unwrap();
    assert!(bus.acquire(&name("director"), SECOND).unwrap().is_some());
}

#[test]
fn a_server_that_has_lost_its_files_is_set_up_again() {
    let Some(server) = Server::start() else { return };
    let bus = server.connect("host-a");
    bus.offer(&job("web1", "lost")).unwrap();
    assert!(bus.take(&name("backup"), SECOND).unwrap().is_some());
    server.stop();
    std::fs::remove_dir_all(server.place.path().join("jetstream")).unwrap();
    server.start_again();
    let is_added = || bus.offer(&job("web1", "asked-again")).ok();
    assert_eq!(eventually(is_added), silt_cluster::Offer::Added);
    let taken = eventually(|| bus.take(&name("backup"), SECOND).ok().flatten());
    assert_eq!((taken.job, taken.attempt), (job("web1", "asked-again"), 1));
    assert!(eventually(|| bus.acquire(&name("director"), SECOND).ok()).is_some());
    bus.announce(&name("host-a"), b"back", 60 * SECOND).unwrap();
    assert_eq!(bus.members().unwrap().len(), 1);
}

#[test]
fn who_is_not_there_is_unavailable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = NatsOptions::new(format!("nats://127.0.0.1:{port}"), name("host-a"));
    let Err(error) = NatsBus::connect(options, env()) else { panic!("nobody is there") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn what_strangers_put_on_the_bus_stops_nobody() {
    let Some(server) = Server::start() else { return };
    let bus = server.connect("host-a");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(format!("127.0.0.1:{}", server.port)).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        for subject in ["silt.job.backup.no-id", "silt.member.too.deep", "silt.member.a=b"] {
            jetstream.publish(subject, "nonsense".into()).await.unwrap().await.unwrap();
        }
    });
    bus.offer(&job("web1", "real")).unwrap();
    bus.announce(&name("host-a"), b"here", 60 * SECOND).unwrap();
    let taken = eventually(|| bus.take(&name("backup"), SHORT).unwrap());
    assert_eq!(taken.job, job("web1", "real"));
    let members = bus.members().unwrap();
    assert_eq!(members.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["host-a"]);
}
