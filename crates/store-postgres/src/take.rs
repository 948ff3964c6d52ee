//! The two statements of a claim: which companies have something due and by which routes, and taking it.

use model::{Claim, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use store::suspects::HANDED_OUT;
use store::{ClaimRequest, Routes, StoreError};
use uuid::Uuid;

use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, clean, signed};

/// How many places (route and company) it looks at once it has found one, passing over those whose emails are due later;
/// the next claim goes on from there.
const LOOKS_MIN: i64 = 256;
/// How many it looks at while it has found none, so that an empty claim means that nothing is due.
const LOOKS_MAX: i64 = 20_000;

/// Hops from place to place, from the cursor to the end and from the beginning to the cursor; from a route that is not
/// asked for to the next route. Each hop is a look at one entry of the index, and so is each of the ten priorities.
/// Priorities are not told apart by the order of the index alone: a company may have a million emails of its first
/// priority that are due tomorrow. That the second lap ends at the cursor is told from the entry that was found: as a
/// condition of the look it would have the look walk along all that is behind the cursor. `LIMIT 1` keeps the planner from
/// reading all that a company has due once, to look the ten priorities up in it.
const FIND: &str =
    "WITH RECURSIVE hop (route, company_id, lap, looks, found, is_asked, is_due, weight, is_limited) AS (
         SELECT $1::text COLLATE \"C\", $2::uuid, 0, 0::bigint, '{}'::uuid[],
                $7::text[] IS NULL OR ($1 = ANY($7)) = $8, false, NULL::bigint, NULL::boolean
       UNION ALL
         SELECT next.route, next.company_id, next.lap, hop.looks + 1,
                CASE WHEN company.is_due AND NOT next.company_id = ANY(hop.found) THEN hop.found || next.company_id
                     ELSE hop.found END,
                asked.is_asked, coalesce(company.is_due, false), company.weight, company.is_limited
         FROM hop
         CROSS JOIN LATERAL (
             (SELECT q.route, q.company_id, hop.lap FROM email_queue q
              WHERE q.due_at IS NOT NULL
                AND (q.route, q.company_id) > (hop.route, CASE WHEN hop.is_asked THEN hop.company_id
                                                          ELSE 'ffffffff-ffff-ffff-ffff-ffffffffffff' END)
              ORDER BY q.route, q.company_id LIMIT 1)
             UNION ALL
             (SELECT q.route, q.company_id, 1 FROM email_queue q
              WHERE q.due_at IS NOT NULL AND hop.lap = 0
              ORDER BY q.route, q.company_id LIMIT 1)
             LIMIT 1
         ) AS next
         CROSS JOIN LATERAL (SELECT $7::text[] IS NULL OR (next.route = ANY($7)) = $8 AS is_asked) AS asked
         LEFT JOIN LATERAL (
             SELECT c.weight, c.concurrency_max IS NOT NULL OR c.rate_per_sec IS NOT NULL AS is_limited,
                    CASE WHEN asked.is_asked THEN EXISTS (
                        SELECT 1 FROM generate_series(1, 10) AS lane (priority)
                        CROSS JOIN LATERAL (
                            SELECT 1 FROM email_queue q
                            WHERE q.route = next.route AND q.company_id = c.id AND q.priority = lane.priority
                              AND q.due_at IS NOT NULL AND q.due_at <= $3
                            ORDER BY q.due_at LIMIT 1
                        ) AS due
                    ) ELSE false END AS is_due
             FROM companies c
             WHERE c.id = next.company_id AND c.disabled_at IS NULL AND c.paused_at IS NULL
         ) AS company ON true
         WHERE hop.looks < $5 AND cardinality(hop.found) < $4 AND (hop.looks < $6 OR cardinality(hop.found) = 0)
           AND (next.lap = 0 OR (next.route, next.company_id) <= ($1, $2))
     )
     SELECT route, company_id, is_due, weight, is_limited, looks, cardinality(found) AS found
     FROM hop WHERE is_due OR looks = (SELECT max(looks) FROM hop)
     ORDER BY looks";

/// The limits stand in the order of the rows: no more rows are locked than looked at, since each is fetched only when
/// it is its turn. Those beyond the share or the size stay as they are. What was locked by others is passed over.
/// How outbox and queue are joined says `HOT_SESSION`; an index that merely ends with the id must not be taken for the primary
/// key either (it was in a database of 112 to 151 emails, and walked along for each of them: tests/reads.rs).
/// Of a company's routes the one goes first where an email of that priority has been due longest: no route starves.
macro_rules! take_statement {
    () => {
        "WITH share AS (
             SELECT company_id, share, looks, turn, ($10::text[])[first_route:last_route] AS routes
             FROM UNNEST($1::uuid[], $2::integer[], $3::integer[], $11::integer[], $12::integer[])
                 WITH ORDINALITY AS share (company_id, share, looks, first_route, last_route, turn)
         ), looked_at AS MATERIALIZED (
             SELECT share.turn, share.share, due.email_id, due.priority, due.due_at, due.size_bytes, due.retrying,
                    due.expires_at <= $4 AS is_over
             FROM share
             CROSS JOIN LATERAL (
                 SELECT queued.*
                 FROM generate_series(1, 10) AS urgency (priority)
                 CROSS JOIN LATERAL (
                     SELECT by.route
                     FROM unnest(share.routes) AS by (route)
                     CROSS JOIN LATERAL (
                         SELECT q.due_at FROM email_queue q
                         WHERE q.route = by.route AND q.company_id = share.company_id
                           AND q.priority = urgency.priority AND q.due_at IS NOT NULL AND q.due_at <= $4
                         ORDER BY q.due_at LIMIT 1
                     ) AS longest
                     ORDER BY longest.due_at
                 ) AS lane
                 CROSS JOIN LATERAL (
                     SELECT q.* FROM email_queue q
                     WHERE q.route = lane.route AND q.company_id = share.company_id
                       AND q.priority = urgency.priority AND q.due_at IS NOT NULL AND q.due_at <= $4
                     ORDER BY q.due_at, q.email_id LIMIT share.looks
                     FOR UPDATE SKIP LOCKED
                 ) AS queued
                 LIMIT share.looks
             ) AS due
         ), within_share AS (
             SELECT *, sum(size_bytes) OVER (ORDER BY turn, priority, due_at, email_id
                                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size_before
             FROM (
                 SELECT *, row_number() OVER (PARTITION BY turn ORDER BY priority, due_at, email_id) AS place
                 FROM looked_at WHERE NOT is_over
             ) AS fit WHERE place <= share
         ), chosen AS (
             SELECT turn, place, email_id, retrying FROM within_share WHERE coalesce(size_before, 0) < $5
             ORDER BY email_id
         ), claimed AS (
             UPDATE email_outbox o
             SET status = 'PROCESSING', trouble = NULL, version = o.version + 1, fence = o.fence + 1,
                 attempts = o.attempts + 1, at_provider = false, updated_at = $6,
                 unfinished_starts = least(o.unfinished_starts + 1, {handed_out})
             FROM chosen
             WHERE o.id = ANY (ARRAY[chosen.email_id]) AND o.status IN ('ENQUEUED', 'RETRY_SCHEDULED')
             RETURNING chosen.turn, chosen.place, chosen.retrying, {columns}
         ), leased AS (
             UPDATE email_queue q
             SET due_at = NULL, lease_until = $7, lease_owner = $8, fence = claimed.fence, retrying = false
             FROM claimed WHERE q.email_id = ANY (ARRAY[claimed.id])
         ), ended AS (
             UPDATE email_outbox o
             SET status = 'EXPIRED', trouble = 'EXPIRED', version = o.version + 1, updated_at = $6, dead_at = NULL
             FROM (SELECT email_id, retrying FROM looked_at WHERE is_over ORDER BY email_id) AS looked_at
             WHERE o.id = ANY (ARRAY[looked_at.email_id]) AND o.status IN ('ENQUEUED', 'RETRY_SCHEDULED')
             RETURNING o.id, looked_at.retrying
         ), removed AS (
             DELETE FROM email_queue q USING ended WHERE q.email_id = ANY (ARRAY[ended.id])
         ), history AS (
             INSERT INTO events (email_id, type, created_at, metadata)
             SELECT id, 'RECEIVED', $6, jsonb_build_object('attempt', attempts) FROM claimed
             UNION ALL SELECT id, 'EXPIRED', $6, NULL FROM ended
         ), counts AS (
             INSERT INTO status_counts (status, shard, emails)
             SELECT status, $9, sum(change) FROM (
                 SELECT 'PROCESSING' AS status, 1 AS change FROM claimed
                 UNION ALL SELECT CASE WHEN retrying THEN 'RETRY_SCHEDULED' ELSE 'ENQUEUED' END, -1 FROM claimed
                 UNION ALL SELECT 'EXPIRED', 1 FROM ended
                 UNION ALL SELECT CASE WHEN retrying THEN 'RETRY_SCHEDULED' ELSE 'ENQUEUED' END, -1 FROM ended
             ) AS change GROUP BY status ORDER BY status
             ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails
         )
         SELECT share.turn, share.looked_at, share.expired, NULL::bigint AS due_at, $7 AS lease_until, claimed.*
         FROM (
             SELECT turn, (SELECT count(*) FROM looked_at WHERE looked_at.turn = share.turn) AS looked_at,
                    (SELECT count(*) FROM looked_at WHERE looked_at.turn = share.turn AND is_over) AS expired
             FROM share
         ) AS share
         LEFT JOIN claimed ON claimed.turn = share.turn
         ORDER BY share.turn, claimed.place"
    };
}

fn take_sql() -> &'static str {
    static SQL: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    SQL.get_or_init(|| format!(take_statement!(), columns = row::COLUMNS, handed_out = HANDED_OUT))
}

/// Where emails wait: route and company.
pub type Place = (String, Uuid);

/// A company with due emails on this route.
pub struct Found {
    pub route: String,
    pub id: Uuid,
    pub weight: u32,
    pub is_limited: bool,
}

pub struct Page {
    pub found: Vec<Found>,
    /// Where the next page begins; `None` when nothing is waiting at all.
    pub last: Option<Place>,
    /// Every place where something is waiting was looked at.
    pub is_whole_round: bool,
}

pub async fn find(
    connection: &mut PgConnection,
    (route, company): &Place,
    wanted: u32,
    request: &ClaimRequest,
) -> Result<Page, Fault> {
    let (routes, are_asked) = match &request.routes {
        Routes::All => (None, true),
        Routes::Only(routes) => (Some(routes), true),
        Routes::Except(routes) => (Some(routes), false),
    };
    let routes: Option<Vec<_>> = routes.map(|routes| routes.iter().map(|route| clean(route)).collect());
    let rows = sqlx::query(FIND)
        .bind(route)
        .bind(company)
        .bind(request.now.millis())
        .bind(i64::from(wanted))
        .bind(LOOKS_MAX)
        .bind(LOOKS_MIN)
        .bind(routes)
        .bind(are_asked)
        .fetch_all(connection)
        .await?;
    let mut page = Page { found: Vec::new(), last: None, is_whole_round: true };
    for row in &rows {
        let (looks, found): (i64, i32) = (row.try_get("looks")?, row.try_get("found")?);
        let (route, id): Place = (row.try_get("route")?, row.try_get("company_id")?);
        if looks > 0 {
            page.last = Some((route.clone(), id));
        }
        if row.try_get("is_due")? {
            let weight: i64 = row.try_get("weight")?;
            let weight = u32::try_from(weight).unwrap_or(u32::MAX);
            page.found.push(Found { route, id, weight, is_limited: row.try_get("is_limited")? });
        }
        page.is_whole_round =
            looks < LOOKS_MAX && i64::from(found) < i64::from(wanted) && (looks < LOOKS_MIN || found == 0);
    }
    Ok(page)
}

/// What is asked of one company.
pub struct Asked<'a> {
    /// Its place among the candidates.
    pub place: usize,
    pub company: Uuid,
    pub routes: &'a [String],
    pub share: u32,
    /// How many emails may be looked at for it.
    pub looks: u32,
}

#[derive(Default)]
pub struct Taken {
    pub claims: Vec<Claim>,
    pub looked_at: u32,
    pub expired: u32,
    pub size_bytes: u64,
}

/// Takes emails of these companies; gives as many answers as were asked.
pub async fn take(
    lane: &mut Lane,
    request: &ClaimRequest,
    asked: &[Asked<'_>],
    size_bytes: u64,
) -> Result<Vec<Taken>, Fault> {
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let routes: Vec<&String> = asked.iter().flat_map(|asked| asked.routes).collect();
    let (mut first_routes, mut last_routes) = (Vec::new(), Vec::new());
    let mut before = 0;
    for asked in asked {
        first_routes.push(before + 1);
        before += i32::try_from(asked.routes.len()).unwrap_or(i32::MAX);
        last_routes.push(before);
    }
    let rows = sqlx::query(take_sql())
        .bind(asked.iter().map(|asked| asked.company).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| number(asked.share)).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| number(asked.looks)).collect::<Vec<_>>())
        .bind(request.now.millis())
        .bind(signed(request.size_bytes_max.saturating_sub(size_bytes)))
        .bind(at(request.now))
        .bind(request.lease_until.millis())
        .bind(request.owner.uuid())
        .bind(lane.shard)
        .bind(routes)
        .bind(first_routes)
        .bind(last_routes)
        .fetch_all(&mut lane.connection)
        .await?;
    let mut taken: Vec<Taken> = asked.iter().map(|_| Taken::default()).collect();
    for row in &rows {
        let turn: i64 = row.try_get(0)?;
        let place = usize::try_from(turn - 1).unwrap_or(usize::MAX);
        let unasked = || StoreError::Broken("a claim answered what was not asked".into());
        add(taken.get_mut(place).ok_or_else(unasked)?, row, request.now)?;
    }
    Ok(taken)
}

fn add(taken: &mut Taken, row: &PgRow, now: Timestamp) -> Result<(), Fault> {
    let count = |name: &str| -> Result<u32, sqlx::Error> {
        Ok(u32::try_from(row.try_get::<i64, _>(name)?).unwrap_or(u32::MAX))
    };
    taken.looked_at = count("looked_at")?;
    taken.expired = count("expired")?;
    if row.try_get::<Option<Uuid>, _>("id")?.is_some() {
        let record = row::record(row)?;
        taken.size_bytes += record.size_bytes;
        taken.claims.push(record.claim(now)?);
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use sqlx::AssertSqlSafe;
    use store::contract::stage::{a_company, backlog};
    use testkit::START;

    use super::*;
    use crate::support::{Fixture, fresh, run};

    /// The plan of a statement on a lane's connection, with values nobody knows beforehand.
    pub async fn plan_of(fixture: &Fixture, sql: &str, types: &str, values: &str) -> String {
        let mut lane =
            crate::lane::connect(&fixture.database.config().hot_session()).await.expect("a connection");
        run(&mut lane, &format!("PREPARE statement ({types}) AS {sql}")).await;
        let explain = format!("EXPLAIN EXECUTE statement ({values})");
        let rows = sqlx::query(AssertSqlSafe(explain)).fetch_all(&mut lane).await.expect("a plan");
        rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
    }

    fn assert_walks_nothing(plan: &str) {
        assert!(plan.contains("using queue_waiting on email_queue"), "{plan}");
        for table in ["email_queue", "email_outbox", "companies"] {
            assert!(!plan.contains(&format!("Seq Scan on {table}")), "{plan}");
        }
        assert!(!plan.contains("Bitmap"), "{plan}");
        let along_the_key = plan.match_indices("using email_outbox_pkey on email_outbox");
        for (at, _) in along_the_key {
            let condition = plan[at..].lines().nth(1).unwrap_or_default();
            assert!(condition.contains("Index Cond"), "it walks through the whole outbox: {plan}");
        }
        assert!(!plan.contains("queue_expiring"), "{plan}");
    }

    /// The same plans on tables that are empty, that have grown since, and that the server has looked at, also when
    /// nothing waited.
    #[tokio::test]
    async fn claims_use_their_indexes() {
        let fixture = fresh().await;
        let company = a_company(&*fixture, "acme").await;
        for round in 0..4 {
            let find = plan_of(
                &fixture,
                FIND,
                "text, uuid, bigint, bigint, bigint, bigint, text[], boolean",
                "'', '00000000-0000-0000-0000-000000000000', 1, 32, 20000, 256, NULL, true",
            )
            .await;
            assert_walks_nothing(&find);
            let take = plan_of(
                &fixture,
                take_sql(),
                "uuid[], integer[], integer[], bigint, bigint, timestamptz, bigint, uuid, smallint, text[], integer[],
                 integer[]",
                &format!(
                    "'{{{company}}}', '{{8}}', '{{8}}', 1, 1, now(), 1, '{company}', 1::smallint, '{{main}}', '{{1}}',
                     '{{1}}'"
                ),
            )
            .await;
            assert_walks_nothing(&take);
            for index in ["queue_waiting", "email_outbox_pkey", "email_queue_pkey"] {
                assert!(take.contains(index), "round {round}: {take}");
            }
            // Before the emails are locked nothing may be sorted: that would lock them all.
            let locked = &take[take.find("LockRows").expect("they are locked")..];
            let searched = &locked[..locked.find("queue_waiting").expect("along the index")];
            assert!(!searched.contains("Sort"), "{take}");
            let mut connection = fixture.database.connect().await;
            match round {
                0 => drop(backlog(&*fixture, company, 3_000, START).await),
                1 => run(&mut connection, "ANALYZE").await,
                // As after a quiet night: all were sent, and the server believes that nothing ever waits.
                _ => {
                    run(&mut connection, "DELETE FROM email_queue").await;
                    run(&mut connection, "UPDATE email_outbox SET status = 'SENT'").await;
                    run(&mut connection, "ANALYZE").await;
                }
            }
        }
    }
}
