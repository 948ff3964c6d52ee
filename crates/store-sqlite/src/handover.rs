//! From a claim in the database to whoever asked for it: on a task of its own, with the contents; put back where nobody
//! waits for it any more or a content cannot be read. What is claimed is decided in `claim`.

use std::time::Duration;

use model::{Claim, Event, EventKind, Guard, Timestamp, Verdict};
use rusqlite::{Connection, OptionalExtension};
use store::task::{Unwanted, handed_over};
use store::{ClaimRequest, SettledBy, Settlement, StoreError, content_codec};

use crate::claim::claim_batch;
use crate::error::from_sqlite;
use crate::reader::Reader;
use crate::writer::{Work, Writer};
use crate::{SqliteStore, settle};

/// How long emails wait whose content could not be read just now.
const CONTENT_PAUSE: Duration = Duration::from_secs(1);

impl SqliteStore {
    pub(crate) async fn claim_due(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        // What is begun now may find no room for its result.
        if !self.room.is_enough() {
            return Ok(Vec::new());
        }
        let claimer = Claimer { writer: self.writer.clone(), reader: self.reader.clone() };
        let (other, now) = (claimer.clone(), request.now);
        // A caller may go: without this its emails would wait until their leases run out.
        let put_back: Unwanted<Vec<Claim>> =
            Box::new(move |claims| Box::pin(async move { other.give_up(&claims, now).await }));
        handed_over(Box::pin(async move { claimer.claim(request).await }), put_back).await
    }
}

/// What a claim needs on a task of its own.
#[derive(Clone)]
struct Claimer {
    writer: Writer,
    reader: Reader,
}

impl Claimer {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let now = request.now;
        let claimed = self.writer.run(move |work| claim_batch(work, &request)).await?;
        if claimed.is_empty() {
            return Ok(Vec::new());
        }
        let guards: Vec<Guard> = claimed.iter().map(|(_, claim)| claim.guard).collect();
        match self.reader.run(move |connection| with_content(connection, claimed)).await {
            Ok(claims) => Ok(claims),
            Err(error) => {
                // Nobody holds these leases: without this they would wait until they run out, and be blamed for it.
                self.put_back(guards, now, CONTENT_PAUSE, "content could not be read").await?;
                Err(error)
            }
        }
    }

    /// Nobody waited for them. If this fails, their leases run out.
    async fn give_up(&self, claims: &[Claim], now: Timestamp) {
        let guards = claims.iter().map(|claim| claim.guard).collect();
        let put_back = self.put_back(guards, now, Duration::ZERO, "nobody waited for the claim");
        if let Err(error) = put_back.await {
            tracing::warn!(%error, emails = claims.len(), "claimed emails could not be put back; their leases run out");
        }
    }

    /// As if they had never been claimed.
    async fn put_back(
        &self,
        guards: Vec<Guard>,
        now: Timestamp,
        pause: Duration,
        reason: &'static str,
    ) -> Result<(), StoreError> {
        if guards.is_empty() {
            return Ok(());
        }
        self.writer.run(move |work| put_back(work, &guards, now, pause, reason)).await
    }
}

fn put_back(
    work: &mut Work<'_>,
    guards: &[Guard],
    now: Timestamp,
    pause: Duration,
    reason: &str,
) -> Result<(), StoreError> {
    for &guard in guards {
        let events = vec![Event::new(EventKind::Released, now).with("reason", reason)];
        let verdict = Verdict::PutBack { due_at: now.plus(pause), route: None };
        settle::settle(work, &Settlement { guard, by: SettledBy::Worker, verdict, events, now })?;
    }
    Ok(())
}

fn with_content(connection: &Connection, claimed: Vec<(i64, Claim)>) -> Result<Vec<Claim>, StoreError> {
    let mut claims = Vec::with_capacity(claimed.len());
    for (seq, claim) in claimed {
        let block: Option<Vec<u8>> = connection
            .prepare_cached("SELECT body FROM contents WHERE email_seq = ?1")
            .and_then(|mut statement| statement.query_row([seq], |row| row.get(0)).optional())
            .map_err(from_sqlite)
            .or_else(|error| if error.is_temporary() { Err(error) } else { Ok(None) })?;
        // Content that cannot be read is as good as none: the validation says so and the email fails alone.
        let content = block.and_then(|block| content_codec::decode(&block).ok());
        claims.push(Claim { content, ..claim });
    }
    Ok(claims)
}
