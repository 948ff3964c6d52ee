//! `posthaste send`: hands in one email for a company, straight into the store. A running worker sends it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use gateway::accept::draft::{Draft, OnSuppressed, When, sum_up};
use gateway::accept::{Desk, Request, commit, look_up, prepare_one};
use gateway::keys::Caller;
use model::email::{HTML_BYTES_MAX, SUBJECT_LENGTH_MAX, Wishes};
use model::{Address, ApiKey, Company, Content, Envelope, KeyId, KeyMode, Mailbox, Scope, Secret, Timestamp};
use serde_json::Value;

use super::{Session, Usage, company_named, note};
use crate::wire;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose email it is.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// Whom it is for.
    #[arg(long, value_name = "ADDRESS", value_parser = super::parse_address)]
    to: Address,
    /// What it is about, on one line.
    #[arg(long)]
    subject: String,
    /// The file with the html; - is standard input.
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    /// The file with the text for readers without html.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// The sender, such as "Shop <orders@example.com>", instead of the company's.
    #[arg(long, value_name = "MAILBOX", value_parser = super::parse_mailbox)]
    from: Option<Mailbox>,
    /// A word to find it by. May be repeated, up to five times.
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Capture it instead of sending it, as with a test key.
    #[arg(long)]
    test: bool,
}

pub async fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    check(&args)?;
    let content = Content::Composed {
        html: read(&args.html)?,
        text: args.text.as_deref().map(read).transpose()?,
        attachments: Vec::new(),
    };
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let now = session.now();
    let desk = Desk { gateway: wire::gateway(&session.loaded.config, store.clone())?, documents: None };
    let caller = caller(company, if args.test { KeyMode::Test } else { KeyMode::Live }, now);
    let request = Request {
        id: format!("cli-{}", KeyId::new(now)),
        key: None,
        now,
        arrived: std::time::Instant::now(),
    };
    let draft = draft(args, content);
    let known = look_up(&desk, &caller, [&draft]).await?;
    let prepared = prepare_one(&desk, &caller, request, draft, &known)
        .map_err(|faults| anyhow::anyhow!("the email is refused: {}", sum_up(&faults).detail))?;
    let answer = commit(&desk, prepared).await?;
    store.close().await;
    let json: Value = serde_json::from_str(&answer.body).context("the gateway answers in JSON")?;
    let id = json["outboxId"].as_str().unwrap_or_default().to_owned();
    session.out.result(&json, &id)?;
    if !session.out.is_json() {
        note(format_args!("Stored; see what becomes of it with: posthaste show {id}"));
    }
    Ok(())
}

fn check(args: &Args) -> anyhow::Result<()> {
    let length = args.subject.chars().count();
    if !(1..=SUBJECT_LENGTH_MAX).contains(&length) || args.subject.chars().any(char::is_control) {
        bail!(Usage(format!("the subject has 1 to {SUBJECT_LENGTH_MAX} characters and no line breaks")));
    }
    if args.tag.len() > model::email::TAGS_MAX {
        bail!(Usage(format!("there may be {} tags at most", model::email::TAGS_MAX)));
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let limit = HTML_BYTES_MAX as u64 + 1;
    let mut text = String::new();
    let failed = || format!("cannot read {} as text", path.display());
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_string(&mut text).with_context(failed)?;
    } else {
        let file = std::fs::File::open(path).with_context(failed)?;
        file.take(limit).read_to_string(&mut text).with_context(failed)?;
    }
    if text.len() > HTML_BYTES_MAX {
        bail!("{} is larger than {HTML_BYTES_MAX} bytes", path.display());
    }
    if text.trim().is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(text)
}

fn draft(args: Args, content: Content) -> Draft {
    Draft {
        envelope: Envelope {
            from: args.from,
            to: args.to,
            cc: Vec::new(),
            bcc: Vec::new(),
            reply_to: None,
            subject: Secret::new(args.subject),
            headers: Vec::new(),
            tags: args.tag,
        },
        recipient: None,
        external_id: None,
        entity: None,
        priority: None,
        when: When::Now,
        ttl: None,
        wishes: Wishes::default(),
        content,
        template: None,
        on_suppressed: OnSuppressed::Warn,
        notes: Vec::new(),
    }
}

/// The operator acts for the company: a key that exists for this one call.
pub fn caller(company: Company, mode: KeyMode, now: Timestamp) -> Caller {
    let key = ApiKey {
        id: KeyId::new(now),
        company: company.id,
        mode,
        scopes: vec![Scope::Send],
        label: None,
        hash: [0; 32],
        prefix: "cli".to_owned(),
        created_at: now,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    Caller { key, company }
}
