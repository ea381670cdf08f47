//! Settings of a connection to a store.

use std::sync::Once;
use std::time::Duration;

use object_store::{Attribute, Attributes, BackoffConfig, Certificate, ClientOptions, RetryConfig};
use silt_format::{Error, Result};
use silt_storage::Key;

use crate::network::Manner;
use crate::object_lock::Lock;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take as a whole: two containers of 8 MiB at once need 300 KB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// For how long a request is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_mins(2);
const RETRIES_MAX: usize = 8;
const CONNECTIONS: usize = 4;
/// Enough for 1,000 requests a second to a store 30 ms away, which one connection answers 33 of.
const REQUESTS_AT_ONCE: usize = 32;

/// Settings of a connection to a store. Settings that are not set here come from the environment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Environment variables that the programs of AWS, Azure and Google use, by name.
    pub environment: Vec<(String, String)>,
    /// Storage classes of new objects, by prefixes of object names; the first prefix that matches
    /// counts.
    pub storage_classes: Vec<(String, String)>,
    /// Maximum number of concurrent uploads, of concurrent requests of operations on many series,
    /// and of idle connections. If not set, these are 4, 32 and unlimited.
    pub connections: Option<usize>,
    /// Time limit of a request; 60 s if not set.
    pub timeout: Option<Duration>,
    /// Number of retries of a request; 8 if not set.
    pub retries: Option<usize>,
    /// How new objects are locked.
    pub lock: Option<Lock>,
}

/// How a client repeats requests that repeats none.
pub(crate) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl Settings {
    /// The value of a variable, if it has one.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// The variables that begin with one of `prefixes`, their names as the client knows them.
    pub(crate) fn variables<'a>(
        &'a self,
        prefixes: &'a [&str],
    ) -> impl Iterator<Item = (String, &'a str)> {
        let set = self.environment.iter().filter(|(_, value)| !value.is_empty());
        let ours = set.filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        ours.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
    }

    /// Most objects that are uploaded at once.
    pub(crate) fn connections(&self) -> usize {
        self.connections.unwrap_or(CONNECTIONS).max(1)
    }

    /// Most requests that operations on many series have under way at once.
    pub(crate) fn requests_at_once(&self) -> usize {
        self.connections.unwrap_or(REQUESTS_AT_ONCE).max(1)
    }

    /// How often a request is repeated.
    pub(crate) fn retries(&self) -> usize {
        self.retries.unwrap_or(RETRIES_MAX)
    }

    /// How requests are repeated.
    pub(crate) fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: self.retries(),
            retry_timeout: RETRY_TIMEOUT,
        }
    }

    /// How connections are made; unencrypted ones only if asked for.
    pub(crate) fn manner(&self, is_clear: bool) -> Result<Manner> {
        let certificates = match self.variable("AWS_CA_BUNDLE") {
            Some(file) => std::fs::read(file)
                .map_err(|error| Error::io(format!("read the certificates of {file}"), error))?,
            None => Vec::new(),
        };
        let timeout = self.timeout.unwrap_or(REQUEST_TIMEOUT);
        Ok(Manner { is_clear, timeout, idle_max: self.connections, certificates })
    }

    /// The options of a client whose connections are made in this manner.
    pub(crate) fn client_options(&self, manner: &Manner) -> Result<ClientOptions> {
        static PROVIDER: Once = Once::new();
        // Fails only where somebody has chosen one before, which is as good.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let mut options = ClientOptions::new()
            .with_allow_http(manner.is_clear)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout(manner.timeout);
        if let Some(connections) = manner.idle_max {
            options = options.with_pool_max_idle_per_host(connections);
        }
        let wrong = |error| {
            let file = self.variable("AWS_CA_BUNDLE").unwrap_or_default();
            Error::invalid(format!("{file} holds no certificates: {error}"))
        };
        for certificate in Certificate::from_pem_bundle(&manner.certificates).map_err(wrong)? {
            options = options.with_root_certificate(certificate);
        }
        Ok(options)
    }

    /// The storage class of a new object.
    pub(crate) fn storage_class(&self, key: &Key) -> Option<&str> {
        let mut classes = self.storage_classes.iter();
        let fits = classes.find(|(prefix, _)| key.as_str().starts_with(prefix.as_str()));
        fits.map(|(_, class)| class.as_str())
    }

    /// What a new object is created with.
    pub(crate) fn attributes(&self, key: &Key) -> Attributes {
        let class =
            self.storage_class(key).map(|class| (Attribute::StorageClass, class.to_owned()));
        class.into_iter().collect()
    }
}
