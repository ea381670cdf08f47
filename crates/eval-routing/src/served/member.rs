//! The processes: nodes, the director, and clients.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use silt_cluster::{Answering, Bus, Name, NatsBus, NatsOptions, Respond};
use silt_report::Result;
use silt_repository::system::SystemEnv;
use silt_routing::{Answers, Application, Director, Node, Piece, Print, Router};

use super::wire::{Question, answer, read};
use crate::feed::{Chunking, Data};
use crate::tables::HANDPRINT;
use crate::ways::Way;

/// Super-chunks of which a client sends the fingerprints at a time.
const BATCH: usize = 32;
/// How long an answer is waited for; nothing of it is measured when that is over.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the bus is tried.
const ATTEMPTS: u32 = 50;

/// A process of table 5.3.
#[derive(Args, Debug)]
pub struct MemberOptions {
    /// The NATS server.
    #[arg(long)]
    server: String,
    /// The scheme.
    #[arg(long)]
    scheme: Served,
    /// How many nodes there are.
    #[arg(long)]
    nodes: usize,
    #[command(subcommand)]
    role: Role,
}

/// The schemes of table 5.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Served {
    AppAware,
    Sigma,
    Appdedupe,
}

impl Served {
    pub const ALL: [Self; 3] = [Self::AppAware, Self::Sigma, Self::Appdedupe];

    pub fn way(self) -> Way {
        match self {
            Self::AppAware => Way::AppAware,
            Self::Sigma => Way::Sigma,
            Self::Appdedupe => Way::AppDedupe,
        }
    }
}

/// What a process does.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Deduplicates what it is sent.
    Node { number: usize },
    /// Knows which nodes have an application. Bytes that a node may have more than the others.
    Director { slack: u64 },
    /// Backs up a set that is drawn from a seed.
    Client { set: usize, seed: u64, bytes: f64 },
}

pub fn node_service(number: usize) -> Result<Name> {
    Ok(Name::new(format!("routing-node-{number}"))?)
}

fn director_service() -> Result<Name> {
    Ok(Name::new("routing-director")?)
}

pub fn connect(server: &str, member: &str) -> Result<Arc<dyn Bus>> {
    let env = Arc::new(SystemEnv::new(Arc::default()));
    let options = NatsOptions::new(server.to_owned(), Name::new(member)?);
    for _ in 0..ATTEMPTS {
        if let Ok(bus) = NatsBus::connect(options.clone(), env.clone()) {
            return Ok(Arc::new(bus));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("the NATS server does not answer".into())
}

/// Asks a member.
pub fn ask(bus: &dyn Bus, service: &Name, question: &Question) -> Result<Vec<u64>> {
    let question = question.encode();
    let answered = bus.ask(service, &question, PATIENCE)?;
    let Some(answered) = answered else { return Err(format!("{service} does not answer").into()) };
    read(&answered)
}

/// Runs a process until its standard input ends.
pub fn run(options: &MemberOptions) -> Result<()> {
    let mut input = std::io::stdin().lock().lines();
    match &options.role {
        Role::Node { number } => {
            let bus = connect(&options.server, &format!("node{number}"))?;
            let _answering = serve_node(&*bus, *number, options.scheme)?;
            say("ready")?;
            while input.next().transpose()?.is_some() {}
        }
        Role::Director { slack } => {
            let bus = connect(&options.server, "director")?;
            let _answering = serve_director(&*bus, options.nodes, *slack)?;
            say("ready")?;
            while input.next().transpose()?.is_some() {}
        }
        Role::Client { set, seed, bytes } => {
            let bus = connect(&options.server, &format!("client{set}"))?;
            let data = Data { sets: vec![*set], ..Data::all(*seed, *bytes) };
            let mut client = Client::new(&*bus, options.scheme, options.nodes)?;
            let mut pieces = Vec::new();
            let grain = client.router.grain();
            data.feed(Chunking::Units(4), grain, &mut |piece| pieces.push(piece));
            say("ready")?;
            if input.next().transpose()?.is_some() {
                client.back_up(pieces)?;
                say(&format!("{} {}", client.asked_prints, client.messages))?;
                while input.next().transpose()?.is_some() {}
            }
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Answers as a node of the product does to whoever calls it.
fn serve_node(bus: &dyn Bus, number: usize, scheme: Served) -> Result<Box<dyn Answering>> {
    let node = Node::new(scheme.way().options(HANDPRINT));
    let applications = Mutex::new(BTreeSet::new());
    let respond: Respond = Arc::new(move |question: &[u8]| {
        let numbers = match Question::decode(question) {
            Ok(Question::Similar(application, handprints)) => {
                let found = |handprint: &Vec<u64>| node.similar(application, handprint) as u64;
                let counts = handprints.iter().map(found);
                std::iter::once(node.used_bytes()).chain(counts).collect()
            }
            Ok(Question::Store(pieces)) => {
                for piece in &pieces {
                    node.store(piece);
                    lock(&applications).insert(piece.application);
                }
                vec![node.used_bytes()]
            }
            Ok(Question::Figures) => {
                vec![node.used_bytes(), node.looked_up(), lock(&applications).len() as u64]
            }
            _ => Vec::new(),
        };
        answer(&numbers)
    });
    Ok(bus.answer(&node_service(number)?, respond)?)
}

fn serve_director(bus: &dyn Bus, nodes: usize, slack: u64) -> Result<Box<dyn Answering>> {
    // What clients have reported of the nodes; it only grows.
    let state = Mutex::new((Director::new(1.05, slack), vec![0; nodes]));
    let respond: Respond = Arc::new(move |question: &[u8]| {
        let Ok(Question::Nodes(application, known)) = Question::decode(question) else {
            return answer(&[]);
        };
        let (director, used) = &mut *lock(&state);
        for (used, known) in used.iter_mut().zip(known) {
            *used = known.max(*used);
        }
        let of = director.nodes(application, &Known::of(used.clone()));
        let of: Vec<u64> = of.iter().map(|node| *node as u64).collect();
        answer(&[used.as_slice(), of.as_slice()].concat())
    });
    Ok(bus.answer(&director_service()?, respond)?)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a router is told: what nodes have answered for the pieces of a batch.
#[derive(Debug, Default)]
struct Known {
    used: Vec<u64>,
    /// By node and handprint: how many representatives the node has.
    similar: HashMap<(usize, Vec<Print>), usize>,
    /// What the scheme has asked for.
    wanted: RefCell<Vec<(usize, Vec<Print>)>>,
}

impl Known {
    fn of(used: Vec<u64>) -> Self {
        Self { used, ..Self::default() }
    }
}

impl Answers for Known {
    fn nodes(&self) -> usize {
        self.used.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.used[node]
    }

    /// What is not known yet is noted, and counts as not there.
    fn similar(&self, node: usize, _: Application, handprint: &[Print]) -> usize {
        let key = (node, handprint.to_vec());
        self.similar.get(&key).copied().unwrap_or_else(|| {
            self.wanted.borrow_mut().push(key);
            0
        })
    }

    fn known(&self, _: usize, _: &[Print]) -> usize {
        0
    }
}

/// A client: routes a batch at a time with the product's router.
struct Client<'b> {
    bus: &'b dyn Bus,
    scheme: Served,
    router: Box<dyn Router>,
    services: Vec<Name>,
    director: Name,
    used: Vec<u64>,
    asked_prints: u64,
    messages: u64,
}

impl<'b> Client<'b> {
    fn new(bus: &'b dyn Bus, scheme: Served, nodes: usize) -> Result<Self> {
        Ok(Self {
            bus,
            scheme,
            router: scheme.way().router(1, HANDPRINT),
            services: (0..nodes).map(node_service).collect::<Result<_>>()?,
            director: director_service()?,
            used: vec![0; nodes],
            asked_prints: 0,
            messages: 0,
        })
    }

    fn back_up(&mut self, pieces: Vec<Piece>) -> Result<()> {
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let batch: Vec<Piece> = pieces.by_ref().take(BATCH).collect();
            self.consult_director(batch[0].application)?;
            let mut known = Known::of(self.used.clone());
            // First it is found what the router wants to know, then it routes.
            for piece in &batch {
                self.router.route(piece, &known);
            }
            self.find_similar(&mut known, batch[0].application)?;
            known.used.clone_from(&self.used);
            let mut by_node: Vec<Vec<Piece>> = vec![Vec::new(); self.services.len()];
            for piece in batch {
                by_node[self.router.route(&piece, &known)].push(piece);
            }
            let questions: Vec<(usize, Question)> = by_node
                .into_iter()
                .enumerate()
                .filter(|(_, pieces)| !pieces.is_empty())
                .map(|(node, pieces)| (node, Question::Store(pieces)))
                .collect();
            self.ask_nodes(&questions)?;
        }
        Ok(())
    }

    /// The director decides which nodes an application has; the router of this client follows.
    fn consult_director(&mut self, application: Application) -> Result<()> {
        if self.scheme != Served::Appdedupe {
            return Ok(());
        }
        let question = Question::Nodes(application, self.used.clone());
        let answered = ask(self.bus, &self.director, &question)?;
        self.messages += 1;
        let (used, of) = answered.split_at_checked(self.used.len()).ok_or("a short answer")?;
        self.used.copy_from_slice(used);
        let of = of.iter().map(|node| Ok(usize::try_from(*node)?)).collect::<Result<_>>()?;
        // It calls no node overloaded by itself.
        let mut director = Director::new(f64::INFINITY, 0);
        director.assign(application, of);
        let router = silt_routing::AppDedupe { director, ..silt_routing::AppDedupe::default() };
        self.router = Box::new(router);
        Ok(())
    }

    fn find_similar(&mut self, known: &mut Known, application: Application) -> Result<()> {
        let mut by_node: Vec<Vec<Vec<Print>>> = vec![Vec::new(); self.services.len()];
        for (node, handprint) in known.wanted.take() {
            by_node[node].push(handprint);
        }
        let mut questions = Vec::new();
        for (node, handprints) in by_node.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            self.asked_prints += handprints.iter().map(|it| it.len() as u64).sum::<u64>();
            questions.push((node, Question::Similar(application, handprints.clone())));
        }
        for ((node, _), answered) in questions.iter().zip(self.ask_nodes(&questions)?) {
            for (handprint, count) in by_node[*node].iter().zip(&answered[1..]) {
                known.similar.insert((*node, handprint.clone()), usize::try_from(*count)?);
            }
        }
        Ok(())
    }

    /// Asks nodes at the same time. Each answer begins with what the node has stored.
    fn ask_nodes(&mut self, questions: &[(usize, Question)]) -> Result<Vec<Vec<u64>>> {
        let (bus, services) = (self.bus, &self.services);
        let answers: Vec<Result<Vec<u64>>> = std::thread::scope(|scope| {
            let asked: Vec<_> = questions
                .iter()
                .map(|(node, question)| scope.spawn(move || ask(bus, &services[*node], question)))
                .collect();
            let panicked = |_| Err("a question panicked".into());
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(panicked)).collect()
        });
        self.messages += questions.len() as u64;
        let answers: Vec<Vec<u64>> = answers.into_iter().collect::<Result<_>>()?;
        for ((node, _), answered) in questions.iter().zip(&answers) {
            self.used[*node] = *answered.first().ok_or("a node did not understand")?;
        }
        Ok(answers)
    }
}
