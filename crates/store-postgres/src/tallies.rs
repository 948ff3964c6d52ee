//! Counts by day. What happened is noted in the transaction that writes the events, without waiting for anybody: SENT by
//! the statement that settles, everything else by a trigger. `fold` adds the notes up, one process at a time.

use async_trait::async_trait;
use model::{CompanyId, EventKind, KeyMode};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use store::record::damaged;
use store::tallies::ENTITY_ROWS_LOOKED_AT_MAX;
use store::{DayTally, EntityRecord, EntityTally, StoreError, Tallies};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::clean;

/// "Fold" in ASCII, twice: who adds notes up holds this lock until the commit.
const LOCK: i64 = 0x466F_6C64_466F_6C64;

/// `$1` notes from the beginning, or those of a person alone. Nobody else deletes or changes them meanwhile, so that they
/// can be named by where they are.
macro_rules! fold_statement {
    ($which:literal) => {
        concat!(
            "WITH taken AS MATERIALIZED (
                 DELETE FROM tally_notes WHERE ctid = ANY(ARRAY(SELECT ctid FROM tally_notes ",
            $which,
            "))
                 RETURNING *
             ), days AS (
                 INSERT INTO day_tallies (company_id, mode, day, type, total)
                 SELECT company_id, mode, day, type, sum(total) FROM taken
                 GROUP BY company_id, mode, day, type
                 ON CONFLICT (company_id, mode, day, type) DO UPDATE SET total = day_tallies.total + excluded.total
             ), entities AS (
                 INSERT INTO entity_tallies (company_id, entity_id, day, type, total)
                 SELECT company_id, entity_id, day, type, sum(total) FROM taken WHERE entity_id IS NOT NULL
                 GROUP BY company_id, entity_id, day, type
                 ON CONFLICT (company_id, entity_id, day, type)
                 DO UPDATE SET total = entity_tallies.total + excluded.total
             ), met AS (
                 INSERT INTO entity_recipients (company_id, entity_id, type, address, last_day)
                 SELECT company_id, entity_id, type, address, max(day) FROM taken WHERE entity_id IS NOT NULL
                 GROUP BY company_id, entity_id, type, address
                 ON CONFLICT (company_id, entity_id, type, address)
                 DO UPDATE SET last_day = excluded.last_day WHERE entity_recipients.last_day < excluded.last_day
             )
             SELECT count(*) FROM taken"
        )
    };
}

const FOLD: &str = fold_statement!("LIMIT $1");
const FOLD_PERSON: &str = fold_statement!("WHERE company_id = $1 AND address = $2");

#[async_trait]
impl Tallies for PostgresStore {
    async fn fold(&self, limit: u32) -> Result<u32, StoreError> {
        self.write(limit, |connection, &limit| Box::pin(fold(connection, limit))).await
    }

    async fn entity_tally(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<EntityTally>, StoreError> {
        self.read(async {
            let rows = sqlx::query(
                "SELECT tallied.type, tallied.total,
                        (SELECT count(*) FROM entity_recipients met
                         WHERE met.company_id = $1 AND met.entity_id = $2 AND met.type = tallied.type
                           AND met.last_day >= $3) AS unique_recipients
                 FROM (SELECT type, sum(total)::bigint AS total FROM entity_tallies
                       WHERE company_id = $1 AND entity_id = $2 AND day >= $3 GROUP BY type) AS tallied
                 ORDER BY tallied.total DESC, tallied.type",
            )
            .bind(company.uuid())
            .bind(clean(entity))
            .bind(since_day)
            .fetch_all(&self.pool)
            .await?;
            let tally = |row: &PgRow| {
                let (total, unique_recipients) = (count(row, "total")?, count(row, "unique_recipients")?);
                Ok(EntityTally { kind: kind(row)?, total, unique_recipients })
            };
            rows.iter().map(tally).collect()
        })
        .await
    }

    async fn entity_days(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        self.read(async {
            let rows = sqlx::query(
                "SELECT day, type, total FROM entity_tallies
                 WHERE company_id = $1 AND entity_id = $2 AND day >= $3 ORDER BY day, type",
            )
            .bind(company.uuid())
            .bind(clean(entity))
            .bind(since_day)
            .fetch_all(&self.pool)
            .await?;
            rows.iter().map(day).collect()
        })
        .await
    }

    async fn company_days(
        &self,
        company: Option<CompanyId>,
        mode: Option<KeyMode>,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        let sql = if company.is_some() {
            "SELECT day, type, sum(total)::bigint AS total FROM day_tallies
             WHERE company_id = $1 AND ($2::text IS NULL OR mode = $2) AND day >= $3
             GROUP BY day, type ORDER BY day, type"
        } else {
            "SELECT day, type, sum(total)::bigint AS total FROM day_tallies
             WHERE $1::uuid IS NULL AND ($2::text IS NULL OR mode = $2) AND day >= $3
             GROUP BY day, type ORDER BY day, type"
        };
        self.read(async {
            let rows = sqlx::query(sql)
                .bind(company.map(CompanyId::uuid))
                .bind(mode.map(KeyMode::as_str))
                .bind(since_day)
                .fetch_all(&self.pool)
                .await?;
            rows.iter().map(day).collect()
        })
        .await
    }

    async fn entities(&self, company: CompanyId, limit: u32) -> Result<Vec<EntityRecord>, StoreError> {
        self.read(async {
            let rows = sqlx::query(
                "SELECT entity_id, max(day) AS last_day FROM (
                     SELECT entity_id, day FROM entity_tallies WHERE company_id = $1 ORDER BY day DESC LIMIT $3
                 ) AS latest GROUP BY entity_id ORDER BY last_day DESC, entity_id LIMIT $2",
            )
            .bind(company.uuid())
            .bind(i64::from(limit))
            .bind(i64::from(ENTITY_ROWS_LOOKED_AT_MAX))
            .fetch_all(&self.pool)
            .await?;
            let record = |row: &PgRow| Ok(EntityRecord { id: row.try_get(0)?, last_day: row.try_get(1)? });
            rows.iter().map(record).collect()
        })
        .await
    }
}

async fn lock(connection: &mut PgConnection) -> Result<(), Fault> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(connection).await?;
    Ok(())
}

async fn fold(connection: &mut PgConnection, limit: u32) -> Result<u32, Fault> {
    lock(connection).await?;
    let row = sqlx::query(FOLD).bind(i64::from(limit)).fetch_one(connection).await?;
    Ok(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or(u32::MAX))
}

/// Somebody is forgotten: counts stay, and where the address stood there is one of nobody. What is noted of them is added
/// up first, so that one person stays one.
pub async fn forget(connection: &mut PgConnection, company: CompanyId, address: &str) -> Result<(), Fault> {
    lock(connection).await?;
    for sql in [
        FOLD_PERSON,
        "UPDATE entity_recipients SET address = 'erased:' || gen_random_uuid()
         WHERE company_id = $1 AND address = $2",
    ] {
        sqlx::query(sql).bind(company.uuid()).bind(address).execute(&mut *connection).await?;
    }
    Ok(())
}

fn kind(row: &PgRow) -> Result<EventKind, Fault> {
    Ok(row.try_get::<&str, _>("type")?.parse().map_err(|_| damaged("a tally"))?)
}

fn count(row: &PgRow, name: &str) -> Result<u64, Fault> {
    Ok(u64::try_from(row.try_get::<i64, _>(name)?).map_err(|_| damaged("a tally"))?)
}

fn day(row: &PgRow) -> Result<DayTally, Fault> {
    Ok(DayTally { day: row.try_get("day")?, kind: kind(row)?, total: count(row, "total")? })
}

/// Takes away up to `limit` counts of days before that one, each with those it was about; those of one company at a time,
/// as the index has them. Counts go when all those are gone.
pub async fn prune(connection: &mut PgConnection, before_day: i64, limit: u32) -> Result<u64, Fault> {
    let limit = i64::from(limit);
    let days = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT company_id, mode, day, type FROM day_tallies WHERE day < $1 ORDER BY day LIMIT $2
         )
         DELETE FROM day_tallies t USING old
         WHERE t.company_id = old.company_id AND t.mode = old.mode AND t.day = old.day AND t.type = old.type",
    );
    let gone = days.bind(before_day).bind(limit).execute(&mut *connection).await?.rows_affected();
    let company = sqlx::query(
        "SELECT id FROM companies c
         WHERE EXISTS (SELECT 1 FROM entity_tallies t WHERE t.company_id = c.id AND t.day < $1) LIMIT 1",
    );
    let Some(company) = company.bind(before_day).fetch_optional(&mut *connection).await? else {
        return Ok(gone);
    };
    let company: Uuid = company.try_get(0)?;
    let people = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT r.entity_id, r.type, r.address
             FROM (SELECT DISTINCT entity_id, type FROM (
                       SELECT entity_id, type FROM entity_tallies
                       WHERE company_id = $1 AND day < $2 ORDER BY day, entity_id, type LIMIT $3
                   ) AS first) AS t
                  CROSS JOIN LATERAL (
                      SELECT * FROM entity_recipients
                      WHERE company_id = $1 AND entity_id = t.entity_id AND type = t.type AND last_day < $2 LIMIT $3
                  ) AS r
             LIMIT $3
         )
         DELETE FROM entity_recipients r USING old
         WHERE r.company_id = $1 AND r.entity_id = old.entity_id AND r.type = old.type AND r.address = old.address
           AND r.last_day < $2",
    );
    let people = people.bind(company).bind(before_day).bind(limit).execute(&mut *connection).await?;
    let people = people.rows_affected();
    // Perhaps not all of them.
    if i64::try_from(people).is_ok_and(|people| people >= limit) {
        return Ok(gone + people);
    }
    let counts = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT entity_id, day, type FROM entity_tallies
             WHERE company_id = $1 AND day < $2 ORDER BY day, entity_id, type LIMIT $3
         )
         DELETE FROM entity_tallies t USING old
         WHERE t.company_id = $1 AND t.entity_id = old.entity_id AND t.day = old.day AND t.type = old.type",
    );
    let counts = counts.bind(company).bind(before_day).bind(limit).execute(connection).await?;
    Ok(gone + people + counts.rows_affected())
}

/// Takes away what companies with a daily limit handed in on up to `limit` days before that one.
pub async fn prune_limits(connection: &mut PgConnection, before_day: i64, limit: u32) -> Result<u64, Fault> {
    let days = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT company_id, day FROM company_days WHERE day < $1 ORDER BY company_id, day LIMIT $2
             FOR UPDATE SKIP LOCKED
         )
         DELETE FROM company_days d USING old WHERE d.company_id = old.company_id AND d.day = old.day",
    );
    Ok(days.bind(before_day).bind(i64::from(limit)).execute(connection).await?.rows_affected())
}
