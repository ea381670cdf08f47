//! Hosts with an agent each, and the servers that they need.

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::line::Line;
use crate::Result;

/// How long a process may take to end that was asked to.
const END: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// A process with its children, which are killed with it.
pub struct Group {
    child: Child,
    /// Whether it was waited for: then another process may have its number.
    is_gone: bool,
}

impl Group {
    /// Starts a program whose output goes to the end of a file.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Self { child, is_gone: false })
    }

    fn id(&self) -> Option<Pid> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        id.filter(|_| !self.is_gone)
    }

    pub fn signal(&self, signal: Signal) {
        // Nobody may be left in it.
        self.id().map(|id| kill_process_group(id, signal).ok());
    }

    /// Kills all of them. A process is gone once it was waited for, and its children soon after.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        drop(self.child.wait());
        self.is_gone = true;
    }

    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.is_gone |= status.is_some();
        Ok(status)
    }

    /// Waits for its end, for at most so long.
    pub fn wait(&mut self, longest: Duration) -> Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            if begin.elapsed() > longest {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Asks it to end.
    pub fn end(&mut self) -> Result<Option<ExitStatus>> {
        if let Some(id) = self.id() {
            rustix::process::kill_process(id, Signal::TERM)?;
        }
        self.wait(END)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A NATS server with its files.
pub struct Bus {
    pub port: u16,
    pub folder: PathBuf,
    process: Option<Group>,
}

impl Bus {
    pub fn new(folder: PathBuf) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut bus = Self { port, folder, process: None };
        bus.start()?;
        Ok(bus)
    }

    pub fn start(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"]);
        let log = self.folder.with_extension("log");
        self.process = Some(Group::start(command.arg(&self.folder), &log)?);
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if begin.elapsed() > END {
                return Err("the NATS server does not answer".into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Kills it. Returns whether it ran.
    pub fn kill(&mut self) -> bool {
        self.process.take().is_some()
    }
}

/// A host: its settings, its lines to the servers, and its agent.
pub struct Host {
    pub name: String,
    pub folder: PathBuf,
    pub store: Line,
    pub bus: Line,
    pub agent: Option<Group>,
    pub environment: Vec<(String, String)>,
    pub silt: PathBuf,
}

impl Host {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.{name}", self.name))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.silt);
        command.args(arguments).env_clear().envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.env("PATH", "/usr/bin:/bin").env("TZ", "UTC");
        command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.store.port));
        command.env("SILT_CONFIG", self.path("toml"));
        command.env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command.current_dir(&self.folder);
        command
    }

    /// Starts the agent, unless it runs.
    pub fn start(&mut self) -> Result<()> {
        if let Some(agent) = &mut self.agent
            && agent.ended()?.is_none()
        {
            return Ok(());
        }
        let mut command = self.command(&["agent", "run", "--json"]);
        self.agent = Some(Group::start(&mut command, &self.path("log"))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_waited_for_is_not_signalled() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let mut over = Group::start(&mut Command::new("true"), &log)?;
        assert!(over.id().is_some());
        assert!(over.wait(END)?.is_some_and(|status| status.success()));
        assert_eq!(over.id(), None, "another process may have its number");
        let mut killed = Group::start(Command::new("sleep").arg("1000"), &log)?;
        killed.kill();
        assert_eq!(killed.id(), None);
        assert!(killed.ended()?.is_some_and(|status| !status.success()));
        Ok(())
    }
}
