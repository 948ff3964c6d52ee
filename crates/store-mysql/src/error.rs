//! MySQL's errors in the words of the port. Texts say what is wrong with the database, never a value out of it: messages
//! that repeat values (a duplicate key, a text that does not fit) are left out.

use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;
use store::StoreError;

/// Transactions stood in each other's way and this one was undone: deadlock, lock wait timeout, record changed since
/// it was read, a statement that has to be prepared again.
const COLLISIONS: &[u16] = &[1213, 1205, 1020, 1615];

/// No room: disk full (as a file, as a table), table full, redo log full.
const FULL: &[u16] = &[20, 1021, 1114, 3675];

/// May pass by itself: too many connections, out of memory, shutting down, killed, read-only after a failover, network
/// trouble, a limit of time or of the user's resources, disconnected for idleness, and collisions that did not end.
const UNAVAILABLE: &[u16] = &[
    1020, 1037, 1038, 1040, 1041, 1053, 1077, 1079, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205,
    1213, 1226, 1290, 1317, 1461, 1615, 1792, 1836, 1927, 1969, 3024, 3100, 3101, 3169, 4031,
];

/// A person has to mend it: not let in, no such database or table, not allowed, a plugin for passwords is missing, a
/// binary log that cannot hold our transactions.
const UNUSABLE: &[u16] = &[
    1044, 1045, 1049, 1054, 1130, 1142, 1143, 1146, 1227, 1251, 1273, 1370, 1524, 1665, 1698, 1820, 3118,
    4151,
];

/// After these the server closes the connection.
const LAST_WORDS: &[u16] = &[1053, 1079, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 3169, 4031];

/// Below this are troubles with the server's own files, such as its temporary ones.
const FILES_END: u16 = 1_000;

/// "Got error 28 from storage engine": the operating system has no room.
const STORAGE_ENGINE: u16 = 1030;

/// What stops a piece of work: the database, the work itself, or somebody who was first.
#[derive(Debug)]
pub enum Fault {
    Sql(Error),
    Store(StoreError),
    /// What was not there when we looked was there when we wrote. Done again, the work will find it.
    Overtaken,
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
    /// It may succeed when it is done again.
    pub fn is_collision(&self) -> bool {
        match self {
            Self::Sql(error) => number_of(error).is_some_and(|number| COLLISIONS.contains(&number)),
            Self::Overtaken => true,
            Self::Store(_) => false,
        }
    }

    /// The connection is gone or not to be trusted any more; the server has undone what was not committed.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Sql(Error::Database(error)) => {
                let number = error.downcast_ref::<MySqlDatabaseError>().number();
                LAST_WORDS.contains(&number)
            }
            Self::Sql(error) => matches!(error, Error::Io(_) | Error::Tls(_) | Error::Protocol(_)),
            Self::Store(_) | Self::Overtaken => false,
        }
    }

    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Sql(error) if number_of(error) == Some(1062))
    }

    pub fn into_store_error(self) -> StoreError {
        match self {
            Self::Sql(error) => from_sqlx(error),
            Self::Store(error) => error,
            Self::Overtaken => StoreError::Unavailable("others kept being first".into()),
        }
    }
}

/// The server's number of an error, if the server spoke at all.
pub fn number_of(error: &Error) -> Option<u16> {
    match error {
        Error::Database(error) => Some(error.downcast_ref::<MySqlDatabaseError>().number()),
        _ => None,
    }
}

pub fn from_sqlx(error: Error) -> StoreError {
    match error {
        Error::Database(error) => from_database(error.downcast_ref::<MySqlDatabaseError>()),
        Error::Io(error) => StoreError::Unavailable(format!("no connection to the database: {error}")),
        Error::Tls(error) => StoreError::Unavailable(format!("no TLS with the database: {error}")),
        Error::Protocol(text) => StoreError::Unavailable(format!("the connection is out of order: {text}")),
        Error::PoolTimedOut => StoreError::Unavailable(
            "no connection to the database could be had: it does not answer, or all of the pool are in use".into(),
        ),
        Error::PoolClosed => StoreError::Unavailable("the store is closed".into()),
        // The driver can send a password of this kind through TLS alone.
        Error::Configuration(error) if error.to_string().contains("RSA") => StoreError::Unusable(
            "the server wants the password over an encrypted connection (caching_sha2_password); turn TLS on at the \
             server and add ?ssl-mode=REQUIRED to store.url"
                .into(),
        ),
        Error::Configuration(_) => StoreError::Unusable("the database cannot be reached as configured".into()),
        // What the driver says of a column it cannot read names the column and the types.
        error => StoreError::Broken(error.to_string()),
    }
}

fn from_database(error: &MySqlDatabaseError) -> StoreError {
    meaning(error.number(), error.message())
}

fn meaning(number: u16, message: &str) -> StoreError {
    let text = || format!("the database says {message} ({number})");
    let is_full = number == STORAGE_ENGINE && message.contains("error 28 ");
    if FULL.contains(&number) || is_full {
        StoreError::Full(text())
    } else if UNAVAILABLE.contains(&number) || number < FILES_END {
        StoreError::Unavailable(text())
    } else if UNUSABLE.contains(&number) {
        StoreError::Unusable(text())
    } else {
        StoreError::Broken(format!("the database refused with error {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_errors_are_told_apart() {
        let rsa = "RSA auth backend disabled; enable feature `mysql-rsa`".to_owned();
        let needs_tls = from_sqlx(Error::Configuration(rsa.into()));
        assert!(
            matches!(&needs_tls, StoreError::Unusable(text) if text.contains("?ssl-mode=REQUIRED")),
            "{needs_tls}"
        );
        let refused = || Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        for error in [refused(), Error::PoolTimedOut, Error::PoolClosed] {
            let error = from_sqlx(error);
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
        assert!(Fault::Sql(refused()).is_lost_connection() && !Fault::Sql(refused()).is_collision());
        assert!(Fault::Overtaken.is_collision() && !Fault::Overtaken.is_lost_connection());
    }

    /// A full disk in all the words a server has for it: the API says STORAGE_LOW then, and results are kept.
    #[test]
    fn a_full_disk_is_told_apart() {
        let cases = [
            ("a file cannot grow (MariaDB)", 20, "Disk got full writing 'x' (Errcode: 28)", true),
            ("disk full", 1021, "Disk full (/tmp/#sql); waiting for someone to free some space...", true),
            ("table full", 1114, "The table 'email_outbox' is full", true),
            ("redo log full", 3675, "Create table/tablespace failed", true),
            ("the engine's own word", 1030, "Got error 28 from storage engine InnoDB", true),
            ("another of the engine's", 1030, "Got error 168 from storage engine InnoDB", false),
            ("lock wait timeout", 1205, "Lock wait timeout exceeded", false),
            ("read only", 1290, "The server is running with --read-only", false),
        ];
        for (case, number, message, is_full) in cases {
            let error = meaning(number, message);
            assert_eq!(matches!(error, StoreError::Full(_)), is_full, "{case}: {error:?}");
        }
    }

    /// What means no room, or a person's work, is not taken for what passes by itself.
    #[test]
    fn no_number_has_two_meanings() {
        for number in UNAVAILABLE {
            assert!(!FULL.contains(number) && !UNUSABLE.contains(number), "{number}");
        }
        assert!(COLLISIONS.iter().all(|number| UNAVAILABLE.contains(number)));
    }
}
