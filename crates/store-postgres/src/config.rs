//! What the operator wrote as `store.url`, checked and made into options. Nothing here prints the password.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use url::Url;

/// How many connections the pool may hold unless the URL says otherwise.
const POOL_DEFAULT: u32 = 16;
const POOL_MAX: u32 = 200;

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call waits for a connection of the pool.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// How a connection is made and what it asks of the server once it is there. Not as it is made: a pool in between such as
/// PgBouncer refuses settings in the first message.
#[derive(Clone)]
pub struct Session {
    pub options: PgConnectOptions,
    settings: String,
}

impl Session {
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push_str(&set(name, value));
        self
    }

    pub async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        self.set_up(&mut connection).await?;
        Ok(connection)
    }

    pub async fn set_up(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(self.settings.clone())).execute(connection).await?;
        Ok(())
    }
}

fn set(name: &str, value: &str) -> String {
    format!("SET {name} = '{value}';")
}

/// What every connection asks of the server. Nothing of ours takes long: what does is stuck, and says so. A transaction
/// whose next statement does not come belongs to a connection that was lost without a word, and holds locks: it ends
/// before those who wait for them give up.
/// No JIT: it would cost more than any statement here. No notices: the driver logs each, and a roll-back outside of a
/// transaction, with which every connection goes back to the pool, is one. Along an index, always: every statement has
/// one made for it, and the tables are empty at one moment and hold a million rows at the next, so that statistics
/// would mislead the planner.
const SESSION: &[(&str, &str)] = &[
    ("statement_timeout", "30s"),
    ("lock_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("jit", "off"),
    ("client_min_messages", "error"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("timezone", "UTC"),
];

/// What the connections for the hot statements ask besides. These statements have one good plan each: from the values
/// they are given to the rows, one by one. Making it once saves planning every time.
///
/// Rows are joined to what names them with `= ANY (ARRAY[id])`, here and wherever the outbox or the queue is: a plain `=` may
/// also be carried out along a whole index, which is what the planner prefers if it takes the table for empty. So it does
/// with the queue whenever that was empty when the server last looked.
const HOT_SESSION: &[(&str, &str)] = &[
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_memoize", "off"),
];

const PARAMETERS: &str = "sslmode, sslrootcert, pool_max";
const SSL_MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

/// Where the database is and how to get in.
#[derive(Clone)]
pub struct PostgresConfig {
    options: PgConnectOptions,
    shown: String,
    pool_max: u32,
}

impl PostgresConfig {
    /// Reads `postgres://user:password@host:port/database?sslmode=…&sslrootcert=…&pool_max=…`. An error says what is
    /// wrong and never repeats the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "write it as postgres://user:password@host:5432/database";
        let mut url = Url::parse(text).map_err(|error| format!("not a URL ({error}); {form}"))?;
        if !["postgres", "postgresql"].contains(&url.scheme()) {
            return Err(format!("the scheme must be postgres; {form}"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(format!("the host is missing; {form}"));
        }
        if url.fragment().is_some() {
            return Err(format!("a # in it must be written %23; {form}"));
        }
        let database = url.path().trim_start_matches('/');
        if database.is_empty() || database.contains('/') {
            return Err(format!("the name of the database is missing; {form}"));
        }
        let mut pool_max = POOL_DEFAULT;
        let mut passed_on = Vec::new();
        for (name, value) in url.query_pairs() {
            match &*name {
                "pool_max" => pool_max = read_pool_max(&value)?,
                "sslmode" if SSL_MODES.contains(&&*value) => passed_on.push(("sslmode", value.into_owned())),
                "sslmode" => return Err(format!("sslmode must be one of {}", SSL_MODES.join(", "))),
                "sslrootcert" if value.is_empty() => {
                    return Err("sslrootcert must name a file with certificates".into());
                }
                "sslrootcert" if !Path::new(&*value).is_file() => {
                    return Err("sslrootcert names a file that is not there".into());
                }
                "sslrootcert" => passed_on.push(("sslrootcert", value.into_owned())),
                _ => return Err(format!("an unknown parameter; those known are {PARAMETERS}")),
            }
        }
        let shown = shown(&url);
        url.set_query(None);
        for (name, value) in &passed_on {
            url.query_pairs_mut().append_pair(name, value);
        }
        let options = PgConnectOptions::from_url(&url)
            .map_err(|_| format!("user, password or database are not readable; {form}"))?
            .application_name("posthaste")
            .extra_float_digits(None)
            .disable_statement_logging();
        Ok(Self { options, shown, pool_max })
    }

    /// The URL without its password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    pub fn host(&self) -> &str {
        self.options.get_host()
    }

    pub fn pool_max(&self) -> u32 {
        self.pool_max
    }

    pub(crate) fn session(&self) -> Session {
        self.session_with(&[])
    }

    pub(crate) fn hot_session(&self) -> Session {
        self.session_with(HOT_SESSION)
    }

    fn session_with(&self, more: &[(&str, &str)]) -> Session {
        let settings = SESSION.iter().chain(more).map(|(name, value)| set(name, value)).collect();
        Session { options: self.options.clone(), settings }
    }
}

fn read_pool_max(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (1..=POOL_MAX).contains(&number) => Ok(number),
        _ => Err(format!("pool_max must be a number from 1 to {POOL_MAX}")),
    }
}

fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    // Neither fails for a URL with a host.
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.to_string()
}

impl fmt::Display for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresConfig({}, pool_max={})", self.shown, self.pool_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_shown_without_its_password() {
        let text = "postgres://ana:se%23cret@db.example.com:5433/mail?sslmode=require&pool_max=40";
        let config = PostgresConfig::parse(text).expect("a good URL");
        assert_eq!(config.shown(), "postgres://ana@db.example.com:5433/mail");
        assert_eq!(config.pool_max(), 40);
        let options = config.session().options;
        assert_eq!((options.get_host(), options.get_port()), ("db.example.com", 5433));
        assert_eq!((options.get_username(), options.get_database()), ("ana", Some("mail")));
        for printed in [format!("{config}"), format!("{config:?}")] {
            assert!(!printed.contains("cret"), "{printed}");
        }
        assert_eq!(PostgresConfig::parse("postgresql://db/mail").expect("good").pool_max(), POOL_DEFAULT);
    }

    #[test]
    fn a_wrong_url_is_explained_and_not_repeated() {
        let cases = [
            ("hunter2", "not a URL"),
            ("mysql://ana:hunter2@db/mail", "scheme must be postgres"),
            ("postgres:///mail?x=hunter2", "host is missing"),
            ("postgres://ana:hunter2@db", "name of the database is missing"),
            ("postgres://ana:hunter2@db/", "name of the database is missing"),
            ("postgres://ana:hunter2@db/mail?sslmode=hunter2", "sslmode must be one of"),
            ("postgres://ana:hunter2@db/mail?sslrootcert=", "sslrootcert must name"),
            ("postgres://ana:hunter2@db/mail?sslrootcert=/no/hunter2.pem", "a file that is not there"),
            ("postgres://ana:hunter2@db/mail?pool_max=0", "from 1 to 200"),
            ("postgres://ana:hunter2@db/mail?pool_max=hunter2", "from 1 to 200"),
            ("postgres://ana:hunter2@db/mail?hunter2=1", "those known are sslmode"),
            ("postgres://ana:a#hunter2@db/mail", "not a URL"),
            ("postgres://ana@db/mail#hunter2", "%23"),
        ];
        for (text, expected) in cases {
            let error = PostgresConfig::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }
}
