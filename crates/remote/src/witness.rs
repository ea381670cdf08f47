//! Records how the last request of a call ended.
//!
//! The client of object stores converts some statuses to typed errors, and all others, with the
//! response's body, to text. So the code that sends requests records each error response, and the
//! code that interprets the call's error reads the record.

use std::cell::RefCell;
use std::time::Duration;

use http::Uri;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::Instant;

use crate::refusal::Refusal;

/// Maximum number of bytes of an error response that are read; the client gets no more either.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Where the client asks for credentials when nobody has given it any: the machine that it runs on,
/// at AWS and Azure, and at Google.
const METADATA_HOSTS: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// The same at Azure, where a setting names another machine.
const METADATA_PATH: &str = "/metadata/identity/oauth2/token";

/// How the last request of a call ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The error response, if there was one.
    pub(crate) refusal: Option<Box<Refusal>>,
    /// Whether the last request asked for credentials and failed.
    pub(crate) lacks_credentials: bool,
    /// The time in which the answer began, if it was no error.
    pub(crate) began_after: Option<Duration>,
}

tokio::task_local! {
    static LAST: RefCell<Outcome>;
}

/// Waits for a call; also returns how its last request ended.
pub(crate) async fn witnessed<T>(call: impl Future<Output = T>) -> (T, Outcome) {
    let call = async {
        let result = call.await;
        (result, LAST.with(RefCell::take))
    };
    LAST.scope(RefCell::default(), call).await
}

fn note(outcome: Outcome) {
    // Requests of our own that no call is waited for with are judged by their answers.
    let _ = LAST.try_with(|last| last.replace(outcome));
}

fn asks_for_credentials(uri: &Uri) -> bool {
    uri.path() == METADATA_PATH || uri.host().is_some_and(|host| METADATA_HOSTS.contains(&host))
}

/// Sends requests, and notes how they end.
#[derive(Debug)]
pub(crate) struct Witness(pub(crate) HttpClient);

#[async_trait::async_trait]
impl HttpService for Witness {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let lacks_credentials = asks_for_credentials(request.uri());
        note(Outcome { lacks_credentials, ..Outcome::default() });
        let asked = Instant::now();
        let answer = self.0.execute(request).await?;
        if answer.status().is_success() {
            note(Outcome { began_after: Some(asked.elapsed()), ..Outcome::default() });
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = beginning(body).await?;
        let refusal = Refusal::new(parts.status, &String::from_utf8_lossy(&body));
        let refusal = Some(Box::new(refusal));
        note(Outcome { refusal, lacks_credentials, began_after: None });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

/// The first bytes of a body, as many as are looked at.
async fn beginning(mut body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let room = REFUSAL_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if bytes.len() == REFUSAL_BYTES_MAX {
                break;
            }
        }
    }
    Ok(bytes)
}
