//! Who is logged in, and who tried too often. Both are kept in memory and bounded: a restart logs everybody out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Timestamp;
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A working day; then the token is asked for again.
pub const SESSION_AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// People at once. The session that ends first makes room.
const SESSIONS_MAX: usize = 1024;
/// Enough for a typing mistake, too few to guess.
const TRIES_PER_MINUTE: u32 = 5;
/// Addresses that are counted. When all are busy, new ones wait: they are part of an attack.
const ADDRESSES_MAX: usize = 4096;

/// What a session was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    AdminToken,
    /// The hash of an API key; the key is asked about again at every request.
    Key([u8; 32]),
}

struct Session {
    proof: Proof,
    ends_at: Timestamp,
}

/// The sessions. What is kept is a hash, so that a look into the memory gives no session away.
pub struct Sessions {
    secret: [u8; 32],
    open: Mutex<HashMap<[u8; 32], Session>>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { secret: random(), open: Mutex::default() }
    }
}

impl Sessions {
    /// Opens a session and returns its id, for the cookie.
    pub fn open(&self, proof: Proof, now: Timestamp) -> String {
        let id = hex(&random());
        let mut open = lock(&self.open);
        open.retain(|_, session| session.ends_at > now);
        if open.len() >= SESSIONS_MAX
            && let Some(first) = open.iter().min_by_key(|(_, session)| session.ends_at).map(|(hash, _)| *hash)
        {
            open.remove(&first);
        }
        open.insert(hash(&id), Session { proof, ends_at: now.plus(SESSION_AGE_MAX) });
        id
    }

    /// What an open session was opened with.
    pub fn proof(&self, id: &str, now: Timestamp) -> Option<Proof> {
        lock(&self.open).get(&hash(id)).filter(|session| session.ends_at > now).map(|session| session.proof)
    }

    pub fn close(&self, id: &str) {
        lock(&self.open).remove(&hash(id));
    }

    /// What a form of this session must carry. Without a session there is one for everybody, which pages of elsewhere
    /// cannot read either.
    pub fn form_token(&self, session: Option<&str>) -> String {
        let mut hasher = Sha256::new();
        hasher.update(self.secret);
        hasher.update(session.unwrap_or_default().as_bytes());
        hex(&hasher.finalize())
    }

    pub fn is_form_token(&self, session: Option<&str>, given: &str) -> bool {
        self.form_token(session).as_bytes().ct_eq(given.as_bytes()).into()
    }
}

/// Tries to log in, counted per address in windows of a minute.
#[derive(Default)]
pub struct Tries(Mutex<HashMap<IpAddr, (i64, u32)>>);

impl Tries {
    /// Counts one; `false` when there were too many.
    pub fn take(&self, address: IpAddr, now: Timestamp) -> bool {
        let minute = now.millis().div_euclid(60_000);
        let network = network(address);
        let mut tries = lock(&self.0);
        if tries.len() >= ADDRESSES_MAX && !tries.contains_key(&network) {
            tries.retain(|_, (window, _)| *window == minute);
            if tries.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        let (window, used) = tries.entry(network).or_insert((minute, 0));
        if *window != minute {
            (*window, *used) = (minute, 0);
        }
        *used = used.saturating_add(1);
        *used <= TRIES_PER_MINUTE
    }
}

/// A household has 2^64 addresses of version 6: they count as one.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

fn random() -> [u8; 32] {
    let mut bits = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bits).expect("the operating system gives random bytes");
    bits
}

fn hash(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use testkit::{START, at_secs};

    use super::*;

    fn is_open(sessions: &Sessions, id: &str, now: Timestamp) -> bool {
        sessions.proof(id, now).is_some()
    }

    #[test]
    fn a_session_ends() {
        let sessions = Sessions::default();
        let id = sessions.open(Proof::AdminToken, START);
        assert_eq!(id.len(), 64, "256 bits");
        assert!(is_open(&sessions, &id, at_secs(12 * 3600 - 1)));
        assert!(!is_open(&sessions, &id, at_secs(12 * 3600)));
        assert!(!is_open(&sessions, "", START) && !is_open(&sessions, &id[1..], START));
        sessions.close(&id);
        assert!(!is_open(&sessions, &id, START), "logged out");
    }

    #[test]
    fn sessions_are_bounded_and_the_oldest_makes_room() {
        let sessions = Sessions::default();
        let first = sessions.open(Proof::AdminToken, START);
        let others: Vec<String> =
            (1..=SESSIONS_MAX as u64).map(|n| sessions.open(Proof::AdminToken, at_secs(n))).collect();
        let now = at_secs(SESSIONS_MAX as u64);
        assert!(!is_open(&sessions, &first, now));
        assert!(others.iter().all(|id| is_open(&sessions, id, now)));
    }

    #[test]
    fn a_form_belongs_to_its_session() {
        let sessions = Sessions::default();
        let (one, other) = (sessions.form_token(Some("one")), sessions.form_token(Some("other")));
        assert!(sessions.is_form_token(Some("one"), &one));
        for (session, token) in [(Some("one"), &other), (None, &one), (Some("one"), &String::new())] {
            assert!(!sessions.is_form_token(session, token));
        }
        assert_ne!(Sessions::default().form_token(None), sessions.form_token(None), "another process");
    }

    #[test]
    fn five_tries_a_minute_per_address() {
        let tries = Tries::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!((0..5).all(|_| tries.take(one, START)));
        assert!(!tries.take(one, at_secs(59)) && !tries.take(address("::ffff:192.0.2.1"), at_secs(59)));
        assert!(tries.take(other, at_secs(59)));
        assert!(tries.take(one, at_secs(60)));
        assert!((0..5).all(|n| tries.take(address(&format!("2001:db8::{n}")), START)));
        assert!(!tries.take(address("2001:db8::9"), START), "one network");
    }

    #[test]
    fn so_many_addresses_are_counted() {
        let tries = Tries::default();
        let address = |n: usize| IpAddr::V4(std::net::Ipv4Addr::from(u32::try_from(n).expect("small")));
        assert!((0..ADDRESSES_MAX).all(|n| tries.take(address(n), START)));
        assert!(!tries.take(address(ADDRESSES_MAX), START));
        assert!(tries.take(address(ADDRESSES_MAX), at_secs(60)), "a minute later there is room");
    }
}
