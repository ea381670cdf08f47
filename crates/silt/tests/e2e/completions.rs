//! Completions, in the shells themselves.

use std::collections::BTreeSet;
use std::process::Command;

use crate::kit::{Place, Run, can, disk, tool};

/// Types a line, a tab and Enter into an interactive shell, and prints each word that the shell
/// then had on a line of its own, in `<>`. Arguments: the line that loads the completion, the line
/// to type, and the shell with its options.
const TYPIST: &str = r#"
import os, pty, re, select, sys, time
setup, line, shell = sys.argv[1], sys.argv[2], sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(shell[0], shell)
printed = b""
def wait_for(pattern):
    global printed
    deadline = time.monotonic() + 60
    while not re.search(pattern, printed):
        left = deadline - time.monotonic()
        if left < 0 or not select.select([terminal], [], [], left)[0]:
            sys.exit("waited for %r in %r" % (pattern, printed))
        printed += os.read(terminal, 65536)
os.write(terminal, (setup + "; PS1=; printf '%s%s\\n' LOA DED\n").encode())
wait_for(rb"LOADED\r?\n")
# Home, and the words are printed in place of being run.
os.write(terminal, (line + "\t\x01printf '<%s>\\n' \x05\nprintf '%s%s\\n' EN DED\n").encode())
wait_for(rb"ENDED\r?\n")
print(b"\n".join(re.findall(rb"<[^%>\r\n]*>", printed)).decode())
"#;

/// A repository with two series, and a folder on the PATH in which the program is `silt`.
fn place() -> Place {
    let place = Place::new();
    place.write("a.raw", &disk(1, 4));
    for series in ["web1", "db1", "$(touch hit)"] {
        place.silt(&["backup", series, "root=a.raw", "data=a.raw"]).exits(0);
    }
    std::fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink(crate::PROGRAM, place.path("bin/silt")).unwrap();
    place
}

/// A program of the place, with the program under test on its PATH.
fn command(place: &Place, program: &str) -> Command {
    let mut command = place.command();
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", place.text("bin"));
    command.env("PATH", path).env("TERM", "dumb").env("HOME", place.folder.path());
    let mut shell = Command::new(program);
    shell.env_clear().current_dir(place.folder.path());
    shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell
}

/// The words of the line after a tab.
#[track_caller]
fn typed(place: &Place, setup: &str, shell: &[&str], line: &str) -> String {
    let mut command = command(place, "python3");
    let run = Run::of(command.args(["-c", TYPIST, setup, line]).args(shell)).exits(0);
    run.out.lines().map(|word| word.trim_matches(['<', '>'])).collect::<Vec<_>>().join(" ")
}

/// Whether lines become what is expected. Names are given up after less than a second, so that a
/// shell does not wait: on a busy machine, a user would press the key again.
#[track_caller]
fn assert_completed(place: &Place, setup: &str, shell: &[&str]) {
    for (line, expected) in LINES {
        let mut tries = (0..10).map(|_| typed(place, setup, shell, line));
        let first = tries.next().unwrap_or_default();
        if first != expected {
            let found = tries.find(|found| found == expected);
            assert_eq!(found.unwrap_or(first), expected);
        }
    }
}

/// Lines of a user, and what a tab makes of them.
const LINES: [(&str, &str); 8] = [
    ("silt resto", "silt restore"),
    ("silt check w", "silt check web1"),
    ("silt restore web1@la", "silt restore web1@latest"),
    ("silt restore web1@latest:ro", "silt restore web1@latest:root"),
    ("silt show --json db", "silt show --json db1@"),
    ("silt backup web1 root=a.r", "silt backup web1 root=a.raw"),
    ("silt snapshots --older", "silt snapshots --older-than"),
    ("silt diff web1@latest db1@la", "silt diff web1@latest db1@latest"),
];

#[test]
fn bash_completes_names() {
    if !can("bash") {
        return;
    }
    let place = place();
    let shell = ["bash", "--norc", "--noprofile", "-i"];
    assert_completed(&place, "source <(silt completion bash)", &shell);
    // A name that a shell would obey is not offered, also where nothing else fits.
    assert_eq!(
        typed(&place, "source <(silt completion bash)", &shell, "silt stats \\$"),
        "silt stats $"
    );
    assert!(!place.path("hit").exists());
}

#[test]
fn zsh_completes_names() {
    if !can("zsh") {
        return;
    }
    let place = place();
    place.write("_silt", place.silt(&["completion", "zsh"]).exits(0).out.as_bytes());
    let setup = "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; zstyle ':completion:*' \
                 list-prompt ''; LISTMAX=0";
    assert_completed(&place, setup, &["zsh", "-f", "-i"]);
}

#[test]
fn fish_completes_names() {
    if !can("fish") {
        return;
    }
    let place = place();
    for (line, expected) in LINES {
        let script = "silt completion fish | source; complete -C $argv[1]";
        let run = Run::of(command(&place, "fish").args(["-N", "-c", script, line])).exits(0);
        let candidates: BTreeSet<&str> =
            run.out.lines().filter_map(|line| line.split('\t').next()).collect();
        let word = expected.rsplit(' ').next().unwrap();
        assert_eq!(candidates.into_iter().collect::<Vec<_>>(), [word], "{line}");
    }
}

/// The candidates for the last word.
fn candidates(command: &mut Command, words: &[&str]) -> Vec<String> {
    let index = (words.len() - 1).to_string();
    let run = Run::of(command.args(["complete", "bash", &index, "--"]).args(words)).exits(0);
    assert_eq!(run.err, "");
    run.out.lines().map(str::to_owned).collect()
}

#[test]
fn completion_asks_for_nothing_and_says_nothing_of_errors() {
    let place = place();
    let words = ["silt", "restore", ""];
    assert_eq!(candidates(&mut place.command(), &words), ["latest", "db1@", "web1@"]);
    let cases: [(&str, Option<&str>); 5] = [
        ("SILT_PASSWORD", None),
        ("SILT_PASSWORD", Some("wrong")),
        ("SILT_PASSWORD_FILE", Some("nowhere")),
        ("SILT_REPOSITORY", Some("nowhere")),
        ("SILT_CONFIG", Some("nowhere")),
    ];
    for (name, value) in cases {
        let mut command = place.command();
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
        assert_eq!(candidates(&mut command, &words), [""; 0], "{name}={value:?}");
    }
    let mut command = place.command();
    assert_eq!(candidates(command.env("SILT_LOG_FILE", "log"), &words).len(), 3);
    assert!(!place.path("log").exists(), "a tab is no run of the program");
    // A command for the password could ask as well.
    let mut command = place.command();
    command.env_remove("SILT_PASSWORD").env("SILT_PASSWORD_COMMAND", "touch ran; echo secret");
    assert_eq!(candidates(&mut command, &words), [""; 0]);
    assert!(!place.path("ran").exists());
    // A password that never comes.
    tool("mkfifo", &[&place.text("pipe")]);
    let mut command = place.command();
    command.env_remove("SILT_PASSWORD").env("SILT_PASSWORD_FILE", "pipe");
    assert_eq!(candidates(&mut command, &words), [""; 0]);
}

#[test]
fn completion_uses_the_options_of_the_line_and_the_profile() {
    let place = place();
    place.write("password", b"secret\n");
    place.write(
        "silt.toml",
        b"[profiles.home]\nrepository = 'repository'\npassword-file = 'password'\n\
          [profiles.home.series.new]\nvolumes = { root = 'a.raw' }\n[profiles.away]\n\
          [profiles.home.replicas.offsite]\nto = 'ssh://offsite/replica'\n",
    );
    let bare = || {
        let mut command = place.command();
        command.env_remove("SILT_REPOSITORY").env_remove("SILT_PASSWORD");
        command
    };
    let words = ["silt", "--config", "silt.toml", "--profile", "home", "stats", ""];
    assert_eq!(candidates(&mut bare(), &words), ["db1", "new", "web1"]);
    let words = ["silt", "--config", "silt.toml", "--profile", ""];
    assert_eq!(candidates(&mut bare(), &words), ["away", "home"]);
    let home = ["silt", "--config", "silt.toml", "--profile", "home", "replicate"];
    let words = [&home[..], &["--to", "o"]].concat();
    assert_eq!(candidates(&mut bare(), &words), ["offsite"]);
    let words = ["silt", "-r", "repository", "--password-file", "password", "stats", "d"];
    assert_eq!(candidates(&mut bare(), &words), ["db1"]);
    let words = ["silt", "-r", "repository", "stats", "d"];
    assert_eq!(candidates(&mut bare(), &words), [""; 0]);
}
