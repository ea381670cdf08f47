//! The bus as it is run in earnest: certificates for each host, and three servers.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::agents::{Bus, Host, Killed, eventually, snapshots};
use crate::kit::{Place, can, certificate, disk};

/// A server that takes certificates in place of passwords, with the rights that the document shows.
fn by_certificates(place: &Place) -> Bus {
    let bus = Bus::new(place);
    let pki = place.path("pki");
    let mut settings = String::from_utf8(place.read("bus.conf")).unwrap();
    for name in ["one", "two", "admin"] {
        certificate(&pki, name, name, &[]);
        let user = format!("user: \"{name}\", password: \"of-the-bus\"");
        assert!(settings.contains(&user), "{settings}");
        settings = settings.replace(&user, &format!("user: \"CN={name}\""));
    }
    certificate(&pki, "stranger", "stranger", &[]);
    let verify =
        format!("tls {{\n  ca_file: \"{}/ca-cert.pem\", verify_and_map: true", pki.display());
    place.write("bus.conf", settings.replace("tls {", &verify).as_bytes());
    bus
}

#[test]
fn each_agent_has_the_rights_of_its_certificate() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    place.write("small.raw", &disk(1, 1));
    let bus = by_certificates(&place);
    let _server = bus.start();
    // Who says to be `name`, and shows this certificate.
    let host = |file: &'static str, name: &str, identity: Option<&str>, agent: &str| {
        let host = Host { place: &place, name: file };
        let shown = identity.map(|it| {
            format!("certificate = 'pki/{it}-cert.pem'\nkey = 'pki/{it}-key.pem'\n") //
        });
        host.set(&format!(
            "[agent]\nname = '{name}'\n{agent}[agent.bus]\nservers = ['nats://localhost:{}']\n\
             tls-first = true\ncertificates = 'pki/ca-cert.pem'\n{}[profiles.default]\n\
             [profiles.default.series.{file}]\nvolumes = {{ x = 'small.raw' }}\n",
            bus.port,
            shown.unwrap_or_default()
        ));
        host
    };
    let by_command = "backup = 'never'\nalone-after = '1h'\n";
    let one = host("one", "one", Some("one"), by_command);
    let two = host("two", "two", Some("two"), "backup = 'SECONDS'\nalone-after = '1h'\n");
    let admin = host("admin", "admin", Some("admin"), "");
    let (_one, _two) = (one.start(), two.start());
    eventually("both agents", || {
        let told = admin.silt(&["cluster", "agents", "--json"]);
        told.code == 0 && told.out.matches("\"cluster_agent\"").count() == 2
    });
    // Jobs come by the director, commands by whoever may give them.
    eventually("a backup that was due", || snapshots(&place, "two") > 0);
    admin.silt(&["cluster", "backup", "one", "--follow"]).exits(0);
    assert_eq!(snapshots(&place, "one"), 1);
    let denied = two.silt(&["cluster", "backup", "one"]);
    assert!(denied.code != 0, "{}", denied.out);
    // A certificate of another host speaks for nobody else.
    let thief = host("thief", "one", Some("two"), by_command);
    let refused = thief.silt(&["cluster", "agents"]);
    assert!(refused.code != 0, "{}", refused.printed());
    for (file, identity) in [("nobody", None), ("stranger", Some("stranger"))] {
        let refused = host(file, "one", identity, by_command).silt(&["cluster", "agents"]);
        let refused = refused.exits(13);
        let expected = match identity {
            None => "it asks for a certificate",
            Some(_) => "it does not know this member, or not its password or certificate",
        };
        refused.says(expected);
    }
    assert_eq!(snapshots(&place, "one"), 1);
    place.silt(&["check", "--read-data"]).exits(0);
}

/// Three servers that keep everything three times.
struct Three {
    ports: [u16; 6],
    place: std::path::PathBuf,
    servers: BTreeMap<usize, Killed>,
}

impl Three {
    fn start(place: &Place) -> Self {
        let sockets = [(); 6].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = sockets.each_ref().map(|socket| socket.local_addr().unwrap().port());
        drop(sockets);
        let mut three = Self { ports, place: place.path("bus"), servers: BTreeMap::new() };
        (0..3).for_each(|number| three.begin(number));
        three
    }

    fn begin(&mut self, number: usize) {
        let routes = self.ports[3..].iter().map(|port| format!("nats://127.0.0.1:{port}"));
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "--cluster_name", "silt"]);
        command.args(["-n", &format!("s{number}"), "-p", &self.ports[number].to_string()]);
        command.args(["--cluster", &format!("nats://127.0.0.1:{}", self.ports[3 + number])]);
        command.args(["--routes", &routes.collect::<Vec<_>>().join(",")]);
        command.arg("-sd").arg(self.place.join(number.to_string()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.servers.insert(number, Killed(child));
    }

    fn kill(&mut self, number: usize) {
        self.servers.remove(&number);
    }

    fn lose_all(&mut self) {
        self.servers.clear();
        std::fs::remove_dir_all(&self.place).unwrap();
        (0..3).for_each(|number| self.begin(number));
    }

    fn settings(&self, name: &str, more: &str) -> String {
        let servers = self.ports[..3].iter().map(|port| format!("'nats://127.0.0.1:{port}'"));
        let servers = servers.collect::<Vec<_>>().join(", ");
        format!(
            "[agent]\nname = '{name}'\nbackup = 'SECONDS'\nalone-after = '2s'\n\
             [agent.bus]\nservers = [{servers}]\nreplicas = 3\n{more}[profiles.default]\n\
             [profiles.default.series.{name}]\nvolumes = {{ x = 'small.raw' }}\n\
             [profiles.default.series.both]\nvolumes = {{ x = 'small.raw' }}\n"
        )
    }
}

/// Of each series, how many snapshots there are of each five seconds, in which one is due.
fn of_due_times(place: &Place) -> BTreeMap<(String, i64), usize> {
    let mut all = BTreeMap::new();
    for made in place.silt(&["snapshots", "--json"]).exits(0).messages() {
        let time: jiff::Timestamp = made["time"].as_str().unwrap().parse().unwrap();
        let series = made["series"].as_str().unwrap().to_owned();
        *all.entry((series, time.as_second() / 5)).or_default() += 1;
    }
    all
}

#[test]
fn agents_outlive_the_loss_of_servers_of_a_cluster() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    place.write("small.raw", &disk(1, 1));
    let mut three = Three::start(&place);
    let [one, two] = ["one", "two"].map(|name| Host { place: &place, name });
    one.set(&three.settings("one", ""));
    two.set(&three.settings("two", ""));
    let _agents = (one.start(), two.start());
    let are_there = || {
        let told = one.silt(&["cluster", "agents", "--json"]);
        told.code == 0 && told.out.matches("\"cluster_agent\"").count() == 2
    };
    let go_on = |when: &str| {
        let before = ["one", "two", "both"].map(|series| snapshots(&place, series));
        eventually(&format!("backups {when}"), || {
            let now = ["one", "two", "both"].map(|series| snapshots(&place, series));
            before.iter().zip(now).all(|(before, now)| now > before + 1)
        });
    };
    eventually("both agents", are_there);
    go_on("with three servers");
    three.kill(0);
    eventually("both agents on two servers", are_there);
    go_on("with two servers");
    // Two of three are lost: nothing can be agreed on.
    three.kill(1);
    go_on("without a quorum");
    (0..2).for_each(|number| three.begin(number));
    eventually("both agents again", are_there);
    go_on("with three servers again");
    three.lose_all();
    go_on("while all is lost");
    eventually("both agents on an empty bus", are_there);
    go_on("with an empty bus");
    drop(three);
    for ((series, due), count) in of_due_times(&place) {
        assert_eq!(count, 1, "{series}, due at {}: {} {}", due * 5, one.log(), two.log());
    }
    place.silt(&["check", "--read-data"]).exits(0);
}
