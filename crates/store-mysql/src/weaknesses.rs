//! How the server is set up, as far as it may lose what was acknowledged or stand in the way of work.

use std::collections::HashMap;

use model::{Clock as _, SystemClock};
use sqlx::{MySqlConnection, Row as _};
use store::{StoreError, Weakness};

use crate::error::Fault;
use crate::row::get;

/// Connections beside the pool: lanes for accepting (3), beginning (2), settling (2), reports (4), claims and renewals (2), four
/// for the rest.
const LANES: u64 = 17;
/// Emails are up to 16 MiB, as text; a statement holds one and a little more.
const PACKET_MIN: u64 = 32 * 1024 * 1024;
/// How far the clocks may be apart before times in the database and in logs tell different stories.
const CLOCK_DIFFERENCE_MS_MAX: i64 = 5_000;

/// Variables that one of the servers does not have are not in the answer.
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', \
    'sync_binlog', 'binlog_format', 'innodb_doublewrite', 'innodb_flush_method', 'read_only', 'super_read_only', \
    'max_allowed_packet', 'max_connections')";

pub async fn find(connection: &mut MySqlConnection, pool_max: u32) -> Result<Vec<Weakness>, Fault> {
    let settings = Settings::read(connection).await?;
    let mut found = settings.losing_data();
    found.extend(settings.in_the_way(pool_max));
    found.extend(clock_difference(connection).await?);
    Ok(found)
}

struct Settings(HashMap<String, String>);

impl Settings {
    async fn read(connection: &mut MySqlConnection) -> Result<Self, Fault> {
        let rows = sqlx::query(VARIABLES).fetch_all(connection).await?;
        let pair = |row| -> Result<(String, String), StoreError> {
            Ok((get::<String>(row, "Variable_name")?.to_ascii_lowercase(), get(row, "Value")?))
        };
        Ok(Self(rows.iter().map(pair).collect::<Result<_, _>>()?))
    }

    /// In capitals; empty when the server has no such setting.
    fn text(&self, name: &str) -> String {
        self.0.get(name).map(|value| value.to_ascii_uppercase()).unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        ["ON", "1"].contains(&self.text(name).as_str())
    }

    /// A setting of which only the given value is weak.
    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    fn losing_data(&self) -> Vec<Weakness> {
        let mut found = Vec::new();
        let mut loses = |setting: &str, text: String| {
            found.push(Weakness { setting: setting.into(), text, loses_data: true });
        };
        let flush = self.text("innodb_flush_log_at_trx_commit");
        if !flush.is_empty() && flush != "1" {
            let text = format!("{flush}: a crash loses the last second of what was accepted; set it to 1");
            loses("innodb_flush_log_at_trx_commit", text);
        }
        let sync = self.text("sync_binlog");
        if self.is_on("log_bin") && !sync.is_empty() && sync != "1" {
            let text = format!(
                "{sync} while the binary log is on: after a power cut, replicas and recovery miss what was accepted \
                 last; set it to 1"
            );
            loses("sync_binlog", text);
        }
        if ["OFF", "0"].contains(&self.text("innodb_doublewrite").as_str()) {
            let text = "off: a power cut in the middle of a page destroys it; turn it on, unless the file system \
                        writes pages whole";
            loses("innodb_doublewrite", text.into());
        }
        if self.text("innodb_flush_method") == "NOSYNC" {
            loses(
                "innodb_flush_method",
                "nosync: nothing is forced to the disk; use O_DIRECT or fsync".into(),
            );
        }
        found
    }

    fn in_the_way(&self, pool_max: u32) -> Vec<Weakness> {
        let mut found = Vec::new();
        let mut hinders = |setting: &str, text: String| {
            found.push(Weakness { setting: setting.into(), text, loses_data: false });
        };
        for name in ["read_only", "super_read_only"] {
            if self.is_on(name) {
                hinders(name, "on: nothing can be accepted; connect to the server that takes writes".into());
            }
        }
        if self.is_on("log_bin") && self.text("binlog_format") == "STATEMENT" {
            let text =
                "STATEMENT: the server refuses our transactions, which are read committed; set it to ROW";
            hinders("binlog_format", text.into());
        }
        if let Some(bytes) = self.number("max_allowed_packet").filter(|bytes| *bytes < PACKET_MIN) {
            let text = format!("{bytes}: emails with large attachments are refused; set it to 64M");
            hinders("max_allowed_packet", text);
        }
        let needed = u64::from(pool_max) + LANES;
        if let Some(most) = self.number("max_connections").filter(|most| *most < needed) {
            let text =
                format!("{most}: one process may use {needed}; raise it, or lower pool_max in store.url");
            hinders("max_connections", text);
        }
        found
    }
}

async fn clock_difference(connection: &mut MySqlConnection) -> Result<Option<Weakness>, Fault> {
    let before = SystemClock.now();
    let row = sqlx::query("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS millis")
        .fetch_one(connection)
        .await?;
    let theirs: i64 = row.try_get("millis")?;
    Ok(apart(before.millis(), theirs, SystemClock.now().millis()))
}

/// The server's clock was read between two looks at ours.
fn apart(before_ms: i64, theirs_ms: i64, after_ms: i64) -> Option<Weakness> {
    let difference = (theirs_ms - after_ms).max(before_ms - theirs_ms);
    (difference > CLOCK_DIFFERENCE_MS_MAX).then(|| Weakness {
        setting: "clock".into(),
        text: format!(
            "differs from this machine's by {} s; let both follow a time server",
            difference / 1_000
        ),
        loses_data: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 9] = [
        ("innodb_flush_log_at_trx_commit", "1"),
        ("log_bin", "ON"),
        ("sync_binlog", "1"),
        ("binlog_format", "ROW"),
        ("innodb_doublewrite", "ON"),
        ("innodb_flush_method", "O_DIRECT"),
        ("read_only", "OFF"),
        ("max_allowed_packet", "67108864"),
        ("max_connections", "33"),
    ];

    fn found(others: &[(&str, &str)]) -> Vec<(String, bool)> {
        let settings = GOOD.iter().chain(others);
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Settings(settings.collect());
        let all = settings.losing_data().into_iter().chain(settings.in_the_way(16));
        all.map(|weakness| (weakness.setting, weakness.loses_data)).collect()
    }

    #[test]
    fn every_setting_that_loses_data_or_hinders_is_told() {
        let cases = [
            ("innodb_flush_log_at_trx_commit", "0", true),
            ("innodb_flush_log_at_trx_commit", "2", true),
            ("sync_binlog", "0", true),
            ("sync_binlog", "100", true),
            ("innodb_doublewrite", "OFF", true),
            ("innodb_doublewrite", "0", true),
            ("innodb_flush_method", "nosync", true),
            ("read_only", "ON", false),
            ("super_read_only", "1", false),
            ("binlog_format", "STATEMENT", false),
            ("max_allowed_packet", "16777216", false),
            ("max_connections", "32", false),
        ];
        for (name, value, loses_data) in cases {
            assert_eq!(found(&[(name, value)]), [(name.to_owned(), loses_data)], "{name} = {value}");
        }
    }

    #[test]
    fn what_is_good_enough_is_not_told() {
        let cases: [&[(&str, &str)]; 5] = [
            &[],
            // Nothing is copied from the binary log that is not there.
            &[("log_bin", "OFF"), ("sync_binlog", "0"), ("binlog_format", "STATEMENT")],
            &[("innodb_doublewrite", "DETECT_AND_RECOVER")],
            &[("innodb_flush_method", "fsync")],
            // MariaDB has no such setting.
            &[("super_read_only", "")],
        ];
        for others in cases {
            assert_eq!(found(others), [], "{others:?}");
        }
    }

    #[test]
    fn clocks_that_are_too_far_apart() {
        let cases = [
            ("the same", 10_000, 10_000, 10_000, false),
            ("as far behind as may be", 10_000, 5_000, 20_000, false),
            ("further behind", 10_000, 4_999, 20_000, true),
            ("as far ahead as may be", 10_000, 25_000, 20_000, false),
            ("further ahead", 10_000, 25_001, 20_000, true),
        ];
        for (case, before, theirs, after, expected) in cases {
            assert_eq!(apart(before, theirs, after).is_some(), expected, "{case}");
        }
    }
}
