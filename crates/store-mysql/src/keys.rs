//! What guards a request against being taken twice or over its company's day: idempotency keys and daily counts. They
//! are read for a whole group, decided upon one request after the other in memory, and written back for the group.

use std::collections::BTreeMap;

use model::{CompanyId, Timestamp};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::{Acceptance, Accepted, IdempotencyKey, KeptAnswer, count_towards_day, first_id_of};

use crate::error::Fault;
use crate::row::{filled_up, get, parsed, portions};

/// A key of a company.
type Named = (CompanyId, String);
/// A day of a company, in days since 1970.
type Day = (CompanyId, i64);

/// What is known of the keys and days that a group's requests name.
#[derive(Default)]
pub struct Guards {
    keys: BTreeMap<Named, Kept>,
    days: BTreeMap<Day, i64>,
}

struct Kept {
    said: KeptAnswer,
    keep_until: Timestamp,
    was_there: bool,
    is_changed: bool,
}

impl Guards {
    /// Reads them and locks those that are there. A key that is not there is locked by nobody: if somebody else writes
    /// it first, `write` says so and the group is done again.
    pub async fn read(
        connection: &mut MySqlConnection,
        requests: impl Iterator<Item = &Acceptance> + Clone,
    ) -> Result<Self, Fault> {
        let mut guards = Self::default();
        let keys: Vec<Named> = requests
            .clone()
            .filter_map(|request| Some((request.company, request.key.as_ref()?.key.clone())))
            .collect();
        guards.read_keys(connection, keys).await?;
        let days = requests.filter(|request| request.daily_limit.is_some()).map(day_of).collect();
        guards.read_days(connection, days).await?;
        Ok(guards)
    }

    async fn read_keys(
        &mut self,
        connection: &mut MySqlConnection,
        mut keys: Vec<Named>,
    ) -> Result<(), Fault> {
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(());
        }
        let mut sql = QueryBuilder::<MySql>::new(
            "SELECT company_id, `key`, body_hash, answer, keep_until FROM idempotency_keys FORCE INDEX (PRIMARY) WHERE ",
        );
        for (number, (company, key)) in filled_up(keys).iter().enumerate() {
            sql.push(if number == 0 { "(company_id = " } else { " OR (company_id = " });
            sql.push_bind(company.to_string()).push(" AND `key` = ").push_bind(key).push(")");
        }
        sql.push(" FOR UPDATE");
        for row in sql.build().fetch_all(connection).await? {
            let kept = Kept {
                said: KeptAnswer { body_hash: get(&row, "body_hash")?, answer: get(&row, "answer")? },
                keep_until: Timestamp::from_millis(get(&row, "keep_until")?),
                was_there: true,
                is_changed: false,
            };
            self.keys.insert((parsed(&row, "company_id")?, get(&row, "key")?), kept);
        }
        Ok(())
    }

    /// Makes the rows that are missing, so that there is something to lock. A day that nobody has counted yet stands
    /// below nought, and is counted now.
    async fn read_days(&mut self, connection: &mut MySqlConnection, mut days: Vec<Day>) -> Result<(), Fault> {
        days.sort_unstable();
        days.dedup();
        if days.is_empty() {
            return Ok(());
        }
        for days in portions(&days) {
            let mut sql = QueryBuilder::<MySql>::new("INSERT INTO company_days (company_id, day, accepted) ");
            sql.push_values(days, |mut row, (company, day)| {
                row.push_bind(company.to_string()).push_bind(day).push_bind(-1_i64);
            });
            sql.push(" ON DUPLICATE KEY UPDATE accepted = accepted");
            sql.build().execute(&mut *connection).await?;
        }
        for (company, day) in days {
            let sql = "SELECT accepted FROM company_days WHERE company_id = ? AND day = ? FOR UPDATE";
            let row =
                sqlx::query(sql).bind(company.to_string()).bind(day).fetch_one(&mut *connection).await?;
            let mut handed_in: i64 = get(&row, "accepted")?;
            if handed_in < 0 {
                let sql = "SELECT COUNT(*) AS total FROM email_outbox FORCE INDEX (outbox_by_company)
                           WHERE company_id = ? AND id >= ?";
                let first = first_id_of(day).to_string();
                let query = sqlx::query(sql).bind(company.to_string()).bind(first);
                handed_in = get(&query.fetch_one(&mut *connection).await?, "total")?;
            }
            self.days.insert((company, day), handed_in);
        }
        Ok(())
    }

    /// Whether the request is to be stored, as if those before it had been stored already.
    pub fn decide(&mut self, request: &Acceptance) -> Accepted {
        if let Some(key) = &request.key
            && let Some(accepted) = self.earlier_use(request, key)
        {
            return accepted;
        }
        if let Some(limit) = request.daily_limit
            && let Err(refused) = self.take_from_day(request, limit)
        {
            return refused;
        }
        if let Some(key) = &request.key {
            let name = (request.company, key.key.clone());
            let was_there = self.keys.get(&name).is_some_and(|kept| kept.was_there);
            let kept = Kept {
                said: KeptAnswer { body_hash: key.body_hash.to_vec(), answer: key.answer.clone() },
                keep_until: key.keep_until,
                was_there,
                is_changed: true,
            };
            self.keys.insert(name, kept);
        }
        Accepted::Stored
    }

    /// What an earlier request with this key was answered, unless its time is over.
    fn earlier_use(&self, request: &Acceptance, key: &IdempotencyKey) -> Option<Accepted> {
        let kept = self.keys.get(&(request.company, key.key.clone()))?;
        if kept.keep_until <= request.now {
            return None;
        }
        Some(kept.said.to(&key.body_hash))
    }

    fn take_from_day(&mut self, request: &Acceptance, limit: u32) -> Result<(), Accepted> {
        let handed_in = self.days.entry(day_of(request)).or_insert(0);
        *handed_in = count_towards_day(*handed_in, request.emails.len(), limit)?;
        Ok(())
    }

    pub async fn write(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        self.write_new_keys(connection).await?;
        for ((company, name), kept) in self.keys.iter().filter(|(_, kept)| kept.is_changed && kept.was_there)
        {
            let sql = "UPDATE idempotency_keys SET body_hash = ?, answer = ?, keep_until = ?
                       WHERE company_id = ? AND `key` = ?";
            let query = sqlx::query(sql)
                .bind(&kept.said.body_hash)
                .bind(&kept.said.answer)
                .bind(kept.keep_until.millis());
            query.bind(company.to_string()).bind(name).execute(&mut *connection).await?;
        }
        for ((company, day), accepted) in &self.days {
            let sql = "UPDATE company_days SET accepted = ? WHERE company_id = ? AND day = ?";
            let query = sqlx::query(sql).bind(accepted).bind(company.to_string()).bind(day);
            query.execute(&mut *connection).await?;
        }
        Ok(())
    }

    async fn write_new_keys(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let new: Vec<_> = self.keys.iter().filter(|(_, kept)| kept.is_changed && !kept.was_there).collect();
        for new in portions(&new) {
            let mut sql = QueryBuilder::<MySql>::new(
                "INSERT INTO idempotency_keys (company_id, `key`, body_hash, answer, keep_until) ",
            );
            sql.push_values(new, |mut row, ((company, name), kept)| {
                row.push_bind(company.to_string()).push_bind(name).push_bind(&kept.said.body_hash);
                row.push_bind(&kept.said.answer).push_bind(kept.keep_until.millis());
            });
            match sql.build().execute(&mut *connection).await.map_err(Fault::Sql) {
                Err(fault) if fault.is_duplicate() => return Err(Fault::Overtaken),
                written => written?,
            };
        }
        Ok(())
    }
}

fn day_of(request: &Acceptance) -> Day {
    (request.company, store::tallies::day_of(request.now))
}
