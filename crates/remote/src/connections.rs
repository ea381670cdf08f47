//! Connections to one store, which all its clients share, and all stores of the process whose
//! connections are made alike.

use std::fmt;
use std::sync::Arc;

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient, HttpConnector, ReqwestConnector};
use silt_format::{Error, Result};

use crate::network::{Client, Network};
use crate::settings::Settings;
use crate::witness::Witness;

/// What tells connections to a store from those to whoever hands out its credentials.
const DISTINCT: [ClientConfigKey; 2] =
    [ClientConfigKey::AllowHttp, ClientConfigKey::ConnectTimeout];

/// Connections to one store.
#[derive(Clone)]
pub(crate) struct Connections {
    client: Client,
    network: Arc<Network>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("options", &self.client.options).finish_non_exhaustive()
    }
}

impl Connections {
    /// Connections as the settings say; `wrong` tells whose settings can't be used.
    pub(crate) fn new(
        settings: &Settings,
        is_clear: bool,
        wrong: impl FnOnce(&object_store::Error) -> Error,
    ) -> Result<Self> {
        let (network, manner) = (Network::shared()?, settings.manner(is_clear)?);
        let client = network.client(&manner, || {
            let options = settings.client_options(&manner)?;
            let http = witnessing(&options).map_err(|error| wrong(&error))?;
            Ok(Client { options, http })
        })?;
        Ok(Self { client, network })
    }

    /// How they are made.
    pub(crate) fn options(&self) -> &ClientOptions {
        &self.client.options
    }

    /// Whose connections they are.
    pub(crate) fn network(&self) -> Arc<Network> {
        Arc::clone(&self.network)
    }

    /// What sends requests over them.
    pub(crate) fn http(&self) -> &HttpClient {
        &self.client.http
    }
}

/// A client that notes how its requests end.
fn witnessing(options: &ClientOptions) -> object_store::Result<HttpClient> {
    let http = ReqwestConnector::default().connect(options)?;
    Ok(HttpClient::new(Witness(http)))
}

impl HttpConnector for Connections {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let of = |options: &ClientOptions| DISTINCT.map(|key| options.get_config_value(&key));
        if of(options) == of(&self.client.options) {
            return Ok(self.client.http.clone());
        }
        witnessing(options)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use object_store::client::{HttpRequest, HttpRequestBody};

    use super::*;

    /// Answers requests on one connection, and takes no other.
    fn server(requests: usize) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let answers = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            drop(listener);
            for _ in 0..requests {
                assert!(connection.read(&mut [0; 4096]).unwrap() > 0);
                connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        (url, answers)
    }

    fn connections(is_clear: bool) -> Connections {
        with(&Settings::default(), is_clear)
    }

    fn with(settings: &Settings, is_clear: bool) -> Connections {
        Connections::new(settings, is_clear, |error| Error::invalid(error.to_string())).unwrap()
    }

    async fn is_answered(connections: &Connections, options: &ClientOptions, url: &str) -> bool {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        let answer = connections.connect(options).unwrap().execute(request).await;
        match answer {
            Ok(answer) => answer.into_body().bytes().await.is_ok(),
            Err(_) => false,
        }
    }

    #[test]
    fn stores_that_are_reached_alike_share_a_connection() {
        let (url, answers) = server(3);
        let is_answered = |connections: &Connections| {
            let options = connections.options().clone();
            let answer = is_answered(connections, &options, &url);
            connections.network().runtime().block_on(answer)
        };
        let one = connections(true);
        assert!(is_answered(&one));
        assert!(is_answered(&one));
        // What one leaves behind, another goes on with; the server takes no second connection.
        let other = Settings { timeout: Some(Duration::from_secs(5)), ..Settings::default() };
        assert!(!is_answered(&with(&other, true)), "requests that end sooner");
        assert!(is_answered(&connections(true)));
        answers.join().unwrap();
    }

    /// An instance's metadata are asked without encryption, whatever the store is asked with.
    #[test]
    fn connections_to_a_store_are_not_those_to_who_knows_its_credentials() {
        let (url, answers) = server(1);
        let connections = connections(false);
        let own = connections.options().clone();
        let metadata =
            own.clone().with_allow_http(true).with_connect_timeout(Duration::from_secs(1));
        let network = connections.network();
        network.runtime().block_on(async {
            assert!(!is_answered(&connections, &own, &url).await);
            assert!(is_answered(&connections, &metadata, &url).await);
        });
        answers.join().unwrap();
    }
}
