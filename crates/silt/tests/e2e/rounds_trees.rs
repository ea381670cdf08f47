//! Rounds of file trees and disks, on one host and on several.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::agents::{Bus, Host, eventually, snapshots};
use crate::kit::{Place, can, disk, tool};

/// What rsync would have to do to make `to` like `from`.
fn differences(from: &str, to: &str) -> String {
    let (from, to) = (format!("{from}/"), format!("{to}/"));
    tool("rsync", &["-aHAXSn", "--checksum", "--itemize-changes", "--delete", &from, &to])
}

/// A machine's files: programs that all machines have, an image of a disk, and a file of its own.
fn machine(place: &Place, name: &str, own: u8) -> String {
    let root = place.path(name);
    fs::create_dir_all(root.join("usr/lib/deep")).unwrap();
    fs::create_dir_all(root.join("images")).unwrap();
    let programs = disk(9, 3);
    for (number, program) in programs.chunks(70_000).enumerate() {
        fs::write(root.join(format!("usr/lib/deep/{number}")), program).unwrap();
    }
    fs::write(root.join("usr/lib/large"), disk(10, 4)).unwrap();
    fs::write(root.join("images/vm.img"), disk(7, 4)).unwrap();
    fs::write(root.join("own"), vec![own; 3000]).unwrap();
    fs::hard_link(root.join("own"), root.join("images/same")).unwrap();
    symlink("../own", root.join("images/link")).unwrap();
    place.text(name)
}

fn of_type<'m>(messages: &'m [Value], kind: &str) -> Vec<&'m Value> {
    messages.iter().filter(|message| message["message_type"] == kind).collect()
}

/// The bytes that a level has found in a series' newest snapshot.
fn level(place: &Place, series: &str, level: &str) -> u64 {
    let shown = place.silt(&["show", &format!("{series}@latest"), "--json"]).exits(0).messages();
    let volumes = shown[0]["volumes"].as_array().unwrap();
    volumes.iter().map(|volume| volume["levels"][level].as_u64().unwrap()).sum()
}

/// Restores the tree of a series, and compares it with its source.
fn comes_back(place: &Place, series: &str, from: &str) {
    let to = place.text(&format!("{series}.restored"));
    let _ = fs::remove_dir_all(&to);
    place.silt(&["restore", &format!("{series}@latest:files"), &to]).exits(0);
    assert_eq!(differences(from, &to), "", "{series}");
}

#[test]
fn a_fleet_of_trees_and_disks_is_backed_up_in_one_round() {
    if !can("rsync") {
        return;
    }
    let place = Place::new();
    let (web, mail) = (machine(&place, "web", 1), machine(&place, "mail", 2));
    let image = place.write("vm.raw", &[disk(7, 4), disk(8, 1)].concat());
    let fleet = format!(
        "[series.web]\nvolumes = {{ files = {web:?} }}\nbefore = 'echo web >> begun'\n\
         after = 'echo web >> ended'\n\
         [series.mail]\nvolumes = {{ files = {mail:?}, disk = {image:?} }}\n\
         [series.mail.tree]\nexclude = ['*.tmp']\n\
         [series.vm]\nvolumes = {{ disk = {image:?} }}\n"
    );
    place.write("fleet.toml", fleet.as_bytes());
    fs::write(place.path("mail/left.tmp"), "out").unwrap();
    let planned = place.silt(&["rounds", "plan", "fleet.toml", "--json"]).exits(0).messages();
    assert_eq!(planned[0]["series"].as_array().unwrap().len(), 3, "{planned:?}");
    let run = place.silt(&["backup", "--fleet", "fleet.toml", "--json"]).exits(0).messages();
    let round = of_type(&run, "round")[0];
    assert_eq!((&round["series"], &round["failed"]), (&3.into(), &0.into()), "{round}");
    assert_eq!(of_type(&run, "summary").len(), 3);
    // Removing a file must not look like a change of the directory.
    let root = fs::File::open(place.path("mail")).unwrap();
    let modified = root.metadata().unwrap().modified().unwrap();
    fs::remove_file(place.path("mail/left.tmp")).unwrap();
    root.set_modified(modified).unwrap();
    comes_back(&place, "web", &web);
    comes_back(&place, "mail", &mail);
    assert!(place.restored("mail@latest:disk") == place.read("vm.raw"));
    assert_eq!([place.read("begun"), place.read("ended")], [b"web\n", b"web\n"]);
    // All that two of them have is in the shared store.
    for (series, own) in [("web", 100_000), ("mail", 100_000), ("vm", 100_000)] {
        let new = level(&place, series, "new");
        assert!(new < own, "{series} has {new} bytes of its own");
    }
    assert!(level(&place, "web", "shared") > 5 << 20);

    // Spooled, a disk is read once and a tree is read again; in rounds of their own, too.
    fs::write(place.path("web/update"), disk(20, 2)).unwrap();
    fs::write(place.path("mail/update"), disk(20, 2)).unwrap();
    place.silt(&["backup", "--fleet", "fleet.toml", "--spool"]).exits(0);
    assert!(level(&place, "mail", "new") < 100_000);
    assert!(level(&place, "mail", "shared") > 500_000);
    comes_back(&place, "web", &web);
    comes_back(&place, "mail", &mail);
    place.silt(&["backup", "--all", "--rounds", "2"]).exits(0).says("Round of");
    assert_eq!(level(&place, "web", "new") + level(&place, "web", "shared"), 0);
    comes_back(&place, "mail", &mail);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

/// The settings of a host with these series and their volumes.
fn settings(bus: &Bus, name: &str, series: &[(&str, &str)]) -> String {
    let series = series.iter().map(|(series, volumes)| {
        format!("[profiles.default.series.{series}]\nvolumes = {{ {volumes} }}\n")
    });
    format!(
        "[agent]\nname = '{name}'\n\
         [agent.bus]\nservers = ['nats://localhost:{}']\nuser = '{name}'\n\
         password-file = 'bus-password'\ntls-first = true\ncertificates = 'pki/ca-cert.pem'\n{}",
        bus.port,
        series.collect::<String>()
    )
}

#[test]
fn hosts_share_what_their_trees_and_disks_have_in_common() {
    if !can("nats") || !can("rsync") {
        return;
    }
    let place = Place::new();
    let (web, mail) = (machine(&place, "web", 1), machine(&place, "mail", 2));
    let image = place.write("vm.raw", &[disk(7, 4), disk(8, 1)].concat());
    let bus = Bus::new(&place);
    let _server = bus.start();
    let [one, two] = ["one", "two"].map(|name| Host { place: &place, name });
    let disk_and_files = format!("files = {web:?}, disk = {image:?}");
    one.set(&settings(&bus, "one", &[("web", &disk_and_files)]));
    two.set(&settings(&bus, "two", &[("mail", &format!("files = {mail:?}"))]));
    let (_one, _two) = (one.start(), two.start());
    let agents = || one.silt(&["cluster", "agents", "--json"]).out;
    eventually("both agents", || agents().matches("\"cluster_agent\"").count() == 2);
    let by_admin = ["--bus-user", "admin", "--bus-password-file", "bus-password"];
    let mut made = Vec::new();
    eventually("a round of both", || {
        let run = one.silt(&[&["cluster", "round", "--json"][..], &by_admin].concat());
        made = run.messages();
        run.code == 0 && of_type(&made, "round_series").len() == 2
    });
    let part = of_type(&made, "round_part")[0];
    assert_eq!((&part["failed"], &part["unshared"]), (&0.into(), &Value::Null), "{part}");
    assert!(part["shared_chunks"].as_u64().unwrap() > 500, "{part}");
    assert_eq!(["web", "mail"].map(|series| snapshots(&place, series)), [1, 1]);
    for (series, from) in [("web", &web), ("mail", &mail)] {
        assert!(level(&place, series, "shared") > 5 << 20, "{series}");
        comes_back(&place, series, from);
    }
    assert!(level(&place, "mail", "new") < 100_000);
    place.silt(&["check", "--read-data"]).exits(0);
}
