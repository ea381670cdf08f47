//! `silt completion`: the scripts, and the candidates that they ask for.

mod names;

use std::ffi::{OsStr, OsString};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};

use self::names::Names;
use crate::cli::{Cli, Complete};
use crate::{Program, output};

/// The time after which names are given up: a shell that waits is worse than one that offers less.
const PATIENCE: Duration = Duration::from_millis(800);
/// Maximum number of candidates that are printed.
const CANDIDATES_MAX: usize = 2_000;

/// Prints the script of a shell.
pub fn script(program: &Program, shell: Shell) {
    let name = program.name;
    let text = match shell {
        Shell::Bash => include_str!("complete.bash"),
        Shell::Zsh => include_str!("complete.zsh"),
        Shell::Fish => include_str!("complete.fish"),
        // These know commands and options, and no names.
        shell => {
            clap_complete::generate(shell, &mut Cli::command(), name, &mut std::io::stdout());
            return;
        }
    };
    text.replace("@NAME@", name).trim_end().lines().for_each(output::line);
}

/// Prints the candidates for a word of a command line. Nothing is asked for and no error is
/// printed: the terminal is in the hands of the shell.
pub fn candidates(program: &Program, args: &Complete) {
    let before = args.words.iter().take(args.index).cloned().collect();
    let names = Arc::new(Names { words: before, kinds: program.kinds });
    let mut command = with_names(Cli::command().name(program.name), &names);
    let found = complete(&mut command, args.words.clone(), args.index, None).unwrap_or_default();
    let current = args.words.get(args.index).map_or(OsStr::new(""), OsString::as_os_str);
    let wants_options = current.as_encoded_bytes().starts_with(b"-");
    let found = found.iter().filter_map(|candidate| {
        let value = candidate.get_value().to_str()?;
        let help = candidate.get_help().map(StyledStr::to_string).unwrap_or_default();
        let is_shown = is_plain(value) && value.starts_with('-') == wants_options;
        is_shown.then(|| (value.to_owned(), help))
    });
    for (value, help) in found.take(CANDIDATES_MAX) {
        let help = help.lines().next().unwrap_or_default();
        match args.shell {
            Shell::Zsh | Shell::Fish => output::columns(&value, help),
            _ => output::line(&value),
        }
    }
}

/// Whether a shell takes a candidate as one word and nothing else. Other hosts choose the names of
/// series: one with `$(...)` in it must not get into a command line.
fn is_plain(value: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./@:=+,%".contains(c);
    !value.is_empty() && value.chars().all(is_plain)
}

/// The command with the names of the repository as candidates of its arguments, and of its
/// subcommands'.
fn with_names(command: Command, names: &Arc<Names>) -> Command {
    let is_diff = command.get_name() == "diff";
    let command = command.mut_args(|arg| match completer(arg.get_id().as_str(), is_diff, names) {
        Some(completer) => arg.add(completer),
        None => arg,
    });
    command.mut_subcommands(|subcommand| with_names(subcommand, names))
}

/// The candidates of an argument, by its name.
fn completer(id: &str, is_diff: bool, names: &Arc<Names>) -> Option<ArgValueCompleter> {
    let find = match id {
        "series" => Names::series,
        "snapshot" | "snapshots" | "files" => Names::snapshots,
        "old" | "new" if is_diff => Names::snapshots,
        "profile" => Names::profiles,
        "to" => Names::replicas,
        "repo" => return Some(ArgValueCompleter::new(PathCompleter::dir())),
        "volumes" => return Some(ArgValueCompleter::new(volumes)),
        _ => return None,
    };
    let names = Arc::clone(names);
    Some(ArgValueCompleter::new(move |current: &OsStr| soon(&names, current, find)))
}

/// The names that are found in time.
fn soon(
    names: &Arc<Names>,
    current: &OsStr,
    find: fn(&Names, &str) -> Vec<Candidate>,
) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str().map(str::to_owned) else { return Vec::new() };
    let (send, receive) = mpsc::channel();
    let names = Arc::clone(names);
    let wanted = current.clone();
    // The thread ends with the process if it takes too long.
    std::thread::spawn(move || send.send(find(&names, &wanted)));
    let found = receive.recv_timeout(PATIENCE).unwrap_or_default();
    let found = found.into_iter().filter(|it| it.value.starts_with(&current));
    found.map(|it| CompletionCandidate::new(it.value).help(it.help.map(StyledStr::from))).collect()
}

/// `PATH` or `NAME=PATH`.
fn volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    let paths = PathCompleter::any();
    match current.to_str().and_then(|text| text.split_once('=')) {
        Some((name, path)) => {
            let found = paths.complete(OsStr::new(path)).into_iter();
            found.map(|candidate| candidate.add_prefix(format!("{name}="))).collect()
        }
        None => paths.complete(current),
    }
}

/// A name, and what to say of it.
struct Candidate {
    value: String,
    help: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_shell_would_obey_are_not_offered() {
        for name in ["web1", "web1@2026-11-20T18:30:05", "root=/vm/a.raw", "größe"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "$(reboot)", "a b", "a;b", "a\nb", "`a`", "~root", "a'b", "\u{1b}[2J", "*"]
        {
            assert!(!is_plain(name), "{name}");
        }
    }
}
