//! The process of a storage node whose place is a bucket.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use silt_remote::server::BUCKET;

use super::Bucket;
use crate::kit::{self, can, tool};

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that answers for nodes.
struct Answering {
    process: Killed,
    lines: BufReader<ChildStdout>,
}

impl Answering {
    fn start(bucket: &Bucket, names: &[&str], bus: &str) -> Self {
        let mut command = bucket.command();
        command.args(["node", "run", "--json", "--bus-server", bus]).args(names);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process: Killed(process), lines }
    }

    /// The next message of a type.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it has ended without {kind}");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["message_type"] == kind {
                return message;
            }
        }
    }

    fn stop(&self) {
        tool("kill", &["-TERM", &self.process.0.id().to_string()]);
    }
}

#[test]
fn a_process_beside_nodes_answers_backups_and_is_not_needed() {
    if !can("nats") {
        return;
    }
    let Some(bucket) = Bucket::new() else { return };
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let mut server = Command::new("nats-server");
    server.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]);
    server.arg(bucket.place.path("bus")).stdout(Stdio::null()).stderr(Stdio::null());
    let bus = Killed(server.spawn().unwrap());
    let url = format!("nats://127.0.0.1:{port}");
    let settings = format!("[agent]\nask-nodes = true\n[agent.bus]\nservers = [\"{url}\"]\n");
    let settings = bucket.place.write("silt.toml", settings.as_bytes());
    for node in ["n1", "n2"] {
        bucket.silt(&["node", "add", node, &format!("s3://{BUCKET}/{node}")]).exits(0);
    }
    let disk = kit::disk(1, 48);
    let file = bucket.place.write("vm.raw", &disk);
    bucket.silt(&["backup", "a", &file]).exits(0);

    bucket.silt(&["node", "run", "n1"]).exits(2).says("--bus-server");
    bucket
        .silt(&["node", "run", "n9", "--bus-server", &url])
        .exits(1)
        .says("no node 'n9', but n1, n2");
    let mut answering = Answering::start(&bucket, &["n1", "n2"], &url);
    let told = [answering.next("node_answers"), answering.next("node_answers")];
    let containers = told.iter().map(|told| told["containers"].as_u64().unwrap());
    assert!(containers.sum::<u64>() > 0, "{told:?}");
    let shares = |series: &str| {
        let args = ["backup", series, &file, "--json", "--config", &settings];
        let summary = bucket.silt(&args).exits(0).summary();
        let levels = &summary["volumes"][0]["levels"];
        let [shared, new] = ["shared", "new"].map(|level| levels[level].as_u64().unwrap());
        assert!(shared > 10 * new, "{summary}");
    };
    shares("b");
    answering.stop();
    let told = [answering.next("node_stopped"), answering.next("node_stopped")];
    let sum = |name| told.iter().map(|told| told[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("asked") > 1000 && sum("found") * 10 > sum("asked") * 9, "{told:?}");

    // Nobody answers, and then there is no bus.
    shares("c");
    drop(bus);
    shares("d");
    for series in ["b", "c", "d"] {
        let target = bucket.place.text("restored.raw");
        bucket.silt(&["restore", &format!("{series}@latest"), &target, "--force"]).exits(0);
        assert!(bucket.place.read("restored.raw") == disk);
    }
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}
