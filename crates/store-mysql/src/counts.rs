//! How many emails have each status, kept up to date in the transaction that changes them. Each status has several
//! rows and a connection writes to one of them, so that transactions do not queue behind each other; they are written
//! last and in one order, so that nobody waits for somebody who waits for them.

use model::Status;
use sqlx::{MySql, MySqlConnection, QueryBuilder};

/// Rows per status: enough that the few transactions that end at the same time seldom meet.
const SHARDS: u8 = 16;

/// The row that counts dead letters stands beside those of the statuses.
pub const DEAD_LETTER: &str = "DEAD_LETTER";

/// What one transaction has changed so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    statuses: [i64; Status::ALL.len()],
    dead_letters: i64,
}

impl Counts {
    pub fn arrived(&mut self, status: Status) {
        self.statuses[slot(status)] += 1;
    }

    pub fn left(&mut self, status: Status) {
        self.statuses[slot(status)] -= 1;
    }

    pub fn moved(&mut self, from: Status, to: Status) {
        self.left(from);
        self.arrived(to);
    }

    pub fn dead_letters(&mut self, change: i64) {
        self.dead_letters += change;
    }

    /// Writes the changes and forgets them.
    pub async fn flush(&mut self, connection: &mut MySqlConnection, shard: u8) -> sqlx::Result<()> {
        let changes = std::mem::take(self);
        let statuses = Status::ALL.into_iter().map(Status::as_str).zip(changes.statuses);
        let mut changed: Vec<(&str, i64)> = statuses
            .chain([(DEAD_LETTER, changes.dead_letters)])
            .filter(|(_, change)| *change != 0)
            .collect();
        changed.sort_unstable();
        if changed.is_empty() {
            return Ok(());
        }
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO status_counts (status, shard, emails) ");
        sql.push_values(changed, |mut row, (status, change)| {
            row.push_bind(status).push_bind(shard).push_bind(change);
        });
        sql.push(" ON DUPLICATE KEY UPDATE emails = emails + VALUES(emails)");
        sql.build().execute(connection).await?;
        Ok(())
    }
}

fn slot(status: Status) -> usize {
    Status::ALL.iter().position(|&other| other == status).expect("ALL has every status")
}

/// The row for a connection, of any number.
pub fn shard(number: u8) -> u8 {
    number % SHARDS
}
