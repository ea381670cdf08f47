//! Agents with real backups, over a real bus, of which each may fail.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::kit::{Place, Run, can, certificates, disk, finish, tool};

const DOCUMENT: &str = include_str!("../../../../docs/OPERATIONS.md");
const MESSAGES_DOCUMENT: &str = include_str!("../../../../docs/JSON.md");

/// How long something may take until it counts as never.
const PATIENCE_S: u32 = 50;

/// Waits until something is true.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "another process works meanwhile")]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..PATIENCE_S * 5 {
        if is_true() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("it never came: {what}");
}

/// A process that is killed when the test ends.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host: its settings and its state, in a folder of the place.
pub struct Host<'p> {
    pub place: &'p Place,
    pub name: &'static str,
}

impl Host<'_> {
    fn file(&self, name: &str) -> String {
        self.place.text(&format!("{}.{name}", self.name))
    }
    /// Writes the settings, with `SECONDS` in place of a time that comes often.
    pub fn set(&self, text: &str) {
        let text = text.replace("SECONDS", "*:*:0/5");
        std::fs::write(self.file("toml"), text).unwrap();
    }
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command();
        command.env("SILT_CONFIG", self.file("toml")).env("XDG_STATE_HOME", self.file("state"));
        command.args(args);
        command
    }
    pub fn silt(&self, args: &[&str]) -> Run {
        Run::of(&mut self.command(args))
    }
    /// Starts the agent, in a group of its own with its backups.
    pub fn start(&self) -> Killed {
        self.start_with(&[])
    }
    /// The same with these variables.
    pub fn start_with(&self, variables: &[(&str, &str)]) -> Killed {
        let log = std::fs::File::options().create(true).append(true).open(self.file("log"));
        let log = log.unwrap();
        let mut command = self.command(&["agent", "run", "--json"]);
        command.envs(variables.iter().copied());
        command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        Killed(command.spawn().unwrap())
    }
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap_or_default()
    }
    /// Whether the agent has told this of a series.
    pub fn has_told(&self, message_type: &str, series: &str, end: Option<&str>) -> bool {
        let log = self.log();
        let told = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        told.filter(|it| it["message_type"] == message_type && it["series"] == series)
            .any(|it| it["end"].as_str() == end)
    }
}

/// The snapshots of a series.
pub fn snapshots(place: &Place, series: &str) -> usize {
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    listed.iter().filter(|snapshot| snapshot["series"] == series).count()
}

/// Waits until a server is there: an agent that comes too early tries again after 5, 10 and more
/// seconds.
pub fn listens(port: u16) {
    let is_there = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    eventually("a server that listens", is_there);
}

/// A server of the bus.
pub struct Bus {
    pub port: u16,
    folder: PathBuf,
}

impl Bus {
    /// A server with the settings that the document shows.
    pub fn new(place: &Place) -> Self {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bus = Self { port: socket.local_addr().unwrap().port(), folder: place.path("bus") };
        let pki = place.path("pki");
        certificates(&pki);
        let (before, rest) = DOCUMENT.split_once("# /etc/nats-server.conf\n").unwrap();
        assert!(before.ends_with("```text\n"));
        let shown = rest.split_once("\n```").unwrap().0;
        let agent = shown.find("    { user: \"host1\"").unwrap();
        let people = shown.find("    # People").unwrap();
        let (start, of_host, rest) = (&shown[..agent], &shown[agent..people], &shown[people..]);
        let [one, two] = ["one", "two"].map(|name| of_host.replace("host1", name));
        let pki = pki.to_str().unwrap();
        let settings = [start, &one, &two, rest].concat();
        let settings =
            settings.replace("port: 4222", &format!("listen: \"127.0.0.1:{}\"", bus.port));
        let settings = settings.replace("/var/lib/nats", bus.folder.to_str().unwrap());
        let settings = settings.replace("/etc/nats/server.pem", &format!("{pki}/server-cert.pem"));
        let settings = settings.replace("/etc/nats/server.key", &format!("{pki}/server-key.pem"));
        place.write("bus.conf", settings.replace("PASSWORD-HASH", "of-the-bus").as_bytes());
        place.write("bus-password", b"of-the-bus\n");
        bus
    }
    pub fn start(&self) -> Killed {
        let log = self.folder.with_file_name("bus.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(self.folder.with_file_name("bus.conf"));
        let server = Killed(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        listens(self.port);
        server
    }
}

#[test]
fn wrong_settings_are_named() {
    let place = Place::new();
    let host = Host { place: &place, name: "host" };
    let rows = [
        ("[agent]\nbackup = \"dayly\"\n", "line 2: backup:"),
        ("[agent]\nbackups = \"daily\"\n", "line 2: backups: unknown field"),
        ("[agent]\nname = \"a.b\"\n", "line 2: name:"),
        ("[agent]\n\nparallel = 0\n", "line 3: parallel: 0 is not in the range"),
        ("[agent]\nspread = \"soon\"\n", "line 2: spread: 'soon'"),
        ("[agent]\nallow = [\"restore\"]\n", "line 2: allow: unknown variant `restore`"),
        ("[agent]\ncheck-data = \"most\"\n", "line 2: check-data: 'most'"),
        ("[agent.bus]\nservers = []\n", "agent.bus.servers: it names no server"),
        ("[agent.bus]\nservers = [\"bus1\"]\n", "agent.bus.servers: 'bus1' is not a server"),
        ("[agent.bus]\nservers = [\"nats://a:b@c\"]\n", "agent.bus.servers: use user"),
        ("[agent.bus]\nservers = [\"nats://c\"]\nuser = \"a\"\n", "agent.bus.user"),
        ("[agent.bus]\nservers = [\"nats://c\"]\nkey = \"a\"\n", "agent.bus.certificate"),
        (
            "[profiles.default.series.a]\nvolumes = {x = 'y'}\nschedule = \"x\"\n",
            "line 3: schedule",
        ),
        ("[agent]\nprofile = \"b\"\n", "has no profile 'b'"),
        ("[agent]\nparallel = 2\n", "nothing to do"),
    ];
    for (text, expected) in rows {
        host.set(text);
        let run = host.silt(&["agent", "check-config"]).exits(2);
        assert!(run.err.contains(expected), "{text}: {}", run.err);
        assert_eq!(host.silt(&["agent", "run"]).exits(2).err, run.err);
    }
    place.silt(&["agent", "calendar", "dayly"]).exits(2).says("dayly");
}

#[test]
fn what_an_agent_will_do_is_shown() {
    let place = Place::new();
    let host = Host { place: &place, name: "host" };
    host.set(
        "[agent]\nname = 'web'\nprofile = 'a'\nbackup = 'daily'\nspread = '30min'\n\
         [agent.bus]\nservers = ['nats://bus1:4222']\nuser = 'web'\npassword-file = 'bus'\n\
         [profiles.a.series.b]\nvolumes = { x = 'y' }\n\
         [profiles.a.series.c]\nvolumes = { x = 'y' }\nschedule = 'never'\n",
    );
    let shown = host.silt(&["agent", "check-config"]).exits(0);
    for text in ["web", "put off by up to 1800 s", "nats://bus1:4222 as web", "backup of 'b'"] {
        shown.says(text);
    }
    let told = host.silt(&["agent", "check-config", "--json"]).exits(0).messages();
    assert_eq!(told[0]["message_type"], "agent_config");
    assert_eq!((&told[0]["profile"], &told[0]["spread_s"]), (&"a".into(), &1800.into()));
    let next = told[1]["next"].as_array().unwrap();
    assert!(next.len() == 3 && next[0].as_str().unwrap().ends_with("T00:00:00Z"), "{next:?}");
    assert_eq!((&told[2]["series"], &told[2]["schedule"]), (&"c".into(), &Value::Null));
    let times = place.silt(&["agent", "calendar", "daily", "2020-01-01", "--count", "2"]).exits(0);
    assert_eq!(times.out.matches(" 00:00:00").count(), 2, "{}", times.out);
    times.says("never");
}

/// A time some seconds from now, as a schedule that comes once.
fn once() -> String {
    tool("date", &["-u", "-d", "+5 seconds", "+%Y-%m-%d %H:%M:%S"])
}

#[test]
fn an_agent_that_is_killed_in_the_middle_makes_each_backup_once() {
    let place = Place::new();
    place.write("a.raw", &disk(1, 24));
    let host = Host { place: &place, name: "host" };
    // Nobody is at the bus.
    let bus = "alone-after = '0s'\n[agent.bus]\nservers = ['nats://127.0.0.1:9']\n";
    let (first, profile) = (once(), format!("{bus}[profiles.default]\nlimit-read = 6\n"));
    let volumes = "volumes = { root = 'a.raw' }\n";
    let series = |name: &str| format!("[profiles.default.series.{name}]\n{volumes}");
    // The backup goes on without its agent, as one that `kill -9` has left behind.
    host.set(&format!("[agent]\nbackup = '{first}'\n{profile}{}", series("vm")));
    let mut agent = host.start();
    eventually("a backup that has begun", || !place.objects("state").is_empty());
    agent.0.kill().unwrap();
    agent.0.wait().unwrap();
    assert_eq!(snapshots(&place, "vm"), 0);
    eventually("the backup that was left behind", || snapshots(&place, "vm") == 1);
    // The next agent finds it. The series that was added is due too, and is killed with its agent.
    host.set(&format!(
        "[agent]\nparallel = 2\nbackup = '{first}'\n{profile}{}{}schedule = '{}'\n",
        series("vm"),
        series("other"),
        once()
    ));
    let agent = host.start();
    eventually("the second backup", || host.has_told("run_started", "other", None));
    eventually("a second backup that has begun", || !place.objects("state").is_empty());
    let group = agent.0.id().to_string();
    tool("kill", &["-KILL", "--", &format!("-{group}")]);
    drop(agent);
    // A process that is not quite dead holds its lease.
    let is_there = || Command::new("pgrep").args(["-g", &group]).output().unwrap().status.success();
    eventually("the end of the backup", || !is_there());
    let mut agent = host.start();
    eventually("both backups", || {
        ["vm", "other"].iter().all(|name| host.has_told("run_ended", name, Some("done")))
    });
    assert_eq!((snapshots(&place, "vm"), snapshots(&place, "other")), (1, 1));
    tool("kill", &["-TERM", &agent.0.id().to_string()]);
    assert_eq!(agent.0.wait().unwrap().code(), Some(0), "{}", host.log());
    assert!(host.log().contains("\"reached\":false"), "{}", host.log());
    place.silt(&["check", "--read-data"]).exits(0);
}

#[test]
fn an_agent_applies_policies_frees_space_checks_and_replicates() {
    let place = Place::new();
    let image = place.write("a.raw", &disk(1, 4));
    for _ in 0..2 {
        place.silt(&["backup", "vm", &image]).exits(0);
    }
    place.silt(&["policy", "set", "vm", "--keep-last", "2"]).exits(0);
    place.write("theirs", b"theirs\n");
    let made = ["replicate", "--to", "replica", "--init", "--kdf-memory", "8", "--kdf-passes", "1"];
    Run::of(place.command().env("SILT_TO_PASSWORD", "theirs").args(made)).exits(0);
    let host = Host { place: &place, name: "host" };
    let works = ["forget", "reclaim", "optimize", "check", "replicate"];
    let once = once();
    let table = works.map(|work| format!("{work} = '{once}'\n")).concat();
    host.set(&format!(
        "[agent]\nbackup = '{once}'\ncheck-data = '100%'\nforget-after-backup = true\n{table}\
         [profiles.default]\n[profiles.default.replicas.x]\nto = 'replica'\n\
         password-file = 'theirs'\n\
         [profiles.default.series.vm]\nvolumes = {{ a = 'a.raw' }}\n"
    ));
    let _agent = host.start();
    eventually("the end of all runs", || host.log().matches("\"run_ended\"").count() >= 6);
    let log = host.log();
    assert_eq!(log.matches("\"end\":\"done\"").count(), 6, "{log}");
    for work in ["backup"].iter().chain(&works) {
        assert!(log.contains(&format!("\"work\":\"{work}\"")), "{work}: {log}");
    }
    assert_eq!(snapshots(&place, "vm"), 2, "{log}");
    host.silt(&["status"]).exits(0);
    let verified = place.silt(&["status", "vm", "--json"]).exits(0).messages().remove(0);
    assert!(verified["verified_since"].is_string(), "{verified}");
    let mut replica = place.command();
    replica.env("SILT_PASSWORD", "theirs").args(["-r", "replica", "snapshots", "--json"]);
    // What is deleted here stays there.
    assert_eq!(Run::of(&mut replica).exits(0).messages().len(), 3, "{log}");
}

#[test]
fn a_service_tells_systemd_that_it_lives_and_ends_its_backups() {
    let place = Place::new();
    place.write("a.raw", &disk(1, 24));
    let host = Host { place: &place, name: "host" };
    host.set(&format!(
        "[agent]\nbackup = '{}'\n[profiles.default.series.vm]\nvolumes = {{ a = 'a.raw' }}\n",
        once()
    ));
    let socket = std::os::unix::net::UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    // Options are those of its backups too.
    let options = "--repo repository --password-file secret --limit-read 2 --memory 32 --wait 1m \
                   --no-cache --nice 1 --jobs 1 --connections 2 --cache-size 10";
    place.write("secret", b"secret\n");
    let mut command = host.command(&["agent", "run"]);
    command.args(options.split_whitespace());
    command.env_remove("SILT_REPOSITORY").env_remove("SILT_PASSWORD");
    command.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", "2000000");
    let agent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    let mut hears = |text: &str| {
        let mut bytes = [0; 4096];
        while let Ok(length) = socket.recv(&mut bytes) {
            told.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            told.push('\n');
        }
        told.contains(text)
    };
    eventually("READY", || hears("READY=1\n"));
    eventually("a run", || hears("STATUS=1 run"));
    assert!(hears("WATCHDOG=1\n"));
    eventually("a backup that has begun", || !place.objects("state").is_empty());
    tool("kill", &["-TERM", &agent.id().to_string()]);
    finish(agent).exits(0);
    assert!(hears("STOPPING=1\n"));
    // The backup has ended with its agent, and has given up its lease.
    place.silt(&["backup", "vm", "a.raw"]).exits(0);
    assert_eq!(snapshots(&place, "vm"), 1);
}

#[test]
fn agents_work_with_the_bus_and_without_it() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    place.write("small.raw", &disk(1, 1));
    place.write("large.raw", &disk(2, 40));
    let bus = Bus::new(&place);
    let mut server = bus.start();
    let [one, two] = ["one", "two"].map(|name| Host { place: &place, name });
    let settings = |name: &str, more: &str| {
        format!(
            "[agent]\nname = '{name}'\nbackup = 'SECONDS'\nparallel = 2\n{more}\
             [agent.bus]\nservers = ['nats://localhost:{}']\nuser = '{name}'\n\
             password-file = 'bus-password'\ntls-first = true\n\
             certificates = 'pki/ca-cert.pem'\n\
             [profiles.default]\nlimit-read = 2\n\
             [profiles.default.series.{name}]\nvolumes = {{ x = 'small.raw' }}\n\
             [profiles.default.series.{name}-large]\nvolumes = {{ x = 'large.raw' }}\n\
             schedule = 'never'\n",
            bus.port
        )
    };
    one.set(&settings("one", "alone-after = '2s'\n"));
    // It makes backups only if the director offers them.
    two.set(&settings("two", "alone-after = '1h'\nallow = ['cancel']\n"));
    let (_one, mut agent_two) = (one.start(), two.start());
    eventually("both agents", || {
        let told = one.silt(&["cluster", "agents", "--json"]);
        told.code == 0 && told.out.matches("\"cluster_agent\"").count() == 2
    });
    let status = one.silt(&["cluster", "status"]).exits(0);
    assert!(["one-large", "two-large", "Director: "].iter().all(|it| status.out.contains(it)));
    let mut told = commands(&place, &one, &two);
    told += &one.silt(&["cluster", "agents", "--json"]).exits(0).out;
    eventually("backups of both", || ["one", "two"].iter().all(|name| snapshots(&place, name) > 0));
    // The bus dies, and all that it knew with it.
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    std::fs::remove_dir_all(&bus.folder).unwrap();
    let before = snapshots(&place, "one");
    eventually("backups without the bus", || snapshots(&place, "one") > before + 1);
    one.silt(&["cluster", "agents"]).exits(1).says("reach the bus");
    // It comes back empty, and one of the agents is gone.
    tool("kill", &["-TERM", &agent_two.0.id().to_string()]);
    agent_two.0.wait().unwrap();
    let _server = bus.start();
    eventually("an agent on the new bus", || {
        let run = one.silt(&["cluster", "status", "--json"]);
        run.code == 20 && run.summary()["agents"] == 1
    });
    let status = one.silt(&["cluster", "status", "--json"]).exits(20);
    assert_eq!(status.summary()["without_agent"], serde_json::json!(["two"]));
    have_known_fields(&(told + &status.out + &one.log()));
    one.silt(&["cluster", "status", "--ignore", "tw*"]).exits(0);
    place.silt(&["check", "--read-data"]).exits(0);
}

/// The messages of agents and of `silt cluster`, and their fields. Programs rely on them: a field
/// may be added and none may go.
const MESSAGES: [(&str, &str); 10] = [
    ("agent_ready", "agent scheduled tasks"),
    ("asked", "agent series time was_running"),
    ("bus", "error reached"),
    ("cancelled", "agent series"),
    (
        "cluster_agent",
        "agent allow failing index leads parallel running tasks time unknown_jobs \
         unreadable_messages version zone",
    ),
    ("cluster_director", "agent limit oldest_waiting outstanding since time waiting"),
    (
        "cluster_task",
        "agent attempts done_bytes due_since error last next retry running_since schedule series \
         state total_bytes warning work",
    ),
    ("run_ended", "agent end error retry series time warning work"),
    ("run_started", "due series work"),
    ("without_agent", "last series"),
];

/// Compares the messages in some output with those that programs know.
fn have_known_fields(output: &str) {
    let mut found = BTreeMap::new();
    for line in output.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).unwrap();
        let fields = message.as_object().unwrap();
        let kind = fields["message_type"].as_str().unwrap().to_owned();
        let known: &mut BTreeSet<String> = found.entry(kind).or_default();
        known.extend(fields.keys().filter(|name| *name != "message_type").cloned());
    }
    let documented: Vec<&str> = MESSAGES_DOCUMENT.split('`').skip(1).step_by(2).collect();
    for (kind, fields) in MESSAGES {
        let shown = found.get(kind).unwrap_or_else(|| panic!("no {kind} in {output}"));
        assert_eq!(
            shown.iter().map(String::as_str).collect::<Vec<_>>().join(" "),
            fields,
            "{kind}"
        );
        for name in fields.split(' ').chain([kind]) {
            assert!(documented.contains(&name), "{name} of {kind} is not in docs/JSON.md");
        }
    }
}

/// Commands that are obeyed, refused, and make no sense. Returns what they printed as JSON.
fn commands(place: &Place, one: &Host<'_>, two: &Host<'_>) -> String {
    let follow = ["cluster", "backup", "one-large", "--follow"];
    let by_admin = ["--bus-user", "admin", "--bus-password-file", "bus-password"];
    one.silt(&[&["cluster", "backup", "one"][..], &by_admin].concat()).exits(0);
    let mut slow = two.command(&[&follow[..], &by_admin].concat());
    let slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("a large backup", || {
        let told = two.silt(&["cluster", "status", "--json"]).exits(0).messages();
        told.iter().any(|task| task["series"] == "one-large" && task["state"] == "running")
    });
    let cancel = [&["cluster", "cancel", "one-large", "--json"][..], &by_admin].concat();
    let told = one.silt(&cancel).exits(0).out;
    finish(slow).exits(130).says("cancelled");
    assert_eq!(snapshots(place, "one-large"), 0);
    std::fs::copy(place.path("small.raw"), place.path("large.raw")).unwrap();
    let made = [&follow[..], &by_admin, &["--json"]].concat();
    let made = one.silt(&made).exits(0);
    let end = made.messages().pop().unwrap();
    assert_eq!((&end["message_type"], &end["end"]), (&"run_ended".into(), &"done".into()));
    assert_eq!(snapshots(place, "one-large"), 1);
    std::fs::remove_file(place.path("large.raw")).unwrap();
    one.silt(&[&follow[..], &by_admin].concat()).exits(1).says("large.raw");
    let refused = ["cluster", "backup", "two-large"];
    let refused = one.silt(&[&refused[..], &by_admin].concat()).exits(13);
    refused.says("its setting 'allow' does not contain \"backup\"");
    one.silt(&["cluster", "backup", "nobody"]).exits(1).says("no agent that is there backs up");
    one.silt(&["cluster", "backup", "one", "--agent", "two"]).exits(1).says("no agent 'two'");
    // An agent's user may not.
    let denied = two.silt(&["cluster", "backup", "one"]);
    assert!(denied.code != 0, "{}", denied.out);
    told + &made.out
}
