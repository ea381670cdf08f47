//! What NATS passes on without keeping it: questions, answers and progress.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::{Client, Message, RequestErrorKind, Subscriber};
use futures_util::StreamExt;
use silt_format::{Error, ErrorKind, Result};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::bus::{Answering, Listener, Name, Respond};

/// Questions to one member that are answered at the same time.
const AT_ONCE: usize = 4;

pub(super) fn service_subject(service: &Name) -> String {
    match service.as_str().split_once('-') {
        // Hosts that may ask for chunks need no right to ask for anything else.
        Some(("index", host)) => format!("silt.index.{host}"),
        // No name of a host has a dot.
        Some(("node", number)) => format!("silt.index.node.{number}"),
        _ => format!("silt.ask.{service}"),
    }
}

pub(super) fn topic_subject(topic: &Name) -> String {
    format!("silt.tell.{topic}")
}

pub(super) fn unavailable(what: &str, error: &dyn fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the bus (NATS) failed to {what}: {error}"))
}

/// Waits until the server has taken everything that was sent before. A flush of the client only
/// empties its buffers; here nobody listens, which the server says.
async fn round_trip(client: &Client, what: &str) -> Result<()> {
    match client.request("silt.nobody", Vec::new().into()).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
        Err(error) => Err(unavailable(what, &error)),
    }
}

/// Subscribes, and waits until the server knows.
pub(super) async fn subscribe(client: &Client, subject: String) -> Result<Subscriber> {
    let heard = client.subscribe(subject).await;
    let heard = heard.map_err(|error| unavailable("listen", &error))?;
    round_trip(client, "listen").await?;
    Ok(heard)
}

/// Publishes, and waits until the server has passed it on: who listens later hears nothing of it.
pub(super) async fn tell(client: &Client, subject: String, message: Vec<u8>) -> Result<()> {
    let told = client.publish(subject, message.into()).await;
    told.map_err(|error| unavailable("tell", &error))?;
    round_trip(client, "tell").await
}

pub(super) async fn ask(
    client: &Client,
    subject: String,
    question: Vec<u8>,
    patience: Duration,
) -> Result<Option<Vec<u8>>> {
    let request = async_nats::Request::new().payload(question.into()).timeout(Some(patience));
    match client.send_request(subject, request).await {
        Ok(answer) => Ok(Some(answer.payload.to_vec())),
        Err(error) => match error.kind() {
            RequestErrorKind::TimedOut | RequestErrorKind::NoResponders => Ok(None),
            _ => Err(unavailable("ask", &error)),
        },
    }
}

/// Answers questions until it is dropped.
pub(super) struct Responding {
    task: JoinHandle<()>,
    /// Held here alone, so that what it holds is not dropped within the runtime.
    _respond: Respond,
}

impl Responding {
    pub async fn start(client: &Client, subject: String, respond: Respond) -> Result<Self> {
        let questions = client.queue_subscribe(subject, "silt".to_owned()).await;
        let mut questions = questions.map_err(|error| unavailable("answer", &error))?;
        round_trip(client, "answer").await?;
        let (client, turns) = (client.clone(), Arc::new(Semaphore::new(AT_ONCE)));
        let responding = Arc::downgrade(&respond);
        let task = tokio::spawn(async move {
            while let Some(question) = questions.next().await {
                let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
                let (client, respond) = (client.clone(), Weak::clone(&responding));
                tokio::spawn(async move {
                    reply(&client, question, respond).await;
                    drop(turn);
                });
            }
        });
        Ok(Self { task, _respond: respond })
    }
}

type WeakRespond = Weak<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

async fn reply(client: &Client, question: Message, respond: WeakRespond) {
    let Some(to) = question.reply else { return };
    let answer = move || respond.upgrade().map(|respond| respond(&question.payload));
    let answer = tokio::task::spawn_blocking(answer).await;
    if let Ok(Some(answer)) = answer {
        // Whoever asks takes silence for no answer.
        let _ = client.publish(to, answer.into()).await;
    }
}

impl Answering for Responding {}

impl Drop for Responding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens to a topic.
pub(super) struct Hearing {
    pub heard: Subscriber,
    pub runtime: Arc<Runtime>,
}

impl Listener for Hearing {
    fn next(&mut self, patience: Duration) -> Result<Option<Vec<u8>>> {
        let next = async { tokio::time::timeout(patience, self.heard.next()).await };
        let message = self.runtime.block_on(next).unwrap_or_default();
        Ok(message.map(|message| message.payload.to_vec()))
    }
}
