//! What others ask of agents, and hear of them.

use std::sync::Arc;
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};
use silt_repository::env::Env;

use crate::bus::{Bus, Listener, Name};
use crate::director::pool;
use crate::messages::Messages;
use crate::presence::Reader;
use crate::status::{
    Accepted, AgentStatus, Answer, DirectorStatus, PROGRESS, Question, Refusal, Telling,
};

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Gives commands to an agent.
///
/// Each call asks for a number first, and seals its command with that, so that nobody can repeat
/// the command later. Fails with `Unavailable` if no agent of this name answers or the answer is
/// not its own, with `Denied` if the agent refuses, and with `NotFound` if it has no such task.
pub struct Remote {
    bus: Arc<dyn Bus>,
    messages: Messages,
    env: Arc<dyn Env>,
    agent: Name,
}

impl Remote {
    /// Commands to the agent of this name.
    pub fn new(bus: Arc<dyn Bus>, messages: Messages, env: Arc<dyn Env>, agent: Name) -> Self {
        Self { bus, messages, env, agent }
    }

    /// Asks for a backup of a series, or for another task, given by its key. It begins even if
    /// there is a snapshot already; with `now`, also if the agent has no room for more runs.
    pub fn backup(&self, series: &str, now: bool) -> Result<Accepted> {
        self.accepted(self.ask(&Question::Backup { series: series.to_owned(), now })?)
    }

    /// Asks the agent to take part in a round; it begins at once.
    pub fn join(&self, round: u64) -> Result<Accepted> {
        self.accepted(self.ask(&Question::Join { round })?)
    }

    /// Cancels the run of a task, given by its series or its key, and gives up its due time.
    pub fn cancel(&self, what: &str) -> Result<Accepted> {
        self.accepted(self.ask(&Question::Cancel { what: what.to_owned() })?)
    }

    /// What the agent says about itself.
    pub fn status(&self) -> Result<AgentStatus> {
        match self.ask(&Question::Status)? {
            Answer::Status { status } if status.name == self.agent => Ok(*status),
            Answer::Refused { refusal } => Err(self.refused(&refusal)),
            _ => Err(self.strange()),
        }
    }

    fn accepted(&self, answer: Answer) -> Result<Accepted> {
        match answer {
            Answer::Accepted(accepted) => Ok(accepted),
            Answer::Refused { refusal } => Err(self.refused(&refusal)),
            _ => Err(self.strange()),
        }
    }

    fn refused(&self, refusal: &Refusal) -> Error {
        let kind = match refusal {
            Refusal::NoTask { .. } | Refusal::NotRunning { .. } => ErrorKind::NotFound,
            Refusal::Stale => ErrorKind::Unavailable,
            Refusal::InRound => ErrorKind::Busy,
            Refusal::NotAllowed { .. } | Refusal::NotFull => ErrorKind::Denied,
        };
        Error::new(kind, format!("agent '{}' refuses: {refusal}", self.agent))
    }

    fn strange(&self) -> Error {
        let message = format!("agent '{}' gave an answer to another question", self.agent);
        Error::new(ErrorKind::Unavailable, message)
    }

    fn ask(&self, command: &Question) -> Result<Answer> {
        let reply = self.random();
        let hello = Question::Hello { reply };
        match self.ask_sealed(0, &hello, reply)? {
            Answer::Number { number } => self.ask_sealed(number, command, number),
            refused @ Answer::Refused { .. } => Ok(refused),
            _ => Err(self.strange()),
        }
    }

    /// Asks a question that is sealed with one number, whose answer is sealed with another.
    fn ask_sealed(&self, number: u64, question: &Question, reply: u64) -> Result<Answer> {
        let sealed = self.messages.seal_json(number, question)?;
        let answer = self.bus.ask(&pool(&self.agent), &sealed, PATIENCE)?;
        let unavailable = |message| Error::new(ErrorKind::Unavailable, message);
        let answer =
            answer.ok_or_else(|| unavailable(format!("agent '{}' does not answer", self.agent)))?;
        match self.messages.open_json(reply, &answer) {
            Ok((answer, _)) => Ok(answer),
            Err(error) => {
                let message = format!("the answer of agent '{}' is not its own", self.agent);
                Err(unavailable(message).with_source(error))
            }
        }
    }

    /// A number that nobody can guess.
    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.env.entropy(&mut bytes);
        u64::from_le_bytes(bytes).max(1)
    }
}

/// Who is there.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The agents, by name.
    pub agents: Vec<AgentStatus>,
    /// The director, if there is one.
    pub director: Option<DirectorStatus>,
    /// Members whose status could not be opened: of another repository, or damaged.
    pub unreadable: usize,
}

/// The agents of a repository that are there, as they say themselves.
pub fn fleet(bus: &dyn Bus, messages: &Messages) -> Result<Fleet> {
    let present = Reader::default().read(bus, messages)?;
    let mut agents: Vec<AgentStatus> = present.agents.into_iter().map(|(agent, _)| agent).collect();
    agents.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Fleet { agents, director: present.director, unreadable: present.unreadable })
}

/// What agents tell about their runs. It may be late, incomplete or repeated.
pub struct Watch {
    listener: Box<dyn Listener>,
    messages: Messages,
}

/// Listens to what agents of a repository tell from now on.
pub fn watch(bus: &dyn Bus, messages: &Messages) -> Result<Watch> {
    let listener = bus.listen(&Name::made(PROGRESS.to_owned()))?;
    Ok(Watch { listener, messages: messages.clone() })
}

impl Watch {
    /// The next that is told, if something comes within `patience`. What cannot be opened is left
    /// out.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Telling>> {
        while let Some(sealed) = self.listener.next(patience)? {
            if let Ok((telling, _)) = self.messages.open_json(0, &sealed) {
                return Ok(Some(telling));
            }
        }
        Ok(None)
    }
}
