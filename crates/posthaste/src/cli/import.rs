//! `posthaste import FILE|DIR`: many emails at once, through the same acceptance as those from the API, each under an
//! idempotency key of its own: what an earlier run has handed in is not handed in again.

mod source;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::reading::{self, Reading, Refusal};
use gateway::accept::{Desk, NotTaken, Request, RequestKey, answered_before, commit, look_up, prepare_one};
use gateway::keys::Caller;
use model::{Clock, KeyId, KeyMode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::StoreError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::out::Out;
use super::progress::{Progress, Show};
use super::send::caller;
use super::{Session, Usage, company_named};
use crate::{shutdown, wire};
use source::{Body, Form, Item, Place, Source};

/// For how long a store that is away is waited for, with every email.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How many refusals are told to a person one by one; the rest is counted.
const TOLD_MAX: u64 = 20;
/// The API takes keys of up to 256 characters; a place or a hash stands behind the prefix.
const PREFIX_LENGTH_MAX: usize = 150;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with one send request per line (the JSON of POST /v1/email/send), an .eml file, or a folder of them; - is standard input.
    #[arg(value_name = "FILE|DIR")]
    source: PathBuf,
    /// Whose emails they are.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// Capture them instead of sending them, as with a test key.
    #[arg(long)]
    test: bool,
    /// Name the idempotency keys PREFIX and the line's number or the file's name, instead of by the content. Then the same line may stand twice.
    #[arg(long, value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// How many are handed in at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    concurrency: u16,
    /// Check all of them, hand in none.
    #[arg(long)]
    dry_run: bool,
    /// Write what was refused and why to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub async fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    check_prefix(args.key_prefix.as_deref())?;
    let source = Source::open(&args.source)?;
    let rejects = args.rejects.as_deref().map(|path| open_rejects(path, &args.source)).transpose()?;
    let stop = shutdown::on_signal()?;
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let config = &session.loaded.config;
    let now = session.now();
    let mode = if args.test { KeyMode::Test } else { KeyMode::Live };
    let documents = wire::documents(config)?.map(Arc::new);
    let office = Arc::new(Office {
        desk: Desk { gateway: wire::gateway(config, store.clone())?, documents },
        caller: caller(company, mode, now),
        request_id: format!("import-{}", KeyId::new(now)),
        key_prefix: args.key_prefix.clone(),
        attachments_bytes_max: config.limits.attachments_bytes_max,
        dry_run: args.dry_run,
        clock: session.clock.clone(),
    });
    let show = Show::unless(session.out, args.quiet);
    let mut report = Report::new(session.out, show, source.total(), rejects, args.dry_run);
    let bytes_max = reading::body_bytes_max(office.attachments_bytes_max);
    let (sender, mut items) = mpsc::channel(usize::from(args.concurrency));
    let reader = tokio::task::spawn_blocking(move || source.read(bytes_max, sender));
    let ended = hand_in_all(&office, &mut items, usize::from(args.concurrency), &mut report, &stop).await;
    // Nobody listens any more, so reading ends; what it waits for on standard input is not waited for.
    drop(items);
    let ended = match ended {
        // The words of a panic may quote what was read.
        Ok(()) => reader.await.map_err(|_panic| anyhow::anyhow!("reading met a bug and stopped"))?,
        Err(error) => Err(error),
    };
    store.close().await;
    report.finish(ended)
}

fn check_prefix(prefix: Option<&str>) -> anyhow::Result<()> {
    let is_fine = |text: &str| {
        (1..=PREFIX_LENGTH_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if prefix.is_some_and(|prefix| !is_fine(prefix)) {
        bail!(Usage(format!("a key prefix has 1 to {PREFIX_LENGTH_MAX} printable characters and no blanks")));
    }
    Ok(())
}

/// It holds people's mail, so only its owner may read it.
fn open_rejects(path: &Path, source: &Path) -> anyhow::Result<std::fs::File> {
    let is_same =
        matches!((path.canonicalize(), source.canonicalize()), (Ok(one), Ok(other)) if one == other);
    if is_same {
        bail!(Usage("--rejects names the file that is imported, which would be overwritten".to_owned()));
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path);
    Ok(file.map_err(|error| Usage(format!("cannot write {}: {error}", path.display())))?)
}

/// What handing in needs, the same for every email.
struct Office {
    desk: Desk,
    caller: Caller,
    /// One for the whole import, so that its emails are found again.
    request_id: String,
    key_prefix: Option<String>,
    attachments_bytes_max: usize,
    dry_run: bool,
    clock: Arc<dyn Clock>,
}

/// What became of one email.
enum Outcome {
    Accepted,
    /// An earlier run, or an earlier line, has handed it in.
    Known,
    Refused(Refusal),
    /// Nothing can be handed in any more.
    Stopped(anyhow::Error),
}

struct Done {
    item: Item,
    outcome: Outcome,
}

/// A bounded number at once; the store puts those that come together into one commit.
async fn hand_in_all(
    office: &Arc<Office>,
    items: &mut mpsc::Receiver<Item>,
    concurrency: usize,
    report: &mut Report,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut flights: JoinSet<Done> = JoinSet::new();
    let mut stopped = None;
    let mut is_open = true;
    while is_open || !flights.is_empty() {
        tokio::select! {
            () = stop.cancelled(), if is_open => {
                is_open = false;
                stopped.get_or_insert(anyhow::anyhow!("interrupted"));
            }
            item = items.recv(), if is_open && flights.len() < concurrency => match item {
                Some(item) => {
                    flights.spawn(hand_in(Arc::clone(office), item, stop.clone()));
                }
                None => is_open = false,
            },
            Some(done) = flights.join_next(), if !flights.is_empty() => {
                let bug = |_panic| anyhow::anyhow!("handing an email in met a bug and stopped");
                let Done { item, outcome } = done.map_err(bug)?;
                match outcome {
                    // What is in flight already is waited for, so that the report is right.
                    Outcome::Stopped(error) => {
                        is_open = false;
                        stopped.get_or_insert(error);
                    }
                    outcome => report.take(&item, outcome)?,
                }
            }
        }
    }
    stopped.map_or(Ok(()), Err)
}

async fn hand_in(office: Arc<Office>, item: Item, stop: CancellationToken) -> Done {
    let bytes = match &item.body {
        Body::Bytes(bytes) => bytes,
        Body::TooLarge => {
            let most = reading::body_bytes_max(office.attachments_bytes_max);
            let refusal = Refusal::new("BODY_TOO_LARGE", format!("it is larger than {most} bytes"));
            return Done { item, outcome: Outcome::Refused(refusal) };
        }
        Body::Unreadable(reason) => {
            let refusal = Refusal::new("UNREADABLE", reason.clone());
            return Done { item, outcome: Outcome::Refused(refusal) };
        }
    };
    let started = Instant::now();
    let outcome = loop {
        match try_once(&office, &item.place, item.form, bytes).await {
            // The key makes it safe to try again what may have been stored.
            Err(error) if error.is_temporary() && started.elapsed() < PATIENCE && !stop.is_cancelled() => {
                stop.run_until_cancelled(tokio::time::sleep(AGAIN_AFTER)).await;
            }
            Err(error) => break Outcome::Stopped(error.into()),
            Ok(outcome) => break outcome,
        }
    };
    Done { item, outcome }
}

async fn try_once(office: &Office, place: &Place, form: Form, bytes: &[u8]) -> Result<Outcome, StoreError> {
    let now = office.clock.now();
    let mode = office.caller.key.mode;
    let read = match form {
        Form::Json => reading::read_send(bytes, mode, office.attachments_bytes_max, now),
        Form::Eml => reading::read_eml(bytes, mode),
    };
    let Reading { draft, body_hash, digest } = match read {
        Ok(reading) => reading,
        Err(refusal) => return Ok(Outcome::Refused(refusal)),
    };
    let key = key(office.key_prefix.as_deref(), place, &digest);
    let request = Request {
        id: office.request_id.clone(),
        key: Some(RequestKey { key, body_hash }),
        now,
        arrived: Instant::now(),
    };
    let known = look_up(&office.desk, &office.caller, [&draft]).await?;
    let asked = request.clone();
    let prepared = match prepare_one(&office.desk, &office.caller, request, draft, &known) {
        Ok(prepared) => prepared,
        Err(faults) => {
            return match answered_before(&office.desk, office.caller.company.id, &asked).await {
                Ok(Some(_)) => Ok(Outcome::Known),
                Err(NotTaken::Store(error)) => Err(error),
                Ok(None) | Err(_) => Ok(Outcome::Refused(faults.into())),
            };
        }
    };
    if office.dry_run {
        return Ok(Outcome::Accepted);
    }
    match commit(&office.desk, prepared).await {
        Ok(answer) if answer.replayed => Ok(Outcome::Known),
        Ok(_) => Ok(Outcome::Accepted),
        Err(NotTaken::Store(error)) => Err(error),
        Err(NotTaken::KeyReused) => Ok(Outcome::Refused(Refusal::new(
            "IDEMPOTENCY_KEY_REUSED",
            "another email was handed in under its key; it was changed since, or the prefix was used before",
        ))),
        Err(NotTaken::OverDailyLimit { .. }) => Ok(Outcome::Stopped(anyhow::anyhow!(
            "the company's emails of the day are used up; run this again after midnight UTC"
        ))),
        Err(reason @ NotTaken::ClockNeverSet) => Ok(Outcome::Stopped(reason.into())),
    }
}

/// By the content, so that the same email is one wherever it stands, or by its place, where the user says what it is.
fn key(prefix: Option<&str>, place: &Place, digest: &[u8; 32]) -> String {
    match (prefix, place) {
        (None, _) => format!("import-{}", hex(digest)),
        (Some(prefix), Place::Line(number)) => format!("{prefix}{number}"),
        // A name may be long, and anything but printable.
        (Some(prefix), Place::File(name)) => format!("{prefix}{}", hex(&Sha256::digest(name.as_bytes()))),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What became of all of them, told as it happens and summed up at the end.
struct Report {
    out: Out,
    progress: Progress,
    rejects: Option<std::io::BufWriter<std::fs::File>>,
    dry_run: bool,
    started: Instant,
    behind: u64,
    accepted: u64,
    known: u64,
    refused: u64,
    by_code: BTreeMap<&'static str, u64>,
}

impl Report {
    fn new(out: Out, show: Show, total: Option<u64>, rejects: Option<std::fs::File>, dry_run: bool) -> Self {
        Self {
            out,
            progress: Progress::start(show, total),
            rejects: rejects.map(std::io::BufWriter::new),
            dry_run,
            started: Instant::now(),
            behind: 0,
            accepted: 0,
            known: 0,
            refused: 0,
            by_code: BTreeMap::new(),
        }
    }

    fn total(&self) -> u64 {
        self.accepted + self.known + self.refused
    }

    fn take(&mut self, item: &Item, outcome: Outcome) -> anyhow::Result<()> {
        self.behind = self.behind.max(item.behind);
        match outcome {
            Outcome::Accepted => self.accepted += 1,
            Outcome::Known => self.known += 1,
            Outcome::Refused(refusal) => self.refuse(item, &refusal)?,
            Outcome::Stopped(error) => return Err(error),
        }
        let (words, behind) = (self.words(), self.behind);
        let per_sec = self.total() as f64 / self.started.elapsed().as_secs_f64().max(0.001);
        self.progress.at(behind, || format!("{words}, {per_sec:.0}/s"));
        Ok(())
    }

    fn refuse(&mut self, item: &Item, refusal: &Refusal) -> anyhow::Result<()> {
        self.refused += 1;
        *self.by_code.entry(refusal.code).or_default() += 1;
        let line = refusal_json(&item.place, refusal);
        if self.out.is_json() {
            self.out.json(&line)?;
        } else if self.refused <= TOLD_MAX {
            self.progress.say(&format!("{}: {} ({})", item.place, refusal.detail, refusal.code));
        }
        if let Some(rejects) = &mut self.rejects {
            let line = with_email(line, &item.body, item.form);
            writeln!(rejects, "{line}").context("the file of rejects cannot be written")?;
        }
        Ok(())
    }

    fn words(&self) -> String {
        let taken = if self.dry_run { "would be accepted" } else { "accepted" };
        format!("{} {taken}, {} already there, {} refused", self.accepted, self.known, self.refused)
    }

    fn finish(mut self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        if let Some(rejects) = &mut self.rejects {
            rejects.flush().context("the file of rejects cannot be written")?;
        }
        let words = self.words();
        let total = self.total();
        let json = json!({
            "accepted": self.accepted,
            "known": self.known,
            "refused": self.refused,
            "refusedByCode": self.by_code,
            "dryRun": self.dry_run,
            "finished": ended.is_ok(),
        });
        self.progress.end();
        self.out.result(&json, &words)?;
        if !self.out.is_json() {
            for (code, count) in &self.by_code {
                self.out.line(format!("  {count} {code}"))?;
            }
        }
        match ended {
            Err(error) => {
                Err(error.context("the import is not finished; run it again to go on where it stopped"))
            }
            Ok(()) if self.refused > 0 => bail!("{} of {total} were refused", self.refused),
            Ok(()) => Ok(()),
        }
    }
}

fn refusal_json(place: &Place, refusal: &Refusal) -> Value {
    let (name, value) = place.named();
    let mut line = refusal.to_json();
    if let Value::Object(members) = &mut line {
        members.insert(name.to_owned(), value);
    }
    line
}

/// The refused email beside its reasons, so that it can be mended and imported again; an .eml is still where it was.
fn with_email(mut line: Value, body: &Body, form: Form) -> Value {
    if let (Body::Bytes(bytes), Form::Json, Value::Object(members)) = (body, form, &mut line) {
        let email = serde_json::from_slice(bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(bytes).trim_end()));
        members.insert("email".to_owned(), email);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_the_content_or_the_place() {
        let (one, other) = ([1; 32], [2; 32]);
        let (line, file) = (Place::Line(7), Place::File("a.eml".into()));
        assert_eq!(key(None, &line, &one), key(None, &Place::Line(8), &one), "wherever it stands");
        assert_ne!(key(None, &line, &one), key(None, &line, &other));
        assert_eq!(key(Some("june-"), &line, &one), "june-7");
        assert_eq!(key(Some("june-"), &line, &one), key(Some("june-"), &line, &other));
        assert_ne!(key(Some("june-"), &file, &one), key(Some("june-"), &Place::File("b.eml".into()), &one));
        let longest = key(Some(&"x".repeat(PREFIX_LENGTH_MAX)), &file, &one);
        assert!(longest.len() <= 256 && longest.bytes().all(|byte| byte.is_ascii_graphic()), "{longest}");
    }

    #[test]
    fn a_refused_email_can_be_taken_from_the_file_of_rejects() {
        let refusal = Refusal::new("REQUIRED", "to is required");
        let line = refusal_json(&Place::Line(3), &refusal);
        let with = |text: &str| with_email(line.clone(), &Body::Bytes(text.into()), Form::Json);
        assert_eq!((&with("{\"a\":1}")["email"]["a"], &with("{\"a\":1}")["line"]), (&json!(1), &json!(3)));
        assert_eq!(with("{broken\n")["email"], "{broken");
        assert_eq!(with_email(line.clone(), &Body::TooLarge, Form::Json), line);
    }
}
