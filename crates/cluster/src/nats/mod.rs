//! The bus over NATS with JetStream.

mod calls;
mod streams;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, AckKind};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::env::Env;
use tokio::runtime::Runtime;

use crate::bus::{
    ATTEMPTS_MAX, Answering, Bus, Delivery, Job, JobState, Lease, Listener, Member, Name, Offer,
    REPEATS, Respond, SIGN_OF_LIFE, check_bytes,
};
use calls::{Hearing, Responding};
use streams::{PRESENT, Streams};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a bus is reached, and how it is set up by whoever comes first.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Addresses of servers, such as `nats://bus1:4222`.
    pub servers: Vec<String>,
    /// The member that connects. Its answers come to `_INBOX_MEMBER.>`, so that permissions can
    /// keep others away from them.
    pub member: Name,
    /// A user and a password.
    pub user: Option<(String, String)>,
    /// A file of certificates that servers are verified by, besides those of the system.
    pub certificates: Option<PathBuf>,
    /// Files with the certificate and the key that this member shows.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether TLS begins before the server says anything, as with its `handshake_first`.
    pub tls_first: bool,
    /// How many servers keep a copy of each job and lease.
    pub replicas: usize,
    /// See [`SIGN_OF_LIFE`].
    pub sign_of_life: Duration,
    /// See [`REPEATS`].
    pub repeats: Duration,
}

impl NatsOptions {
    /// One server, without TLS.
    pub fn new(server: impl Into<String>, member: Name) -> Self {
        Self {
            servers: vec![server.into()],
            member,
            user: None,
            certificates: None,
            identity: None,
            tls_first: false,
            replicas: 1,
            sign_of_life: SIGN_OF_LIFE,
            repeats: REPEATS,
        }
    }
}

/// A bus over NATS. Jobs and leases are in JetStream, everything else is not stored.
pub struct NatsBus {
    /// Before `runtime`, within which they end.
    client: Client,
    streams: Streams,
    options: NatsOptions,
    env: Arc<dyn Env>,
    /// When a job was taken or shown to be alive last, by receipt, in nanoseconds since 1970.
    alive: Mutex<HashMap<String, i64>>,
    runtime: Arc<Runtime>,
}

impl NatsBus {
    /// Connects, and makes the streams that are missing. Fails with `Unavailable` if no server
    /// answers, with `Denied` if one refuses this member.
    pub fn connect(options: NatsOptions, env: Arc<dyn Env>) -> Result<Self> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).thread_name("bus").enable_all().build();
        let runtime =
            runtime.map_err(|error| calls::unavailable("a thread for the bus", &error))?;
        let client = runtime.block_on(async {
            let connecting = connect_options(&options).connect(&options.servers[..]);
            match tokio::time::timeout(PATIENCE, connecting).await {
                Ok(connected) => connected.map_err(|error| not_connected(&error)),
                Err(late) => Err(calls::unavailable("connect", &late)),
            }
        })?;
        // It starts a task.
        let context = {
            let _within = runtime.enter();
            jetstream::new(client.clone())
        };
        let streams = Streams::new(context, &options);
        runtime.block_on(streams.ensure())?;
        let alive = Mutex::default();
        Ok(Self { client, streams, options, env, alive, runtime: Arc::new(runtime) })
    }

    /// How long ago a delivery was known to be alive, if this connection has it.
    fn silence(&self, delivery: &Delivery) -> Option<Duration> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let since_ns = self.env.now_ns().saturating_sub(*alive.get(&delivery.receipt)?);
        Some(Duration::from_nanos(since_ns.unsigned_abs()))
    }

    fn note_alive(&self, receipt: &str, is_running: bool) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if is_running {
            let (now_ns, term_ns) = (self.env.now_ns(), self.options.sign_of_life.as_nanos());
            // Those that nobody settled are somebody else's by now.
            alive.retain(|_, since_ns| u128::from(now_ns.abs_diff(*since_ns)) < term_ns);
            alive.insert(receipt.to_owned(), now_ns);
        } else {
            alive.remove(receipt);
        }
    }
}

/// Why no server was reached.
fn not_connected(error: &ConnectError) -> Error {
    let why = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            "it does not know this member, or not its password or certificate"
        }
        // With TLS 1.3 it is refused after its handshake, as any other reading would fail.
        _ if error.to_string().contains("CertificateRequired") => "it asks for a certificate",
        _ => return calls::unavailable("connect", error),
    };
    let message = format!("the bus (NATS) refuses the connection: {why}");
    Error::new(ErrorKind::Denied, message)
}

fn connect_options(options: &NatsOptions) -> ConnectOptions {
    let mut connect = ConnectOptions::new()
        .name(options.member.as_str())
        .custom_inbox_prefix(format!("_INBOX_{}", options.member))
        .request_timeout(Some(PATIENCE))
        .connection_timeout(PATIENCE);
    if let Some((user, password)) = &options.user {
        connect = connect.user_and_password(user.clone(), password.clone());
    }
    if let Some(certificates) = &options.certificates {
        connect = connect.add_root_certificates(certificates.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &options.identity {
        let (certificate, key) = (certificate.clone(), key.clone());
        connect = connect.add_client_certificate(certificate, key).require_tls(true);
    }
    if options.tls_first { connect.tls_first() } else { connect }
}

impl Bus for NatsBus {
    fn offer(&self, job: &Job) -> Result<Offer> {
        check_bytes(&job.body)?;
        let message = PublishMessage::build().message_id(job.id.as_str());
        let message = message.payload(job.body.clone().into());
        let subject = streams::job_subject(job);
        match self.runtime.block_on(self.streams.publish(subject, message))? {
            Ok(stored) if stored.duplicate => Ok(Offer::Repeated),
            Ok(_) => Ok(Offer::Added),
            Err(PRESENT) => Ok(Offer::Present),
            Err(code) => Err(streams::refused("a job", code)),
        }
    }

    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        loop {
            let taken = self.runtime.block_on(self.streams.take(pool, patience))?;
            let Some(delivery) = taken else { return Ok(None) };
            if delivery.attempt <= ATTEMPTS_MAX {
                self.note_alive(&delivery.receipt, true);
                return Ok(Some(delivery));
            }
            let drop = self.streams.acknowledge(&self.client, &delivery, AckKind::Term);
            self.runtime.block_on(drop)?;
        }
    }

    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()> {
        // The server takes late acknowledgements for those of whoever has the job now.
        if self.silence(delivery).is_none_or(|silence| silence >= self.options.sign_of_life) {
            self.note_alive(&delivery.receipt, false);
            return Ok(());
        }
        let (kind, is_running) = match state {
            JobState::Running => (AckKind::Progress, true),
            JobState::Done => (AckKind::Ack, false),
            JobState::Again(Duration::ZERO) => (AckKind::Nak(None), false),
            JobState::Again(pause) => (AckKind::Nak(Some(pause)), false),
        };
        self.runtime.block_on(self.streams.acknowledge(&self.client, delivery, kind))?;
        self.note_alive(&delivery.receipt, is_running);
        Ok(())
    }

    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>> {
        let number = self.runtime.block_on(self.streams.hold(name, 0, term))?;
        Ok(number.map(|number| Lease { name: name.clone(), number }))
    }

    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool> {
        let number = self.runtime.block_on(self.streams.hold(&lease.name, lease.number, term))?;
        lease.number = number.unwrap_or(lease.number);
        Ok(number.is_some())
    }

    fn release(&self, lease: Lease) -> Result<()> {
        self.runtime.block_on(self.streams.release(lease.number))
    }

    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        check_bytes(about)?;
        let message = PublishMessage::build().payload(about.to_vec().into()).ttl(term);
        let subject = streams::member_subject(member);
        let stored = self.runtime.block_on(self.streams.publish(subject, message))?;
        stored.map(drop).map_err(|code| streams::refused("a member", code))
    }

    fn members(&self) -> Result<Vec<Member>> {
        self.runtime.block_on(self.streams.members())
    }

    fn find_member(&self, name: &Name) -> Result<Option<Member>> {
        self.runtime.block_on(self.streams.member(name))
    }

    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        check_bytes(details)?;
        let message = PublishMessage::build().payload(details.to_vec().into()).ttl(term);
        let subject = streams::details_subject(member);
        let stored = self.runtime.block_on(self.streams.publish(subject, message))?;
        stored.map(drop).map_err(|code| streams::refused("the details of a member", code))
    }

    fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        self.runtime.block_on(self.streams.details(members))
    }

    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>> {
        let subject = calls::service_subject(service);
        let responding = Responding::start(&self.client, subject, respond);
        Ok(Box::new(self.runtime.block_on(responding)?))
    }

    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        check_bytes(question)?;
        let subject = calls::service_subject(service);
        self.runtime.block_on(calls::ask(&self.client, subject, question.to_vec(), patience))
    }

    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        check_bytes(message)?;
        let subject = calls::topic_subject(topic);
        self.runtime.block_on(calls::tell(&self.client, subject, message.to_vec()))
    }

    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>> {
        let subject = calls::topic_subject(topic);
        let heard = self.runtime.block_on(calls::subscribe(&self.client, subject))?;
        Ok(Box::new(Hearing { heard, runtime: Arc::clone(&self.runtime) }))
    }
}
