//! Hosts on networks of their own, which are slow and come and go.

use std::process::{Command, Stdio};

use super::Bucket;
use super::faults::pause;
use crate::kit;

/// A network namespace with a slow link to this machine; it is gone with this value.
struct Network {
    name: String,
    link: String,
    /// This machine's address on the link.
    address: String,
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Network {
    /// A network of its own of 80 Mbit/s, or `None` where this user may not make one.
    fn new(number: u32) -> Option<Self> {
        let process = std::process::id();
        let (name, link) = (format!("silt-{process}-{number}"), format!("silt{number}p{process}"));
        if !ip(&format!("netns add {name}")) {
            return None;
        }
        let net = format!("10.{}.{}", 210 + number, process % 250);
        let network = Self { name, link, address: format!("{net}.1") };
        let Self { name, link, .. } = &network;
        let slow = "root tbf rate 80mbit burst 256kb latency 400ms";
        let steps = [
            format!("link add {link} type veth peer name eth0 netns {name}"),
            format!("addr add {net}.1/24 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {net}.2/24 dev eth0"),
            format!("-n {name} link set eth0 up"),
            format!("netns exec {name} tc qdisc add dev eth0 {slow}"),
        ];
        steps.iter().all(|step| ip(step)).then_some(network)
    }

    fn plug(&self, is_in: bool) {
        assert!(ip(&format!("link set {} {}", self.link, if is_in { "up" } else { "down" })));
    }

    /// The program, run on the network.
    fn command(&self, bucket: &Bucket) -> Command {
        let inner = bucket.command();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(inner.get_program());
        let set = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(set).stdout(Stdio::piped()).stderr(Stdio::piped());
        let endpoint = format!("http://{}:{}", self.address, bucket.server.port());
        command.env("AWS_ENDPOINT_URL", endpoint).env("SILT_S3_TIMEOUT", "5");
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.link));
        ip(&format!("netns del {}", self.name));
    }
}

#[test]
fn hosts_whose_network_goes_away_go_on_when_it_is_back() {
    let (Some(one), Some(other)) = (Network::new(1), Network::new(2)) else {
        println!("SKIPPED: this test makes network namespaces, which takes root and iproute2");
        return;
    };
    let Some(bucket) = Bucket::new() else { return };
    let (first, second) = (kit::disk(1, 48), kit::disk(2, 48));
    let file = bucket.place.write("vm.raw", &first);
    let begin = |network: &Network, series: &str, file: &str| {
        let volume = format!("disk={file}");
        let child = network.command(&bucket).args(["backup", series, &volume]).spawn().unwrap();
        pause(1000);
        child
    };
    // The cable is out for a while; another host works on meanwhile.
    let running = begin(&one, "vm", &file);
    one.plug(false);
    let meanwhile = other.command(&bucket).args(["backup", "other", &file]).spawn().unwrap();
    pause(3000);
    one.plug(true);
    kit::finish(running).exits(0);
    kit::finish(meanwhile).exits(0);

    // A host dies while its cable is out; another takes its series over and uses what came through.
    bucket.place.write("vm.raw", &second);
    let mut dead = begin(&one, "vm", &file);
    one.plug(false);
    dead.kill().unwrap();
    kit::finish(dead);
    let taken_over = other.command(&bucket).args(["backup", "vm", &file]).spawn().unwrap();
    kit::finish(taken_over).exits(0);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let target = bucket.place.text("restored.raw");
    for (snapshot, disk) in [("vm@latest", &second), ("other@latest", &first)] {
        bucket.silt(&["restore", snapshot, &target, "--force"]).exits(0);
        assert!(bucket.place.read("restored.raw") == *disk, "{snapshot}");
    }
}
