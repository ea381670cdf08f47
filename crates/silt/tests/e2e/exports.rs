//! `silt serve nbd`, used by the programs that people use.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::kit::{Place, Run, can, certificates, damage, noise, tool};

/// A server that was started, and is ended when this is dropped.
pub struct Served {
    child: Child,
    /// What comes behind the export in a URI.
    behind: String,
    socket: String,
}

impl Served {
    pub fn start(place: &Place, args: &[&str]) -> Self {
        let socket = place.text("socket");
        let mut command = place.command();
        command.args(["serve", "nbd", "--socket", &socket, "--json"]).args(args);
        Self::of(command, socket)
    }
    fn of(mut command: Command, socket: String) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut error = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut error).unwrap();
            panic!("{error}");
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["message_type"], "ready", "{line}");
        Self { child, behind: format!("?socket={socket}"), socket }
    }
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}{}", self.behind)
    }
    /// Ends the server as a supervisor does, and says what it has printed.
    pub fn end(mut self) -> Run {
        tool("kill", &["-TERM", &self.child.id().to_string()]);
        let mut run = Run { code: 0, out: String::new(), err: String::new() };
        self.child.stdout.as_mut().unwrap().read_to_string(&mut run.out).unwrap();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut run.err).unwrap();
        run.code = self.child.wait().unwrap().code().unwrap_or(-1);
        assert!(!std::path::Path::new(&self.socket).exists(), "the socket is removed");
        run
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Data, a hole, and an end that is no multiple of 512.
fn image(seed: u64) -> Vec<u8> {
    [noise(seed, 3 << 20), vec![0; 9 << 20], noise(seed + 1, (1 << 20) + 123)].concat()
}

/// A repository with two snapshots of three volumes; returns the images of `root`.
fn place() -> (Place, Vec<u8>, Vec<u8>) {
    let place = Place::new();
    let older = image(1);
    let mut newer = older.clone();
    newer[5 << 20..(5 << 20) + 10].fill(7);
    newer[1_000_000] ^= 1;
    for root in [&older, &newer] {
        let root = format!("root={}", place.write("root.raw", root));
        let data = format!("data={}", place.write("data.raw", &noise(9, 5000)));
        let empty = format!("empty={}", place.write("empty.raw", b""));
        place.silt(&["backup", "web1", &root, &data, &empty]).exits(0);
    }
    (place, older, newer)
}

fn ids(place: &Place) -> Vec<String> {
    let listed = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let snapshots = listed.iter().filter(|message| message["message_type"] == "snapshot");
    snapshots.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn programs_read_what_was_backed_up() {
    if !can("nbd") {
        return;
    }
    let (place, older, newer) = place();
    let served = Served::start(&place, &[]);
    let (copy, converted) = (place.text("copy.raw"), place.text("converted.raw"));

    let uri = served.uri("web1@latest:root");
    tool("nbdcopy", &[&uri, &copy]);
    assert!(std::fs::read(&copy).unwrap() == newer);
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &converted]);
    assert!(std::fs::read(&converted).unwrap()[..newer.len()] == newer);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &copy]);

    // By its id the same, over several connections.
    let first = served.uri(&format!("{}:root", ids(&place)[0]));
    let info: Value = serde_json::from_str(&tool("nbdinfo", &["--json", &first])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], older.len());
    assert_eq!(export["is_read_only"], true);
    assert_eq!(export["can_multi_conn"], true);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    tool("nbdcopy", &["--connections=4", "--requests=16", &first, &copy]);
    assert!(std::fs::read(&copy).unwrap() == older);

    assert_eq!(tool("nbdinfo", &["--size", &served.uri("web1@latest:empty")]), "0");
    tool("nbdcopy", &[&served.uri("web1@latest:data"), &copy]);
    assert!(std::fs::read(&copy).unwrap() == noise(9, 5000));
    let list: Value =
        serde_json::from_str(&tool("nbdinfo", &["--list", "--json", &served.uri("")])).unwrap();
    assert_eq!(list["exports"].as_array().unwrap().len(), 9, "three volumes, as latest and by id");

    let script = ["read 1 511", "read 3145000 2000", "read -P 7 5242880 10", "read 0 13M"];
    let mut args = vec!["-r", "-f", "raw"];
    args.extend(script.iter().flat_map(|command| ["-c", *command]));
    let out = tool("qemu-io", &[&args[..], &[uri.as_str()]].concat());
    assert!(!out.contains("failed"), "{out}");
    served.end().exits(0);
}

#[test]
fn maps_say_what_is_a_hole_and_what_has_changed() {
    if !can("nbd") {
        return;
    }
    let (place, older, newer) = place();
    let served = Served::start(&place, &[]);
    let uri = served.uri("web1@latest:root");
    let map = |which: &str| -> Vec<(u64, u64, u64)> {
        let map = tool("nbdinfo", &["--json", &format!("--map{which}"), &uri]);
        let parsed: Vec<Value> = serde_json::from_str(&map).unwrap();
        let number = |extent: &Value, name: &str| extent[name].as_u64().unwrap();
        let of = |e: &Value| (number(e, "offset"), number(e, "length"), number(e, "type"));
        parsed.iter().map(of).collect()
    };
    let (data, end) = (3 << 20, newer.len() as u64);
    let hole = (5 << 20) + 4096;
    assert_eq!(
        map(""),
        [
            (0, data, 0),
            (data, 2 << 20, 3),
            (5 << 20, 4096, 0),
            (hole, (12 << 20) - hole, 3),
            (12 << 20, end - (12 << 20), 0),
        ]
    );
    let changed = map(&format!("=silt:changed-since:{}", ids(&place)[0]));
    let changed: Vec<_> = changed.into_iter().filter(|(_, _, kind)| *kind == 1).collect();
    assert_eq!(changed, [(999_424, 4096, 1), (5 << 20, 4096, 1)]);
    // What lies elsewhere is the same.
    for (at, (old, new)) in older.iter().zip(&newer).enumerate() {
        let is_inside =
            |(start, length, _): &(u64, u64, u64)| (*start..start + length).contains(&(at as u64));
        assert!(old == new || changed.iter().any(is_inside), "{at}");
    }
    let map = tool("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    assert_eq!(map[1]["start"], data);
    assert_eq!(map[1]["zero"], true);
}

#[test]
fn one_volume_is_the_default_and_a_guest_may_write_above_it() {
    if !can("nbd") {
        return;
    }
    let (place, _, newer) = place();
    let served = Served::start(&place, &["web1@latest:root"]);
    let (uri, overlay) = (served.uri(""), place.text("overlay.qcow2"));
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &uri, &overlay]);
    tool("qemu-io", &["-c", "write -P 9 4096 8192", "-c", "read -P 9 4096 8192", &overlay]);
    let flat = place.text("flat.raw");
    tool("qemu-img", &["convert", "-O", "raw", &overlay, &flat]);
    let mut expected = newer;
    expected[4096..12_288].fill(9);
    assert!(std::fs::read(&flat).unwrap()[..expected.len()] == expected);
    let refused = Run::of(Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 512", &uri]));
    assert!(refused.code != 0 || refused.printed().contains("read-only"), "{}", refused.printed());
}

#[test]
fn damage_is_an_error_of_what_it_hits_and_is_logged() {
    if !can("nbd") {
        return;
    }
    let (place, _, newer) = place();
    place.objects("containers").iter().take(1).for_each(|object| damage(object));
    let served = Served::start(&place, &["web1@latest:root"]);
    let uri = served.uri("");
    let (mut whole, mut failed) = (0, 0);
    for at in (0..newer.len() - (64 << 10)).step_by(256 << 10) {
        let read = format!("read {at} 64k");
        let run = Run::of(Command::new("qemu-io").args(["-r", "-f", "raw", "-c", &read, &uri]));
        if run.printed().contains("Input/output error") { failed += 1 } else { whole += 1 }
    }
    assert!(failed > 0 && whole > failed, "{failed} of {whole}");
    let run = served.end();
    run.says("export '(default)', bytes ");
    run.says("containers/");
    run.exits(0);
}

#[test]
fn a_port_that_others_reach_needs_tls() {
    let (place, ..) = place();
    let refused = place.silt(&["serve", "nbd", "--listen", "0.0.0.0:0"]).exits(2);
    refused.says("--tls-cert");
    place.silt(&["serve", "nbd"]).exits(2).says("--socket");
    place.silt(&["serve", "nbd", "--listen", "127.0.0.1:0", "nobody@latest"]).exits(1);
    if !can("nbd") {
        return;
    }
    let pki = place.path("pki");
    certificates(&pki);
    let file = |name: &str| pki.join(name).to_str().unwrap().to_owned();
    let (cert, key, ca) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
    let mut command = place.command();
    command.args(["serve", "nbd", "--listen", "0.0.0.0:0", "--json", "web1@latest:root"]);
    command.args(["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = ready["address"].as_str().unwrap();
    let port = address.trim_end_matches('/').rsplit(':').next().unwrap();
    let folder = pki.to_str().unwrap();
    let secure = format!("nbds://localhost:{port}/?tls-certificates={folder}");
    let copy = place.text("copy.raw");
    let copied = Run::of(Command::new("nbdcopy").args([&secure, &copy]));
    let plain = Run::of(Command::new("nbdinfo").arg(format!("nbd://localhost:{port}/")));
    let own = ["backup", "tls", &format!("root={secure}")];
    let backed_up = place.silt(&own);
    let own_plain = place.silt(&["backup", "plain", &format!("nbd://localhost:{port}/")]);
    // Without the client's certificate nobody gets in.
    std::fs::remove_file(pki.join("client-cert.pem")).unwrap();
    std::fs::remove_file(pki.join("client-key.pem")).unwrap();
    let stranger = Run::of(Command::new("nbdinfo").arg(&secure));
    let own_stranger = place.silt(&own);
    let _ = child.kill();
    let _ = child.wait();
    copied.exits(0);
    assert!(std::fs::read(&copy).unwrap() == place.read("root.raw"));
    assert_ne!(plain.code, 0, "{}", plain.printed());
    assert_ne!(stranger.code, 0, "{}", stranger.printed());
    backed_up.exits(0);
    assert!(place.restored("tls@latest:root") == place.read("root.raw"));
    own_plain.exits(13).says("the server requires TLS: use nbds://");
    assert_ne!(own_stranger.code, 0, "{}", own_stranger.printed());
}

#[test]
fn a_supervisor_may_open_the_socket() {
    if !can("nbd") {
        return;
    }
    let (place, _, newer) = place();
    let path = place.text("supervised");
    let listener = UnixListener::bind(&path).unwrap();
    let program = env!("CARGO_BIN_EXE_silt");
    let mut shell = Command::new("sh");
    let environment = place.command();
    let environment = environment.get_envs().filter_map(|(key, value)| Some((key, value?)));
    shell.env_clear().envs(environment);
    let script = format!(
        "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec {program} serve nbd --json \
         --idle-exit 1 web1@latest:root"
    );
    shell.args(["-c", &script]).stdin(Stdio::from(OwnedFd::from(listener)));
    shell.current_dir(place.folder.path());
    let mut served = Served::of(shell, path.clone());
    let copy = place.text("copy.raw");
    tool("nbdcopy", &[&served.uri(""), &copy]);
    assert!(std::fs::read(&copy).unwrap() == newer);
    // It ends by itself, and leaves the supervisor's socket where it is.
    assert!(served.child.wait().unwrap().success());
    assert!(std::path::Path::new(&path).exists());
}
