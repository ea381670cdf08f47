//! Somebody who answers questions about chunks, as one who asks sees them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use silt_repository::env::Context;

use crate::{Bus, Messages, Name};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// After so many questions without an answer in a row, nothing is asked for a while.
const MISSES_MAX: u32 = 3;
/// How long.
const PAUSE_NS: i64 = 15 * 1_000_000_000;

/// What became of a question.
pub(crate) enum Reply<T> {
    /// It was answered.
    Answer(T),
    /// It was not understood, or answering has failed.
    Refused,
    /// Nobody has answered in time, or nobody who is believed.
    Silence,
}

impl<T> Reply<T> {
    /// The answer, if there is one.
    pub fn answer(self) -> Option<T> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Refused | Self::Silence => None,
        }
    }
}

/// A service that answers questions, and whether it does.
pub(crate) struct Respondent {
    service: Name,
    /// What its questions are sealed with.
    number: u64,
    /// Questions in a row that were not answered, and when the last of them was asked.
    silent: Mutex<(u32, i64)>,
}

impl Respondent {
    pub fn new(service: Name, number: u64) -> Self {
        Self { service, number, silent: Mutex::default() }
    }

    /// Asks, and reads the answer. `question` makes the question from the number that the answer
    /// is to be sealed with. Only an answer counts that a key has signed that reads data.
    pub fn ask<T>(
        &self,
        (bus, messages, context): (&dyn Bus, &Messages, &Context),
        question: impl FnOnce(u64) -> Vec<u8>,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Reply<T> {
        let now_ns = context.env.now_ns();
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let (misses, since_ns) = *silent();
        if misses >= MISSES_MAX && now_ns.saturating_sub(since_ns) < PAUSE_NS {
            return Reply::Silence;
        }
        let nonce = context.random_id();
        let Ok(question) = messages.seal(self.number, &question(nonce)) else {
            return Reply::Silence;
        };
        let answer = bus.ask(&self.service, &question, PATIENCE).ok().flatten();
        let is_refused = answer.as_ref().is_some_and(Vec::is_empty);
        let answer = answer.and_then(|answer| messages.open(nonce, &answer).ok());
        let answer = answer.filter(|answer| answer.signer.is_full());
        let found = answer.and_then(|answer| read(&answer.plain));
        *silent() = if found.is_some() { (0, now_ns) } else { (misses + 1, now_ns) };
        match found {
            Some(found) => Reply::Answer(found),
            None if is_refused => Reply::Refused,
            None => Reply::Silence,
        }
    }
}
