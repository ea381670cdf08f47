//! What an agent answers to those who ask.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use silt_format::Result;

use super::lock;
use super::state::State;
use crate::messages::Messages;
use crate::status::{Accepted, Answer, Question, Refusal};

/// Numbers for commands that are valid at a time.
const NUMBERS_MAX: usize = 64;
/// How long a number is valid.
const NUMBER_NS: i64 = 60_000_000_000;

/// Answers questions to an agent.
pub(super) struct Service {
    state: Arc<Mutex<State>>,
    messages: Messages,
    /// Numbers that were given out and not used, with the time.
    numbers: Mutex<VecDeque<(u64, i64)>>,
}

impl Service {
    pub fn new(state: &Arc<Mutex<State>>, messages: &Messages) -> Self {
        let (state, messages) = (Arc::clone(state), messages.clone());
        Self { state, messages, numbers: Mutex::default() }
    }

    /// The answer to a question; empty to what cannot be opened.
    pub fn respond(&self, question: &[u8]) -> Vec<u8> {
        self.answer(question).unwrap_or_else(|_| {
            lock(&self.state).unreadable += 1;
            Vec::new()
        })
    }

    fn answer(&self, sealed: &[u8]) -> Result<Vec<u8>> {
        let number = Messages::number(sealed)?;
        let (question, signer) = self.messages.open_json::<Question>(number, sealed)?;
        let is_valid = self.take_number(number);
        let (number, answer) = match question {
            Question::Hello { reply } if !signer.is_full() => {
                (reply, Answer::Refused { refusal: Refusal::NotFull })
            }
            Question::Hello { reply } => (reply, Answer::Number { number: self.new_number() }),
            _ if !is_valid => (number, Answer::Refused { refusal: Refusal::Stale }),
            _ if !signer.is_full() => (number, Answer::Refused { refusal: Refusal::NotFull }),
            command => (number, self.obey(command)),
        };
        self.messages.seal_json(number, &answer)
    }

    fn obey(&self, command: Question) -> Answer {
        let mut state = lock(&self.state);
        let done = match command {
            Question::Backup { series, now } => state.ask(&series, now),
            Question::Cancel { what } => state.cancel(&what),
            Question::Join { round } => state.join(round),
            Question::Status | Question::Hello { .. } => {
                return Answer::Status { status: Box::new(state.status()) };
            }
        };
        let at_ns = state.env.now_ns();
        match done {
            Ok((key, was_running)) => Answer::Accepted(Accepted { key, at_ns, was_running }),
            Err(refusal) => Answer::Refused { refusal },
        }
    }

    fn new_number(&self) -> u64 {
        let env = Arc::clone(&lock(&self.state).env);
        let mut bytes = [0; 8];
        env.entropy(&mut bytes);
        // 0 is for those that have no number.
        let number = u64::from_le_bytes(bytes).max(1);
        let mut numbers = lock(&self.numbers);
        if numbers.len() == NUMBERS_MAX {
            numbers.pop_front();
        }
        numbers.push_back((number, env.now_ns()));
        number
    }

    /// Takes a number out of those that are valid. Returns whether it was one.
    fn take_number(&self, number: u64) -> bool {
        let now_ns = lock(&self.state).env.now_ns();
        let mut numbers = lock(&self.numbers);
        numbers.retain(|(_, at_ns)| (0..NUMBER_NS).contains(&(now_ns - at_ns)));
        let found = numbers.iter().position(|(known, _)| *known == number);
        found.and_then(|index| numbers.remove(index)).is_some()
    }
}
