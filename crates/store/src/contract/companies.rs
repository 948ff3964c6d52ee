//! Laws of companies and their keys.

use std::time::Duration;

use model::{ApiKey, Company, CompanyId, CompanySettings, KeyId, KeyMode, OnUnknown, Scope};
use testkit::{START, a_company, a_key, a_mailbox, an_address, at_secs};

use crate::{Store, StoreError};

/// Every setting of a company reads back, by id, by name and in the list.
pub async fn a_company_reads_back(store: &dyn Store) {
    let plain = a_company("plain");
    let full = Company {
        settings: CompanySettings {
            from: Some(a_mailbox("Loja <loja@example.com>")),
            senders: vec!["sales@example.com".into(), "@example.org".into()],
            route: Some(vec!["main".into(), "second".into()]),
            weight: 7,
            concurrency_max: Some(12),
            rate_per_sec: Some(34),
            daily_limit: Some(56_000),
            retry_policy: Some("patient".into()),
            on_unknown: Some(OnUnknown::Hold),
            admin_email: Some(an_address("boss@example.com")),
        },
        created_at: at_secs(9),
        disabled_at: Some(at_secs(10)),
        ..a_company("Açaí & Cia. \"full\"")
    };
    for company in [plain, full] {
        store.add_company(company.clone()).await.expect("add");
        assert_eq!(store.company(company.id).await.expect("read"), Some(company.clone()));
        assert_eq!(store.company_named(&company.name).await.expect("read"), Some(company.clone()));
        assert!(store.companies().await.expect("list").contains(&company));
    }
    assert_eq!(store.company(CompanyId::new(START)).await.expect("read"), None);
    assert_eq!(store.company_named("nobody").await.expect("read"), None);
}

/// The list is by name.
pub async fn companies_are_listed_by_name(store: &dyn Store) {
    for name in ["mike", "alpha", "zulu", "bravo"] {
        store.add_company(a_company(name)).await.expect("add");
    }
    let names: Vec<_> =
        store.companies().await.expect("list").into_iter().map(|company| company.name).collect();
    assert_eq!(names, ["alpha", "bravo", "mike", "zulu"]);
}

/// A name is taken once, by adding or by renaming.
pub async fn names_are_unique(store: &dyn Store) {
    let acme = a_company("acme");
    let other = a_company("other");
    store.add_company(acme.clone()).await.expect("add");
    store.add_company(other.clone()).await.expect("add");
    let again = store.add_company(a_company("acme")).await;
    assert!(matches!(again, Err(StoreError::Exists(_))), "{again:?}");
    let renamed = store.update_company(Company { name: "acme".into(), ..other.clone() }).await;
    assert!(matches!(renamed, Err(StoreError::Exists(_))), "{renamed:?}");
    assert_eq!(store.company(other.id).await.expect("read"), Some(other));
    assert_eq!(store.company_named("acme").await.expect("read"), Some(acme));
    assert_eq!(store.companies().await.expect("list").len(), 2);
}

/// Many that take one name at once: one gets it.
pub async fn names_are_unique_in_a_race(store: &dyn Store) {
    let answers = super::stage::race(8, |_| store.add_company(a_company("acme")));
    let added = answers.iter().filter(|answer| answer.is_ok()).count();
    let exists = answers.iter().filter(|answer| matches!(answer, Err(StoreError::Exists(_)))).count();
    assert_eq!((added, exists), (1, 7), "{answers:?}");
    assert_eq!(store.companies().await.expect("list").len(), 1);
}

/// An update replaces name, settings and whether the company is switched off; there must be such a company.
pub async fn a_company_is_updated(store: &dyn Store) {
    let company = a_company("before");
    store.add_company(company.clone()).await.expect("add");
    let changed = Company {
        name: "after".into(),
        settings: CompanySettings { weight: 9, rate_per_sec: Some(3), ..CompanySettings::default() },
        disabled_at: Some(at_secs(5)),
        ..company.clone()
    };
    assert!(store.update_company(changed.clone()).await.expect("update"));
    assert_eq!(store.company(company.id).await.expect("read"), Some(changed));
    assert_eq!(store.company_named("before").await.expect("read"), None);
    assert!(store.update_company(company.clone()).await.expect("update"), "and back");
    assert_eq!(store.company_named("before").await.expect("read"), Some(company));

    assert!(!store.update_company(a_company("unknown")).await.expect("update"));
    assert_eq!(store.companies().await.expect("list").len(), 1, "an update adds nobody");
}

/// A key reads back in its company's list, newest first, and is found by its hash together with its company.
pub async fn a_key_reads_back(store: &dyn Store) {
    let company = added(store, "acme").await;
    let other = added(store, "other").await;
    let plain = a_key(company.id, 1);
    let full = ApiKey {
        id: KeyId::new(at_secs(1)),
        mode: KeyMode::Test,
        scopes: Scope::ALL.to_vec(),
        label: Some("the shop's \"main\" key".into()),
        created_at: at_secs(1),
        expires_at: Some(at_secs(3_600)),
        revoked_at: Some(at_secs(2)),
        last_used_at: Some(at_secs(1)),
        ..a_key(company.id, 2)
    };
    for key in [&plain, &full] {
        store.add_key(key.clone()).await.expect("add");
    }
    store.add_key(a_key(other.id, 3)).await.expect("add");
    assert_eq!(store.keys(company.id).await.expect("keys"), [full.clone(), plain.clone()]);
    for key in [plain, full] {
        let found = store.key_by_hash(&key.hash).await.expect("find");
        assert_eq!(found, Some((key, company.clone())));
    }
    assert_eq!(store.key_by_hash(&[9; 32]).await.expect("find"), None);
}

/// The company that comes with a key is the company of now.
pub async fn a_key_brings_its_company_of_now(store: &dyn Store) {
    let company = added(store, "acme").await;
    let key = a_key(company.id, 1);
    store.add_key(key.clone()).await.expect("add");
    let off = Company { disabled_at: Some(at_secs(1)), ..company };
    assert!(store.update_company(off.clone()).await.expect("update"));
    assert_eq!(store.key_by_hash(&key.hash).await.expect("find"), Some((key, off)));
}

/// A key is revoked once, at the first time; it is still found, as a revoked one.
pub async fn a_key_is_revoked_once(store: &dyn Store) {
    let company = added(store, "acme").await;
    let (key, bystander) = (a_key(company.id, 1), a_key(company.id, 2));
    store.add_key(key.clone()).await.expect("add");
    store.add_key(bystander.clone()).await.expect("add");
    for secs in [5, 9] {
        assert!(store.revoke_key(company.id, key.id, at_secs(secs)).await.expect("revoke"), "it is there");
        let revoked = ApiKey { revoked_at: Some(at_secs(5)), ..key.clone() };
        let found = store.key_by_hash(&key.hash).await.expect("find");
        assert_eq!(found, Some((revoked, company.clone())));
    }
    let found = store.key_by_hash(&bystander.hash).await.expect("find");
    assert_eq!(found, Some((bystander, company)));
}

/// The last use never goes back, and a key that is gone disturbs nobody.
pub async fn the_last_use_never_goes_back(store: &dyn Store) {
    let company = added(store, "acme").await;
    let (one, two) = (a_key(company.id, 1), a_key(company.id, 2));
    store.add_key(one.clone()).await.expect("add");
    store.add_key(two.clone()).await.expect("add");
    let steps = [
        // uses of key one, then its last use
        (vec![5], 5),
        (vec![3], 5),
        (vec![8, 6], 8),
        (vec![6, 7], 8),
    ];
    for (uses, expected) in steps {
        let mut noted: Vec<_> = uses.iter().map(|secs| (one.id, at_secs(*secs))).collect();
        noted.push((KeyId::new(START), at_secs(100)));
        store.touch_keys(noted).await.expect("touch");
        let (key, _) = store.key_by_hash(&one.hash).await.expect("find").expect("it is there");
        assert_eq!(key.last_used_at, Some(at_secs(expected)), "after {uses:?}");
    }
    let (key, _) = store.key_by_hash(&two.hash).await.expect("find").expect("it is there");
    assert_eq!(key.last_used_at, None);
    store.touch_keys(vec![]).await.expect("nothing to note is fine");
    let later = at_secs(9).plus(Duration::from_secs(1));
    store.touch_keys(vec![(one.id, later), (two.id, later)]).await.expect("touch");
    assert!(store.keys(company.id).await.expect("keys").iter().all(|key| key.last_used_at == Some(later)));
}

async fn added(store: &dyn Store, name: &str) -> Company {
    let company = a_company(name);
    store.add_company(company.clone()).await.expect("add");
    company
}
