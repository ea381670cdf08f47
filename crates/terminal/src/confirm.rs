//! Asks before actions that are hard to undo.

use std::io::{BufRead, IsTerminal, Write};

use silt_format::{Error, ErrorKind};

use crate::failure::Failure;
use crate::output::visible;

/// Asks on the terminal whether to go on. Without a terminal it refuses, and `otherwise` names the
/// option that goes on without asking.
///
/// Fails with `Denied` unless the user answers yes.
pub fn ask(question: &str, otherwise: &str) -> Result<(), Failure> {
    let refused = |message: String| Failure::Error(Error::new(ErrorKind::Denied, message));
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(refused(format!("refused: {question}? {otherwise}")));
    }
    let mut answer = String::new();
    let mut terminal = std::io::stderr();
    let asked = write!(terminal, "{}? [y/N] ", visible(question));
    asked
        .and_then(|()| terminal.flush())
        .and_then(|()| std::io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Error::io("ask on the terminal", error))?;
    if matches!(answer.trim(), "y" | "Y" | "yes" | "Yes") {
        return Ok(());
    }
    Err(refused("nothing was done".to_owned()))
}
