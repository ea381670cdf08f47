//! Connections to one store, which all its clients share.

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient, HttpConnector, ReqwestConnector};
use silt_format::{Error, Result};

/// What tells connections to a store from those to whoever hands out its credentials.
const DISTINCT: [ClientConfigKey; 2] =
    [ClientConfigKey::AllowHttp, ClientConfigKey::ConnectTimeout];

/// Connections to one store. To make them means to read every certificate that the system trusts, and each
/// set of them would greet the server by itself.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    options: ClientOptions,
    http: HttpClient,
}

impl Connections {
    pub(crate) fn new(options: ClientOptions) -> Result<Self> {
        let made = ReqwestConnector::default().connect(&options);
        let http =
            made.map_err(|error| Error::invalid("the settings of connections").with_source(error))?;
        Ok(Self { options, http })
    }

    /// How they are made.
    pub(crate) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// What sends requests over them.
    pub(crate) fn http(&self) -> &HttpClient {
        &self.http
    }
}

impl HttpConnector for Connections {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let of = |options: &ClientOptions| DISTINCT.map(|key| options.get_config_value(&key));
        if of(options) == of(&self.options) {
            return Ok(self.http.clone());
        }
        ReqwestConnector::default().connect(options)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use object_store::client::{HttpRequest, HttpRequestBody};

    use super::*;
    use crate::Settings;

    /// An instance's metadata are asked without encryption, whatever the store is asked with.
    #[test]
    fn connections_to_a_store_are_not_those_to_who_knows_its_credentials() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answers = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let _ = connection.read(&mut [0; 4096]).unwrap();
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        });
        let connections = Connections::new(Settings::default().connection(false).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |options: &ClientOptions| {
            let client = connections.connect(options).unwrap();
            let request = HttpRequest::new(HttpRequestBody::empty());
            let (mut parts, body) = request.into_parts();
            parts.uri = url.parse().unwrap();
            runtime.block_on(client.execute(HttpRequest::from_parts(parts, body)))
        };
        let own = connections.options().clone();
        assert!(ask(&own).is_err());
        let metadata = own.with_allow_http(true).with_connect_timeout(Duration::from_secs(1));
        assert!(ask(&metadata).unwrap().status().is_success());
        answers.join().unwrap();
    }
}
