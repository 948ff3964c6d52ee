//! PostgreSQL's errors in the words of the port. Texts hold what is wrong with the database, never a value out of it:
//! no details, which name the values of a conflict, and no message about a value that was refused.

use sqlx::Error;
use sqlx::error::DatabaseError;
use store::StoreError;

/// The server ended a connection whose transaction said nothing for longer than it was allowed to, or went on for too
/// long, as after a pause of this process. It is undone.
const WAITED_TOO_LONG: [&str; 2] = ["25P03", "25P04"];

/// What stops a piece of work: the database, or the work itself.
#[derive(Debug)]
pub enum Fault {
    Sql(Error),
    Store(StoreError),
    /// The email changed between looking at it and locking it.
    Changed,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Fault {
    /// Two transactions stood in each other's way and this one was undone: it may succeed when it is done again.
    pub fn is_collision(&self) -> bool {
        let Self::Sql(Error::Database(error)) = self else { return matches!(self, Self::Changed) };
        match code(&**error).as_str() {
            // serialization_failure, deadlock_detected
            "40001" | "40P01" => true,
            // Two requests made the same person known, or took the same key, at once.
            "23505" => matches!(error.table(), Some("recipients" | "idempotency_keys")),
            _ => self.is_person_named_twice(),
        }
    }

    /// One statement was to write the same person twice: by different identifiers, which turned out to be of one.
    pub fn is_person_named_twice(&self) -> bool {
        // cardinality_violation
        matches!(self, Self::Sql(Error::Database(error)) if code(&**error) == "21000")
    }

    /// The connection answers in good order: what failed was the statement.
    pub fn leaves_connection_usable(&self) -> bool {
        match self {
            Self::Store(_) | Self::Changed => true,
            Self::Sql(Error::Database(error)) => {
                let code = code(&**error);
                !(code.starts_with("57P") || code.starts_with("08") || WAITED_TOO_LONG.contains(&&*code))
            }
            Self::Sql(_) => false,
        }
    }

    /// Nobody is left on the connection who could say what came of the last statement. A server that ends a
    /// connection in words (57P) has undone it; a pooler between us and the server says 08 when it lost the server.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Sql(Error::Io(_) | Error::Tls(_) | Error::Protocol(_)) => true,
            Self::Sql(Error::Database(error)) => {
                let code = code(&**error);
                code.starts_with("08") || code == "40003"
            }
            Self::Sql(_) | Self::Store(_) | Self::Changed => false,
        }
    }

    /// What to tell of a connection that was lost when what had been ordered could not be undone any more.
    pub fn into_doubt(self) -> StoreError {
        match self.is_lost_connection() {
            true => StoreError::InDoubt(self.into_store_error().to_string()),
            false => self.into_store_error(),
        }
    }

    pub fn into_store_error(self) -> StoreError {
        match self {
            Self::Sql(error) => from_sqlx(error),
            Self::Store(error) => error,
            Self::Changed => StoreError::Unavailable("an email changes too often to be locked".into()),
        }
    }
}

pub fn from_sqlx(error: Error) -> StoreError {
    match error {
        Error::Database(error) => from_database(&*error),
        Error::Io(error) => StoreError::Unavailable(format!("no connection to PostgreSQL: {error}")),
        Error::Tls(error) => StoreError::Unavailable(format!("no TLS with PostgreSQL: {error}")),
        // A server or proxy that goes away while a connection is being made.
        Error::Protocol(text) => StoreError::Unavailable(format!("the connection is out of order: {text}")),
        Error::PoolTimedOut => StoreError::Unavailable(
            "no connection to PostgreSQL could be had: it does not answer, or all of the pool are in use"
                .into(),
        ),
        Error::PoolClosed => StoreError::Unavailable("the store is closed".into()),
        Error::Configuration(_) => StoreError::Unusable("PostgreSQL cannot be reached as configured".into()),
        // What the driver says of a column it cannot decode names the column and the types.
        error => StoreError::Broken(error.to_string()),
    }
}

fn code(error: &dyn DatabaseError) -> String {
    error.code().unwrap_or_default().into_owned()
}

fn from_database(error: &dyn DatabaseError) -> StoreError {
    meaning(&code(error), error.message())
}

fn meaning(code: &str, message: &str) -> StoreError {
    let text = format!("PostgreSQL says {message} ({code})");
    match code {
        "53100" => StoreError::Full(text),
        // Shutting down or starting, out of connections or memory, a standby, a timeout of ours, a failing disk.
        "53200" | "53300" | "25006" | "57014" | "55P03" | "40001" | "40P01" | "58030" => {
            StoreError::Unavailable(text)
        }
        code if code.starts_with("57P") || code.starts_with("08") => StoreError::Unavailable(text),
        code if WAITED_TOO_LONG.contains(&code) => StoreError::Unavailable(text),
        // Not let in, no such database, not allowed, not our tables.
        code if code.starts_with("28") => StoreError::Unusable(text),
        "3D000" | "3F000" | "42501" | "42P01" | "42703" => StoreError::Unusable(text),
        // The message repeats the value.
        code if code.starts_with("22") => StoreError::Broken(format!("PostgreSQL refused a value ({code})")),
        _ => StoreError::Broken(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kind = fn(String) -> StoreError;

    #[test]
    fn every_kind_of_trouble_has_its_meaning() {
        let cases: [(&str, &str, Kind); 10] = [
            ("disk full", "53100", StoreError::Full),
            ("out of memory", "53200", StoreError::Unavailable),
            ("too many connections", "53300", StoreError::Unavailable),
            ("a standby", "25006", StoreError::Unavailable),
            ("shutting down", "57P01", StoreError::Unavailable),
            ("a failing disk", "58030", StoreError::Unavailable),
            ("a transaction that paused", "25P03", StoreError::Unavailable),
            ("not let in", "28P01", StoreError::Unusable),
            ("no such database", "3D000", StoreError::Unusable),
            ("a bug of ours", "42601", StoreError::Broken),
        ];
        for (case, code, kind) in cases {
            let error = meaning(code, "as it says");
            assert_eq!(error, kind(format!("PostgreSQL says as it says ({code})")), "{case}");
        }
        let value = meaning("22021", "invalid byte sequence: ana@example.com").to_string();
        assert!(!value.contains("ana@"), "a message that repeats a value is left out: {value}");
    }
}
