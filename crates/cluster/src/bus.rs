//! What many hosts tell each other: who does what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use silt_format::{Error, Result};

/// How long a job that was taken is left alone without a sign of life.
pub const SIGN_OF_LIFE: Duration = Duration::from_mins(1);
/// How often a job is delivered at most.
pub const ATTEMPTS_MAX: u32 = 5;
/// For how long the id of a job is remembered, so that an offer that is repeated adds none.
pub const REPEATS: Duration = Duration::from_mins(2);
/// The largest message, in bytes. What is larger is an object in the storage.
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;

/// Carries jobs, leases, presence, questions and progress between hosts.
///
/// It carries hints. It may lose, repeat, delay and reorder all of them, and grant a lease twice,
/// also after it has acknowledged something. So nothing that must be true may rest on it: commits,
/// deletions, and what was backed up are facts of the storage alone.
///
/// Every call can fail with `Unavailable`, which means that nothing is known of what it did.
pub trait Bus: Send + Sync {
    /// Adds a job, unless one of this pool and key waits or runs.
    fn offer(&self, job: &Job) -> Result<Offer>;

    /// Takes a job of a pool, the oldest first. Waits for one at most for `patience`.
    ///
    /// The job is somebody else's again if there is no sign of life for [`SIGN_OF_LIFE`], and is
    /// dropped after [`ATTEMPTS_MAX`] deliveries.
    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>>;

    /// Says how a job that was taken goes on. A job that is somebody else's by now stays theirs.
    ///
    /// The key of a job that is over is free a moment later: several servers agree on it first.
    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()>;

    /// Takes a lease for `term`, unless it is held.
    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>>;

    /// Holds a lease for `term` from now on. Returns whether it was still held; if it was not,
    /// somebody else may hold it.
    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool>;

    /// Gives up a lease. If it is somebody else's by now, it stays theirs.
    fn release(&self, lease: Lease) -> Result<()>;

    /// Says that a member is there, for `term`, and what is to be known about it.
    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()>;

    /// The members that are there, by name.
    fn members(&self) -> Result<Vec<Member>>;

    /// One member, if it is there.
    fn find_member(&self, name: &Name) -> Result<Option<Member>>;

    /// Keeps more about a member for `term`, which is read by those who ask for it only.
    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()>;

    /// What these members have said by [`Self::describe`]. Those that have not are left out.
    fn details(&self, members: &[Name]) -> Result<Vec<Member>>;

    /// Answers questions to a service until the value returned is dropped. If several do, each
    /// question goes to one of them. If several servers carry the bus, members of another server
    /// may find nobody for a moment.
    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>>;

    /// Asks a service. Returns `None` if there is no answer within `patience`.
    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>>;

    /// Tells everybody who listens to a topic now.
    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()>;

    /// Listens to a topic from now on. Of a listener that falls behind, the oldest messages are
    /// dropped.
    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>>;
}

/// Makes an answer from a question.
pub type Respond = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Answers questions until it is dropped.
pub trait Answering: Send {}

/// Receives what is told.
pub trait Listener: Send {
    /// The next message, if one comes within `patience`.
    fn next(&mut self, patience: Duration) -> Result<Option<Vec<u8>>>;
}

/// A name of a pool, lease, member, service or topic, and the key of a job: 1 to 100 letters,
/// digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Fails with `Invalid` if it is longer, or has other characters.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > 100 || !name.bytes().all(is_valid) {
            return Err(Error::invalid(format!(
                "\"{}\" is not a name on the bus: 1 to 100 letters, digits, - and _",
                name.escape_debug()
            )));
        }
        Ok(Self(name))
    }

    /// A name that this program made.
    pub(crate) fn made(name: String) -> Self {
        assert!(Self::new(name.as_str()).is_ok(), "{name} is no name");
        Self(name)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Work for one of the members of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Whose members may take it.
    pub pool: Name,
    /// What it is about. Only one job of a key waits or runs at a time.
    pub key: Name,
    /// Identifies the job: one that is offered again within [`REPEATS`] is not added.
    pub id: Name,
    /// What there is to do; at most [`MESSAGE_BYTES_MAX`].
    pub body: Vec<u8>,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The job was added.
    Added,
    /// Another job of its key waits or runs.
    Present,
    /// The same job was added before.
    Repeated,
}

/// A job that was taken.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The job.
    pub job: Job,
    /// 1, if it was not delivered before.
    pub attempt: u32,
    /// Identifies the delivery on its bus.
    pub(crate) receipt: String,
}

/// How a job goes on that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It runs.
    Running,
    /// It has ended, and needs no repetition.
    Done,
    /// It is to be delivered again, not before so much time is over.
    Again(Duration),
}

/// A lease that was granted. It saves work that would be done twice, and guards no data.
#[derive(Clone, Debug)]
pub struct Lease {
    /// What it is for.
    pub name: Name,
    /// Grows with each grant and renewal of the lease.
    pub number: u64,
}

/// A member that has announced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// What it has said about itself.
    pub about: Vec<u8>,
}

/// Fails with `Invalid` if a message is too large for a bus.
pub(crate) fn check_bytes(message: &[u8]) -> Result<()> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a message of {} bytes is too large for the bus, which takes {MESSAGE_BYTES_MAX}",
            message.len()
        )));
    }
    Ok(())
}
