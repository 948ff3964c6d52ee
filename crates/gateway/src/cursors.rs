//! Cursors as they are given out: sealed, so that they tell nothing.
//!
//! A store's cursor may be the number of a row among those of all companies: two of them would tell one company how much
//! the others send. So it leaves encrypted (AES-256-GCM) and padded, bound to the place it was made for, under a key that
//! all processes share through the store. The nonce is an HMAC of place and content: the same cursor of the same list is
//! always written the same, and no two different ones share a nonce.

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use model::Secret;
use rand::TryRngCore as _;
use sha2::Sha256;
use store::{Cursor, Store, StoreError};

const NONCE_BYTES: usize = 12;
/// What is sealed has a multiple of this length: neither the digits of a number nor the kind of cursor can be counted. The
/// longest that stores make, an id, fits once.
const STEP_BYTES: usize = 40;
/// Before the content: how long it is.
const LENGTH_BYTES: usize = 2;

/// What cursors are sealed with.
pub struct CursorKey {
    nonces: Hmac<Sha256>,
    cipher: Aes256Gcm,
}

impl CursorKey {
    pub fn new(key: &Secret<[u8; 32]>) -> Self {
        let derived = |purpose: &[u8]| -> [u8; 32] {
            hmac_with(key.expose())
                .chain_update(b"posthaste cursor ")
                .chain_update(purpose)
                .finalize()
                .into_bytes()
                .into()
        };
        Self { nonces: hmac_with(&derived(b"nonce")), cipher: Aes256Gcm::new(&derived(b"seal").into()) }
    }

    /// The one that all processes on this store have.
    pub async fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let mut fresh = [0_u8; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut fresh).expect("the operating system gives random bytes");
        let kept = store.cursor_key(Secret::new(URL_SAFE_NO_PAD.encode(fresh))).await?;
        let key = URL_SAFE_NO_PAD.decode(kept.expose()).ok().and_then(|bytes| bytes.try_into().ok());
        let key = key.ok_or_else(|| StoreError::Broken("the key of cursors cannot be read".into()))?;
        Ok(Self::new(&Secret::new(key)))
    }

    /// The cursor as it is given out at this place, in characters that a URL takes as they are.
    pub fn seal(&self, place: &[u8], cursor: &Cursor) -> String {
        let content = padded(cursor.0.as_bytes());
        // The content has its length in front, so that nothing can move between it and the place.
        let mac = self.nonces.clone().chain_update(&content).chain_update(place).finalize().into_bytes();
        let mut nonce = [0_u8; NONCE_BYTES];
        nonce.copy_from_slice(&mac[..NONCE_BYTES]);
        let payload = Payload { msg: &content, aad: place };
        let sealed = self.cipher.encrypt(&Nonce::from(nonce), payload).expect("a cursor is short");
        URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
    }

    /// The cursor, if it was given out at this place.
    pub fn open(&self, place: &[u8], text: &str) -> Option<Cursor> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_BYTES)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
        let payload = Payload { msg: sealed, aad: place };
        let content = self.cipher.decrypt(&Nonce::from(nonce), payload).ok()?;
        String::from_utf8(unpadded(&content)?.to_vec()).ok().map(Cursor)
    }
}

fn hmac_with(key: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a cursor is short");
    let mut content = length.to_be_bytes().to_vec();
    content.extend_from_slice(bytes);
    content.resize(content.len().next_multiple_of(STEP_BYTES), 0);
    content
}

fn unpadded(content: &[u8]) -> Option<&[u8]> {
    let (length, rest) = content.split_at_checked(LENGTH_BYTES)?;
    rest.get(..usize::from(u16::from_be_bytes(length.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use store_sqlite::SqliteStore;

    use super::*;

    fn key(byte: u8) -> CursorKey {
        CursorKey::new(&Secret::new([byte; 32]))
    }

    fn cursor(text: &str) -> Cursor {
        Cursor(text.to_owned())
    }

    #[test]
    fn what_was_given_out_is_taken_back_at_its_place() {
        for text in ["", "7", "9223372036854775807", "019a9f0e-7c3a-7d52-9982-247252998224", &"x".repeat(300)]
        {
            let given = key(1).seal(b"here", &cursor(text));
            assert_eq!(key(1).open(b"here", &given), Some(cursor(text)));
            assert_eq!(key(1).open(b"there", &given), None, "{text}: another place");
            assert_eq!(key(2).open(b"here", &given), None, "{text}: another key");
            assert_eq!(given, key(1).seal(b"here", &cursor(text)), "{text}: it is always written the same");
        }
    }

    #[test]
    fn nothing_can_be_changed() {
        let given = key(1).seal(b"here", &cursor("12345"));
        for at in 0..given.len() {
            let mut changed = given.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(key(1).open(b"here", &changed), None, "character {at}");
            assert_eq!(key(1).open(b"here", &given[..at]), None, "cut at {at}");
        }
    }

    /// Neither its length nor what it has in common with others tells which row it is.
    #[test]
    fn cursors_of_near_rows_have_nothing_in_common() {
        let all: Vec<String> = [1, 2, 10, 11, 1_000_000, 1_000_001, i64::MAX]
            .iter()
            .map(|seq| key(1).seal(b"here", &cursor(&seq.to_string())))
            .collect();
        assert!(all.iter().all(|text| text.len() == all[0].len()), "{all:?}");
        for (number, one) in all.iter().enumerate() {
            for other in &all[number + 1..] {
                let alike = one.bytes().zip(other.bytes()).filter(|(one, other)| one == other).count();
                // By chance one character in 64 is.
                assert!(alike < one.len() / 4, "{one} {other}");
            }
        }
    }

    #[tokio::test]
    async fn processes_on_one_store_have_one_key() {
        let (store, other) = (
            SqliteStore::in_memory().await.expect("a store"),
            SqliteStore::in_memory().await.expect("a store"),
        );
        let given = CursorKey::of(&store).await.expect("a key").seal(b"here", &cursor("1"));
        let second = CursorKey::of(&store).await.expect("a key");
        assert_eq!(second.open(b"here", &given), Some(cursor("1")));
        assert_eq!(CursorKey::of(&other).await.expect("a key").open(b"here", &given), None);
    }
}
