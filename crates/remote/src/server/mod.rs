//! Servers of a test's own; for tests alone. Here MinIO, in a temporary folder.

#![expect(clippy::unwrap_used, reason = "a test that can't start its server fails")]

mod azure;
mod google;
mod proxy;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use silt_storage::{Key, Storage};
use tempfile::TempDir;

pub use azure::Azurite;
pub use google::Google;
pub use proxy::Proxy;

use crate::{S3Storage, Settings, Version};

const USER: &str = "silt-test";
const SECRET: &str = "silt-test-secret";
/// The server's bucket.
pub const BUCKET: &str = "silt";

/// A running server.
pub struct Server {
    child: Child,
    port: u16,
    folder: Option<TempDir>,
}

/// A server's program, where `scripts/setup.sh` installs it, or on the PATH.
#[expect(clippy::disallowed_methods, reason = "a test looks for the server where it is installed")]
fn find(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.or_else(|| Some(home.as_ref()?.join(".local/share")));
    let node = data.map(|data| data.join("silt-tests/azurite/node_modules/.bin"));
    let go = std::env::var_os("GOBIN").map(PathBuf::from);
    let folders = go.into_iter().chain(home.map(|home| home.join("go/bin"))).chain(node);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = folders.chain(std::env::split_paths(&path).collect::<Vec<_>>());
    all.find_map(|folder| Some(folder.join(name)).filter(|program| program.exists()))
}

/// What a test does whose server is not there: it is skipped, unless it may not be.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
#[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
fn required<T>(server: &str) -> Option<T> {
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    assert!(!required.split_whitespace().any(|word| word == server), "{server} is required");
    println!("SKIPPED: this test needs {server}; scripts/setup.sh installs it");
    None
}

impl Server {
    /// Starts a server with one bucket; where there is none the test is skipped, unless it may not
    /// be.
    pub fn start() -> Option<Self> {
        Self::start_with_drives(1)
    }

    /// The same with several drives, over which objects are spread so that some may be lost.
    pub fn start_with_drives(drives: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let drives = (1..=drives).map(|drive| folder.path().join(format!("drive{drive}")));
        let server = Self::start_in(&drives.collect::<Vec<_>>(), &[]);
        let mut server = server.or_else(|| required("minio"))?;
        server.folder = Some(folder);
        Some(server)
    }

    /// Starts a server with one bucket on new folders, with further `arguments`, if there is a
    /// server's program.
    #[expect(clippy::disallowed_methods, reason = "a server takes its time to start")]
    pub fn start_in(drives: &[PathBuf], arguments: &[String]) -> Option<Self> {
        let program = find("minio")?;
        drives.iter().for_each(|drive| std::fs::create_dir_all(drive).unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["server", "--quiet", "--address", &format!("0.0.0.0:{port}")])
            .args(arguments)
            .args(drives)
            // Drives of a test are folders of one disk.
            .env("MINIO_CI_CD", "1")
            .env("MINIO_ROOT_USER", USER)
            .env("MINIO_ROOT_PASSWORD", SECRET)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_PROMETHEUS_AUTH_TYPE", "public")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port, folder: None };
        for _ in 0..300 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() && server.make_bucket() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("minio does not answer");
    }

    /// Makes a bucket whose objects have versions and can be locked.
    pub fn make_locked_bucket(&self, name: &str) {
        let storage = S3Storage::open(&format!("s3://{name}"), &self.settings()).unwrap();
        let locked = ("x-amz-bucket-object-lock-enabled", "true".to_owned());
        storage.signed(&Method::PUT, "", &[], &[locked], &[]).unwrap();
    }

    /// How the server is reached with no more rights than a policy gives: its variables.
    pub fn settings_with_policy(&self, policy: &str) -> Settings {
        let storage = S3Storage::open(&format!("s3://{BUCKET}"), &self.settings()).unwrap();
        let tokens = storage.signer().unwrap().of_service("sts", &format!("{}/", self.endpoint()));
        let encoded = utf8_percent_encode(policy, NON_ALPHANUMERIC);
        let form = format!("Action=AssumeRole&Version=2011-06-15&Policy={encoded}");
        let kind = [("content-type", "application/x-www-form-urlencoded".to_owned())];
        let asked = tokens.send(Method::POST, "", &[], &kind, form.into_bytes());
        let answer = storage.folder.runtime().block_on(asked).unwrap();
        let tag = |name: &str| answer.tag(name).unwrap().to_owned();
        let mut settings = self.settings();
        settings.environment.retain(|(name, _)| !name.contains("ACCESS_KEY"));
        settings.environment.extend([
            ("AWS_ACCESS_KEY_ID".to_owned(), tag("AccessKeyId")),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), tag("SecretAccessKey")),
            ("AWS_SESSION_TOKEN".to_owned(), tag("SessionToken")),
        ]);
        settings
    }

    /// What someone does who has all rights to a bucket and means harm: overwrites an object.
    pub fn overwrite(&self, location: &str, key: &Key, bytes: &[u8]) {
        let storage = S3Storage::open(location, &self.settings()).unwrap();
        let name = format!("{}{key}", storage.folder.prefix);
        storage.signed(&Method::PUT, &name, &[], &[], bytes).unwrap();
    }

    /// Deletes one version of an object for good, which a lock forbids.
    pub fn delete_version(&self, location: &str, version: &Version) -> silt_format::Result<()> {
        let storage = S3Storage::open(location, &self.settings()).unwrap();
        let name = format!("{}{}", storage.folder.prefix, version.key);
        let query = [("versionId", version.id.as_str())];
        storage.signed(&Method::DELETE, &name, &query, &[], &[]).map(drop)
    }

    /// Whether the server has its bucket now.
    fn make_bucket(&self) -> bool {
        let settings = Settings { retries: Some(0), ..self.settings() };
        let storage = S3Storage::open(&format!("s3://{BUCKET}"), &settings).unwrap();
        let _ = storage.signed(&Method::PUT, "", &[], &[], &[]);
        storage.list("", None).is_ok()
    }

    /// The folder of a drive, from 1 on.
    pub fn drive(&self, number: usize) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.path().join(format!("drive{number}")))
    }

    /// Where it listens on this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Its address.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A network to it that fails.
    pub fn proxy(&self, seed: u64) -> Proxy {
        Proxy::start(self.port, seed)
    }

    /// A network to it on which the first so many completions of large uploads fail in an answer
    /// that says that they succeed.
    pub fn failing_completions(&self, times: u64) -> Proxy {
        Proxy::failing_completions(self.port, times)
    }

    /// How it is reached.
    pub fn settings(&self) -> Settings {
        self.settings_by(&self.endpoint())
    }

    /// How it is reached by another address.
    pub fn settings_by(&self, endpoint: &str) -> Settings {
        let environment = [
            ("AWS_ACCESS_KEY_ID", USER),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", endpoint),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Settings { environment: environment.into(), ..Settings::default() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
