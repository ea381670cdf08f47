//! Running a program and measuring it as a whole.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;
use wait4::Wait4;

use crate::Result;

/// What one or several programs took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    pub wall_s: f64,
    /// Processor time, user and system.
    pub cpu_s: f64,
    /// The largest resident set of any of them.
    pub rss_bytes: u64,
    /// By how much the repository grew.
    pub written_bytes: u64,
    /// By how many objects the repository grew.
    pub written_objects: u64,
}

impl Cost {
    /// This cost with that of a further program.
    pub fn and(self, next: Self) -> Self {
        Self {
            wall_s: self.wall_s + next.wall_s,
            cpu_s: self.cpu_s + next.cpu_s,
            rss_bytes: self.rss_bytes.max(next.rss_bytes),
            written_bytes: self.written_bytes + next.written_bytes,
            written_objects: self.written_objects + next.written_objects,
        }
    }
}

/// A program with its arguments and environment.
#[derive(Clone)]
pub struct Call {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(&'static str, OsString)>,
    pub folder: Option<std::path::PathBuf>,
}

impl Call {
    pub fn new(program: impl Into<OsString>) -> Self {
        let program = program.into();
        Self { program, arguments: Vec::new(), environment: Vec::new(), folder: None }
    }

    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub fn within(mut self, folder: &std::path::Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Runs the program to its end; it must succeed.
    pub fn run(&self) -> Result<Cost> {
        self.run_to(Stdio::null())
    }

    /// The same with its standard output there.
    pub fn run_to(&self, output: Stdio) -> Result<Cost> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let begin = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", self.text()))?;
        let stderr = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.map(|mut pipe| std::io::Read::read_to_string(&mut pipe, &mut text));
            text
        });
        let ended = child.wait4()?;
        let wall_s = begin.elapsed().as_secs_f64();
        let text = reader.join().unwrap_or_default();
        if !ended.status.success() {
            return Err(format!("{} ended with {}: {text}", self.text(), ended.status).into());
        }
        let cpu_s = (ended.rusage.utime + ended.rusage.stime).as_secs_f64();
        Ok(Cost { wall_s, cpu_s, rss_bytes: ended.rusage.maxrss, ..Cost::default() })
    }

    /// Runs the program, which must succeed and print nothing.
    pub fn silent(&self) -> Result<()> {
        let output = Command::new(&self.program).args(&self.arguments).output()?;
        let printed = [output.stdout, output.stderr].concat();
        if output.status.success() && printed.is_empty() {
            return Ok(());
        }
        Err(format!("{} printed: {}", self.text(), String::from_utf8_lossy(&printed)).into())
    }

    fn text(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }
}

/// The processor time that a process has taken.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}
