//! TLS between two ends that have one secret: each proves a key that is derived from it.
//!
//! The keys are raw public keys (RFC 7250): there is no certificate, no name and no authority. A
//! peer whose key is another one is refused during the handshake.

use std::sync::Arc;

use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName,
    ServerConfig, ServerConnection, SignatureScheme,
};
use silt_format::replica::transport_seed;
use silt_format::{Error, MasterKey, Result};

/// What stands before an Ed25519 seed in PKCS #8, version 1 (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// What stands before an Ed25519 public key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
/// TLS wants a name of the server; it is not sent, and nobody compares it.
const SERVER_NAME: &str = "replica.invalid";

/// The key that both ends prove.
#[derive(Debug)]
struct Pinned {
    key: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn check(&self, shown: &CertificateDer<'_>) -> std::result::Result<(), rustls::Error> {
        if shown.as_ref() == self.key.as_ref() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &self.key, signed, &self.algorithms)
    }
}

fn old_tls() -> rustls::Error {
    rustls::Error::General("raw public keys need TLS 1.3".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(old_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The parts of a configuration that client and server have in common.
struct Parts {
    provider: Arc<CryptoProvider>,
    pinned: Arc<Pinned>,
    own: Arc<CertifiedKey>,
}

fn parts(master: &MasterKey) -> Result<Parts> {
    let failed = |error: &dyn std::fmt::Display| Error::invalid(format!("set up TLS: {error}"));
    let seed = transport_seed(master);
    let pair = Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|error| failed(&error))?;
    let spki = [&SPKI_PREFIX[..], pair.public_key().as_ref()].concat();
    let pkcs8 = PrivateKeyDer::from(PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], &*seed].concat()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let signs = provider.key_provider.load_private_key(pkcs8).map_err(|error| failed(&error))?;
    let own = CertifiedKey::new(vec![CertificateDer::from(spki.clone())], signs);
    let pinned = Pinned {
        key: SubjectPublicKeyInfoDer::from(spki),
        algorithms: provider.signature_verification_algorithms,
    };
    Ok(Parts { provider, pinned: Arc::new(pinned), own: Arc::new(own) })
}

/// The client's end of a new connection.
pub(crate) fn client(master: &MasterKey) -> Result<ClientConnection> {
    let failed = |error: rustls::Error| Error::invalid(format!("set up TLS: {error}"));
    let Parts { provider, pinned, own } = parts(master)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.enable_sni = false;
    let name = ServerName::try_from(SERVER_NAME)
        .map_err(|error| Error::invalid(format!("set up TLS: {error}")))?;
    ClientConnection::new(Arc::new(config), name).map_err(failed)
}

/// The server's end of a new connection.
pub(crate) fn server(master: &MasterKey) -> Result<ServerConnection> {
    let failed = |error: rustls::Error| Error::invalid(format!("set up TLS: {error}"));
    let Parts { provider, pinned, own } = parts(master)?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(pinned)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    ServerConnection::new(Arc::new(config)).map_err(failed)
}
