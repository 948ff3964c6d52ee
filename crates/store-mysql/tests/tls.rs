//! How connections are encrypted, and what is said when they cannot be.

mod support;

use std::net::{Ipv4Addr, ToSocketAddrs as _};
use std::path::PathBuf;

use store::contract::stage::{a_company, read, stored};
use store::{StoreError, Upkeep as _};
use store_mysql::{MysqlConfig, MysqlStore};
use support::{Database, is_mariadb, run};
use testkit::an_email;
use testkit::wire::Proxy;

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
    let Err(error) = opened(&database, "sslmode=verify-full").await else { panic!("nobody knows it") };
    assert!(error.to_string().contains(&database.name), "{error}");
}

/// The server lets this user in over TLS alone, and what needs the pool and the lanes works.
#[tokio::test]
async fn every_connection_is_encrypted() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    let user = &database.name[..30];
    run(&mut admin, &format!("CREATE USER {user} REQUIRE SSL")).await;
    run(&mut admin, &format!("GRANT ALL ON {}.* TO {user}", database.name)).await;
    let open = async |mode: &str| {
        let mut url: url::Url = database.url_with(&format!("sslmode={mode}")).parse().expect("a URL");
        url.set_username(user).expect("a URL with a host");
        MysqlStore::open(&MysqlConfig::parse(url.as_str()).expect("a good URL")).await
    };
    let in_clear = open("disable").await;
    let store = open("require").await.expect("it opens");
    let company = a_company(&store, "acme").await;
    let id = stored(&store, an_email(company)).await;
    assert_eq!(read(&store, company, id).await.id, id);
    store.check().await.expect("it works");
    store.close().await;
    run(&mut admin, &format!("DROP USER {user}")).await;
    let Err(error) = in_clear else { panic!("the server lets this user in without TLS") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
}

/// The authority of the server that tests/peers/run.sh starts.
fn authority() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("POSTHASTE_TEST_PEERS_RUN")?).join("mariadb/tls/ca.pem");
    path.exists().then_some(path)
}

/// The same server at an address that its certificate does not name.
async fn elsewhere(database: &Database) -> (Proxy, url::Url) {
    let mut url: url::Url = database.url().parse().expect("a URL");
    let server = (url.host_str().expect("a host"), url.port().expect("a port"));
    let server = server.to_socket_addrs().expect("an address").next().expect("an address");
    let ip = Ipv4Addr::new(127, 0, 0, 2);
    let proxy = Proxy::start_at(ip, server).await;
    url.set_host(Some(&ip.to_string())).expect("a URL with a host");
    url.set_port(Some(proxy.address.port())).expect("a URL with a host");
    (proxy, url)
}

#[tokio::test]
async fn only_the_server_of_that_name_is_trusted() {
    let database = Database::new().await;
    let Some(authority) = authority() else { return };
    let query = |mode: &str| format!("sslmode={mode}&sslrootcert={}", authority.display());
    opened(&database, &query("verify-full")).await.expect("its own authority has signed it").close().await;
    let (_proxy, mut url) = elsewhere(&database).await;
    let mut open = async |mode: &str| {
        url.set_query(Some(&query(mode)));
        MysqlStore::open(&MysqlConfig::parse(url.as_str()).expect("a good URL")).await
    };
    open("verify-ca").await.expect("its authority is known").close().await;
    let Err(error) = open("verify-full").await else { panic!("the certificate is for another name") };
    assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Unusable(_)), "{error:?}");
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
