//! Where passwords come from: environment, files, commands, and the terminal.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use silt_format::Error;

use crate::failure::Failure;
use crate::output;

/// How often a password is asked for if it is wrong.
const ATTEMPTS: u32 = 3;

/// What the name of a systemd credential begins with where it stands in place of a file.
const CREDENTIAL: &str = "credential:";

/// The folder of credentials that are not encrypted, for commands that are run by hand.
const CREDENTIAL_STORE: &str = "/etc/credstore";

/// The variables that can hold one password.
pub struct Variables {
    /// The one that holds the password itself.
    pub value: &'static str,
    /// The one that holds the path of a file with the password.
    pub file: &'static str,
    /// The one that holds a command that prints the password.
    pub command: &'static str,
}

/// The password of the repository.
pub const CURRENT: Variables = Variables {
    value: "SILT_PASSWORD",
    file: "SILT_PASSWORD_FILE",
    command: "SILT_PASSWORD_COMMAND",
};

/// A password to set.
pub const NEW: Variables = Variables {
    value: "SILT_NEW_PASSWORD",
    file: "SILT_NEW_PASSWORD_FILE",
    command: "SILT_NEW_PASSWORD_COMMAND",
};

/// The password of a replica.
pub const REPLICA: Variables = Variables {
    value: "SILT_TO_PASSWORD",
    file: "SILT_TO_PASSWORD_FILE",
    command: "SILT_TO_PASSWORD_COMMAND",
};

/// The password of the administrator of an append-only repository.
pub const ADMINISTRATOR: Variables = Variables {
    value: "SILT_ADMIN_PASSWORD",
    file: "SILT_ADMIN_PASSWORD_FILE",
    command: "SILT_ADMIN_PASSWORD_COMMAND",
};

#[expect(clippy::disallowed_methods, reason = "the program is where the environment is read")]
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the password from its only source, or asks on the terminal; `twice` asks again to
/// confirm.
///
/// Two sources at once are refused: choosing one would be a guess.
pub fn password(
    variables: &Variables,
    file: Option<&Path>,
    option: &str,
    prompt: &str,
    twice: bool,
) -> Result<Vec<u8>, Failure> {
    let set: Vec<&str> = [variables.value, variables.file, variables.command]
        .into_iter()
        .filter(|name| variable(name).is_some())
        .chain(file.map(|_| option))
        .collect();
    if set.len() > 1 {
        let message =
            format!("the password has more than one source: {}; use only one", set.join(" and "));
        return Err(Failure::Usage(message));
    }
    let password = if let Some(file) = file {
        from_file(file)?
    } else if let Some(value) = variable(variables.value) {
        use std::os::unix::ffi::OsStringExt;
        value.into_vec()
    } else if let Some(file) = variable(variables.file) {
        from_file(Path::new(&file))?
    } else if let Some(command) = variable(variables.command) {
        from_command(&command)?
    } else {
        from_terminal(variables, option, prompt, twice)?
    };
    not_empty(password)
}

/// Returns the password if it is in a file or in a variable. Nothing is asked for and no command
/// is run.
pub fn at_hand(variables: &Variables, file: Option<&Path>) -> Result<Vec<u8>, Error> {
    let none = || Error::new(silt_format::ErrorKind::Denied, "the password is not at hand");
    if variable(variables.command).is_some() || is_asked(variables, file) {
        return Err(none());
    }
    password(variables, file, "--password-file", "", false).map_err(|_| none())
}

/// Returns the password that a shell command prints.
pub fn by_command(command: &str) -> Result<Vec<u8>, Failure> {
    not_empty(from_command(command.as_ref())?)
}

/// Returns the password in the first line of a file, or of a credential of systemd.
pub fn of_file(file: &Path) -> Result<Vec<u8>, Failure> {
    not_empty(from_file(file)?)
}

fn not_empty(password: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if password.is_empty() {
        return Err(Failure::Usage("the password is empty".to_owned()));
    }
    Ok(password)
}

/// Whether the password has no other source than the terminal.
pub fn is_asked(variables: &Variables, file: Option<&Path>) -> bool {
    let names = [variables.value, variables.file, variables.command];
    file.is_none() && names.into_iter().all(|name| variable(name).is_none())
}

/// Runs `attempt`, which takes a password; if the password is asked for and wrong, up to
/// three times.
pub fn attempts<T>(
    is_asked: bool,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Failure::Error(error))
                if is_asked && error.kind() == silt_format::ErrorKind::WrongPassword =>
            {
                output::note(&format!("silt: {error}; try again"));
            }
            result => return result,
        }
    }
    attempt()
}

/// Whether a path is the name of a systemd credential.
pub fn is_credential(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(CREDENTIAL))
}

/// Returns the file of a password: the path itself, or that of a credential. A service has its
/// credentials in a folder of its own; without one, the folder is that of the machine.
fn file_of(path: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) else {
        return Ok(path.to_owned());
    };
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(Failure::Usage(format!("'{name}' cannot be the name of a credential")));
    }
    let folder = variable("CREDENTIALS_DIRECTORY").unwrap_or_else(|| CREDENTIAL_STORE.into());
    Ok(PathBuf::from(folder).join(name))
}

fn from_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let path = &file_of(path)?;
    let what = || format!("read the password file {}", path.display());
    // NotFound would be reported as a missing repository.
    let file = std::fs::File::open(path)
        .map_err(|e| Error::io(what(), e).with_kind(silt_format::ErrorKind::Invalid))?;
    let mut line = Vec::new();
    let mut reader = std::io::BufReader::new(std::io::Read::take(file, 1 << 16));
    reader.read_until(b'\n', &mut line).map_err(|e| Error::io(what(), e))?;
    Ok(first_line(line))
}

fn from_command(command: &std::ffi::OsStr) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| {
        Failure::Error(Error::new(
            silt_format::ErrorKind::Denied,
            format!("the password command '{}' {why}", command.to_string_lossy()),
        ))
    };
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg(command)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("could not be started: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed: {}", output.status)));
    }
    Ok(first_line(output.stdout))
}

fn first_line(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

fn from_terminal(
    variables: &Variables,
    option: &str,
    prompt: &str,
    twice: bool,
) -> Result<Vec<u8>, Failure> {
    if !std::io::stdin().is_terminal() {
        let sources = format!(
            "set {}, {} or {}, or use {option}",
            variables.value, variables.file, variables.command
        );
        if variables.value == ADMINISTRATOR.value {
            let message = format!("this needs the administrator's password: {sources}");
            return Err(Failure::Error(Error::new(silt_format::ErrorKind::Denied, message)));
        }
        return Err(Failure::Usage(format!("no password: {sources}")));
    }
    let ask = |prompt: &str| {
        rpassword::prompt_password(prompt).map_err(|error| {
            let interrupted = error.kind() == std::io::ErrorKind::Interrupted;
            let error = Error::io("ask for the password", error);
            if interrupted { error.with_kind(silt_format::ErrorKind::Interrupted) } else { error }
        })
    };
    let password = ask(prompt)?;
    if twice && ask("Again: ")? != password {
        return Err(Failure::Usage("the two passwords differ".to_owned()));
    }
    Ok(password.into_bytes())
}
