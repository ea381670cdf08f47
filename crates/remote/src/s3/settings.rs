//! How a store is reached.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};
use silt_format::{Error, Result};

use super::credentials::profile;
use super::lock::{Lock, LockingConnector};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take as a whole; a container of 256 MiB needs 10 MB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// For how long a request is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_mins(2);
const RETRIES_MAX: usize = 8;
const CONNECTIONS: usize = 4;

/// How a store is reached; what is not set here comes from the environment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The variables that the programs of AWS know, by name.
    pub environment: Vec<(String, String)>,
    /// Storage classes of new objects, as the store calls them, by the beginnings of names; the first that
    /// fits counts.
    pub storage_classes: Vec<(String, String)>,
    /// Most objects that are uploaded at once, and connections that are kept open, instead of 4.
    pub connections: Option<usize>,
    /// How long a request may take, instead of 30 s.
    pub timeout: Option<Duration>,
    /// How often a request is repeated, instead of 8 times.
    pub retries: Option<usize>,
    /// How new objects are locked.
    pub lock: Option<Lock>,
}

/// A client of one bucket, and what requests of one's own need.
pub(crate) struct Client {
    pub(crate) s3: AmazonS3,
    pub(crate) http: HttpClient,
    pub(crate) region: String,
}

impl Settings {
    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// A file named by a variable, or below the home folder.
    fn file(&self, variable: &str, name: &str) -> Option<PathBuf> {
        let named = self.variable(variable).map(PathBuf::from);
        named.or_else(|| Some(Path::new(self.variable("HOME")?).join(".aws").join(name)))
    }

    /// What a profile of the credentials and settings files says, if no variable does.
    fn with_profile(&self, mut builder: AmazonS3Builder) -> AmazonS3Builder {
        let name = self.variable("AWS_PROFILE").unwrap_or("default");
        let files = [
            self.file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            self.file("AWS_CONFIG_FILE", "config"),
        ];
        for text in
            files.into_iter().flatten().filter_map(|file| std::fs::read_to_string(file).ok())
        {
            for (setting, value) in profile(&text, name) {
                let setting = match setting.as_str() {
                    "region" => "aws_region",
                    "endpoint_url" => "aws_endpoint_url",
                    other => other,
                };
                let is_set = self.variable(&setting.to_ascii_uppercase()).is_some();
                if let (false, Ok(known)) = (is_set, setting.parse::<AmazonS3ConfigKey>()) {
                    builder = builder.with_config(known, value);
                }
            }
        }
        builder
    }

    /// Most objects that are uploaded at once.
    pub(crate) fn connections(&self) -> usize {
        self.connections.unwrap_or(CONNECTIONS).max(1)
    }

    /// How often a request is repeated.
    pub(crate) fn retries(&self) -> usize {
        self.retries.unwrap_or(RETRIES_MAX)
    }

    /// A client of one bucket; with `lock` what it puts is locked.
    pub(crate) fn client(&self, bucket: &str, lock: Option<Lock>) -> Result<Client> {
        static PROVIDER: Once = Once::new();
        // Fails only where somebody has chosen one before, which is as good.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let mut builder = self.with_profile(AmazonS3Builder::new());
        for (name, value) in &self.environment {
            let known = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
            if let (true, Ok(known)) = (name.starts_with("AWS_") && !value.is_empty(), known) {
                builder = builder.with_config(known, value);
            }
        }
        // Bodies are sealed already, and TLS keeps them whole on their way: to sign them too would cost as
        // much as to compress them does. The store compares a checksum, which is signed.
        if self.variable("AWS_UNSIGNED_PAYLOAD").is_none() {
            builder = builder.with_unsigned_payload(true);
        }
        if self.variable("AWS_CHECKSUM_ALGORITHM").is_none() {
            builder = builder.with_checksum_algorithm(Checksum::CRC64NVME);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_clear = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let mut options = ClientOptions::new()
            .with_allow_http(is_clear)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout(self.timeout.unwrap_or(REQUEST_TIMEOUT));
        if let Some(connections) = self.connections {
            options = options.with_pool_max_idle_per_host(connections);
        }
        if let Some(file) = self.variable("AWS_CA_BUNDLE") {
            let failed = |error| Error::io(format!("read the certificates of {file}"), error);
            let text = std::fs::read(file).map_err(failed)?;
            let wrong = |error| Error::invalid(format!("{file} holds no certificates: {error}"));
            for certificate in Certificate::from_pem_bundle(&text).map_err(wrong)? {
                options = options.with_root_certificate(certificate);
            }
        }
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: self.retries(),
            retry_timeout: RETRY_TIMEOUT,
        };
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let wrong = |error| Error::invalid(format!("the settings of s3://{bucket}: {error}"));
        let http = ReqwestConnector::default().connect(&options).map_err(wrong)?;
        let credentials = Arc::new(OnceLock::new());
        if let Some(lock) = lock {
            let (region, credentials) = (region.clone(), Arc::clone(&credentials));
            builder = builder.with_http_connector(LockingConnector { lock, region, credentials });
        }
        let s3 = builder
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(retry)
            .build()
            .map_err(wrong)?;
        let _ = credentials.set(s3.credentials().clone());
        Ok(Client { s3, http, region })
    }
}
