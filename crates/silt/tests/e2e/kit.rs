//! Running the program, and the other programs that make its input.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Bytes of a log that a test shows that fails.
const LOG_SHOWN: usize = 8 << 10;

/// A folder with a repository in it, and the program that works on it.
pub struct Place {
    pub folder: TempDir,
}

/// What a run of the program came to.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Self {
        Self::new(&command.output().unwrap())
    }
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }
    /// Every line of standard output as JSON with a type.
    #[track_caller]
    pub fn messages(&self) -> Vec<Value> {
        let parse = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            assert!(value["message_type"].is_string(), "{line}");
            value
        };
        self.out.lines().map(parse).collect()
    }
    #[track_caller]
    pub fn summary(&self) -> Value {
        let found = self.messages().into_iter().find(|m| m["message_type"] == "summary");
        found.unwrap_or_else(|| panic!("no summary in {}", self.out))
    }
    /// All that people saw.
    pub fn printed(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
    #[track_caller]
    pub fn says(&self, text: &str) {
        assert!(self.err.contains(text) || self.out.contains(text), "{}\n{}", self.out, self.err);
    }
}

impl Place {
    pub fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
        place
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
    pub fn command(&self) -> Command {
        let mut command = Command::new(crate::PROGRAM);
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("TZ", "UTC");
        command.env("SILT_REPOSITORY", self.path("repository")).env("SILT_PASSWORD", "secret");
        command.env("XDG_STATE_HOME", self.path("state"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }
    pub fn silt(&self, args: &[&str]) -> Run {
        Run::new(&self.command().args(args).output().unwrap())
    }
    pub fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
    /// Makes a file of these bytes.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.text(name)
    }
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
    /// The bytes of a volume.
    pub fn restored(&self, volume: &str) -> Vec<u8> {
        let target = self.text("restored.raw");
        self.silt(&["restore", volume, &target, "--force"]).exits(0);
        let bytes = std::fs::read(&target).unwrap();
        std::fs::remove_file(&target).unwrap();
        bytes
    }
    /// The files of the repository below a folder, sorted.
    pub fn objects(&self, below: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path("repository").join(below)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found.sort();
        found
    }
}

/// A test that fails shows what agents and servers have told.
impl Drop for Place {
    #[expect(clippy::print_stderr, reason = "a test that fails says why")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|it| it == "log") {
                let log = std::fs::read(&path).unwrap_or_default();
                let begin = log.len().saturating_sub(LOG_SHOWN);
                eprintln!("{}:\n{}", path.display(), String::from_utf8_lossy(&log[begin..]));
            }
        }
    }
}

pub fn finish(child: Child) -> Run {
    Run::new(&child.wait_with_output().unwrap())
}

/// Runs another program, which must succeed.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) -> String {
    let path = "/usr/bin:/bin:/usr/sbin:/sbin";
    let output = Command::new(program).args(args).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup.sh"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The library that turns a program's clock.
///
/// `faketime` fails if a process of the same number was killed under it earlier, and has left its
/// semaphore.
#[track_caller]
pub fn faketime_library() -> String {
    let ask = || Command::new("faketime").args(["now", "printenv", "LD_PRELOAD"]).output().unwrap();
    let found = (0..20).map(|_| ask()).find(|output| output.status.success());
    let found = found.unwrap_or_else(|| panic!("faketime does not say which library it loads"));
    String::from_utf8_lossy(&found.stdout).trim().to_owned()
}

/// Whether a test that needs `what` can run: a program, or root. Where it may not be skipped, it
/// fails.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn can(what: &str) -> bool {
    let is_root = || tool("id", &["-u"]) == "0";
    let able = match what {
        "nbdsh" => {
            let mut python = Command::new("python3");
            let loads = python.env("PATH", "/usr/bin:/bin").args(["-c", "import nbd"]).status();
            loads.is_ok_and(|status| status.success())
        }
        "bsdtar" | "borg" | "faketime" | "fio" | "restic" | "rsync" | "unzip" | "bash" | "zsh"
        | "fish" | "systemd-analyze" => Command::new(what).arg("--version").output().is_ok(),
        "nats" => Command::new("nats-server").arg("--version").output().is_ok(),
        // It has no option for its version.
        "mandoc" => Command::new(what).stdin(Stdio::null()).output().is_ok(),
        "nbd" => {
            let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
            ["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"].into_iter().all(runs)
        }
        // As root the device itself is mounted, as anybody else by the helper.
        "fuse" => {
            let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
            device.is_ok() && Command::new("fusermount3").arg("--version").output().is_ok()
        }
        "loop" => is_root() && Path::new("/dev/loop-control").exists(),
        _ => is_root(),
    };
    #[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    assert!(able || !required.split_whitespace().any(|word| word == what), "{what} is required");
    if !able {
        println!("SKIPPED: this test needs {what}, which takes root unless it is a program");
    }
    able
}

/// Makes a folder with an authority, and certificates of it for a server at localhost and a client.
pub fn certificates(pki: &Path) {
    std::fs::create_dir(pki).unwrap();
    let ca = ["req", "-x509", "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key"];
    openssl(pki, &[&ca[..], &["-out", "ca-cert.pem"]].concat());
    for name in ["server", "client"] {
        certificate(pki, "localhost", name, &["-addext", "subjectAltName=DNS:localhost"]);
    }
}

/// Makes a certificate of the authority in a folder, NAME-cert.pem with its key NAME-key.pem.
pub fn certificate(pki: &Path, subject: &str, name: &str, more: &[&str]) {
    let (key, certificate) = (format!("{name}-key.pem"), format!("{name}-cert.pem"));
    let of = ["req", "-x509", "-days", "2", "-CA", "ca-cert.pem", "-CAkey", "ca.key"];
    let about = ["-subj", &format!("/CN={subject}"), "-keyout", &key, "-out", &certificate];
    let plain = ["-addext", "basicConstraints=critical,CA:FALSE"];
    openssl(pki, &[&of[..], &about, &plain, more].concat());
}

fn openssl(pki: &Path, args: &[&str]) {
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    Run::of(Command::new("openssl").args(args).args(ec).current_dir(pki)).exits(0);
}

/// Flips a bit in the middle of an object.
pub fn damage(object: &Path) {
    let mut bytes = std::fs::read(object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(object).unwrap();
    std::fs::write(object, bytes).unwrap();
}

/// A disk of `mib` MiB: zeros, text and noise in stretches, from a seed.
pub fn disk(seed: u64, mib: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = vec![0; mib << 20];
    for stretch in bytes.chunks_mut(96 << 10) {
        match next() % 3 {
            0 => {}
            1 => stretch.chunks_mut(64).for_each(|piece| piece.fill(next().to_le_bytes()[0])),
            _ => stretch.chunks_mut(8).for_each(|piece| {
                let word = next().to_le_bytes();
                piece.copy_from_slice(&word[..piece.len()]);
            }),
        }
    }
    bytes
}

/// The disk with some blocks changed.
pub fn changed(disk: &[u8], seed: usize) -> Vec<u8> {
    let mut bytes = disk.to_vec();
    for i in 0..20 {
        let at = (i * 7919 + seed * 104_729) * 4096 % bytes.len();
        bytes[at..at + 4096].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    }
    bytes
}

/// A location, and the variables that it is reached with, are a repository like any other.
pub fn is_a_repository(location: &str, variables: &[(String, String)]) {
    let place = Place::new();
    let silt = |arguments: &[&str]| {
        let mut command = place.command();
        command.envs(variables.iter().cloned()).env("SILT_REPOSITORY", location);
        Run::of(command.env("XDG_CACHE_HOME", place.path("cache")).args(arguments))
    };
    silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    silt(&["init"]).exits(1).says("holds a repository already");
    let first = disk(1, 16);
    let file = place.write("vm.raw", &first);
    silt(&["backup", "vm", &file]).exits(0);
    let second = changed(&first, 3);
    place.write("vm.raw", &second);
    silt(&["backup", "vm", &file]).exits(0);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    silt(&["forget", "--keep-last", "1", "--reclaim", "--yes"]).exits(0);
    let target = place.text("restored.raw");
    silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(place.read("restored.raw") == second);
    silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let unchanged = silt(&["--json", "backup", "vm", &file]).exits(0);
    let messages = unchanged.messages();
    assert!(messages.iter().any(|message| message["message_type"] == "requests"));
}

/// Bytes that neither repeat nor compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}
