//! CPF and CNPJ under lock: what is stored of a person's document number.
//!
//! A plain SHA-256 of a CPF is turned back in minutes, so what is stored and compared is an HMAC of it under
//! the server's key. The number itself is only ever stored sealed (AES-256-GCM). The first key seals, all of
//! them open: to rotate, put the new key first and leave the old one until everything was sealed anew.

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _, Nonce};
use hmac::{Hmac, Mac as _};
use model::Secret;
use model::document::Document;
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};

const KEY_ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 12;
/// Bound into every seal, so that nothing sealed for another purpose can stand in.
const PURPOSE: &[u8] = b"posthaste document v1";
/// A shorter key for the HMAC could be guessed.
pub const HASH_KEY_BYTES_MIN: usize = 32;

/// The server's keys for document numbers.
pub struct DocumentKeys {
    hash_key: Secret<Vec<u8>>,
    seal_keys: Vec<SealKey>,
}

struct SealKey {
    /// The first bytes of the key's hash: names the key in what it sealed, without further configuration.
    id: [u8; KEY_ID_BYTES],
    cipher: Aes256Gcm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnfitKeys {
    #[error("the key for hashing documents needs at least {HASH_KEY_BYTES_MIN} bytes")]
    HashKeyTooShort,
    #[error("at least one key for sealing documents is needed")]
    NoSealKey,
}

/// Sealed with a key that is not here, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sealed document cannot be opened with the keys at hand")]
pub struct CannotOpen;

impl DocumentKeys {
    pub fn new(hash_key: Secret<Vec<u8>>, seal_keys: &[Secret<[u8; 32]>]) -> Result<Self, UnfitKeys> {
        if hash_key.expose().len() < HASH_KEY_BYTES_MIN {
            return Err(UnfitKeys::HashKeyTooShort);
        }
        if seal_keys.is_empty() {
            return Err(UnfitKeys::NoSealKey);
        }
        Ok(Self { hash_key, seal_keys: seal_keys.iter().map(|key| SealKey::new(key.expose())).collect() })
    }

    /// What is stored and compared in place of `cpfCnpjHash`: 64 hexadecimal digits.
    pub fn hmac_of(&self, sha256_hex: &str) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.hash_key.expose()).expect("HMAC takes keys of any length");
        mac.update(sha256_hex.as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn seal(&self, document: &Document) -> Secret<Vec<u8>> {
        let key = self.seal_keys.first().expect("the constructor refuses an empty list");
        let mut nonce = [0_u8; NONCE_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut nonce).expect("the operating system gives random bytes");
        let payload = Payload { msg: document.expose().as_bytes(), aad: PURPOSE };
        let boxed = key.cipher.encrypt(&Nonce::from(nonce), payload).expect("a document is short");
        Secret::new([&key.id[..], &nonce, &boxed].concat())
    }

    pub fn open(&self, sealed: &[u8]) -> Result<Document, CannotOpen> {
        let (id, rest) = sealed.split_at_checked(KEY_ID_BYTES).ok_or(CannotOpen)?;
        let (nonce, boxed) = rest.split_at_checked(NONCE_BYTES).ok_or(CannotOpen)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| CannotOpen)?;
        let key = self.seal_keys.iter().find(|key| key.id == id).ok_or(CannotOpen)?;
        let payload = Payload { msg: boxed, aad: PURPOSE };
        let plain = key.cipher.decrypt(&Nonce::from(nonce), payload).map_err(|_| CannotOpen)?;
        let text = String::from_utf8(plain).map_err(|_| CannotOpen)?;
        Document::parse(&text).map_err(|_| CannotOpen)
    }
}

impl SealKey {
    fn new(key: &[u8; 32]) -> Self {
        let hash = Sha256::digest(key);
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&hash[..KEY_ID_BYTES]);
        Self { id, cipher: Aes256Gcm::new(&(*key).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPF: &str = "529.982.247-25";

    fn keys(seal_keys: &[u8]) -> DocumentKeys {
        let seal_keys: Vec<_> = seal_keys.iter().map(|byte| Secret::new([*byte; 32])).collect();
        DocumentKeys::new(Secret::new(vec![9; 32]), &seal_keys).expect("fit keys")
    }

    #[test]
    fn what_is_sealed_opens_again_also_after_rotation() {
        let document = Document::parse(CPF).expect("valid");
        let sealed = keys(&[1]).seal(&document);
        assert_eq!(keys(&[2, 1]).open(sealed.expose()), Ok(document.clone()), "the old key still opens");
        assert_eq!(keys(&[2]).open(sealed.expose()), Err(CannotOpen), "the old key is gone");
        assert_ne!(sealed, keys(&[1]).seal(&document), "no two seals are alike");
    }

    #[test]
    fn a_damaged_seal_does_not_open() {
        let sealed = keys(&[1]).seal(&Document::parse(CPF).expect("valid"));
        for at in 0..sealed.expose().len() {
            let mut damaged = sealed.expose().clone();
            damaged[at] ^= 1;
            assert_eq!(keys(&[1]).open(&damaged), Err(CannotOpen), "byte {at}");
            assert_eq!(keys(&[1]).open(&sealed.expose()[..at]), Err(CannotOpen), "cut at {at}");
        }
    }

    #[test]
    fn the_hmac_depends_on_the_key_and_the_hash() {
        let hash = Document::parse(CPF).expect("valid").sha256_hex();
        let other = DocumentKeys::new(Secret::new(vec![8; 32]), &[Secret::new([1; 32])]).expect("fit keys");
        assert_eq!(keys(&[1]).hmac_of(&hash), keys(&[2]).hmac_of(&hash));
        assert_ne!(keys(&[1]).hmac_of(&hash), other.hmac_of(&hash));
        assert_eq!(keys(&[1]).hmac_of(&hash).len(), 64);
    }

    #[test]
    fn unfit_keys_are_refused() {
        let short = DocumentKeys::new(Secret::new(vec![1; 31]), &[Secret::new([1; 32])]);
        assert_eq!(short.err(), Some(UnfitKeys::HashKeyTooShort));
        assert_eq!(DocumentKeys::new(Secret::new(vec![1; 32]), &[]).err(), Some(UnfitKeys::NoSealKey));
    }
}
