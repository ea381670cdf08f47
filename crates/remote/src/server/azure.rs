//! An Azurite of a test's own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tempfile::TempDir;

use super::{BUCKET, find, required};
use crate::Settings;

/// The account that Azurite knows, and its well-known key.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running server with one container.
pub struct Azurite {
    child: Child,
    settings: Settings,
    _folder: TempDir,
}

impl Azurite {
    /// Starts it; where it is not installed the test is skipped, unless it may not be.
    pub fn start() -> Option<Self> {
        let program = find("azurite-blob").or_else(|| required("azurite"))?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.args(["--blobPort", &port.to_string(), "--silent", "--skipApiVersionCheck"]);
        command.args(["--disableTelemetry", "--location"]).arg(folder.path());
        let endpoint = format!("http://127.0.0.1:{port}/{ACCOUNT}");
        let variables = [
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
            ("AZURE_STORAGE_ENDPOINT", endpoint.as_str()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = Settings { environment: variables.into(), ..Settings::default() };
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let azurite = Self { child, settings, _folder: folder };
        wait_for(port);
        make_container(port);
        Some(azurite)
    }

    /// How it is reached.
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a server takes its time to start")]
fn wait_for(port: u16) {
    let answers = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(answers, "azurite does not answer");
}

/// Makes the container at Azurite: what its clients in Rust do not do.
fn make_container(port: u16) {
    let now = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC);
    let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let path = format!("/{ACCOUNT}/{BUCKET}");
    let headers = [format!("x-ms-date:{date}"), "x-ms-version:2023-11-03".to_owned()];
    // None of the eleven headers that come before these is set.
    let unset = "\n".repeat(11);
    let headers_text = headers.join("\n");
    let text = format!("PUT\n{unset}{headers_text}\n/{ACCOUNT}{path}\nrestype:container");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(KEY).unwrap());
    let signature = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
    let request = format!(
        "PUT {path}?restype=container HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{}\r\n\
         authorization: SharedKey {ACCOUNT}:{signature}\r\ncontent-length: 0\r\n\
         connection: close\r\n\r\n",
        headers.join("\r\n")
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}
