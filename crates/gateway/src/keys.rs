//! API keys: making them and telling who calls.
//!
//! Every request names a key, so the answer comes from memory for a few seconds; that is also the longest a
//! revoked key lives on other nodes (on this one it ends at once, see [`KeyRing::forget_company`]). What a key
//! may do is asked by the API, not here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{ApiKey, Clock, Company, CompanyId, KeyId, KeyMode, Scope, Secret, Timestamp};
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};
use store::{Store, StoreError};
use subtle::ConstantTimeEq as _;

/// How long a key is believed without asking the store: within the five seconds promised for a revocation.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How long an unknown key is believed to be unknown: enough to blunt a client that keeps trying.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);
/// How many keys are remembered, of each kind. A fleet has thousands at most; a guesser gets no more memory.
const REMEMBERED_MAX: usize = 10_000;
/// How often the times of last use are written down.
const NOTED_EVERY: Duration = Duration::from_secs(10);
/// How many characters of a key are kept to recognise it by.
const PREFIX_LENGTH: usize = 12;

/// Who calls: the key and its company.
#[derive(Debug, Clone)]
pub struct Caller {
    pub key: ApiKey,
    pub company: Company,
}

/// Why a key is refused.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    #[error("no such key")]
    Unknown,
    #[error("the key was revoked")]
    Revoked,
    #[error("the key has expired")]
    Expired,
    #[error("the company is switched off")]
    CompanyDisabled,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A key as it is handed out, once.
#[derive(Debug)]
pub struct NewKey {
    pub text: Secret<String>,
    pub record: ApiKey,
}

/// Makes a key of 256 random bits: `live_…` or `test_…`.
pub fn make_key(
    company: CompanyId,
    mode: KeyMode,
    scopes: Vec<Scope>,
    label: Option<String>,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> NewKey {
    let mut bits = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bits).expect("the operating system gives random bytes");
    let text = format!("{}_{}", mode.as_str(), URL_SAFE_NO_PAD.encode(bits));
    let record = ApiKey {
        id: KeyId::new(now),
        company,
        mode,
        scopes,
        label,
        hash: hash_key(&text),
        prefix: text.chars().take(PREFIX_LENGTH).collect(),
        created_at: now,
        expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    NewKey { text: Secret::new(text), record }
}

/// What is kept of a key. The key is random, so a plain hash cannot be turned back.
pub fn hash_key(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Tells who calls, remembering for a few seconds whom it saw.
pub struct KeyRing {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    uses: Mutex<Uses>,
}

#[derive(Default)]
struct Memory {
    known: HashMap<[u8; 32], (Arc<Caller>, Timestamp)>,
    unknown: HashMap<[u8; 32], Timestamp>,
}

#[derive(Default)]
struct Uses {
    waiting: HashMap<KeyId, Timestamp>,
    noted_at: Timestamp,
}

enum Recalled {
    Known(Arc<Caller>),
    Unknown,
    Nothing,
}

impl KeyRing {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, memory: Mutex::default(), uses: Mutex::default() }
    }

    /// Who calls with this key. Every key takes the same way, whatever it looks like, so that neither the
    /// answer nor its time tells a good prefix from a bad one.
    pub async fn authenticate(&self, key: &str) -> Result<Arc<Caller>, Denied> {
        self.authenticate_hash(hash_key(key)).await
    }

    /// The same for whoever kept the hash of a key that was shown before, such as a session.
    pub async fn authenticate_hash(&self, hash: [u8; 32]) -> Result<Arc<Caller>, Denied> {
        let now = self.clock.now();
        let caller = match self.recall(&hash, now) {
            Recalled::Known(caller) => caller,
            Recalled::Unknown => return Err(Denied::Unknown),
            Recalled::Nothing => self.look_up(hash, now).await?,
        };
        admit(&caller, &hash, now)?;
        self.note_use(caller.key.id, now);
        Ok(caller)
    }

    /// Forgets what is remembered of a company, after it or one of its keys was changed here.
    pub fn forget_company(&self, company: CompanyId) {
        lock(&self.memory).known.retain(|_, (caller, _)| caller.company.id != company);
    }

    /// Writes down the uses that wait for it; for the shutdown.
    pub async fn flush_uses(&self) -> Result<(), StoreError> {
        let uses: Vec<_> = lock(&self.uses).waiting.drain().collect();
        if uses.is_empty() { Ok(()) } else { self.store.touch_keys(uses).await }
    }

    fn recall(&self, hash: &[u8; 32], now: Timestamp) -> Recalled {
        let memory = lock(&self.memory);
        if let Some((caller, seen_at)) = memory.known.get(hash)
            && is_fresh(*seen_at, now, KNOWN_FOR)
        {
            return Recalled::Known(Arc::clone(caller));
        }
        match memory.unknown.get(hash) {
            Some(seen_at) if is_fresh(*seen_at, now, UNKNOWN_FOR) => Recalled::Unknown,
            _ => Recalled::Nothing,
        }
    }

    async fn look_up(&self, hash: [u8; 32], now: Timestamp) -> Result<Arc<Caller>, Denied> {
        let found = self.store.key_by_hash(&hash).await?;
        let mut memory = lock(&self.memory);
        let Some((key, company)) = found else {
            make_room(&mut memory.unknown, |seen_at| is_fresh(*seen_at, now, UNKNOWN_FOR));
            memory.unknown.insert(hash, now);
            return Err(Denied::Unknown);
        };
        let caller = Arc::new(Caller { key, company });
        make_room(&mut memory.known, |(_, seen_at)| is_fresh(*seen_at, now, KNOWN_FOR));
        memory.known.insert(hash, (Arc::clone(&caller), now));
        Ok(caller)
    }

    fn note_use(&self, key: KeyId, now: Timestamp) {
        let mut uses = lock(&self.uses);
        uses.waiting.insert(key, now);
        if is_fresh(uses.noted_at, now, NOTED_EVERY) {
            return;
        }
        uses.noted_at = now;
        let batch: Vec<_> = uses.waiting.drain().collect();
        drop(uses);
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(error) = store.touch_keys(batch).await {
                tracing::warn!(%error, "the times of last use of API keys could not be written down");
            }
        });
    }
}

fn admit(caller: &Caller, hash: &[u8; 32], now: Timestamp) -> Result<(), Denied> {
    if !bool::from(caller.key.hash.ct_eq(hash)) {
        return Err(Denied::Unknown);
    }
    if caller.key.revoked_at.is_some() {
        return Err(Denied::Revoked);
    }
    if caller.key.expires_at.is_some_and(|end| end <= now) {
        return Err(Denied::Expired);
    }
    if caller.company.disabled_at.is_some() {
        return Err(Denied::CompanyDisabled);
    }
    Ok(())
}

/// A clock that was set back makes everything stale, never everlasting.
fn is_fresh(seen_at: Timestamp, now: Timestamp, keep: Duration) -> bool {
    seen_at <= now && now < seen_at.plus(keep)
}

fn make_room<T>(map: &mut HashMap<[u8; 32], T>, is_fresh: impl Fn(&T) -> bool) {
    if map.len() >= REMEMBERED_MAX {
        map.retain(|_, entry| is_fresh(entry));
    }
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
}

/// A panic elsewhere leaves these maps whole: every change of them is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use store_sqlite::SqliteStore;
    use testkit::{ManualClock, START, a_company};

    use super::*;

    struct World {
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        ring: KeyRing,
        company: Company,
        key: NewKey,
    }

    async fn world(expires_at: Option<Timestamp>) -> World {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.expect("a store"));
        let clock = Arc::new(ManualClock::default());
        let company = a_company("shop");
        store.add_company(company.clone()).await.expect("a company");
        let key = make_key(company.id, KeyMode::Live, vec![Scope::Send], None, expires_at, START);
        store.add_key(key.record.clone()).await.expect("a key");
        let ring = KeyRing::new(Arc::clone(&store), Arc::clone(&clock) as Arc<dyn Clock>);
        World { store, clock, ring, company, key }
    }

    impl World {
        async fn outcome(&self) -> &'static str {
            match self.ring.authenticate(self.key.text.expose()).await {
                Ok(_) => "admitted",
                Err(Denied::Unknown) => "unknown",
                Err(Denied::Revoked) => "revoked",
                Err(Denied::Expired) => "expired",
                Err(Denied::CompanyDisabled) => "disabled",
                Err(Denied::Store(_)) => "store",
            }
        }

        fn pass(&self, secs: u64) {
            self.clock.advance(Duration::from_secs(secs));
        }
    }

    #[tokio::test]
    async fn keys_have_256_bits_and_a_mode() {
        let world = world(None).await;
        let text = world.key.text.expose();
        assert!(text.starts_with("live_") && text.len() == 5 + 43, "{}", text.len());
        assert_eq!(world.key.record.prefix, text[..PREFIX_LENGTH]);
        assert!(!format!("{:?}", world.key).contains(text), "a key prints masked");
    }

    #[tokio::test]
    async fn what_is_remembered_grows_old() {
        let world = world(None).await;
        assert_eq!(world.outcome().await, "admitted");
        world.store.revoke_key(world.company.id, world.key.record.id, START).await.expect("revoked");
        world.pass(4);
        assert_eq!(world.outcome().await, "admitted", "still remembered");
        world.pass(1);
        assert_eq!(world.outcome().await, "revoked", "asked again after five seconds");
    }

    #[tokio::test]
    async fn changes_made_here_count_at_once() {
        let world = world(None).await;
        assert_eq!(world.outcome().await, "admitted");
        let disabled = Company { disabled_at: Some(START), ..world.company.clone() };
        world.store.update_company(disabled).await.expect("updated");
        world.ring.forget_company(world.company.id);
        assert_eq!(world.outcome().await, "disabled");
    }

    #[tokio::test]
    async fn a_remembered_key_still_expires() {
        let world = world(Some(START.plus(Duration::from_secs(2)))).await;
        assert_eq!(world.outcome().await, "admitted");
        world.pass(2);
        assert_eq!(world.outcome().await, "expired");
    }

    #[tokio::test]
    async fn unknown_keys_are_remembered_briefly() {
        let world = world(None).await;
        let other = make_key(world.company.id, KeyMode::Test, vec![], None, None, START);
        let known = |found: Result<Arc<Caller>, Denied>| found.is_ok();
        assert!(!known(world.ring.authenticate(other.text.expose()).await));
        world.store.add_key(other.record).await.expect("a key");
        assert!(!known(world.ring.authenticate(other.text.expose()).await), "still remembered as unknown");
        world.pass(2);
        assert!(known(world.ring.authenticate(other.text.expose()).await));
    }

    #[tokio::test]
    async fn uses_are_noted_in_batches() {
        let world = world(None).await;
        world.outcome().await;
        world.pass(3);
        world.outcome().await;
        let noted = || async {
            let keys = world.store.keys(world.company.id).await.expect("keys");
            keys[0].last_used_at
        };
        assert_ne!(noted().await, Some(START.plus(Duration::from_secs(3))), "waits for its batch");
        world.ring.flush_uses().await.expect("written");
        assert_eq!(noted().await, Some(START.plus(Duration::from_secs(3))));
    }

    #[test]
    fn memory_is_bounded() {
        let mut map: HashMap<[u8; 32], Timestamp> = HashMap::new();
        for n in 0..(REMEMBERED_MAX as u64 * 3) {
            make_room(&mut map, |_| true);
            map.insert(hash_key(&n.to_string()), START);
        }
        assert!(map.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn a_clock_set_back_makes_everything_stale() {
        let later = START.plus(Duration::from_secs(60));
        assert!(!is_fresh(later, START, KNOWN_FOR));
        assert!(is_fresh(START, START, KNOWN_FOR));
    }
}
