//! How many emails have each status, kept up to date in the transaction that changes them, so that asking for the
//! queue's size costs the same at any size. The hot statements keep the counts themselves; this is for the others.

use model::Status;
use sqlx::PgConnection;

use crate::error::Fault;

/// Rows per status: more than transactions of one process that write at the same time.
const SHARDS: i16 = 16;

/// The row of each status that this transaction writes to; neighbours write to others.
pub fn shard(number: u8) -> i16 {
    i16::from(number) % SHARDS
}

pub fn any_shard() -> i16 {
    shard(uuid::Uuid::new_v4().as_bytes()[0])
}

/// What one transaction has changed so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts([i64; Status::ALL.len()]);

impl Counts {
    pub fn left(&mut self, status: Status) {
        self.0[slot(status)] -= 1;
    }

    pub fn moved(&mut self, from: Status, to: Status) {
        self.left(from);
        self.0[slot(to)] += 1;
    }

    /// The last thing a transaction does before it commits.
    pub async fn flush(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        let changed = || Status::ALL.into_iter().zip(self.0).filter(|(_, change)| *change != 0);
        if changed().next().is_none() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO status_counts (status, shard, emails)
             SELECT status, $3, emails FROM UNNEST($1::text[], $2::bigint[]) AS change (status, emails)
             ORDER BY status
             ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails",
        )
        .bind(changed().map(|(status, _)| status.as_str()).collect::<Vec<_>>())
        .bind(changed().map(|(_, change)| change).collect::<Vec<_>>())
        .bind(any_shard())
        .execute(connection)
        .await?;
        Ok(())
    }
}

fn slot(status: Status) -> usize {
    Status::ALL.iter().position(|&other| other == status).expect("ALL has every status")
}
