//! Who may take something away in an append-only repository: whoever can sign heads.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::{Error, ErrorKind, Head, MasterKey, Result};

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;
/// What is signed begins with this, so that no other use of the key can be mistaken for it.
const CONTEXT: &[u8] = b"siltstone 2026 v1 head that takes something away";

/// The private key that signs heads.
pub struct Authority {
    pair: Ed25519KeyPair,
}

impl Authority {
    /// The key whose seed is kept, wrapped by a password, as master keys are.
    pub fn new(seed: &MasterKey) -> Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.expose())
            .map_err(|_| Error::invalid("the seed makes no Ed25519 key"))?;
        Ok(Self { pair })
    }

    /// The public key, as configurations hold it.
    pub fn public(&self) -> [u8; 32] {
        let mut public = [0; 32];
        public.copy_from_slice(self.pair.public_key().as_ref());
        public
    }

    /// Signs a head as it is but for its signature.
    pub fn sign(&self, head: &mut Head) {
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(self.pair.sign(&message(head)).as_ref());
        head.signature = Some(signature);
    }
}

/// Fails as `Denied` unless a head is signed by the key that `public` belongs to.
pub fn verify_signature(head: &Head, public: &[u8; 32]) -> Result<()> {
    let signature = head.signature.unwrap_or([0; SIGNATURE_BYTES]);
    let verified = UnparsedPublicKey::new(&ED25519, public).verify(&message(head), &signature);
    verified.map_err(|_| {
        let what =
            if head.signature.is_some() { "its signature is wrong" } else { "it is not signed" };
        Error::new(ErrorKind::Denied, what)
    })
}

fn message(head: &Head) -> Vec<u8> {
    let unsigned = Head { signature: None, ..head.clone() };
    [CONTEXT, &unsigned.encode()].concat()
}
