//! How connections are encrypted, and what is said when they cannot be.

mod support;

use store::{StoreError, Upkeep as _};
use store_mysql::{MysqlConfig, MysqlStore};
use support::{Database, is_mariadb, run};

async fn opened(database: &Database, query: &str) -> Result<MysqlStore, StoreError> {
    MysqlStore::open(&MysqlConfig::parse(&database.url_with(query)).expect("a good URL")).await
}

/// The server's certificate is nobody's whom we know: it does for `require`, not for `verify-full`.
#[tokio::test]
async fn tls_is_used_and_verified_as_asked() {
    let database = Database::new().await;
    for query in ["", "sslmode=disable", "sslmode=require", "ssl-mode=REQUIRED"] {
        let store = opened(&database, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        store.check().await.expect("it works");
        store.close().await;
    }
    for query in ["sslmode=verify-full", "sslmode=verify-ca&sslrootcert=/nowhere/ca.pem"] {
        let Err(error) = opened(&database, query).await else { panic!("{query}: refused") };
        assert!(
            !error.to_string().is_empty() && error.to_string().contains(&database.name),
            "{query}: {error}"
        );
    }
}

/// A password of MySQL's usual kind is not sent in the clear, and the error says what to do.
#[tokio::test]
async fn a_password_that_needs_tls_is_explained() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    if is_mariadb(&mut admin).await {
        // Has no such passwords; the mapping of the driver's error is tested in `error`.
        return;
    }
    let user = &database.name[..30];
    run(&mut admin, &format!("CREATE USER {user} IDENTIFIED WITH caching_sha2_password BY 'hunter2'")).await;
    run(&mut admin, &format!("GRANT ALL ON {}.* TO {user}", database.name)).await;
    let mut url: url::Url = database.url_with("sslmode=disable").parse().expect("a URL");
    url.set_username(user).expect("a URL with a host");
    url.set_password(Some("hunter2")).expect("a URL with a host");
    let refused = MysqlStore::open(&MysqlConfig::parse(url.as_str()).expect("a good URL")).await;
    url.set_query(Some("ssl-mode=REQUIRED"));
    let opened = MysqlStore::open(&MysqlConfig::parse(url.as_str()).expect("a good URL")).await;
    run(&mut admin, &format!("DROP USER {user}")).await;
    let Err(error) = refused else { panic!("the password was sent in the clear") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    assert!(error.to_string().contains("?ssl-mode=REQUIRED"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    opened.expect("with TLS it opens");
}
