//! Connections to one store, which all its clients share.

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient, HttpConnector, ReqwestConnector};

use crate::witness::Witness;

/// What tells connections to a store from those to whoever hands out its credentials.
const DISTINCT: [ClientConfigKey; 2] =
    [ClientConfigKey::AllowHttp, ClientConfigKey::ConnectTimeout];

/// Connections to one store. To make them means to read every certificate that the system trusts,
/// and each set of them would greet the server by itself.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    options: ClientOptions,
    http: HttpClient,
}

impl Connections {
    pub(crate) fn new(options: ClientOptions) -> object_store::Result<Self> {
        let http = witnessing(&options)?;
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

/// A client that notes how its requests end.
fn witnessing(options: &ClientOptions) -> object_store::Result<HttpClient> {
    let http = ReqwestConnector::default().connect(options)?;
    Ok(HttpClient::new(Witness(http)))
}

impl HttpConnector for Connections {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let of = |options: &ClientOptions| DISTINCT.map(|key| options.get_config_value(&key));
        if of(options) == of(&self.options) {
            return Ok(self.http.clone());
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
    use crate::Settings;

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
        Connections::new(Settings::default().connection(is_clear).unwrap()).unwrap()
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

    fn run<T>(task: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(task)
    }

    #[test]
    fn clients_of_a_store_share_a_connection() {
        let (url, answers) = server(2);
        let connections = connections(true);
        let options = connections.options().clone();
        run(async {
            assert!(is_answered(&connections, &options, &url).await);
            assert!(is_answered(&connections, &options, &url).await);
        });
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
        run(async {
            assert!(!is_answered(&connections, &own, &url).await);
            assert!(is_answered(&connections, &metadata, &url).await);
        });
        answers.join().unwrap();
    }
}
