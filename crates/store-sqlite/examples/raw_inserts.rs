//! What SQLite itself can do here: rows of the same bytes as an email, inserted in batches with the same
//! durability. The figure that `posthaste bench` is measured against.
//!
//! `cargo run --release -p store-sqlite --example raw_inserts`

use std::time::Instant;

const ROWS: usize = 20_000;
const BYTES: usize = 10 * 1024;

fn main() -> Result<(), rusqlite::Error> {
    let folder = tempfile::tempdir().expect("a folder to work in");
    println!("rows of {BYTES} bytes, WAL, synchronous=FULL");
    for rows_per_commit in [1, 10, 100, 500] {
        let connection = rusqlite::Connection::open(folder.path().join(format!("{rows_per_commit}.db")))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")?;
        let rows = if rows_per_commit == 1 { ROWS / 10 } else { ROWS };
        let body = vec![b'x'; BYTES];
        let start = Instant::now();
        for batch in 0..rows / rows_per_commit {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for row in 0..rows_per_commit {
                connection
                    .prepare_cached("INSERT INTO rows VALUES (?1, ?2)")?
                    .execute((batch * rows_per_commit + row, &body))?;
            }
            connection.execute_batch("COMMIT")?;
        }
        println!(
            "{rows_per_commit:>4} per commit: {:>7.0} rows/s",
            rows as f64 / start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
