//! What a claim reads does not grow with what is waiting: the server counts what each connection reads.

use model::{CompanyId, NewEmail, Timestamp};
use sqlx::Executor as _;
use store::Routes;
use store::contract::stage::{a_company, a_worker, acceptance, request};
use store::thread::HotThread;
use store::{Outbox as _, StoreError};
use testkit::{START, an_email_at, at_secs};

use super::*;
use crate::reads::{COUNT_ALL, rows_read};
use crate::schema::Server;
use crate::support::{Fixture, fresh};

const BACKLOG: usize = 4_000;
const CLAIMS: usize = 20;
/// Less than a single walk along the backlog; the order of the companies, which differs, makes some difference.
const SLACK: i64 = 1_000;

async fn waiting_by(store: &MysqlStore, company: CompanyId, route: &str, count: usize, due_at: Timestamp) {
    let email = |_| NewEmail { route: route.into(), due_at, ..an_email_at(company, START) };
    let emails: Vec<NewEmail> = (0..count).map(email).collect();
    for batch in emails.chunks(500) {
        store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
    }
}

/// A claim as the store makes it, on one connection that counts.
struct Counted {
    lanes: Lanes,
    turns: Arc<Turns>,
}

impl Counted {
    async fn new(fixture: &Fixture) -> Self {
        let server = Server::of(&mut fixture.database.connect().await).await.expect("a server");
        let thread = HotThread::start().expect("a thread");
        let lanes = Lanes::new(fixture.database.config().options(), server, thread, Arc::default());
        let count_all = lanes.run(&(), |lane, ()| {
            Box::pin(async move {
                lane.connection.execute(COUNT_ALL).await?;
                Ok(())
            })
        });
        count_all.await.expect("set");
        Self { lanes, turns: Arc::default() }
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let search = self.turns.search(&request);
        let found = self
            .lanes
            .run(&search, |lane, search| Box::pin(claim_candidates::find(&mut lane.connection, search)))
            .await?;
        self.turns.remember(&found);
        let work = Work { request, companies: found.companies, turns: Arc::clone(&self.turns) };
        work.run(&self.lanes).await
    }

    /// Rows and index entries read so far.
    async fn read(&self) -> i64 {
        let read = self
            .lanes
            .run(&(), |lane, ()| Box::pin(async move { Ok(rows_read(&mut lane.connection).await) }));
        read.await.expect("counted")
    }
}

/// What so many claims read beside a backlog, for all routes, for all but that of the backlog, and for that one alone.
async fn read_beside(backlog: usize) -> Vec<i64> {
    let store = fresh().await;
    let (first, second) = (a_company(&*store, "first").await, a_company(&*store, "second").await);
    let counted = Counted::new(&store).await;
    waiting_by(&store, first, "a", 2 * CLAIMS, START).await;
    waiting_by(&store, first, "later", backlog, at_secs(600)).await;
    for company in [first, second] {
        waiting_by(&store, company, "main", backlog, START).await;
    }
    waiting_by(&store, second, "relay", 2 * CLAIMS, START).await;
    let main = || vec!["main".to_owned()];
    let mut counts = Vec::new();
    for routes in [Routes::All, Routes::Except(main()), Routes::Only(main())] {
        let before = counted.read().await;
        for _ in 0..CLAIMS {
            let worker = a_worker(&*store).await;
            let request = ClaimRequest { routes: routes.clone(), ..request(worker, at_secs(1), 1) };
            assert_eq!(counted.claim(request).await.expect("answered").len(), 1);
        }
        counts.push(counted.read().await - before);
    }
    counts
}

/// Neither what is asked for and left, nor what is not asked for, nor what is due later, nor what is behind the place
/// where the last claim stopped, is walked along.
#[tokio::test]
async fn a_claim_reads_no_more_of_a_large_backlog_than_of_a_small_one() {
    let (small, large) = (read_beside(2 * CLAIMS).await, read_beside(BACKLOG).await);
    for (small, large) in small.iter().zip(&large) {
        assert!(*large <= small + SLACK, "{large} read beside a large backlog, {small} beside a small one");
    }
}
