//! What reached the provider: one JSON line `{"id", "at"}` for each message, read while it grows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use model::{EmailId, Timestamp};
use serde_json::Value;

/// Every message the provider took, by our id.
#[derive(Debug, Default)]
pub struct ProviderLedger {
    /// When each copy was taken, in order.
    pub copies: BTreeMap<EmailId, Vec<Timestamp>>,
    /// The emails as they came, copies included.
    pub order: Vec<EmailId>,
    /// Lines that name no email of ours.
    pub strangers: usize,
}

impl ProviderLedger {
    pub fn add(&mut self, line: &str) {
        let Ok(line) = serde_json::from_str::<Value>(line) else { panic!("the provider wrote `{line}`") };
        let at_secs = line["at"].as_f64().expect("a line of the provider's ledger has a time");
        // Rounded down, as the times of events are.
        let at = Timestamp::from_millis((at_secs * 1000.0) as i64);
        match line["id"].as_str().and_then(|text| text.parse().ok()) {
            Some(id) => {
                self.order.push(id);
                self.copies.entry(id).or_default().push(at);
            }
            None => self.strangers += 1,
        }
    }
}

/// Follows a ledger that another process writes.
pub struct Follower {
    path: PathBuf,
    offset: u64,
    pub ledger: ProviderLedger,
}

impl Follower {
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), offset: 0, ledger: ProviderLedger::default() }
    }

    /// Reads what was added; a line that is still being written is left for the next time.
    pub fn read_on(&mut self) {
        let Ok(mut file) = File::open(&self.path) else { return };
        let mut added = String::new();
        file.seek(SeekFrom::Start(self.offset)).expect("the ledger can be searched");
        file.read_to_string(&mut added).expect("the ledger can be read");
        let whole = added.rfind('\n').map_or(0, |end| end + 1);
        for line in added[..whole].lines() {
            self.ledger.add(line);
        }
        self.offset += whole as u64;
    }
}
