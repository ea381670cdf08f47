//! Rounds of several hosts, by agents over a real bus.

use std::process::Stdio;

use serde_json::Value;

use crate::agents::{Bus, Host, eventually, snapshots};
use crate::kit::{Place, Run, can, disk, finish, tool};

/// Settings of a host with these series.
fn settings(bus: &Bus, name: &str, series: &[&str], agent: &str, profile: &str) -> String {
    let series = series.iter().map(|series| {
        format!("[profiles.default.series.{series}]\nvolumes = {{ x = '{series}.raw' }}\n")
    });
    format!(
        "[agent]\nname = '{name}'\n{agent}\
         [agent.bus]\nservers = ['nats://localhost:{}']\nuser = '{name}'\n\
         password-file = 'bus-password'\ntls-first = true\ncertificates = 'pki/ca-cert.pem'\n\
         [profiles.default]\n{profile}{}",
        bus.port,
        series.collect::<String>()
    )
}

const BY_ADMIN: [&str; 4] = ["--bus-user", "admin", "--bus-password-file", "bus-password"];

fn round(host: &Host<'_>, more: &[&str]) -> Run {
    host.silt(&[&["cluster", "round"][..], &BY_ADMIN, more].concat())
}

fn agents(host: &Host<'_>) -> usize {
    let told = host.silt(&["cluster", "agents", "--json"]);
    told.out.matches("\"cluster_agent\"").count()
}

fn of_type<'m>(messages: &'m [Value], kind: &str) -> Vec<&'m Value> {
    messages.iter().filter(|message| message["message_type"] == kind).collect()
}

/// Each series has data in the shared store, and is restored as it was.
fn have_shared_and_restore(place: &Place) {
    for series in ["a1", "a2", "b1"] {
        let levels = place.silt(&["show", &format!("{series}@latest"), "--json"]).exits(0);
        assert!(levels.out.contains("\"shared\":"), "{}", levels.out);
        let restored = place.text(&format!("{series}.restored"));
        place.silt(&["restore", &format!("{series}@latest"), &restored]).exits(0);
        let expected = std::fs::read(place.path(&format!("{series}.raw"))).unwrap();
        assert!(std::fs::read(&restored).unwrap() == expected, "{series}");
    }
}

#[test]
fn hosts_back_up_together_in_rounds() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    let common = disk(7, 6);
    for (number, series) in (1..).zip(["a1", "a2", "b1"]) {
        let own = [common.as_slice(), &disk(number, 2)].concat();
        place.write(&format!("{series}.raw"), &own);
    }
    let bus = Bus::new(&place);
    let _server = bus.start();
    let [one, two] = ["one", "two"].map(|name| Host { place: &place, name });
    one.set(&settings(&bus, "one", &["a1", "a2"], "round-spool = true\n", ""));
    two.set(&settings(&bus, "two", &["b1"], "", ""));
    let (_one, two_process) = (one.start(), two.start());
    eventually("both agents", || agents(&one) == 2);
    // Nothing is backed up by a preview.
    let preview = round(&one, &["--dry-run", "--parts", "2", "--json"]).exits(0).messages();
    assert_eq!(of_type(&preview, "round_series").len(), 3);
    assert_eq!(of_type(&preview, "round_part").len(), 2);
    assert_eq!(snapshots(&place, "a1"), 0);
    eventually("the end of the preview", || {
        [&one, &two].iter().all(|host| host.log().contains("\"work\":\"join\""))
    });
    let mut made = Vec::new();
    eventually("a round of both", || {
        let run = round(&one, &["--json"]);
        made = run.messages();
        run.code == 0 && of_type(&made, "round_series").len() == 3
    });
    let part = of_type(&made, "round_part")[0];
    assert_eq!((&part["failed"], &part["unshared"]), (&0.into(), &Value::Null), "{part}");
    assert!(part["shared_chunks"].as_u64().unwrap() > 100, "{part}");
    assert!(part["exchanged_bytes"]["requests"].as_u64().unwrap() > 0, "{part}");
    assert_eq!(part["expected"]["schedule"], "A2", "{part}");
    assert!(part["expected"]["span_s"].is_f64() && part["span_ms"].is_u64(), "{part}");
    have_shared_and_restore(&place);
    place.silt(&["check", "--read-data"]).exits(0);
    they_count_references(&bus, &place);

    // A host dies in the middle of the next round: the other one's series are backed up.
    for series in ["a1", "b1"] {
        let mut bytes = std::fs::read(place.path(&format!("{series}.raw"))).unwrap();
        bytes[..3 << 20].copy_from_slice(&disk(99, 3));
        place.write(&format!("{series}.raw"), &bytes);
    }
    let before = ["a1", "a2", "b1"].map(|series| snapshots(&place, series));
    two.set(&settings(&bus, "two", &["b1"], "", "limit-read = 1\n"));
    let group = two_process.0.id().to_string();
    tool("kill", &["-KILL", "--", &format!("-{group}")]);
    drop(two_process);
    let two_process = two.start();
    eventually("the host again", || two.log().matches("\"agent_ready\"").count() == 2);
    eventually("both agents again", || agents(&one) == 2);
    let mut command =
        one.command(&[&["cluster", "round", "--json", "--patience", "2s"][..], &BY_ADMIN].concat());
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It reads slowly, and holds the lease of its series meanwhile.
    eventually("a part of the other host", || {
        two.log().lines().last().is_some_and(|line| line.contains("\"run_started\""))
            && place.objects("state").iter().any(|it| it.to_string_lossy().contains("lease"))
    });
    let group = two_process.0.id().to_string();
    tool("kill", &["-KILL", "--", &format!("-{group}")]);
    let ended = finish(running).exits(1);
    let ended = ended.messages();
    for series in of_type(&ended, "round_series") {
        let is_lost = series["series"] == "b1";
        assert_eq!(series["error"].is_string(), is_lost, "{series}");
    }
    let after = ["a1", "a2", "b1"].map(|series| snapshots(&place, series));
    let expected = [before[0] + 1, before[1] + 1, before[2]];
    assert_eq!(after, expected, "{ended:?} {}", one.log());
    place.silt(&["check", "--read-data"]).exits(0);
}

/// Agents count what all three series refer to in the shared store. A user who may ask agents
/// nothing gets no help, and a reclaim without a bus is refused.
fn they_count_references(bus: &Bus, place: &Place) {
    let counted = |name: &'static str| {
        let host = Host { place, name };
        let run = host.silt(&["reclaim", "--with-agents", "--json"]).exits(0);
        let messages = run.messages();
        let store = of_type(&messages, "shared_store")[0];
        assert_eq!(store["dead_slots"], 0, "{store}");
        store["counted_by_agents"].as_u64().unwrap()
    };
    let admin = Host { place, name: "admin" };
    admin.set(&settings(bus, "admin", &[], "", ""));
    eventually("a count by agents", || counted("admin") == 3);
    assert_eq!(counted("two"), 0);
    place.silt(&["check"]).exits(0);
    let usage = place.silt(&["reclaim", "--with-agents"]).exits(2);
    usage.says("no bus");
}

#[test]
fn hosts_that_do_not_allow_it_take_no_part_in_rounds() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    place.write("a1.raw", &disk(1, 2));
    let bus = Bus::new(&place);
    let _server = bus.start();
    let one = Host { place: &place, name: "one" };
    one.set(&settings(&bus, "one", &["a1"], "allow = ['backup']\n", ""));
    let _agent = one.start();
    eventually("the agent", || agents(&one) == 1);
    round(&one, &[]).exits(1).says("no agent is there that takes part in rounds");
    let refused = round(&one, &["--agents", "one"]).exits(13);
    refused.says("its setting 'allow' does not contain \"round\"");
    round(&one, &["--agents", "two"]).exits(1).says("there is no agent 'two'");
}

#[test]
fn backups_ask_the_memory_of_other_hosts() {
    if !can("nats") {
        return;
    }
    let place = Place::new();
    let common = disk(7, 8);
    place.write("a1.raw", &common);
    place.write("b1.raw", &common);
    // The same data in another order, so that no neighbour says where it is. A series knows what
    // it has had before, so there are several.
    let pieces: Vec<&[u8]> = common.chunks(64 << 10).collect();
    let shuffled: Vec<u8> =
        (0..pieces.len()).flat_map(|number| pieces[number * 37 % pieces.len()].to_vec()).collect();
    let others: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    others.iter().for_each(|series| _ = place.write(&format!("{series}.raw"), &shuffled));
    let bus = Bus::new(&place);
    let _server = bus.start();
    let [one, two] = ["one", "two"].map(|name| Host { place: &place, name });
    let index = "index-memory = '16MiB'\n";
    let of_one: Vec<&str> = others.iter().map(String::as_str).chain(["a1"]).collect();
    one.set(&settings(&bus, "one", &of_one, "", ""));
    two.set(&settings(&bus, "two", &["b1"], index, ""));
    let (_one, two_process) = (one.start(), two.start());
    eventually("both agents", || agents(&one) == 2);
    let back_up = |series: &str| {
        let by_admin = [&["cluster", "backup", series, "--follow"][..], &BY_ADMIN].concat();
        one.silt(&by_admin).exits(0);
    };
    ["a1", "b1"].into_iter().for_each(back_up);
    let built = place.silt(&["popular", "build", "--duplicates", "--json"]).exits(0).messages();
    let index = |name: &str| {
        let told = one.silt(&["cluster", "agents", "--json"]).messages();
        let agents = of_type(&told, "cluster_agent");
        agents.iter().find(|it| it["agent"] == name).map_or(Value::Null, |it| it["index"].clone())
    };
    eventually("the index in memory", || index("two")["chunks"].as_u64().unwrap_or(0) > 1000);
    assert!(built.iter().any(|it| it["message_type"] == "popular"), "{built:?}");
    let held = index("two");
    assert_eq!((&held["partitions"], &held["left_out"]), (&1024.into(), &0.into()), "{held}");
    assert!(held["used_bytes"].as_u64() <= held["memory_bytes"].as_u64(), "{held}");
    assert_eq!(index("one"), Value::Null, "it holds none");
    // The other host hears who holds it, and its backups ask there.
    let mut next = others.iter();
    eventually("a backup that asks", || {
        back_up(next.next().unwrap());
        wait_a_little();
        index("two")["found"].as_u64().unwrap_or(0) > 1000
    });
    // Without the one that holds it, backups go on by the index of the repository.
    drop(two_process);
    back_up(&others[19]);
    for series in ["c0", "c19"] {
        let restored = place.text(&format!("{series}.restored"));
        place.silt(&["restore", &format!("{series}@latest"), &restored]).exits(0);
        assert!(std::fs::read(&restored).unwrap() == shuffled);
    }
    place.silt(&["check", "--read-data"]).exits(0);
}

/// About as long as the director is heard in.
#[expect(clippy::disallowed_methods, reason = "other processes work meanwhile")]
fn wait_a_little() {
    std::thread::sleep(std::time::Duration::from_secs(3));
}
