//! The client of a bucket, set up as the programs of AWS are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use silt_format::{Error, Result};

use super::credentials::profile;
use super::lock::Lock;
use super::put_headers::PutConnector;
use crate::settings::Settings;

/// A client of one bucket, and what requests of one's own need.
pub(crate) struct Client {
    pub(crate) s3: AmazonS3,
    pub(crate) http: HttpClient,
    pub(crate) region: String,
}

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

    /// A client of one bucket; with `lock` what it puts is locked.
    pub(crate) fn client(&self, bucket: &str, lock: Option<Lock>) -> Result<Client> {
        let mut builder = self.with_profile(AmazonS3Builder::new());
        for (name, value) in self.variables(&["AWS_"]) {
            if let Ok(known) = name.parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(known, value);
            }
        }
        // Bodies are sealed already, and TLS keeps them whole on their way: to sign them too would cost as
        // much as to compress them does. The store compares a checksum, which is signed.
        let is_unsigned = self.variable("AWS_UNSIGNED_PAYLOAD");
        if is_unsigned.is_none() {
            builder = builder.with_unsigned_payload(true);
        }
        let is_unsigned = is_unsigned.is_none_or(|value| value.eq_ignore_ascii_case("true"));
        let has_checksum = is_unsigned && self.variable("AWS_CHECKSUM_ALGORITHM").is_none();
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_clear = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let options = self.connection(is_clear)?;
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let wrong = |error| Error::invalid(format!("the settings of s3://{bucket}: {error}"));
        let http = ReqwestConnector::default().connect(&options).map_err(wrong)?;
        let credentials = Arc::new(OnceLock::new());
        if has_checksum || lock.is_some() {
            let (region, credentials) = (region.clone(), Arc::clone(&credentials));
            let connector = PutConnector { lock, has_checksum, region, credentials };
            builder = builder.with_http_connector(connector);
        }
        let s3 = builder
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(self.retry())
            .build()
            .map_err(wrong)?;
        let _ = credentials.set(s3.credentials().clone());
        Ok(Client { s3, http, region })
    }
}
