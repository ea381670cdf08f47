//! Requests that the client cannot send: versions and locks of objects.

use std::time::Duration;

use http::{HeaderMap, Method, Request};
use object_store::aws::{AmazonS3, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpError, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::Signer;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use silt_format::{Error, ErrorKind, Result};

use crate::refusal::Refusal;

/// What S3's signatures leave as it is.
const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
pub(crate) const KEPT_IN_PATHS: AsciiSet = KEPT.remove(b'/');

/// Signs requests to one bucket, and sends them.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    http: HttpClient,
    credentials: AwsCredentialProvider,
    region: String,
    /// Which of the server's services is asked.
    service: &'static str,
    /// The bucket's address, with a slash at its end.
    base: String,
}

/// What came back with a status that is no failure.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// What stands in the first tag of this name.
    pub(crate) fn tag(&self, name: &str) -> Option<&str> {
        tag(std::str::from_utf8(&self.body).ok()?, name)
    }
}

impl Signed {
    /// To the same bucket, in the same way, as a client.
    pub(crate) async fn new(client: &AmazonS3, http: HttpClient, region: String) -> Result<Self> {
        let failed = |error| Error::invalid("the address of the bucket").with_source(error);
        let path = Path::from("x");
        let probe = client.signed_url(Method::GET, &path, Duration::from_secs(1));
        let mut url = probe.await.map_err(failed)?;
        url.set_query(None);
        let base = url.as_str().strip_suffix('x').unwrap_or(url.as_str()).to_owned();
        let credentials = client.credentials().clone();
        Ok(Self { http, credentials, region, service: "s3", base })
    }

    /// To another service, at another address.
    #[cfg(feature = "test-server")]
    pub(crate) fn of_service(&self, service: &'static str, base: &str) -> Self {
        Self { service, base: base.to_owned(), ..self.clone() }
    }

    /// Asks once; `name` is an object's whole name, or empty for the bucket.
    pub(crate) async fn send(
        &self,
        method: Method,
        name: &str,
        query: &[(&str, &str)],
        headers: &[(&str, String)],
        body: Vec<u8>,
    ) -> Result<Answer> {
        let encode = |text: &str| utf8_percent_encode(text, &KEPT).to_string();
        let query: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let path = utf8_percent_encode(name, &KEPT_IN_PATHS);
        let url = format!("{}{path}?{}", self.base, query.join("&"));
        let mut request = Request::builder().method(method).uri(url.trim_end_matches('?'));
        for (header, value) in headers {
            request = request.header(*header, value);
        }
        request = request.header("content-length", body.len());
        let mut request = request
            .body(HttpRequestBody::from(body))
            .map_err(|error| Error::invalid(format!("ask for {name}: {error}")))?;
        let unavailable = |error: &dyn std::error::Error| {
            Error::new(ErrorKind::Unavailable, format!("{name}: {error}"))
        };
        let credential = self.credentials.get_credential().await;
        let credential = credential.map_err(|error| unavailable(&error))?;
        AwsAuthorizer::new(&credential, self.service, &self.region)
            .try_authorize(&mut request, None)
            .map_err(|error| unavailable(&error))?;
        let answer = self.http.execute(request).await;
        let (parts, body) = answer.map_err(|error: HttpError| unavailable(&error))?.into_parts();
        let body = body.bytes().await.map_err(|error| unavailable(&error))?;
        let text = String::from_utf8_lossy(&body);
        let refusal = if parts.status.is_success() {
            Refusal::hidden(parts.status, &text)
        } else {
            Some(Refusal::new(parts.status, &text))
        };
        match refusal {
            Some(refusal) => Err(Error::new(refusal.kind(), format!("{name}: {refusal}"))),
            None => Ok(Answer { headers: parts.headers, body: body.to_vec() }),
        }
    }
}

fn tag<'t>(text: &'t str, tag: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once("</")?.0)
}
