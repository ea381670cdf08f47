//! The bus over three NATS servers, which keep each job and lease three times.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::{Bus, JobState, NatsBus, NatsOptions, Offer, SIGN_OF_LIFE};
use silt_format::ErrorKind;
use tempfile::TempDir;

use crate::conformance::{SECOND, SHORT, Site, conforms, job, name};
use crate::nats::{env, eventually, is_there, wait};

const SERVERS: usize = 3;
/// Connections that each server has to the others when all are there: three for each other server,
/// and one for its system account.
const ROUTES: usize = 4 * (SERVERS - 1);

/// Three servers, which end when this is dropped.
struct Three {
    children: Mutex<[Option<Child>; SERVERS]>,
    /// For clients, for each other, and for what they tell about themselves.
    ports: [[u16; SERVERS]; 3],
    place: TempDir,
    sign_of_life: Duration,
}

impl Three {
    /// `None`, if there is no such program.
    fn start(sign_of_life: Duration) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let socket = |()| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = [[(); SERVERS]; 3].map(|sockets| sockets.map(socket));
        let port = |socket: std::net::TcpListener| socket.local_addr().unwrap().port();
        let ports = sockets.map(|sockets| sockets.map(port));
        let (children, place) = (Mutex::default(), tempfile::tempdir().unwrap());
        let three = Self { children, ports, place, sign_of_life };
        (0..SERVERS).for_each(|number| three.begin(number));
        // Servers that have just met replace connections between them, and lose what is under way.
        (0..SERVERS).for_each(|number| {
            eventually(|| (three.routes(number)? == ROUTES).then_some(()));
        });
        Some(three)
    }

    /// The connections that a server has to others.
    fn routes(&self, number: usize) -> Option<usize> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[2][number])).ok()?;
        stream.write_all(b"GET /routez HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, count) = answer.split_once("\"num_routes\":")?;
        count.split_once(',')?.0.trim().parse().ok()
    }

    fn begin(&self, number: usize) {
        let [ports, routes, monitoring] = &self.ports;
        let address = |port: &u16| format!("nats://127.0.0.1:{port}");
        let all: Vec<String> = routes.iter().map(address).collect();
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &ports[number].to_string()]);
        command.args(["-m", &monitoring[number].to_string()]);
        command.args(["--cluster_name", "silt", "-n", &format!("s{number}")]);
        command.args(["--cluster", &address(&routes[number]), "--routes", &all.join(",")]);
        command.arg("-sd").arg(self.place.path().join(number.to_string()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.lock().unwrap()[number] = Some(child);
    }

    fn kill(&self, number: usize) {
        if let Some(mut child) = self.children.lock().unwrap()[number].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn options(&self, member: &str) -> NatsOptions {
        let servers = self.ports[0].iter().map(|port| format!("nats://127.0.0.1:{port}"));
        NatsOptions {
            servers: servers.collect(),
            replicas: SERVERS,
            sign_of_life: self.sign_of_life,
            // Where the machine is busy, some steps take seconds.
            repeats: 8 * SECOND,
            ..NatsOptions::new(String::new(), name(member))
        }
    }

    fn connect(&self, member: &str) -> NatsBus {
        eventually(|| NatsBus::connect(self.options(member), env()).ok())
    }

    /// The server that decides about a stream.
    fn leader(&self, stream: &str) -> usize {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let servers = self.options("nobody").servers;
        let leader = eventually(|| {
            runtime.block_on(async {
                let client = async_nats::connect(&servers[..]).await.ok()?;
                let jetstream = async_nats::jetstream::new(client);
                let stream = jetstream.get_stream(stream).await.ok()?;
                let info = stream.cached_info();
                assert_eq!(info.config.num_replicas, SERVERS);
                info.cluster.clone()?.leader
            })
        });
        leader.trim_start_matches('s').parse().unwrap()
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        (0..SERVERS).for_each(|number| self.kill(number));
    }
}

impl Site for Three {
    fn member(&self) -> Arc<dyn Bus> {
        Arc::new(self.connect("host-a"))
    }
    fn pass(&self, time: Duration) {
        wait(time);
    }
    fn sign_of_life(&self) -> Duration {
        self.sign_of_life
    }
    fn repeats(&self) -> Duration {
        self.options("host-a").repeats
    }
}

#[test]
fn the_bus_over_three_servers_conforms() {
    if let Some(servers) = Three::start(6 * SECOND) {
        conforms(&servers);
    }
}

#[test]
fn jobs_and_leases_outlive_the_server_that_decides_about_them() {
    let Some(servers) = Three::start(SIGN_OF_LIFE) else { return };
    let (bus, other) = (servers.connect("host-a"), servers.connect("host-b"));
    bus.offer(&job("web1", "waiting")).unwrap();
    bus.offer(&job("web2", "running")).unwrap();
    let waiting = bus.take(&name("backup"), SECOND).unwrap().unwrap();
    bus.settle(&waiting, JobState::Again(Duration::from_mins(5))).unwrap();
    let running = bus.take(&name("backup"), SECOND).unwrap().unwrap();
    assert_eq!(running.job, job("web2", "running"));
    let mut held = bus.acquire(&name("director"), 60 * SECOND).unwrap().unwrap();
    for stream in ["SILT_JOBS", "SILT_LEASES"] {
        let leader = servers.leader(stream);
        servers.kill(leader);
        assert!(eventually(|| bus.renew(&mut held, 60 * SECOND).ok()), "{stream}");
        assert!(eventually(|| other.acquire(&name("director"), SECOND).ok()).is_none());
        eventually(|| bus.settle(&running, JobState::Running).ok());
        for (key, id) in [("web1", "again-1"), ("web2", "again-2")] {
            let offered = eventually(|| other.offer(&job(key, id)).ok());
            assert_eq!(offered, Offer::Present, "{key} after the leader of {stream} was killed");
        }
        assert!(eventually(|| other.take(&name("backup"), SHORT).ok()).is_none());
        servers.begin(leader);
        // Three again, as two of three may not be lost at once.
        eventually(|| (servers.leader(stream) != leader).then_some(()));
    }
    eventually(|| bus.settle(&running, JobState::Done).ok());
    let is_free = || other.offer(&job("web2", "next")).ok().filter(|it| *it == Offer::Added);
    eventually(is_free);
    let taken = eventually(|| other.take(&name("backup"), SECOND).ok().flatten());
    assert_eq!((taken.job, taken.attempt), (job("web2", "next"), 1));
    bus.release(held).unwrap();
    assert!(other.acquire(&name("director"), SECOND).unwrap().is_some());
}

#[test]
fn one_server_of_three_answers_nothing_until_another_one_is_back() {
    let Some(servers) = Three::start(SIGN_OF_LIFE) else { return };
    let bus = servers.connect("host-a");
    bus.offer(&job("web1", "kept")).unwrap();
    let mut held = bus.acquire(&name("director"), 60 * SECOND).unwrap().unwrap();
    (1..SERVERS).for_each(|number| servers.kill(number));
    let is_lost = || bus.offer(&job("web2", "nobody")).err();
    assert_eq!(eventually(is_lost).kind(), ErrorKind::Unavailable);
    for error in [
        bus.renew(&mut held, SECOND).map(drop).unwrap_err(),
        bus.announce(&name("host-a"), b"", SECOND).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    // What can only be read may be told, but no job is handed out.
    assert!(!matches!(bus.take(&name("backup"), SHORT), Ok(Some(_))));
    servers.begin(1);
    let taken = eventually(|| bus.take(&name("backup"), SHORT).ok().flatten());
    assert_eq!(taken.job, job("web1", "kept"));
    // The renewal that got no answer may have been made later, for a second.
    if !eventually(|| bus.renew(&mut held, 60 * SECOND).ok()) {
        drop(eventually(|| bus.acquire(&name("director"), 60 * SECOND).ok().flatten()));
    }
    // All files of all three are deleted.
    (0..SERVERS).for_each(|number| servers.kill(number));
    for number in 0..SERVERS {
        std::fs::remove_dir_all(servers.place.path().join(number.to_string())).unwrap();
        servers.begin(number);
    }
    let is_added = || bus.offer(&job("web1", "asked-again")).ok();
    assert_eq!(eventually(is_added), Offer::Added);
    let taken = eventually(|| bus.take(&name("backup"), SECOND).ok().flatten());
    assert_eq!((taken.job, taken.attempt), (job("web1", "asked-again"), 1));
    assert!(eventually(|| bus.acquire(&name("director"), SECOND).ok()).is_some());
    bus.announce(&name("host-a"), b"back", 60 * SECOND).unwrap();
    assert_eq!(bus.members().unwrap().len(), 1);
    assert_eq!(servers.connect("host-b").members().unwrap().len(), 1);
}
