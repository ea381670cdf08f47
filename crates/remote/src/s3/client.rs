//! The client of a bucket, set up as the programs of AWS are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use silt_format::{Error, Result};

use super::credentials::profile;
use super::put_headers::PutConnector;
use crate::connections::Connections;
use crate::object_lock::Lock;
use crate::settings::{Settings, once};

impl Settings {
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

    /// How one bucket is reached; nothing is asked of it yet.
    pub(crate) fn bucket(&self, name: &str) -> Result<Bucket> {
        let mut builder = self.with_profile(AmazonS3Builder::new());
        for (name, value) in self.variables(&["AWS_"]) {
            if let Ok(known) = name.parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(known, value);
            }
        }
        // Bodies are sealed already, and TLS keeps them whole on their way: to sign them too would
        // cost as much as to compress them does. The store compares a checksum, which is signed.
        let is_unsigned = self.variable("AWS_UNSIGNED_PAYLOAD");
        if is_unsigned.is_none() {
            builder = builder.with_unsigned_payload(true);
        }
        let is_unsigned = is_unsigned.is_none_or(|value| value.eq_ignore_ascii_case("true"));
        let has_checksum = is_unsigned && self.variable("AWS_CHECKSUM_ALGORITHM").is_none();
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_clear = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let connections = Connections::new(self, is_clear, |error| wrong(name, error))?;
        let builder = builder
            .with_bucket_name(name)
            .with_client_options(connections.options().clone())
            .with_retry(self.retry());
        Ok(Bucket { name: name.to_owned(), builder, connections, region, has_checksum })
    }
}

fn wrong(bucket: &str, error: &object_store::Error) -> Error {
    Error::invalid(format!("the settings of s3://{bucket}: {error}"))
}

/// How a bucket is reached: by clients of several kinds, over the same connections.
pub(crate) struct Bucket {
    name: String,
    builder: AmazonS3Builder,
    pub(crate) connections: Connections,
    pub(crate) region: String,
    has_checksum: bool,
}

impl Bucket {
    /// A client that repeats what fails.
    pub(crate) fn client(&self) -> Result<AmazonS3> {
        self.build(self.builder.clone(), None)
    }

    /// A client that repeats nothing; with `lock` what it puts is locked.
    pub(crate) fn creator(&self, of: &AmazonS3, lock: Option<Lock>) -> Result<AmazonS3> {
        let credentials = Arc::clone(of.credentials());
        self.build(self.builder.clone().with_retry(once()).with_credentials(credentials), lock)
    }

    fn build(&self, builder: AmazonS3Builder, lock: Option<Lock>) -> Result<AmazonS3> {
        let credentials = Arc::new(OnceLock::new());
        let builder = if self.has_checksum || lock.is_some() {
            builder.with_http_connector(PutConnector {
                connections: self.connections.clone(),
                lock,
                has_checksum: self.has_checksum,
                region: self.region.clone(),
                credentials: Arc::clone(&credentials),
            })
        } else {
            builder.with_http_connector(self.connections.clone())
        };
        let s3 = builder.build().map_err(|error| wrong(&self.name, &error))?;
        let _ = credentials.set(s3.credentials().clone());
        Ok(s3)
    }
}
