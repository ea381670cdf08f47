//! TLS configuration of servers and clients: certificates and keys.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use silt_format::{Error, Result};

/// Maximum number of bytes that are read of a file with certificates or keys.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// File names in a folder of certificates, as libnbd and QEMU define them: the authorities, the
/// client's certificate, and the client's key.
const AUTHORITY_FILE: &str = "ca-cert.pem";
const CLIENT_CERTIFICATE_FILE: &str = "client-cert.pem";
const CLIENT_KEY_FILE: &str = "client-key.pem";

/// The TLS configuration of a server.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// A PEM file with the server's certificate and its chain up to the authority.
    pub certificate: PathBuf,
    /// A PEM file with the certificate's private key.
    pub key: PathBuf,
    /// A PEM file with the authorities that may sign clients' certificates. With `None`, clients
    /// need no certificate.
    pub client_authority: Option<PathBuf>,
}

impl TlsOptions {
    /// Reads the files. Fails with `Invalid` if they contain no usable certificates or keys.
    pub fn load(&self) -> Result<TlsServer> {
        let key = private_key(&self.key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(error.to_string()))?;
        let config = match &self.client_authority {
            None => config.with_no_client_auth(),
            Some(path) => {
                let roots = authorities(path)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                config.with_client_cert_verifier(
                    verifier.map_err(|error| wrong(path, &error.to_string()))?,
                )
            }
        };
        let chain = certificates(&self.certificate)?;
        let config = config.with_single_cert(chain, key);
        let config = config.map_err(|error| wrong(&self.certificate, &error.to_string()))?;
        Ok(TlsServer(Arc::new(config)))
    }
}

/// The loaded TLS configuration of a server.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

impl TlsServer {
    /// The state of a new connection.
    pub fn connection(&self) -> io::Result<ServerConnection> {
        ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)
    }
}

/// A client's trusted authorities, its own certificate if it has one, and the server's name.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl TlsClient {
    /// Reads authorities, certificate and key from the folder `certificates`, in files named as by
    /// libnbd and QEMU. Without a folder, trusts the system's authorities.
    ///
    /// Fails with `Invalid` if there are no authorities, or if a name or file is malformed.
    pub fn load(certificates: Option<&Path>, server: &str) -> Result<Self> {
        let name = ServerName::try_from(server.to_owned())
            .map_err(|_| Error::invalid(format!("'{server}' is not the name of a TLS server")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(error.to_string()))?;
        let roots = match certificates {
            Some(folder) => authorities(&folder.join(AUTHORITY_FILE))?,
            None => system_authorities()?,
        };
        let config = config.with_root_certificates(roots);
        let own = certificates.map(|folder| folder.join(CLIENT_CERTIFICATE_FILE));
        let config = match (certificates, own) {
            (Some(folder), Some(own)) if own.exists() => {
                let key = private_key(&folder.join(CLIENT_KEY_FILE))?;
                let config = config.with_client_auth_cert(self::certificates(&own)?, key);
                config.map_err(|error| wrong(&own, &error.to_string()))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(Self { config: Arc::new(config), server: name })
    }

    /// The state of a new connection.
    pub fn connection(&self) -> io::Result<ClientConnection> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.server.clone());
        connection.map_err(io::Error::other)
    }
}

fn system_authorities() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // Ignore those of the system's certificates that the library does not support.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid("the system has no certificates of authorities to trust"));
    }
    Ok(roots)
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong(path, &error.to_string()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_reader_iter(open(path)?).collect();
    let found = found.map_err(|error| wrong(path, &error.to_string()))?;
    if found.is_empty() {
        return Err(wrong(path, "it has no certificate"));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let key = PrivateKeyDer::from_pem_reader(open(path)?);
    key.map_err(|error| wrong(path, &error.to_string()))
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

fn open(path: &Path) -> Result<BufReader<io::Take<File>>> {
    let file = File::open(path);
    let file = file.map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    Ok(BufReader::new(io::Read::take(file, PEM_BYTES_MAX)))
}
