//! Lines to other machines: one that delays, and one that has a rate and counts its bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::Result;

const PIECE_BYTES: usize = 16 << 10;

/// A port of this machine from which everything arrives at another address half a round trip
/// later, and a new connection takes a whole round trip. The rate is not limited.
///
/// It runs until the process ends.
pub struct Delay {
    pub address: SocketAddr,
}

impl Delay {
    /// At most about `window` bytes are on their way each way; more wait at the sender.
    pub fn start(to: SocketAddr, round_trip: Duration, window: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        // What the kernel holds at the door is on its way, too. Connections inherit it.
        set_socket_recv_buffer_size(&listener, (window / 4).max(PIECE_BYTES))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || forward(client, to, round_trip, window));
            }
        });
        Ok(Self { address })
    }
}

fn forward(client: TcpStream, to: SocketAddr, round_trip: Duration, window: usize) {
    thread::sleep(round_trip);
    let Ok(server) = TcpStream::connect(to) else { return };
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let there = thread::spawn(move || pass(from_client, to_server, round_trip / 2, window));
    pass(server, client, round_trip / 2, window);
    let _ = there.join();
}

/// Passes bytes on, each after `delay`, until either end is closed.
fn pass(mut from: TcpStream, to: TcpStream, delay: Duration, window: usize) {
    let (sent, due) = sync_channel::<(Instant, Vec<u8>)>((window / PIECE_BYTES).max(1));
    let writer = thread::spawn(move || deliver(to, &due));
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if sent.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
            break;
        }
    }
    drop(sent);
    let _ = writer.join();
}

fn deliver(mut to: TcpStream, due: &Receiver<(Instant, Vec<u8>)>) {
    for (when, bytes) in due {
        thread::sleep(when.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A machine of its own at the end of a line with a rate: a network namespace. Needs root.
pub struct FarMachine {
    name: String,
    interface: String,
    /// The address of the far machine.
    pub address: [u8; 4],
}

/// Runs one of the programs `ip` and `tc`.
pub fn set_up(program: &str, arguments: &str) -> Result<()> {
    let output = Command::new(program).args(arguments.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {arguments}: {}", text.trim()).into())
}

impl FarMachine {
    /// A line of `rate` each way, as `tc` writes it, such as `2mbit`.
    pub fn new(rate: &str) -> Result<Self> {
        let id = std::process::id();
        let far = Self {
            name: format!("silt-far-{id}"),
            interface: format!("silt{}", id % 1_000_000),
            address: [10, 231, 7, 2],
        };
        let (name, here) = (&far.name, &far.interface);
        set_up("ip", &format!("netns add {name}"))?;
        set_up("ip", &format!("link add {here} type veth peer name line netns {name}"))?;
        set_up("ip", &format!("address add 10.231.7.1/24 dev {here}"))?;
        set_up("ip", &format!("link set {here} up"))?;
        set_up("ip", &format!("-n {name} link set lo up"))?;
        set_up("ip", &format!("-n {name} address add 10.231.7.2/24 dev line"))?;
        set_up("ip", &format!("-n {name} link set line up"))?;
        let shape = format!("root tbf rate {rate} burst 16k latency 200ms");
        set_up("tc", &format!("qdisc add dev {here} {shape}"))?;
        set_up("tc", &format!("-n {name} qdisc add dev line {shape}"))?;
        Ok(far)
    }

    /// A program that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Bytes that the interface has sent and received, with all headers.
    pub fn counted(&self) -> Result<(u64, u64)> {
        let read = |name: &str| -> Result<u64> {
            let path = format!("/sys/class/net/{}/statistics/{name}", self.interface);
            Ok(std::fs::read_to_string(path)?.trim().parse()?)
        };
        Ok((read("tx_bytes")?, read("rx_bytes")?))
    }
}

impl Drop for FarMachine {
    fn drop(&mut self) {
        drop(set_up("ip", &format!("link del {}", self.interface)));
        drop(set_up("ip", &format!("netns del {}", self.name)));
    }
}
