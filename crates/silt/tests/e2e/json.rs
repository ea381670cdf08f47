//! The messages of `--json`: which fields they have, and of which types. Programs rely on both.
//!
//! What they mean is in docs/JSON.md. A field may be added and none may go or change its type.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::kit::{Place, Run, changed, damage, disk, tool};

const RECORDED: &str = include_str!("json.golden.txt");
const DOCUMENT: &str = include_str!("../../../../docs/JSON.md");

/// Commands in their order; each is run with `--json`.
const COMMANDS: [&str; 73] = [
    "backup web1 root=disk.raw --tag nightly",
    "backup home home",
    "CHANGE",
    "backup web1 root=disk.raw",
    "backup web2 root=other.raw",
    "backup home home",
    "backup web1 root=disk.raw --dry-run",
    "backup home home --dry-run --exclude *.txt",
    "backup web1 root=disk.raw --due-since 2026-01-01",
    "backup --fleet fleet.toml",
    "rounds plan fleet.toml",
    "snapshots",
    "snapshots --deleted",
    "show web1@latest",
    "show home@latest",
    "ls web1@latest",
    "ls home@latest:/",
    "find home@latest --name *.txt",
    "find home --name *.txt",
    "versions home:/changed.txt",
    "dump home@latest:/ -o home.tar",
    "import tar copy --file home.tar",
    "diff web1@ID0 web1@latest",
    "diff home@ID1 home@latest",
    "restore web1@latest:root restored.raw",
    "restore web1@latest:root restored.raw --in-place",
    "restore web1@latest:root other-restored.raw --dry-run",
    "restore home@latest:/ restored-home --dry-run",
    "restore home@latest:/ restored-home",
    "files web1@latest:root ls /",
    "check",
    "check --read-data",
    "stats",
    "status",
    "tune home",
    "tune home --apply home",
    "tune home --reset home",
    "rename web2 www",
    "tag add www@latest good",
    "tag remove www@latest good",
    "protect www@latest",
    "unprotect www@latest",
    "policy set web1 --keep-last 1",
    "policy show web1",
    "policy remove web1",
    "forget web1 --keep-last 1 --yes --dry-run",
    "forget web1 --keep-last 1 --yes",
    "snapshots --deleted",
    "undelete web1@ID0",
    "delete web1@latest --dry-run",
    "delete web1@latest",
    "remove www --yes",
    "reclaim --dry-run",
    "reclaim --min-dead 0 --keep-deleted 0",
    "sweep",
    "optimize",
    "optimize --dry-run",
    "popular plan",
    "popular build --duplicates",
    "config show",
    "copies add copy",
    "copies",
    "copies heal",
    "replicate --to replica --dry-run --init",
    "replicate --to replica --init --kdf-memory 8 --kdf-passes 1",
    "replicate --to replica --prefix a- --dry-run",
    "replicate --to replica --window CLOSED",
    "status",
    "key list",
    "config check",
    "agent check-config --config agent.toml",
    "agent calendar daily --count 2",
    "version",
];
/// Commands on a repository with a damaged container, and errors.
const FAILING: [&str; 4] =
    ["check --read-data", "restore home@latest:/ damaged", "show nobody@latest", "backup --frob"];

/// The types of a value; of a list, those of its first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "boolean".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(list) => format!("[{}]", list.first().map(shape).unwrap_or_default()),
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {}", shape(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

/// The messages that one command prints, each kind once. Progress depends on the time, and what
/// is said of file systems on the machine.
fn messages(place: &Place, command: &str, told: &mut String, names: &mut Vec<String>) {
    let words: Vec<&str> = command.split(' ').chain(["--json"]).collect();
    let run = Run::of(place.command().env("SILT_TO_PASSWORD", "theirs").args(&words));
    writeln!(told, "{command} -> {}", run.code).unwrap();
    let mut kinds = Vec::new();
    for line in run.out.lines().chain(run.err.lines()).filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).unwrap();
        let kind = message["message_type"].as_str().unwrap();
        if ["status", "requests", "file_system"].contains(&kind) {
            continue;
        }
        names.push(kind.to_owned());
        names.extend(message.as_object().unwrap().keys().cloned());
        let shown = format!("  {kind} {}", shape(&message));
        if !kinds.contains(&shown) {
            kinds.push(shown);
        }
    }
    kinds.sort();
    kinds.iter().for_each(|kind| writeln!(told, "{kind}").unwrap());
}

fn prepare() -> Place {
    let place = Place::new();
    place.write("disk.raw", &disk(3, 4));
    place.write("other.raw", &disk(4, 4));
    fs::create_dir_all(place.path("home/deep")).unwrap();
    fs::write(place.path("home/deep/same.txt"), "same").unwrap();
    fs::write(place.path("home/changed.txt"), "one").unwrap();
    let fleet = "[series.fleet1]\nvolumes = { root = \"disk.raw\" }\n\
                 [series.fleet2]\nvolumes = { root = \"other.raw\" }\n";
    place.write("fleet.toml", fleet.as_bytes());
    let agent = "[agent]\nbackup = \"daily\"\ncheck-data = \"5%\"\ncheck = \"weekly\"\n\
                 [agent.bus]\nservers = [\"nats://bus1:4222\"]\n\
                 [profiles.default.series.web1]\nvolumes = { root = \"disk.raw\" }\n";
    place.write("agent.toml", agent.as_bytes());
    place
}

/// Everything that the commands print. Returns it with the names of all messages and fields.
fn tell() -> (String, Vec<String>) {
    let place = prepare();
    let (mut told, mut names) = (String::new(), Vec::new());
    let mut first = [String::new(), String::new()];
    // A window that is closed now.
    let hour: u32 = tool("date", &["-u", "+%H"]).parse().unwrap();
    let closed = format!("{:02}:00-{:02}:00", (hour + 12) % 24, (hour + 13) % 24);
    for command in COMMANDS {
        if command == "CHANGE" {
            place.write("disk.raw", &changed(&disk(3, 4), 9));
            fs::write(place.path("home/changed.txt"), "another").unwrap();
            fs::remove_file(place.path("home/deep/same.txt")).unwrap();
            for (at, series) in ["web1", "home"].iter().enumerate() {
                let listed = place.silt(&["snapshots", series, "--json"]).exits(0).messages();
                listed[0]["id"].as_str().unwrap().clone_into(&mut first[at]);
            }
            continue;
        }
        let shown = command.replace("web1@ID0", "first").replace("home@ID1", "first");
        let command = command.replace("web1@ID0", &first[0]).replace("home@ID1", &first[1]);
        let command = command.replace("CLOSED", &closed);
        let mut part = String::new();
        messages(&place, &command, &mut part, &mut names);
        told.push_str(&part.replacen(&command, &shown, 1));
    }
    let damaged = prepare();
    damaged.silt(&["backup", "home", "home"]).exits(0);
    damage(&damaged.objects("containers").remove(0));
    for command in FAILING {
        messages(&damaged, command, &mut told, &mut names);
    }
    (told, names)
}

#[test]
fn messages_have_the_fields_that_programs_know() {
    let (told, names) = tell();
    let documented: Vec<&str> = DOCUMENT.split('`').skip(1).step_by(2).collect();
    let missing: Vec<_> = names.iter().filter(|name| !documented.contains(&&***name)).collect();
    assert!(missing.is_empty(), "not in docs/JSON.md: {missing:?}");
    if told != RECORDED {
        let recorded: Vec<_> = RECORDED.lines().collect();
        let new: Vec<_> = told.lines().filter(|line| !recorded.contains(line)).collect();
        let gone: Vec<_> = recorded.iter().filter(|line| !told.contains(**line)).collect();
        panic!("messages differ; new: {new:#?}\ngone: {gone:#?}");
    }
}

#[test]
#[ignore = "writes what the messages are now; look at the difference"]
fn regenerate() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/json.golden.txt");
    fs::write(file, tell().0).unwrap();
}
