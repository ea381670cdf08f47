//! Adds request headers that the client cannot send: the CRC-32C of a new object, and its lock.

use std::sync::{Arc, OnceLock};

use base64::prelude::{BASE64_STANDARD, Engine};
use crc_fast::{CrcAlgorithm, Digest};
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};

use super::lock;
use crate::connections::Connections;
use crate::object_lock::Lock;

/// Names the request header with the checksum that the store compares. Processors have an
/// instruction for this one, and every store of the last years knows it.
const CHECKSUM: &str = "x-amz-checksum-crc32c";

/// Adds headers to every object that is put, and signs the request again.
#[derive(Debug)]
pub(crate) struct PutConnector {
    pub(crate) connections: Connections,
    pub(crate) lock: Option<Lock>,
    pub(crate) has_checksum: bool,
    pub(crate) region: String,
    /// The client's own, which are known once it is made.
    pub(crate) credentials: Arc<OnceLock<AwsCredentialProvider>>,
}

impl HttpConnector for PutConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(PutService {
            inner: self.connections.connect(options)?,
            lock: self.lock,
            has_checksum: self.has_checksum,
            region: self.region.clone(),
            credentials: Arc::clone(&self.credentials),
        }))
    }
}

#[derive(Debug)]
struct PutService {
    inner: HttpClient,
    lock: Option<Lock>,
    has_checksum: bool,
    region: String,
    credentials: Arc<OnceLock<AwsCredentialProvider>>,
}

#[async_trait::async_trait]
impl HttpService for PutService {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let authorization = http::header::AUTHORIZATION;
        let is_signed = request.headers().contains_key(&authorization);
        let credentials = self.credentials.get().filter(|_| is_signed);
        if let (&Method::PUT, Some(credentials)) = (request.method(), credentials) {
            let mut headers = lock::headers(self.lock);
            if self.has_checksum {
                headers.push((CHECKSUM, checksum(request.body().clone()).await?));
            }
            for (name, value) in headers {
                let value = HeaderValue::from_str(&value).map_err(failed)?;
                request.headers_mut().insert(name, value);
            }
            request.headers_mut().remove(authorization);
            let credential = credentials.get_credential().await.map_err(failed)?;
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .with_sign_payload(false)
                .try_authorize(&mut request, None)
                .map_err(failed)?;
        }
        self.inner.execute(request).await
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Request, error)
}

/// The CRC-32C of a body (RFC 3720, appendix B.4), most significant byte first, in base 64.
async fn checksum(mut body: HttpRequestBody) -> Result<String, HttpError> {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            digest.update(&bytes);
        }
    }
    let sum = u32::try_from(digest.finalize()).map_err(failed)?;
    Ok(BASE64_STANDARD.encode(sum.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use object_store::PutPayload;

    /// The value that RFC 3720 gives for 32 bytes of zeros, whole and in pieces.
    #[test]
    fn checksums_are_the_published_ones() -> std::io::Result<()> {
        let published = BASE64_STANDARD.encode(0x8A91_36AA_u32.to_be_bytes());
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let of = |body: HttpRequestBody| runtime.block_on(checksum(body)).ok();
        assert_eq!(of(Bytes::from_static(&[0; 32]).into()).as_ref(), Some(&published));
        let pieces = [Bytes::from_static(&[0; 5]), Bytes::from_static(&[0; 27])];
        assert_eq!(of(PutPayload::from_iter(pieces).into()).as_ref(), Some(&published));
        Ok(())
    }
}
