//! Laws of templates: versions are counted, the newest is meant, and a name belongs to its company.

use testkit::{START, at_secs};

use super::stage::{a_company, race};
use crate::{Store, StoredTemplate};

pub async fn a_template_reads_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    assert_eq!(store.put_template(company, "welcome", "{\"html\":\"é 🎉\"}", START).await, Ok(1));
    let expected = StoredTemplate {
        name: "welcome".into(),
        version: 1,
        source: "{\"html\":\"é 🎉\"}".into(),
        created_at: START,
    };
    assert_eq!(store.template(company, "welcome", None).await, Ok(Some(expected)));
    assert_eq!(store.template(company, "Welcome", None).await, Ok(None), "names are exact");
    assert_eq!(store.template(company, "welcome", Some(2)).await, Ok(None));
}

pub async fn versions_are_counted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (source, version) in [("a", 1), ("b", 2), ("b", 2), ("a", 3)] {
        assert_eq!(
            store.put_template(company, "welcome", source, at_secs(u64::from(version))).await,
            Ok(version)
        );
    }
    let source = async |version| {
        store
            .template(company, "welcome", version)
            .await
            .expect("read")
            .map(|found| (found.version, found.source))
    };
    assert_eq!(source(None).await, Some((3, "a".into())));
    assert_eq!(source(Some(1)).await, Some((1, "a".into())));
    assert_eq!(source(Some(2)).await, Some((2, "b".into())));
}

pub async fn a_list_has_the_newest_of_each(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (name, source) in [("welcome", "a"), ("bye", "b"), ("welcome", "c")] {
        store.put_template(company, name, source, START).await.expect("written");
    }
    let listed = store.templates(company).await.expect("read");
    let found: Vec<(&str, u32, &str)> =
        listed.iter().map(|found| (found.name.as_str(), found.version, found.source.as_str())).collect();
    assert_eq!(found, [("bye", 1, "b"), ("welcome", 2, "c")]);
}

pub async fn a_deleted_name_goes_on_counting(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    store.put_template(company, "welcome", "a", START).await.expect("written");
    assert_eq!(store.delete_template(company, "welcome").await, Ok(true));
    assert_eq!(store.delete_template(company, "welcome").await, Ok(false));
    assert_eq!(store.template(company, "welcome", None).await, Ok(None));
    assert_eq!(store.template(company, "welcome", Some(1)).await, Ok(None));
    assert!(store.templates(company).await.expect("read").is_empty());
    assert_eq!(store.put_template(company, "welcome", "a", START).await, Ok(2));
}

pub async fn a_template_belongs_to_its_company(store: &dyn Store) {
    let (owner, stranger) = (a_company(store, "owner").await, a_company(store, "stranger").await);
    store.put_template(owner, "welcome", "a", START).await.expect("written");
    assert_eq!(store.template(stranger, "welcome", None).await, Ok(None));
    assert_eq!(store.delete_template(stranger, "welcome").await, Ok(false));
    assert_eq!(store.put_template(stranger, "welcome", "b", START).await, Ok(1));
    assert_eq!(store.template(owner, "welcome", None).await.expect("read").expect("there").source, "a");
}

/// Eight writers at once make eight versions.
pub async fn no_version_is_lost_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut versions = race(8, |task| async move {
        store.put_template(company, "welcome", &format!("source {task}"), START).await.expect("written")
    });
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8]);
}
