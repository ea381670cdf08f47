//! What JetStream keeps: jobs in one stream, leases and members in another each.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{Context, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{AckKind, ErrorCode};
use futures_util::{StreamExt, TryStreamExt};
use silt_format::{Error, ErrorKind, Result};

use super::calls::unavailable;
use super::{NatsOptions, PATIENCE};
use crate::bus::{Delivery, Job, MESSAGE_BYTES_MAX, Member, Name};

const JOBS: &str = "SILT_JOBS";
const LEASES: &str = "SILT_LEASES";
const MEMBERS: &str = "SILT_MEMBERS";
/// Members that are read at the same time.
const READS: usize = 32;

/// The stream has a message of this subject already.
pub(super) const PRESENT: ErrorCode = ErrorCode::STREAM_STORE_FAILED;
/// The last message of the subject is another one.
pub(super) const WRONG_LAST: ErrorCode = ErrorCode::STREAM_WRONG_LAST_SEQUENCE;

pub(super) struct Streams {
    jetstream: Context,
    configs: [Config; 3],
    sign_of_life: Duration,
    consumers: Mutex<HashMap<Name, PullConsumer>>,
}

pub(super) fn job_subject(job: &Job) -> String {
    format!("silt.job.{}.{}", job.pool, job.key)
}

pub(super) fn member_subject(member: &Name) -> String {
    format!("silt.member.{member}")
}

pub(super) fn details_subject(member: &Name) -> String {
    format!("silt.member.{member}.details")
}

/// The server refused to store something.
pub(super) fn refused(what: &str, code: ErrorCode) -> Error {
    let text = format!("the bus refused {what}: error {} of NATS", code.0);
    Error::new(ErrorKind::Unavailable, text)
}

fn failed(what: &str) -> impl Fn(&dyn fmt::Display) -> Error {
    let what = what.to_owned();
    move |error| unavailable(&what, error)
}

/// One message for each subject of `silt.KIND.>`.
fn config(name: &str, kind: &str, options: &NatsOptions) -> Config {
    Config {
        name: name.to_owned(),
        subjects: vec![format!("silt.{kind}.>")],
        max_messages_per_subject: 1,
        max_message_size: i32::try_from(2 * MESSAGE_BYTES_MAX).unwrap_or(i32::MAX),
        storage: StorageType::File,
        num_replicas: options.replicas,
        duplicate_window: options.repeats,
        allow_message_ttl: kind != "job",
        metadata: HashMap::from([("silt-version".to_owned(), "1".to_owned())]),
        ..Config::default()
    }
}

impl Streams {
    pub fn new(jetstream: Context, options: &NatsOptions) -> Self {
        let jobs = Config {
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            ..config(JOBS, "job", options)
        };
        let others = [config(LEASES, "lease", options), config(MEMBERS, "member", options)];
        let [leases, members] = others;
        let (sign_of_life, consumers) = (options.sign_of_life, Mutex::default());
        Self { jetstream, configs: [jobs, leases, members], sign_of_life, consumers }
    }

    /// Makes the streams that are missing.
    pub async fn ensure(&self) -> Result<()> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for config in &self.configs {
            let made = self.jetstream.get_or_create_stream(config.clone()).await;
            made.map_err(|error| unavailable(&format!("make the stream {}", config.name), &error))?;
        }
        Ok(())
    }

    /// Stores a message. Returns the code of the server's refusal, if it refuses.
    pub async fn publish(
        &self,
        subject: String,
        message: PublishMessage,
    ) -> Result<std::result::Result<PublishAck, ErrorCode>> {
        let mut was_missing = false;
        loop {
            let error = match self.send(&subject, message.clone()).await {
                Ok(stored) => return Ok(Ok(stored)),
                Err(error) => error,
            };
            let cause = error.source().and_then(|cause| {
                cause
                    .downcast_ref::<async_nats::jetstream::Error>()
                    .map(async_nats::jetstream::Error::error_code)
            });
            match (error.kind(), cause) {
                (_, Some(code)) => return Ok(Err(code)),
                // Its files are gone: whoever comes first makes it again.
                (PublishErrorKind::StreamNotFound, None) if !was_missing => self.ensure().await?,
                _ => return Err(unavailable(&format!("publish to {subject}"), &error)),
            }
            was_missing = true;
        }
    }

    async fn send(
        &self,
        subject: &str,
        message: PublishMessage,
    ) -> std::result::Result<PublishAck, async_nats::jetstream::context::PublishError> {
        self.jetstream.send_publish(subject.to_owned(), message).await?.await
    }

    async fn consumer(&self, pool: &Name) -> Result<PullConsumer> {
        let known = || self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(pool).cloned();
        if let Some(consumer) = found {
            return Ok(consumer);
        }
        let what = format!("take jobs of the pool {pool}");
        let stream = self.jetstream.get_stream_no_info(JOBS).await;
        let stream = stream.map_err(|error| unavailable(&what, &error))?;
        let name = format!("silt-{pool}");
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: format!("silt.job.{pool}.*"),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.sign_of_life,
            ..pull::Config::default()
        };
        let consumer = stream.get_or_create_consumer(&name, config).await;
        let consumer: PullConsumer = consumer.map_err(|error| unavailable(&what, &error))?;
        known().insert(pool.clone(), consumer.clone());
        Ok(consumer)
    }

    /// Takes a job, however often it was delivered.
    pub async fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        match self.fetch(pool, patience).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                // The stream, or the consumer, may be gone.
                self.ensure().await?;
                self.fetch(pool, patience).await
            }
            taken => taken,
        }
    }

    async fn fetch(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        let what = format!("take a job of the pool {pool}");
        let consumer = self.consumer(pool).await?;
        let expires = patience.max(Duration::from_millis(1));
        let batch = consumer.batch().max_messages(1).expires(expires).messages().await;
        let mut batch = batch.map_err(|error| unavailable(&what, &error))?;
        let next = tokio::time::timeout(patience + PATIENCE, batch.next()).await;
        let Some(message) = next.map_err(|late| unavailable(&what, &late))? else {
            return Ok(None);
        };
        let message = message.map_err(|error| unavailable(&what, &error))?;
        let attempt = message.info().map_err(|error| unavailable(&what, &error))?.delivered;
        let header = message.headers.as_ref().and_then(|headers| headers.get(NATS_MESSAGE_ID));
        let key = message.subject.as_str().rsplit('.').next().unwrap_or_default();
        let id = Name::new(header.map(ToString::to_string).unwrap_or_default());
        let (Ok(key), Ok(id)) = (Name::new(key), id) else {
            // Nobody could ever take it, and it would come again and again.
            let dropped = message.ack_with(AckKind::Term).await;
            return dropped.map(|()| None).map_err(|error| unavailable(&what, &error));
        };
        let job = Job { pool: pool.clone(), key, id, body: message.payload.to_vec() };
        let receipt = message.reply.as_ref().map(ToString::to_string).unwrap_or_default();
        let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
        Ok(Some(Delivery { job, attempt, receipt }))
    }

    /// Tells the server how a job goes on, and waits until it has heard it.
    pub async fn acknowledge(
        &self,
        client: &Client,
        delivery: &Delivery,
        kind: AckKind,
    ) -> Result<()> {
        let said = client.request(delivery.receipt.clone(), kind.into()).await;
        said.map(drop).map_err(|error| {
            unavailable(&format!("acknowledge the job {}", delivery.job.id), &error)
        })
    }

    /// Takes or keeps a lease whose last number is `number`; 0, if nobody holds it.
    pub async fn hold(&self, name: &Name, number: u64, term: Duration) -> Result<Option<u64>> {
        let message = PublishMessage::build().expected_last_subject_sequence(number).ttl(term);
        match self.publish(format!("silt.lease.{name}"), message).await? {
            Ok(stored) => Ok(Some(stored.sequence)),
            Err(WRONG_LAST | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT) => Ok(None),
            Err(code) => Err(refused("a lease", code)),
        }
    }

    pub async fn release(&self, number: u64) -> Result<()> {
        let what = "release a lease";
        let stream = self.jetstream.get_stream_no_info(LEASES).await;
        let stream = stream.map_err(|error| unavailable(what, &error))?;
        match stream.delete_message(number).await {
            Ok(_) => Ok(()),
            // It has ended, or is somebody else's.
            Err(error) if error.to_string().contains("no message found") => Ok(()),
            Err(error) => Err(unavailable(what, &error)),
        }
    }

    pub async fn members(&self) -> Result<Vec<Member>> {
        let failed = failed("list members");
        let stream = self.jetstream.get_stream_no_info(MEMBERS).await;
        let stream = stream.map_err(|error| failed(&error))?;
        let subjects = stream.info_with_subjects("silt.member.*").await;
        let subjects = subjects.map_err(|error| failed(&error))?;
        let subjects: Vec<_> = subjects.try_collect().await.map_err(|error| failed(&error))?;
        let name = |subject: &str| Name::new(subject.trim_start_matches("silt.member.")).ok();
        let names = subjects.iter().filter_map(|(subject, _)| name(subject));
        let mut members = self.last(names.collect(), member_subject).await?;
        members.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(members)
    }

    pub async fn member(&self, name: &Name) -> Result<Option<Member>> {
        Ok(self.last(vec![name.clone()], member_subject).await?.pop())
    }

    pub async fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        self.last(members.to_vec(), details_subject).await
    }

    /// The last messages of these members; those that have ended are left out.
    async fn last(&self, members: Vec<Name>, subject: fn(&Name) -> String) -> Result<Vec<Member>> {
        let failed = failed("read members");
        let stream = self.jetstream.get_stream_no_info(MEMBERS).await;
        let stream = stream.map_err(|error| failed(&error))?;
        let stream = &stream;
        let reading = futures_util::stream::iter(members).map(|name| async move {
            match stream.get_last_raw_message_by_subject(&subject(&name)).await {
                Ok(last) => Ok(Some(Member { name, about: last.payload.to_vec() })),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(error),
            }
        });
        let read: Vec<_> = reading.buffered(READS).try_collect().await.map_err(|it| failed(&it))?;
        Ok(read.into_iter().flatten().collect())
    }
}
