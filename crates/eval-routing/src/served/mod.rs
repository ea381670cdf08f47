//! Table 5.3 with processes: three nodes, a director and a client for each set, on a NATS server.

mod member;
mod wire;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use silt_report::{Result, Table, number};

use self::member::{Served, ask, connect, node_service};
use self::wire::Question;
use crate::feed::{Chunking, Data};
use crate::ways::{Outcome, exact, slack_bytes};
use silt_routing::Questions;

pub use self::member::{MemberOptions, run};

const NODES: usize = 3;
/// Each scheme is run so often, by turns; that of the median time is shown.
const RUNS: usize = 3;
/// How many times the data of the other table is sent, so that a run takes seconds.
const TIMES: f64 = 10.0;
/// The published bytes saved a second, of those of AppDedupe.
const PUBLISHED: [(&str, &str, &str, &str); 3] = [
    ("1.00", "1.84", "0.45", "0.86"),
    ("1.08", "0.05", "0.87", "0.75"),
    ("1.01", "0.07", "0.95", "1"),
];

/// A process of this program, which ends when its input does.
struct Member {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Member {
    fn start(server: &str, scheme: Served, role: &[String]) -> Result<Self> {
        let scheme = scheme.to_possible_value().ok_or("a scheme without a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["appdedupe-member", "--server", server, "--scheme", scheme.get_name()]);
        command.args(["--nodes", &NODES.to_string()]).args(role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("a process without input")?;
        let output = BufReader::new(child.stdout.take().ok_or("a process without output")?);
        Ok(Self { child, input, output })
    }

    fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.input, "go")?)
    }

    /// Waits for the next line.
    fn says(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a process of table 5.3 has ended early".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A NATS server.
struct Server {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// `None` if the program is missing.
    fn start() -> Result<Option<Self>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut command = Command::new("nats-server");
        let folder = tempfile::tempdir()?;
        command.args(["-js", "-a", "127.0.0.1", "-p", &port, "-sd"]).arg(folder.path());
        let url = format!("nats://127.0.0.1:{port}");
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Ok(Some(Self { child, url, _folder: folder })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one run has shown.
struct Run {
    outcome: Outcome,
    applications: String,
    seconds: f64,
}

/// Runs a scheme once; `totals` are the chunks, the logical bytes and the different bytes.
fn once(server: &Server, scheme: Served, data: &Data, totals: [u64; 3]) -> Result<Run> {
    let [chunks, logical, exact] = totals;
    let start = |role: &[String]| Member::start(&server.url, scheme, role);
    let mut members = Vec::new();
    for node in 0..NODES {
        members.push(start(&["node".to_owned(), node.to_string()])?);
    }
    let slack = slack_bytes((exact / NODES as u64) >> 20);
    members.push(start(&["director".to_owned(), slack.to_string()])?);
    let mut clients = Vec::new();
    for set in &data.sets {
        let numbers = [set.to_string(), data.seed.to_string(), data.bytes.to_string()];
        clients.push(start(&[&["client".to_owned()], &numbers[..]].concat())?);
    }
    for member in members.iter_mut().chain(&mut clients) {
        member.says()?;
    }
    let begin = Instant::now();
    clients.iter_mut().try_for_each(Member::go)?;
    let mut questions = Questions::default();
    for client in &mut clients {
        let said = client.says()?;
        let (prints, messages) = said.split_once(' ').ok_or("a client says too little")?;
        questions.prints += prints.parse::<u64>()?;
        questions.messages += messages.parse::<u64>()?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let bus = connect(&server.url, "evaluation")?;
    let (mut used, mut looked_up, mut applications) = (Vec::new(), 0, Vec::new());
    for node in 0..NODES {
        let figures = ask(&*bus, &node_service(node)?, &Question::Figures)?;
        let &[bytes, prints, kinds] = &figures[..] else { return Err("a node is silent".into()) };
        used.push(bytes);
        looked_up += prints;
        applications.push(kinds.to_string());
    }
    let (way, nodes) = (scheme.way(), NODES);
    let (entries, index_bytes) = (0, 0);
    let outcome = Outcome {
        way,
        nodes,
        chunks,
        logical,
        exact,
        used,
        questions,
        looked_up,
        entries,
        index_bytes,
    };
    Ok(Run { outcome, applications: applications.join(":"), seconds })
}

/// The chunks, the logical bytes and the different bytes.
fn totals(data: &Data) -> [u64; 3] {
    let chunking = Chunking::Units(4);
    let (mut chunks, mut logical) = (0, 0);
    for &set in &data.sets {
        data.chunks(set, chunking, &mut |chunk| {
            chunks += 1;
            logical += u64::from(chunk.bytes);
        });
    }
    [chunks, logical, exact(data, chunking)]
}

/// The table; it says so if the server is missing.
pub fn table(data: &Data) -> Result<Table> {
    let data = &Data { bytes: data.bytes * TIMES, ..data.clone() };
    let columns = [
        "scheme",
        "applications a node",
        "capacity, of exact",
        "published (output)",
        "DS",
        "published (output)",
        "NEDR",
        "published (output)",
        "looked up, of the chunks",
        "messages",
        "seconds (least to most)",
        "MB saved a second",
        "of AppDedupe's",
        "published (output)",
    ];
    let title = "Table 5.3 with processes: three nodes, a director, seven clients, one machine";
    let mut table = Table::new(title, &columns);
    let Some(server) = Server::start()? else {
        table.note("Missing: there is no nats-server on the PATH.");
        return Ok(table);
    };
    let totals = totals(data);
    let mut runs: Vec<Vec<Run>> = Served::ALL.iter().map(|_| Vec::new()).collect();
    for _ in 0..RUNS {
        for (scheme, runs) in Served::ALL.into_iter().zip(&mut runs) {
            runs.push(once(&server, scheme, data, totals)?);
        }
    }
    for runs in &mut runs {
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    }
    let saved = |run: &Run| (run.outcome.logical - run.outcome.stored()) as f64 / run.seconds;
    let ours = runs.last().map_or(1.0, |runs| saved(&runs[RUNS / 2]));
    for (runs, (capacity, skew, nedr, rate)) in runs.iter().zip(PUBLISHED) {
        let run = &runs[RUNS / 2];
        let outcome = &run.outcome;
        let [least, most] = [0, RUNS - 1].map(|place| number(runs[place].seconds));
        table.row(vec![
            outcome.way.name().to_owned(),
            run.applications.clone(),
            number(1.0 / outcome.ndr()),
            capacity.to_owned(),
            number(outcome.skew()),
            skew.to_owned(),
            number(outcome.nedr()),
            nedr.to_owned(),
            number(outcome.looked_up()),
            outcome.questions.messages.to_string(),
            format!("{} ({least} to {most})", number(run.seconds)),
            number(saved(run) / 1e6),
            number(saved(run) / ours),
            rate.to_owned(),
        ]);
    }
    table.note(
        "Processes of this program: the product's nodes, director and routers, which speak over a \
         NATS server of this machine. Clients hold their fingerprints in memory before the clock \
         starts, and send them for 32 super-chunks at a time. As in the paper, fingerprints are \
         sent, no chunks, and ten times as many as in the table before. All processes share two \
         cores, so a node that has more than others delays nobody, and what a scheme asks costs \
         time: AppAware asks nothing. Published: 28,335, 30,250 and 23,775 s and 41.8, 36.6 and \
         48.6 MB/s for 1,774 GB on three machines; the ratios are of these rates, and are outputs \
         there and here. A row is that of the median of three runs; a client reads at its own \
         speed, so sets end at different times.",
    );
    Ok(table)
}
