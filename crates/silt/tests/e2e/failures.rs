//! What hosts of a cluster meet: processes that sleep, clocks that are wrong, storage that refuses
//! writes, hosts that are gone, a bus that goes down.
//!
//! Hours pass by a file that turns the clocks of all processes, so that leases of minutes and
//! pauses of hours end in a test of seconds.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::agents::{Host, Killed, eventually, listens, snapshots};
use crate::kit::{Place, Run, can, changed, disk, faketime_library, noise, tool};

/// A place whose clocks are turned.
struct Stage {
    place: Place,
    library: String,
    clock: String,
}

impl Stage {
    /// `None`, if there is nothing to turn clocks with.
    fn new() -> Option<Self> {
        if !can("faketime") {
            return None;
        }
        let place = Place::new();
        let (library, clock) = (faketime_library(), place.write("clock", b"+0"));
        Some(Self { place, library, clock })
    }

    /// All clocks are now ahead by so many minutes. They change at once, as a file is read whole.
    #[expect(clippy::disallowed_methods, reason = "the file of a clock is no object")]
    fn turn(&self, minutes: u32) {
        self.place.write("clock.new", format!("+{minutes}m").as_bytes());
        std::fs::rename(self.place.path("clock.new"), &self.clock).unwrap();
    }

    fn variables(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.clock),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }

    fn silt(&self, args: &[&str]) -> Run {
        Run::of(self.place.command().envs(self.variables()).args(args))
    }

    fn start(&self, host: &Host<'_>) -> Killed {
        host.start_with(&self.variables())
    }

    /// The only snapshot of a series holds these bytes, all is whole, and nothing is left behind
    /// after everything was reclaimed.
    fn is_clean(&self, series: &str, snapshots: usize, newest: &[u8]) {
        assert_eq!(self::snapshots(&self.place, series), snapshots);
        let target = self.place.text("restored.raw");
        self.silt(&["restore", &format!("{series}@latest"), &target, "--force"]).exits(0);
        assert!(self.place.read("restored.raw") == newest);
        self.silt(&["check", "--read-data"]).exits(0);
        for _ in 0..2 {
            let all = ["reclaim", "--min-dead", "0", "--sweep", "--grace", "0h"];
            self.silt(&all).exits(0);
        }
        let check = self.silt(&["check", "--read-data", "--json"]).exits(0).summary();
        let left = (&check["damaged_objects"], &check["unreferenced_objects"]);
        assert_eq!(left, (&0.into(), &0.into()), "{check}");
    }
}

/// A time some seconds from now, as a schedule that comes once.
fn once() -> String {
    tool("date", &["-u", "-d", "+4 seconds", "+%Y-%m-%d %H:%M:%S"])
}

/// Lets the processes of a group, an agent and its backups, sleep and wake.
fn signal(agent: &Killed, name: &str) {
    tool("kill", &[name, "--", &format!("-{}", agent.0.id())]);
}

/// What an agent has told of the ends of runs.
fn ends(host: &Host<'_>) -> Vec<Value> {
    let log = host.log();
    let told = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    told.filter(|it| it["message_type"] == "run_ended").collect()
}

/// An agent whose backup sleeps for `minutes` in its middle, while another host backs the series up
/// or not. What each of them says is true, and nothing is lost or left behind.
fn sleeps(minutes: u32, is_real: bool, has_rival: bool) {
    let Some(stage) = Stage::new() else { return };
    let place = &stage.place;
    let image = noise(1, 24 << 20);
    place.write("a.raw", &image);
    let host = Host { place, name: "host" };
    host.set(&format!(
        "[agent]\nbackup = '{}'\n[profiles.default]\nlimit-read = 8\n\
         [profiles.default.series.vm]\nvolumes = {{ root = 'a.raw' }}\n",
        once()
    ));
    let agent = stage.start(&host);
    eventually("a backup that has begun", || !place.objects("containers").is_empty());
    signal(&agent, "-STOP");
    assert_eq!(snapshots(place, "vm"), 0);
    stage.silt(&["backup", "vm", "root=a.raw"]).exits(11);
    if is_real {
        pass(std::time::Duration::from_secs(u64::from(minutes) * 60));
    } else {
        stage.turn(minutes);
    }
    let mut newest = image.clone();
    if has_rival {
        newest = changed(&image, 5);
        place.write("b.raw", &newest);
        stage.silt(&["backup", "vm", "root=b.raw"]).exits(0);
    }
    signal(&agent, "-CONT");
    eventually("the end of the run", || !ends(&host).is_empty());
    let end = ends(&host).remove(0);
    if has_rival && end["end"] != "done" {
        // It has met the other one's head.
        assert!(end["end"] == "busy" || end["end"] == "failed", "{end}");
        stage.turn(2 * minutes);
        eventually("the next attempt", || ends(&host).len() > 1);
    }
    // With a rival, what it has found is the snapshot of that one, made after this was due.
    let end = ends(&host).pop().unwrap();
    let made = place.silt(&["snapshots", "--json"]).exits(0).messages().remove(0);
    assert_eq!((&end["end"], &end["time"]), (&"done".into(), &made["time"]), "{}", host.log());
    drop(agent);
    stage.is_clean("vm", 1, &newest);
}

#[expect(clippy::disallowed_methods, reason = "other processes sleep meanwhile")]
fn pass(time: std::time::Duration) {
    std::thread::sleep(time);
}

#[test]
fn a_backup_that_sleeps_through_its_lease_commits_if_nobody_else_did() {
    sleeps(20, false, false);
}

#[test]
fn a_backup_that_sleeps_while_another_host_commits_changes_nothing() {
    sleeps(20, false, true);
}

#[test]
#[ignore = "takes twenty minutes: the same in real time"]
fn backups_that_sleep_for_ten_minutes_lose_nothing() {
    sleeps(10, true, false);
    sleeps(10, true, true);
}

/// A bus without passwords and certificates: those have times, too.
struct PlainBus<'p> {
    place: &'p Place,
    port: u16,
}

impl<'p> PlainBus<'p> {
    fn new(place: &'p Place) -> Self {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self { place, port: socket.local_addr().unwrap().port() }
    }

    fn start(&self) -> Killed {
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"]);
        command.arg(self.place.path("bus")).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Killed(command.spawn().unwrap());
        listens(self.port);
        server
    }

    fn settings(&self, agent: &str, series: &[&str]) -> String {
        let series = series.iter().map(|series| {
            format!("[profiles.default.series.{series}]\nvolumes = {{ x = 'a.raw' }}\n")
        });
        format!(
            "[agent]\n{agent}[agent.bus]\nservers = ['nats://127.0.0.1:{}']\n\
             [profiles.default]\nlimit-read = 8\n{}",
            self.port,
            series.collect::<String>()
        )
    }
}

/// Of a series, how many snapshots there are of each five seconds, by the clocks that dated them.
fn of_due_times(place: &Place, series: &str) -> BTreeMap<i64, usize> {
    let mut all = BTreeMap::new();
    for made in place.silt(&["snapshots", "--json"]).exits(0).messages() {
        if made["series"] == series {
            let time: jiff::Timestamp = made["time"].as_str().unwrap().parse().unwrap();
            *all.entry(time.as_second() / 5).or_default() += 1;
        }
    }
    all
}

#[test]
fn hosts_whose_clocks_are_hours_wrong_back_up_when_it_is_due() {
    if !can("nats") || !can("faketime") {
        return;
    }
    let place = Place::new();
    place.write("a.raw", &disk(1, 1));
    let bus = PlainBus::new(&place);
    let _server = bus.start();
    let library = faketime_library();
    let start = |name: &'static str, minutes: i64| {
        let host = Host { place: &place, name };
        let agent =
            format!("name = '{name}'\nbackup = 'SECONDS'\nparallel = 2\nalone-after = '5s'\n");
        host.set(&bus.settings(&agent, &[name, "both"]));
        let skew = format!("{minutes:+}m");
        host.start_with(&[
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME", skew.as_str()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ])
    };
    let _agents = [start("ahead", 180), start("behind", -120)];
    let right = Host { place: &place, name: "right" };
    right.set(&bus.settings("name = 'right'\n", &["right"]));
    let now_s: i64 = tool("date", &["+%s"]).parse().unwrap();
    // Times by a clock that is so wrong, in hours.
    let by = |series: &str, hours: i64| -> Vec<usize> {
        let near = |slot: &i64| (slot * 5 - now_s - hours * 3600).abs() < 1800;
        let all = of_due_times(&place, series).into_iter();
        all.filter(|(slot, _)| near(slot)).map(|(_, count)| count).collect()
    };
    // If both hosts commit the shared series at once, one of them waits a minute.
    let expected = [("ahead", 3, 3), ("behind", -2, 3), ("both", 3, 1), ("both", -2, 1)];
    for (series, hours, least) in expected {
        let comes = || {
            eventually("backups by a clock", || by(series, hours).len() >= least);
        };
        let mut attempts =
            (0..3).map(|_| std::panic::catch_unwind(std::panic::AssertUnwindSafe(comes)));
        let came = attempts.any(|came| came.is_ok());
        let log = |name: &'static str| Host { place: &place, name }.log();
        let all = of_due_times(&place, series);
        assert!(came, "{series} {hours}: {all:?} {} {}", log("ahead"), log("behind"));
    }
    for series in ["ahead", "behind", "both"] {
        let all = of_due_times(&place, series);
        assert!(all.values().all(|count| *count == 1), "{series}: {all:?}");
    }
    let status = right.silt(&["cluster", "status", "--json", "--ignore", "right"]).exits(0);
    assert_eq!(status.summary()["agents"], 2, "{}", status.out);
    right.silt(&["check", "--read-data"]).exits(0);
}

#[test]
fn the_lease_of_a_clock_that_is_ahead_ends_by_that_of_the_storage() {
    let Some(stage) = Stage::new() else { return };
    let place = &stage.place;
    let image = noise(2, 24 << 20);
    place.write("a.raw", &image);
    let host = Host { place, name: "host" };
    host.set(
        "[agent]\nbackup = 'SECONDS'\n[profiles.default]\nlimit-read = 8\n\
         [profiles.default.series.vm]\nvolumes = { root = 'a.raw' }\n",
    );
    let agent = host.start_with(&[("LD_PRELOAD", stage.library.as_str()), ("FAKETIME", "+300m")]);
    eventually("a backup that has begun", || !place.objects("containers").is_empty());
    signal(&agent, "-STOP");
    stage.silt(&["backup", "vm", "root=a.raw"]).exits(11);
    stage.turn(3);
    stage.silt(&["backup", "vm", "root=a.raw"]).exits(11);
    // By its own clock it has hours left.
    stage.turn(7);
    let newest = changed(&image, 7);
    place.write("b.raw", &newest);
    stage.silt(&["backup", "vm", "root=b.raw"]).exits(0);
    signal(&agent, "-CONT");
    eventually("the end of the run", || !ends(&host).is_empty());
    let end = ends(&host).remove(0);
    assert!(end["end"] == "busy" || end["end"] == "failed", "{end}");
    tool("kill", &["-KILL", "--", &format!("-{}", agent.0.id())]);
    drop(agent);
    stage.is_clean("vm", 1, &newest);
}

/// A folder that can be made to refuse writes, mounted on itself.
struct Mounted(String);

impl Mounted {
    fn new(folder: String) -> Self {
        tool("mount", &["--bind", &folder, &folder]);
        Self(folder)
    }
    fn refuses_writes(&self, refuses: bool) {
        let how = if refuses { "remount,bind,ro" } else { "remount,bind,rw" };
        tool("mount", &["-o", how, &self.0]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", &self.0]).status();
    }
}

#[test]
fn storage_that_refuses_writes_for_hours_is_tried_ever_more_seldom_and_then_made_up_for_once() {
    if !can("mount") {
        return;
    }
    let Some(stage) = Stage::new() else { return };
    let place = &stage.place;
    let image = disk(1, 2);
    place.write("a.raw", &image);
    let storage = Mounted::new(place.text("repository"));
    let host = Host { place, name: "host" };
    host.set(
        "[agent]\nbackup = '*:0/30'\n[profiles.default]\n\
         [profiles.default.series.vm]\nvolumes = { root = 'a.raw' }\n",
    );
    let agent = stage.start(&host);
    eventually("the agent", || host.log().contains("\"agent_ready\""));
    stage.turn(31);
    eventually("a backup", || ends(&host).len() == 1);
    assert_eq!(snapshots(place, "vm"), 1);
    storage.refuses_writes(true);
    // Each pause is twice as long as the one before it, up to an hour.
    for (failed, minutes) in (1..).zip([62, 64, 67, 72, 81, 98, 131, 192]) {
        stage.turn(minutes);
        eventually("another attempt", || ends(&host).len() == 1 + failed);
        let end = ends(&host).pop().unwrap();
        assert_eq!(end["end"], "failed", "{end}");
        assert!(end["error"].as_str().unwrap().contains("Read-only"), "{end}");
        assert!(end["retry"].is_string(), "{end}");
    }
    storage.refuses_writes(false);
    stage.turn(260);
    eventually("the backup that makes up for all", || ends(&host).len() > 9);
    assert_eq!(ends(&host)[9]["end"], "done", "{}", host.log());
    // Nothing is left to do until the next time.
    pass(std::time::Duration::from_secs(3));
    assert_eq!(ends(&host).len(), 10, "{}", host.log());
    drop(agent);
    stage.is_clean("vm", 2, &image);
}

#[test]
fn a_host_is_rebuilt_from_the_password_alone() {
    let place = Place::new();
    let image = disk(1, 8);
    place.write("a.raw", &image);
    let settings = "[agent]\nbackup = 'SECONDS'\n[profiles.default]\n\
                    [profiles.default.series.vm]\nvolumes = { root = 'a.raw' }\n";
    let host = Host { place: &place, name: "host" };
    host.set(settings);
    let agent = host.start();
    eventually("two backups", || snapshots(&place, "vm") >= 2);
    tool("kill", &["-KILL", "--", &format!("-{}", agent.0.id())]);
    drop(agent);
    let containers = place.objects("containers").len();
    // The host is gone with its disk, its settings and what it has noted.
    for gone in ["host.state", "host.toml", "host.log", "a.raw", "state"] {
        let path = place.path(gone);
        let _ = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path) //
        };
        assert!(!path.exists(), "{gone}");
    }
    let before = snapshots(&place, "vm");
    place.silt(&["restore", "vm@latest", &place.text("a.raw")]).exits(0);
    assert!(place.read("a.raw") == image);
    host.set(settings);
    let agent = host.start();
    eventually("two backups of the new host", || snapshots(&place, "vm") >= before + 2);
    tool("kill", &["-TERM", &agent.0.id().to_string()]);
    drop(agent);
    let all = of_due_times(&place, "vm");
    assert!(all.values().all(|count| *count == 1), "{all:?}");
    assert_eq!(place.objects("containers").len(), containers, "nothing is stored again");
    place.silt(&["check", "--read-data"]).exits(0);
}

#[test]
fn a_backup_goes_on_while_the_bus_goes_down_and_is_made_once() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    let image = noise(3, 24 << 20);
    place.write("a.raw", &image);
    let bus = PlainBus::new(&place);
    let mut server = bus.start();
    let host = Host { place: &place, name: "host" };
    // It makes backups only if the director offers them.
    let due = tool("date", &["-u", "-d", "+6 seconds", "+%Y-%m-%d %H:%M:%S"]);
    let agent = format!("name = 'host'\nbackup = '{due}'\nalone-after = '1h'\n");
    host.set(&bus.settings(&agent, &["vm"]));
    let _agent = host.start();
    eventually("a backup that has begun", || !place.objects("containers").is_empty());
    // All that the bus knew is lost with it.
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    std::fs::remove_dir_all(place.path("bus")).unwrap();
    assert_eq!(snapshots(&place, "vm"), 0);
    eventually("the end of the run", || host.has_told("run_ended", "vm", Some("done")));
    assert_eq!(snapshots(&place, "vm"), 1);
    let _server = bus.start();
    // It is reported when the bus is back, and is not due again.
    eventually("the agent on the new bus", || {
        let told = host.silt(&["cluster", "status", "--json"]);
        let tasks = if told.code == 0 { told.messages() } else { Vec::new() };
        tasks.iter().any(|it| it["series"] == "vm" && it["last"].is_string())
    });
    pass(std::time::Duration::from_secs(3));
    assert_eq!(host.log().matches("\"run_started\"").count(), 1, "{}", host.log());
    assert_eq!(snapshots(&place, "vm"), 1);
    place.silt(&["check", "--read-data"]).exits(0);
}
