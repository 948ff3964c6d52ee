//! The gateway as a fleet on a database server: API and worker apart, many starts at once, a server that goes away and
//! comes back, and the questions operators ask the tables by hand. On PostgreSQL and on MariaDB alike.

use std::path::PathBuf;
use std::process::Command;

use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::support::{Place, Server, curl, err, until};

/// A kind of server: where one is running already.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    variable: &'static str,
}

const POSTGRES: Kind = Kind { variable: "POSTHASTE_TEST_POSTGRES" };
const MARIADB: Kind = Kind { variable: "POSTHASTE_TEST_MYSQL" };

impl Kind {
    /// How its script is called. MySQL stands in for MariaDB in a run that was asked for it.
    fn script(self) -> String {
        if self == POSTGRES { "postgres".into() } else { variable("POSTHASTE_TEST_MYSQL_SERVER") }
    }
}

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set; run tests/peers/run.sh cargo nextest run …"))
}

/// An empty database on the server at `admin_url`, dropped with the test.
struct Database {
    admin_url: String,
    name: String,
}

impl Database {
    fn new(admin_url: &str) -> Self {
        let name = format!("it_{}", uuid::Uuid::new_v4().simple());
        execute(admin_url, &format!("CREATE DATABASE {name}")).expect("a database is made");
        Self { admin_url: admin_url.to_owned(), name }
    }

    fn on(kind: Kind) -> Self {
        Self::new(&variable(kind.variable))
    }

    fn url(&self) -> String {
        let (server, _) = self.admin_url.rsplit_once('/').expect("a URL with a database");
        format!("{server}/{}", self.name)
    }

    /// A directory whose configuration names this database.
    fn place(&self) -> Place {
        let place = Place::new();
        place.write("posthaste.toml", &format!("[store]\nurl = \"{}\"\n", self.url()));
        place
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let force = if self.admin_url.starts_with("postgres") { " WITH (FORCE)" } else { "" };
        // The server itself ends with the run.
        let _ = execute(&self.admin_url, &format!("DROP DATABASE {}{force}", self.name));
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

fn execute(url: &str, sql: &str) -> Result<(), sqlx::Error> {
    ask(url, sql).map(|_| ())
}

/// The rows of an answer, each value as text.
fn ask(url: &str, sql: &str) -> Result<Vec<Vec<String>>, sqlx::Error> {
    let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
    block_on(async {
        if url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(url).await?;
            let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await?;
            let text = |row: &sqlx::postgres::PgRow| {
                (0..row.len()).map(|at| row.try_get_unchecked::<String, _>(at).unwrap_or_default()).collect()
            };
            Ok(rows.iter().map(text).collect())
        } else {
            let mut connection = sqlx::MySqlConnection::connect(url).await?;
            let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await?;
            let text = |row: &sqlx::mysql::MySqlRow| {
                (0..row.len()).map(|at| row.try_get_unchecked::<String, _>(at).unwrap_or_default()).collect()
            };
            Ok(rows.iter().map(text).collect())
        }
    })
}

fn serve(place: &Place, role: &str) -> Server {
    let mut command = place.command(&["serve", "--role", role]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_WORKER__LISTEN", "127.0.0.1:0");
    Server::start(command)
}

const BODY: &str = r#"{"to":"ana@example.com","subject":"Hello","html":"<p>hi</p>"}"#;

/// Status, headers and body of an attempt to send.
fn send(address: &str, key: &str) -> String {
    let key = format!("X-API-Key: {key}");
    let url = format!("http://{address}/v1/email/send");
    curl(&["-i", "-H", &key, "-H", "Content-Type: application/json", "-d", BODY, &url])
}

fn id_in(answer: &str) -> String {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("JSON: {answer}"));
    body["outboxId"].as_str().unwrap_or_else(|| panic!("an id: {answer}")).to_owned()
}

fn a_fleet_sends(kind: Kind) {
    let database = Database::on(kind);
    let place = database.place();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]);
    let (first, second) = (serve(&place, "api"), serve(&place, "api"));
    let workers = [serve(&place, "worker"), serve(&place, "worker")];
    let addresses = [first.address(), second.address()];
    let ids: Vec<String> = (0..20).map(|n| id_in(&send(&addresses[n % 2], key.trim()))).collect();
    for id in &ids {
        place.wait_for(id, "SENT");
    }
    let findings = place.json(&["doctor"]);
    assert!(findings.iter().all(|finding| finding["verdict"] != "wrong"), "{findings:#?}");
    for server in workers.into_iter().chain([first, second]) {
        server.stop();
    }
}

#[test]
fn process_a_fleet_sends_on_postgres() {
    a_fleet_sends(POSTGRES);
}

#[test]
fn process_a_fleet_sends_on_mariadb() {
    a_fleet_sends(MARIADB);
}

/// Ten processes find an empty database; a newer one is refused by all in one line.
fn many_start_at_once(kind: Kind) {
    let database = Database::on(kind);
    let place = database.place();
    let started: Vec<_> = (0..10)
        .map(|_| {
            let mut command = place.command(&["migrate"]);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            command.spawn().expect("it starts")
        })
        .collect();
    for process in started {
        let output = process.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", err(&output));
    }
    place.print(&["company", "add", "acme"]);
    execute(&database.url(), "UPDATE posthaste_schema SET version = version + 90").expect("changed");
    let refused = place.run(&["company", "list"]);
    let text = err(&refused);
    assert_eq!((refused.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("schema version") && text.contains("newer posthaste"), "{text}");
}

#[test]
fn process_many_start_at_once_on_postgres() {
    many_start_at_once(POSTGRES);
}

#[test]
fn process_many_start_at_once_on_mariadb() {
    many_start_at_once(MARIADB);
}

/// A server of the test's own, which it may stop.
struct OwnServer {
    kind: Kind,
    folder: PathBuf,
    port: String,
}

impl OwnServer {
    fn start(kind: Kind) -> Self {
        let server = Self::not_started(kind);
        server.start_again();
        server
    }

    fn not_started(kind: Kind) -> Self {
        let name = format!("{}-{}", kind.script(), uuid::Uuid::new_v4().simple());
        let folder = PathBuf::from(variable("POSTHASTE_TEST_PEERS_RUN")).join(name);
        let mut server = Self { kind, folder, port: String::new() };
        server.port = server.script(&["port"]).trim().to_owned();
        server
    }

    fn start_again(&self) {
        self.script(&["start", &self.folder.display().to_string(), &self.port]);
    }

    fn stop(&self) {
        self.script(&["stop", &self.folder.display().to_string()]);
    }

    fn url(&self) -> String {
        self.script(&["url", &self.port]).trim().to_owned()
    }

    fn script(&self, args: &[&str]) -> String {
        let path = PathBuf::from(variable("POSTHASTE_TEST_PEERS")).join(format!("{}.sh", self.kind.script()));
        let output = Command::new(path).args(args).output().expect("the script runs");
        assert!(output.status.success(), "{args:?}: {}", err(&output));
        crate::support::out(&output)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let path = PathBuf::from(variable("POSTHASTE_TEST_PEERS")).join(format!("{}.sh", self.kind.script()));
        let _ = Command::new(path).arg("remove").arg(&self.folder).output();
    }
}

/// While the database is away: a clear 503 with Retry-After, and `readyz` names the store. Afterwards everything goes on
/// by itself, in the processes that were running, and what was accepted before is sent.
fn a_server_goes_away(kind: Kind) {
    let server = OwnServer::start(kind);
    let database = Database::new(&server.url());
    let place = database.place();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]);
    let api = serve(&place, "api");
    let address = api.address();
    let before = id_in(&send(&address, key.trim()));
    let worker = serve(&place, "worker");
    worker.address();
    place.wait_for(&before, "SENT");
    let mut tail = Server::start(place.command(&["tail", "--long"]));
    tail.log_until("Ctrl-C");

    server.stop();
    tail.log_until("; trying again");
    let refused = send(&address, key.trim());
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.to_ascii_lowercase().contains("\r\nretry-after: "), "{refused}");
    assert!(refused.contains("\"code\":\"STORE_UNAVAILABLE\""), "{refused}");
    let ready = until("readyz sees it", || {
        let ready = curl(&["-i", &format!("http://{address}/readyz")]);
        ready.starts_with("HTTP/1.1 503").then_some(ready)
    });
    assert!(ready.contains("store: "), "{ready}");
    let live = curl(&["-i", &format!("http://{address}/livez")]);
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");

    server.start_again();
    let after = until("the API takes emails again", || {
        let answer = send(&address, key.trim());
        answer.starts_with("HTTP/1.1 202").then(|| id_in(&answer))
    });
    until("readyz sees it", || {
        curl(&["-i", &format!("http://{address}/readyz")]).starts_with("HTTP/1.1 200").then_some(())
    });
    place.wait_for(&after, "SENT");
    tail.log_until("the store is back");
    let lines = tail.printed_until("  SENT  ");
    assert!(lines.len() == 5 && lines.iter().all(|line| line.contains(&after)), "{lines:#?}");
    tail.interrupt();
    assert_eq!(tail.wait().code(), Some(0));
    worker.stop();
    api.stop();
}

#[test]
fn process_a_postgres_goes_away_and_comes_back() {
    a_server_goes_away(POSTGRES);
}

#[test]
fn process_a_mariadb_goes_away_and_comes_back() {
    a_server_goes_away(MARIADB);
}

/// Started before its database is there, as after a power cut: with `--wait` it waits and then works, without it ends.
#[test]
fn process_a_server_waits_for_its_postgres() {
    let server = OwnServer::not_started(POSTGRES);
    let place = Place::new();
    // The superuser's own database is empty, and as good as any.
    place.write("posthaste.toml", &format!("[store]\nurl = \"{}\"\n", server.url()));
    let output = place.command(&["serve"]).env("POSTHASTE_LISTEN", "127.0.0.1:0").output().expect("it runs");
    assert_eq!((output.status.code(), err(&output).lines().count()), (Some(1), 1), "{}", err(&output));

    let mut command = place.command(&["--wait", "serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let mut waiting = Server::start(command);
    waiting.log_until("; trying again");
    assert!(waiting.is_running());
    server.start_again();
    let address = waiting.address();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]);
    let id = id_in(&send(&address, key.trim()));
    place.wait_for(&id, "SENT");
    waiting.stop();
}

/// The questions of docs/OPERATIONS.md, as they are written there.
fn operators_ask(kind: Kind, last_hour: &str) {
    let database = Database::on(kind);
    let place = database.place();
    // The next attempt is far away, however long the worker takes to stop.
    let url = database.url();
    place.write("posthaste.toml", &format!("default_retry = \"patient\"\n[store]\nurl = \"{url}\"\n"));
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let sent = place.send("acme", "ana@example.com", &["--test"]);
    let failed = place.send("acme", "rejected@posthaste.test", &["--test"]);
    let retried = place.send("acme", "throttled@posthaste.test", &["--test"]);
    let worker = serve(&place, "worker");
    place.wait_for(&sent, "SENT");
    place.wait_for(&failed, "FAILED");
    place.wait_for(&retried, "RETRY_SCHEDULED");
    worker.stop();

    let ask = |sql: &str| ask(&url, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let one = ask(&format!(
        "SELECT id, company_id, status, to_email, subject, attempts, created_at FROM email_outbox WHERE id = '{sent}'"
    ));
    assert_eq!(one.len(), 1);
    assert_eq!(one[0][2], "SENT");
    let one = ask(&format!(
        "SELECT id, status, sent_at, ses_message_id, attempts FROM email_outbox WHERE id = '{sent}'"
    ));
    assert_eq!((one.len(), one[0][1].as_str()), (1, "SENT"));
    let retrying =
        ask("SELECT id, attempts, last_failure_reason, last_failure_code, last_failure_at FROM email_outbox
         WHERE status = 'RETRY_SCHEDULED' ORDER BY last_failure_at DESC");
    assert_eq!(retrying.len(), 1);
    assert_eq!((retrying[0][0].as_str(), retrying[0][3].as_str()), (retried.as_str(), "CAPTURE_THROTTLED"));
    let by_code = ask("SELECT last_failure_code, COUNT(*) as count FROM email_outbox WHERE status = 'FAILED'
         GROUP BY last_failure_code ORDER BY count DESC");
    assert_eq!((by_code.len(), by_code[0][0].as_str()), (1, "CAPTURE_REJECTED"));
    let by_company = ask(&format!(
        "SELECT company_id, COUNT(*) as failed_count FROM email_outbox
         WHERE status = 'FAILED' AND failed_at > NOW() - {last_hour} GROUP BY company_id ORDER BY failed_count DESC"
    ));
    assert_eq!(by_company.len(), 1);
    let events = ask(&format!(
        "SELECT type, metadata, to_email, entity_id, created_at FROM email_events WHERE email_log_id = '{failed}'"
    ));
    assert!(events.iter().any(|event| event[0] == "FAILED"), "{events:?}");
    let logs =
        ask(&format!("SELECT status, error_code, attempts FROM email_logs WHERE outbox_id = '{failed}'"));
    assert_eq!((logs.len(), logs[0][1].as_str()), (1, "CAPTURE_REJECTED"));
}

#[test]
fn process_operators_ask_postgres() {
    operators_ask(POSTGRES, "INTERVAL '1 hour'");
}

#[test]
fn process_operators_ask_mariadb() {
    operators_ask(MARIADB, "INTERVAL 1 HOUR");
}

/// How long nothing is to do while it is counted: several rounds of everything that looks by itself.
const IDLE_SECS: u64 = 5;

/// A gateway with nothing to do costs its server next to nothing. `counter` says how much the server has been asked.
fn idleness_is_cheap(kind: Kind, counter: &str, per_sec_max: f64) {
    let server = OwnServer::start(kind);
    let database = Database::new(&server.url());
    let place = database.place();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]);
    let (api, worker) = (serve(&place, "api"), serve(&place, "worker"));
    // Both have been at work, and all their connections are made.
    let id = id_in(&send(&api.address(), key.trim()));
    worker.address();
    place.wait_for(&id, "SENT");
    let count = || -> f64 {
        let rows = ask(&database.url(), counter).expect("the server is asked");
        rows[0].last().expect("a number").parse().expect("a number")
    };
    let (before, began) = (count(), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_secs(IDLE_SECS));
    let per_sec = (count() - before) / began.elapsed().as_secs_f64();
    println!("idle: {per_sec:.1} per second on {}", kind.script());
    assert!(per_sec > 0.0, "nothing was counted");
    assert!(per_sec <= per_sec_max, "{per_sec:.1} per second, with nothing to do");
    for server in [worker, api] {
        server.stop();
    }
}

/// Transactions, a statement alone being one as well; some 37 where this was written.
#[test]
fn process_idleness_is_cheap_on_postgres() {
    let counter = "SELECT (xact_commit + xact_rollback)::text FROM pg_stat_database
                   WHERE datname = current_database()";
    idleness_is_cheap(POSTGRES, counter, 60.0);
}

/// Statements, BEGIN and COMMIT among them; some 17 where this was written.
#[test]
fn process_idleness_is_cheap_on_mariadb() {
    idleness_is_cheap(MARIADB, "SHOW GLOBAL STATUS LIKE 'Questions'", 40.0);
}
