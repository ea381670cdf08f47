//! Runs as processes of the own program, so that one that is stuck or killed harms no other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use silt_cluster::{End, Name, News, Run, Work, Worker};
use silt_format::{Error, ErrorKind, Result};
use silt_terminal::output;
use siltstone::Env;

use crate::lines::{INTERRUPTED, Said, Seen};

/// Lines of a process that wait to be read. If it writes more, it waits.
const LINES_MAX: usize = 256;
/// Most bytes of a line; the rest is another line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long the output of a process is waited for that has ended, if a process that it started
/// keeps the output open.
const OUTPUT_NS: i64 = 5_000_000_000;

/// How often it is seen whether a process has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// The program that a run starts.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub file: PathBuf,
    /// The arguments before a command: the file of settings, the profile and others.
    pub arguments: Vec<OsString>,
    /// Variables that it does not get.
    pub hidden: Vec<&'static str>,
    /// Whether backups apply the stored policies of their series.
    pub forget_after_backup: bool,
    /// The share of the data that a check reads.
    pub check_data: Option<String>,
    /// Whether changed data is copied to a temporary file in rounds.
    pub spool: bool,
    /// Whether agents count references when space is freed.
    pub reclaim_with_agents: bool,
}

impl Program {
    /// The command of a run. Backups ask these agents for what the shared store has.
    fn command(&self, run: &Run, index_hosts: &[Name]) -> Command {
        let mut command = Command::new(&self.file);
        command.args(&self.arguments).arg("--json");
        match &run.work {
            Work::Backup { series } => {
                command.arg("backup");
                if let Some(due_ns) = run.due_ns {
                    command.args(["--due-since", &output::rfc3339(due_ns)]);
                }
                command.args(self.forget_after_backup.then_some("--forget"));
                if !index_hosts.is_empty() {
                    let hosts: Vec<&str> = index_hosts.iter().map(Name::as_str).collect();
                    command.args(["--index-hosts", &hosts.join(",")]);
                }
                // A name that begins with a dash is no option.
                command.args(["--", series]);
            }
            Work::Forget => _ = command.arg("forget"),
            Work::Reclaim => {
                command.arg("reclaim");
                command.args(self.reclaim_with_agents.then_some("--with-agents"));
            }
            Work::Optimize => _ = command.arg("optimize"),
            Work::Check => {
                command.arg("check");
                if let Some(share) = &self.check_data {
                    command.args(["--read-data-subset", share]);
                }
            }
            Work::Replicate => _ = command.arg("replicate"),
            Work::Round => _ = command.args(["cluster", "round"]),
            Work::Join { round } => {
                command.args(["backup", "--join-round", &format!("{round:016x}")]);
                command.args(self.forget_after_backup.then_some("--forget"));
                command.args(self.spool.then_some("--spool"));
            }
        }
        self.hidden.iter().for_each(|name| _ = command.env_remove(name));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Carries out runs by processes. Clones are the same worker.
#[derive(Clone)]
pub struct ChildWorker {
    state: Arc<Mutex<State>>,
}

struct State {
    program: Program,
    env: Arc<dyn Env>,
    index_hosts: Vec<Name>,
    running: BTreeMap<Name, Running>,
}

struct Running {
    work: Work,
    child: Child,
    lines: Receiver<String>,
    seen: Seen,
    /// How it has ended, and when.
    ended: Option<(ExitStatus, i64)>,
    is_cancelled: bool,
}

impl ChildWorker {
    /// A worker that runs this program.
    pub fn new(program: Program, env: Arc<dyn Env>) -> Self {
        let (running, index_hosts) = (BTreeMap::new(), Vec::new());
        Self { state: Arc::new(Mutex::new(State { program, env, index_hosts, running })) }
    }

    /// The agents that hold the shared index from now on.
    pub fn set_index_hosts(&self, hosts: Vec<Name>) {
        self.lock().index_hosts = hosts;
    }

    /// Asks all runs to end, and waits for them.
    pub fn stop(&self) {
        let keys: Vec<Name> = self.lock().running.keys().cloned().collect();
        keys.iter().for_each(|key| self.lock().cancel(key));
        let running = std::mem::take(&mut self.lock().running);
        running.into_values().for_each(Running::wait);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker for ChildWorker {
    fn start(&mut self, run: &Run) -> Result<()> {
        self.lock().start(run)
    }

    fn cancel(&mut self, key: &Name) {
        self.lock().cancel(key);
    }

    fn news(&mut self) -> Vec<News> {
        self.lock().news()
    }
}

impl State {
    fn start(&mut self, run: &Run) -> Result<()> {
        if self.running.contains_key(&run.key) {
            return Err(Error::new(ErrorKind::Busy, format!("the {} is running", run.work)));
        }
        let failed = |error| Error::io(format!("start the {}", run.work), error);
        let mut child = self.program.command(run, &self.index_hosts).spawn().map_err(failed)?;
        let (send, lines) = sync_channel(LINES_MAX);
        if let Some(out) = child.stdout.take() {
            read_lines(out, send.clone());
        }
        if let Some(err) = child.stderr.take() {
            read_lines(err, send);
        }
        let (work, seen) = (run.work.clone(), Seen::default());
        let running = Running { work, child, lines, seen, ended: None, is_cancelled: false };
        self.running.insert(run.key.clone(), running);
        Ok(())
    }

    fn cancel(&mut self, key: &Name) {
        let Some(running) = self.running.get_mut(key) else { return };
        running.is_cancelled = true;
        // Until it is waited for, no other process has its number.
        let process = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw);
        if let Some(process) = process.filter(|_| running.ended.is_none()) {
            let _ = kill_process(process, Signal::TERM);
        }
    }

    fn news(&mut self) -> Vec<News> {
        let now_ns = self.env.now_ns();
        let (mut news, mut over) = (Vec::new(), Vec::new());
        for (key, running) in &mut self.running {
            let (progress, is_over) = running.look(now_ns, &mut news);
            if is_over {
                over.push(key.clone());
            } else if let Some((done, total)) = progress {
                news.push(News::Progress { key: key.clone(), done, total });
            }
        }
        for key in over {
            let Some(running) = self.running.remove(&key) else { continue };
            news.push(News::Ended { key, end: running.end(now_ns) });
        }
        news
    }
}

impl Running {
    /// Reads what the process has written, and adds the snapshots that it made to `news`. Returns
    /// its newest progress, and whether it is over.
    fn look(&mut self, now_ns: i64, news: &mut Vec<News>) -> (Option<(u64, Option<u64>)>, bool) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some((status, now_ns));
        }
        let mut progress = None;
        let is_read = loop {
            match self.lines.try_recv() {
                Ok(line) => match self.seen.take(&self.work, &line) {
                    Said::Progress(done, total) => progress = Some((done, total)),
                    Said::Made(series, at_ns, warning) => {
                        news.push(News::Made { series, at_ns, warning });
                    }
                    Said::Other => {}
                },
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        let is_over = self
            .ended
            .is_some_and(|(_, at_ns)| is_read || !(0..OUTPUT_NS).contains(&(now_ns - at_ns)));
        (progress, is_over)
    }

    /// Reads the output to its end, as the process waits for its reader, and waits for the process.
    fn wait(mut self) {
        loop {
            match self.lines.recv_timeout(PAUSE) {
                Ok(line) => _ = self.seen.take(&self.work, &line),
                Err(RecvTimeoutError::Disconnected) => return drop(self.child.wait()),
                Err(RecvTimeoutError::Timeout) if matches!(self.child.try_wait(), Ok(None)) => {}
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
    }

    fn end(self, now_ns: i64) -> End {
        let Some((status, _)) = self.ended else { return End::Busy };
        match (status.code(), status.signal()) {
            (Some(INTERRUPTED) | None, _) if self.is_cancelled => End::Cancelled,
            (Some(code), _) => self.seen.end(&self.work, code, now_ns),
            (None, signal) => {
                let by = signal.map(|signal| format!(" by signal {signal}")).unwrap_or_default();
                End::Failed { error: format!("its process was ended{by}") }
            }
        }
    }
}

/// Sends the lines of an output from a thread, until it ends or nobody reads them.
fn read_lines(from: impl Read + Send + 'static, to: SyncSender<String>) {
    let mut from = BufReader::new(from);
    std::thread::spawn(move || {
        let mut line = Vec::new();
        while let Ok(1..) = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if to.send(text).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(is_full: bool) -> Program {
        Program {
            file: PathBuf::from("/bin/true"),
            arguments: vec!["--profile".into(), "a".into()],
            hidden: Vec::new(),
            forget_after_backup: is_full,
            check_data: is_full.then(|| "5%".to_owned()),
            spool: is_full,
            reclaim_with_agents: is_full,
        }
    }

    fn arguments(work: Work, due_ns: Option<i64>, is_full: bool) -> String {
        let run = Run { key: work.key(), work, due_ns };
        let command = program(is_full).command(&run, &[]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn backups_are_told_who_holds_the_index() {
        let words = |hosts: &[Name]| {
            let work = Work::Backup { series: "web1".to_owned() };
            let run = Run { key: work.key(), work, due_ns: None };
            let command = program(false).command(&run, hosts);
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        let hosts = ["a", "b"].map(|name| Name::new(name).unwrap());
        assert_eq!(words(&hosts), "--profile a --json backup --index-hosts a,b -- web1");
        assert_eq!(words(&[]), "--profile a --json backup -- web1");
    }

    #[test]
    fn each_work_is_a_command_of_the_program() {
        let backup = || Work::Backup { series: "-web1".to_owned() };
        for (work, due_ns, is_full, expected) in [
            (backup(), None, false, "backup -- -web1"),
            (
                backup(),
                Some(5),
                false,
                "backup --due-since 1970-01-01T00:00:00.000000005Z -- -web1",
            ),
            (backup(), None, true, "backup --forget -- -web1"),
            (Work::Forget, Some(5), true, "forget"),
            (Work::Reclaim, Some(5), false, "reclaim"),
            (Work::Reclaim, Some(5), true, "reclaim --with-agents"),
            (Work::Optimize, Some(5), true, "optimize"),
            (Work::Check, Some(5), false, "check"),
            (Work::Check, Some(5), true, "check --read-data-subset 5%"),
            (Work::Replicate, Some(5), true, "replicate"),
            (Work::Round, Some(5), true, "cluster round"),
            (Work::Join { round: 10 }, None, false, "backup --join-round 000000000000000a"),
            (
                Work::Join { round: 10 },
                None,
                true,
                "backup --join-round 000000000000000a --forget --spool",
            ),
        ] {
            let expected = format!("--profile a --json {expected}");
            assert_eq!(arguments(work, due_ns, is_full), expected);
        }
    }
}
