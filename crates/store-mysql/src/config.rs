//! What the operator wrote as `store.url`, checked and made into options. Nothing here prints the password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use url::Url;

/// How many connections the pool may hold unless the URL says otherwise.
const POOL_DEFAULT: u32 = 16;
const POOL_MAX: u32 = 200;

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call waits for a connection of the pool.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepared statements a connection keeps: more than any of them uses (see `row::portions`). The server allows 16,382
/// over all connections unless told otherwise; a process uses some hundreds.
const STATEMENTS_KEPT: usize = 256;

const PARAMETERS: &str = "sslmode (or ssl-mode), sslrootcert (or ssl-ca), pool_max";
const SSL_MODES: &str = "disable, prefer, require, verify-ca, verify-full";

/// Where the database is and how to get in.
#[derive(Clone)]
pub struct MysqlConfig {
    options: MySqlConnectOptions,
    shown: String,
    pool_max: u32,
}

impl MysqlConfig {
    /// Reads `mysql://user:password@host:port/database?sslmode=…&sslrootcert=…&pool_max=…`. An error says what is wrong
    /// and never repeats the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "write it as mysql://user:password@host:3306/database";
        let mut url = Url::parse(text).map_err(|error| format!("not a URL ({error}); {form}"))?;
        if !["mysql", "mariadb"].contains(&url.scheme()) {
            return Err(format!("the scheme must be mysql; {form}"));
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
        let parameters = Parameters::of(&url)?;
        let shown = shown(&url);
        url.set_query(None);
        let mut options = MySqlConnectOptions::from_url(&url)
            .map_err(|_| format!("user, password or database are not readable; {form}"))?
            .ssl_mode(parameters.ssl_mode)
            // The session is set up by `lane::connect` and the pool.
            .pipes_as_concat(false)
            .statement_cache_capacity(STATEMENTS_KEPT)
            .disable_statement_logging();
        if let Some(file) = &parameters.root_certificate {
            options = options.ssl_ca(file);
        }
        Ok(Self { options, shown, pool_max: parameters.pool_max })
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

    pub(crate) fn options(&self) -> MySqlConnectOptions {
        self.options.clone()
    }
}

/// What stands behind the question mark.
struct Parameters {
    ssl_mode: MySqlSslMode,
    root_certificate: Option<PathBuf>,
    pool_max: u32,
}

impl Parameters {
    fn of(url: &Url) -> Result<Self, String> {
        let mut parameters =
            Self { ssl_mode: MySqlSslMode::Preferred, root_certificate: None, pool_max: POOL_DEFAULT };
        for (name, value) in url.query_pairs() {
            match &*name {
                "pool_max" => parameters.pool_max = read_pool_max(&value)?,
                "sslmode" | "ssl-mode" => parameters.ssl_mode = read_ssl_mode(&value)?,
                "sslrootcert" | "ssl-ca" if value.is_empty() => {
                    return Err(format!("{name} must name a file with certificates"));
                }
                "sslrootcert" | "ssl-ca" if !Path::new(&*value).is_file() => {
                    return Err("sslrootcert names a file that is not there".into());
                }
                "sslrootcert" | "ssl-ca" => parameters.root_certificate = Some(value.into_owned().into()),
                _ => return Err(format!("an unknown parameter; those known are {PARAMETERS}")),
            }
        }
        Ok(parameters)
    }
}

/// In PostgreSQL's spelling, as for the other store, or in MySQL's own.
fn read_ssl_mode(text: &str) -> Result<MySqlSslMode, String> {
    match text.to_ascii_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => Ok(MySqlSslMode::Disabled),
        "prefer" | "preferred" => Ok(MySqlSslMode::Preferred),
        "require" | "required" => Ok(MySqlSslMode::Required),
        "verify-ca" => Ok(MySqlSslMode::VerifyCa),
        "verify-full" | "verify-identity" => Ok(MySqlSslMode::VerifyIdentity),
        _ => Err(format!("sslmode must be one of {SSL_MODES}")),
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

impl fmt::Display for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MysqlConfig({}, pool_max={})", self.shown, self.pool_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_shown_without_its_password() {
        let text = "mysql://ana:se%23cret@db.example.com:3307/mail?ssl-mode=REQUIRED&pool_max=40";
        let config = MysqlConfig::parse(text).expect("a good URL");
        assert_eq!(config.shown(), "mysql://ana@db.example.com:3307/mail");
        assert_eq!(config.pool_max(), 40);
        let options = config.options();
        assert_eq!((options.get_host(), options.get_port()), ("db.example.com", 3307));
        assert_eq!((options.get_username(), options.get_database()), ("ana", Some("mail")));
        assert!(matches!(options.get_ssl_mode(), MySqlSslMode::Required));
        for printed in [format!("{config}"), format!("{config:?}")] {
            assert!(!printed.contains("cret"), "{printed}");
        }
        let plain = MysqlConfig::parse("mariadb://db/mail").expect("good");
        assert_eq!(plain.pool_max(), POOL_DEFAULT);
        assert!(matches!(plain.options().get_ssl_mode(), MySqlSslMode::Preferred));
    }

    #[test]
    fn a_wrong_url_is_explained_and_not_repeated() {
        let cases = [
            ("hunter2", "not a URL"),
            ("postgres://ana:hunter2@db/mail", "scheme must be mysql"),
            ("mysql:///mail?x=hunter2", "host is missing"),
            ("mysql://ana:hunter2@db", "name of the database is missing"),
            ("mysql://ana:hunter2@db/", "name of the database is missing"),
            ("mysql://ana:hunter2@db/mail?sslmode=hunter2", "sslmode must be one of"),
            ("mysql://ana:hunter2@db/mail?sslrootcert=", "sslrootcert must name"),
            ("mysql://ana:hunter2@db/mail?sslrootcert=/no/hunter2.pem", "a file that is not there"),
            ("mysql://ana:hunter2@db/mail?pool_max=0", "from 1 to 200"),
            ("mysql://ana:hunter2@db/mail?pool_max=hunter2", "from 1 to 200"),
            ("mysql://ana:hunter2@db/mail?hunter2=1", "those known are sslmode"),
            ("mysql://ana:a#hunter2@db/mail", "not a URL"),
            ("mysql://ana@db/mail#hunter2", "%23"),
        ];
        for (text, expected) in cases {
            let error = MysqlConfig::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }
}
