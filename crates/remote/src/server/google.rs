//! Google's interface in front of a MinIO: no server of Google's can be started, and none that
//! stands in for it creates with a condition by the interface that the client speaks. It is that of
//! S3 but for who asks and for how the condition is called; both are translated here, all else is
//! what the store does.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use http::Method;

use super::{BUCKET, Server};
use crate::{S3Storage, Settings};

/// How a client of Google's asks that an object must not be there yet, and how one of S3's does.
const CONDITION: (&[u8], &[u8]) = (b"x-goog-if-generation-match: 0\r\n", b"if-none-match: *\r\n");

/// A running store with one bucket that everybody may use.
pub struct Google {
    _server: Server,
    settings: Settings,
}

impl Google {
    /// Starts it; where there is no MinIO the test is skipped, unless it may not be.
    pub fn start() -> Option<Self> {
        let server = Server::start()?;
        let storage = S3Storage::open(&format!("s3://{BUCKET}"), &server.settings()).unwrap();
        let policy = format!(
            r#"{{"Version": "2012-10-17", "Statement": [{{
                "Effect": "Allow", "Principal": {{"AWS": ["*"]}}, "Action": ["s3:*"],
                "Resource": ["arn:aws:s3:::{BUCKET}", "arn:aws:s3:::{BUCKET}/*"]}}]}}"#
        );
        let query = [("policy", "")];
        storage.signed(&Method::PUT, "", &query, &[], policy.as_bytes()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (own, to) = (listener.local_addr().unwrap().port(), server.port());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || translate(&client, to));
            }
        });
        let account = format!(
            r#"{{"gcs_base_url": "http://127.0.0.1:{own}", "disable_oauth": true,
                "client_email": "", "private_key": "", "private_key_id": ""}}"#
        );
        let environment = vec![("GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(), account)];
        let settings = Settings { environment, ..Settings::default() };
        Some(Self { _server: server, settings })
    }

    /// How it is reached.
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

/// Passes a connection on to a port of this machine, and translates what is asked.
fn translate(client: &TcpStream, to: u16) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    thread::scope(|scope| {
        scope.spawn(|| pass(client, &server, |bytes| replace(bytes, CONDITION)));
        pass(&server, client, <[u8]>::to_vec);
    });
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, change: impl Fn(&[u8]) -> Vec<u8>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        if read == 0 || to.write_all(&change(&buffer[..read])).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// The bytes with the first `from` in them replaced: what is asked begins with its headers.
fn replace(bytes: &[u8], (from, to): (&[u8], &[u8])) -> Vec<u8> {
    let found = bytes.windows(from.len()).position(|window| window == from);
    found
        .map_or_else(|| bytes.to_vec(), |at| [&bytes[..at], to, &bytes[at + from.len()..]].concat())
}
