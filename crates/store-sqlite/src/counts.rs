//! How many emails have each status, kept up to date in the transaction that changes them: one small update per
//! status and group commit, so that asking for the queue's size costs the same at any size.

use model::Status;
use rusqlite::Connection;

/// What one transaction has changed so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts([i64; Status::ALL.len()]);

impl Counts {
    pub fn arrived(&mut self, status: Status) {
        self.0[slot(status)] += 1;
    }

    pub fn left(&mut self, status: Status) {
        self.0[slot(status)] -= 1;
    }

    pub fn moved(&mut self, from: Status, to: Status) {
        self.left(from);
        self.arrived(to);
    }

    /// Writes the changes and forgets them.
    pub fn flush(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        for (status, change) in Status::ALL.into_iter().zip(std::mem::take(&mut self.0)) {
            if change != 0 {
                connection
                    .prepare_cached(
                        "INSERT INTO status_counts (status, emails) VALUES (?1, ?2)
                         ON CONFLICT (status) DO UPDATE SET emails = emails + excluded.emails",
                    )?
                    .execute((status.as_str(), change))?;
            }
        }
        Ok(())
    }
}

fn slot(status: Status) -> usize {
    Status::ALL.iter().position(|&other| other == status).expect("ALL has every status")
}
