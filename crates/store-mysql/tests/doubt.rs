//! A server that is lost while it stores something: the caller hears that it is not known whether that was stored, and
//! nothing is said to have been left undone that was done.

mod support;

use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::Row as _;
use store::contract::stage::{a_company, acceptance, stored};
use store::thread::HotThread;
use store::{Accepted, Cancelled, Outbox as _, StoreError, Templates as _, Upkeep as _};
use store_mysql::{MysqlConfig, MysqlStore};
use support::Database;
use testkit::wire::{Proxy, Wire};
use testkit::{START, an_email};
use tokio::task::JoinHandle;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A store behind a wire that can be cut, and a way past it.
struct Rig {
    store: Arc<MysqlStore>,
    wire: Proxy,
    company: model::CompanyId,
    database: Database,
}

impl Rig {
    async fn set_up() -> Self {
        Self::set_up_with("sslmode=disable").await
    }

    async fn set_up_with(parameters: &str) -> Self {
        let database = Database::new().await;
        let mut url: url::Url = database.url_with(parameters).parse().expect("a URL");
        let server = (url.host_str().expect("a host"), url.port().expect("a port"));
        let server = server.to_socket_addrs().expect("an address").next().expect("an address");
        let wire = Proxy::start(server).await;
        url.set_host(Some("127.0.0.1")).expect("a URL with a host");
        url.set_port(Some(wire.address.port())).expect("a URL with a host");
        let config = MysqlConfig::parse(url.as_str()).expect("a good URL");
        // All of it by the clock of the test.
        let store = MysqlStore::open_on(&config, HotThread::of_caller()).await;
        let store = Arc::new(store.expect("a new store opens"));
        let company = a_company(&*store, "acme").await;
        let rig = Self { store, wire, company, database };
        // Connections are made, and statements prepared.
        assert_eq!(rig.hand_in().await.expect("no panic"), Ok(Accepted::Stored));
        rig
    }

    fn hand_in(&self) -> JoinHandle<Result<Accepted, StoreError>> {
        let (store, email) = (Arc::clone(&self.store), an_email(self.company));
        tokio::spawn(async move { store.accept(acceptance(vec![email], START)).await })
    }

    async fn stored(&self) -> i64 {
        let row = sqlx::query("SELECT COUNT(*) FROM email_outbox")
            .fetch_one(&mut self.database.connect().await)
            .await;
        row.expect("asked").get(0)
    }

    /// An email that the server has stored, since the COMMIT came through, and whose caller has not heard of it.
    async fn unheard(&self) -> JoinHandle<Result<Accepted, StoreError>> {
        self.wire.set(Wire::DeafAfter("COMMIT"));
        let handing_in = self.hand_in();
        while self.stored().await < 2 {
            assert!(!handing_in.is_finished(), "it ended before anything was stored");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        handing_in
    }
}

#[tokio::test]
async fn a_connection_lost_after_the_order_leaves_it_open() {
    let rig = Rig::set_up().await;
    let handing_in = rig.unheard().await;
    rig.wire.set(Wire::Reset);
    let answer = handing_in.await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::InDoubt(_))), "{answer:?}");
    assert_eq!(rig.stored().await, 2, "it was not done again");
}

#[tokio::test]
async fn a_server_that_falls_silent_after_the_order_leaves_it_open() {
    let rig = Rig::set_up().await;
    let handing_in = rig.unheard().await;
    // Nothing else can happen now, so that the clock runs on to the moment at which the store gives up.
    tokio::time::pause();
    let answer = handing_in.await.expect("no panic");
    tokio::time::resume();
    assert!(matches!(answer, Err(StoreError::InDoubt(_))), "{answer:?}");
    rig.wire.set(Wire::Whole);
    assert_eq!(rig.hand_in().await.expect("no panic"), Ok(Accepted::Stored), "work goes on");
}

#[tokio::test]
async fn without_a_connection_nothing_was_stored() {
    let rig = Rig::set_up().await;
    rig.wire.set(Wire::Reset);
    // What was open is found to be gone; from then on nobody comes through.
    let _ = rig.hand_in().await.expect("no panic");
    let answer = rig.hand_in().await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    assert_eq!(rig.stored().await, 1);
}

/// What a transaction holds is free again soon after its process was lost, whatever the server: before others give up.
#[tokio::test]
async fn a_transaction_nothing_is_heard_of_lets_go() {
    let rig = Rig::set_up().await;
    let directly = rig.database.open().await;
    let id = stored(&directly, an_email(rig.company)).await;
    rig.wire.set(Wire::DeafAfter("DELETE FROM email_intake"));
    let (store, company) = (Arc::clone(&rig.store), rig.company);
    let cancelling = tokio::spawn(async move { store.cancel(company, id, START).await });
    while rig.wire.deaf() == 0 {
        assert!(!cancelling.is_finished(), "it ended before it held anything");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let cancelled = directly.cancel(company, id, START).await;
    assert_eq!(cancelled, Ok(Cancelled::Done));
    cancelling.abort();
}

/// A question whose connection has lost its way is not waited for to the end once another has been found out: it would keep
/// a place in the pool, and whoever asks, for the better part of a minute.
#[tokio::test]
async fn one_that_was_found_out_ends_the_wait_for_others() {
    let rig = Rig::set_up().await;
    rig.wire.set(Wire::DeafAfter("FROM templates"));
    let (store, company) = (Arc::clone(&rig.store), rig.company);
    let asking = tokio::spawn(async move { store.templates(company).await });
    while rig.wire.deaf() == 0 {
        assert!(!asking.is_finished(), "it ended before it was asked");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let handing_in = rig.unheard().await;
    tokio::time::pause();
    let paused_at = tokio::time::Instant::now();
    let answer = handing_in.await.expect("no panic");
    let found_out_after = paused_at.elapsed();
    assert!(matches!(answer, Err(StoreError::InDoubt(_))), "{answer:?}");
    let answer = asking.await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    assert_eq!(paused_at.elapsed(), found_out_after, "by the clock of the test, which stood still meanwhile");
}

/// All connections were forgotten by something on the way: none of them is waited for in turn, and none for its farewell.
#[tokio::test]
async fn connections_that_were_forgotten_are_replaced() {
    for parameters in ["sslmode=disable", "sslmode=require"] {
        let rig = Rig::set_up_with(parameters).await;
        let questions = (0..8).map(|_| rig.store.check());
        join_all(questions).await.into_iter().for_each(|answer| answer.expect("it is fit for work"));
        tokio::time::sleep(Duration::from_millis(600)).await;
        rig.wire.set(Wire::HalfOpen);
        rig.wire.set(Wire::Whole);
        assert_eq!(rig.hand_in().await.expect("no panic"), Ok(Accepted::Stored), "{parameters}");
        for _ in 0..8 {
            rig.store.check().await.expect("it is fit for work");
        }
    }
}
