//! Connections are encrypted where the URL says so, and only to the server it means.

mod support;

use std::net::{Ipv4Addr, ToSocketAddrs as _};
use std::path::PathBuf;

use sqlx::Row as _;
use store::contract::stage::{a_company, stored};
use store::{StoreError, Upkeep};
use store_postgres::{PostgresConfig, PostgresStore};
use support::Database;
use testkit::an_email;
use testkit::wire::Proxy;

/// Whether the test server speaks TLS; one that POSTHASTE_TEST_POSTGRES names may not.
async fn has_tls(database: &Database) -> bool {
    let row = sqlx::query("SHOW ssl").fetch_one(&mut database.admin().await).await.expect("asked");
    let has_tls = row.get::<&str, _>(0) == "on";
    if !has_tls {
        println!("the server of POSTHASTE_TEST_POSTGRES has no TLS: nothing is tested");
    }
    has_tls
}

/// The authority of the server that tests/peers/run.sh starts.
fn authority() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("POSTHASTE_TEST_PEERS_RUN")?).join("postgres/tls/ca.pem");
    path.exists().then_some(path)
}

async fn open(database: &Database, query: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(&PostgresConfig::parse(&database.url_with(query)).expect("a good URL")).await
}

#[tokio::test]
async fn every_connection_is_encrypted() {
    let database = Database::new().await;
    if !has_tls(&database).await {
        return;
    }
    let store = open(&database, "sslmode=require").await.expect("it opens");
    let company = a_company(&store, "acme").await;
    stored(&store, an_email(company)).await;
    let plain =
        "SELECT count(*) FILTER (WHERE NOT ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                 WHERE datname = $1 AND application_name = 'posthaste'";
    let row = sqlx::query(plain).bind(&database.name).fetch_one(&mut database.admin().await).await;
    let row = row.expect("asked");
    assert_eq!(row.get::<i64, _>(0), 0, "none is in clear");
    assert!(row.get::<i64, _>(1) >= 2, "of a lane and the pool");
    store.close().await;
}

#[tokio::test]
async fn a_server_that_is_not_known_is_refused() {
    let database = Database::new().await;
    if !has_tls(&database).await {
        return;
    }
    // An authority of the public web has not signed a test server's certificate.
    let Err(error) = open(&database, "sslmode=verify-full").await else { panic!("it is not to be trusted") };
    assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Unusable(_)), "{error:?}");
    let Some(authority) = authority() else { return };
    let known = format!("sslmode=verify-full&sslrootcert={}", authority.display());
    open(&database, &known).await.expect("its own authority has").close().await;
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
async fn a_server_of_another_name_is_refused() {
    let database = Database::new().await;
    let Some(authority) = authority() else { return };
    let (_proxy, mut url) = elsewhere(&database).await;
    let mut open = async |mode: &str| {
        url.set_query(Some(&format!("sslmode={mode}&sslrootcert={}", authority.display())));
        PostgresStore::open(&PostgresConfig::parse(url.as_str()).expect("a good URL")).await
    };
    open("verify-ca").await.expect("its authority is known").close().await;
    let Err(error) = open("verify-full").await else { panic!("the certificate is for another name") };
    assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Unusable(_)), "{error:?}");
}
