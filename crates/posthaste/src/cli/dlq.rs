//! `posthaste dlq list|replay|drop`: FAILED emails, one by one or by filter. Safe to interrupt and run again:
//! Ctrl-C lets the step under way end, says how many are done, and stops there.

use std::pin::pin;

use anyhow::bail;
use gateway::{Gateway, replay};
use model::{Address, Category, CompanyId, Email, EmailId};
use serde_json::{Value, json};
use store::{DeadLetterFilter, Store};
use tokio_util::sync::CancellationToken;

use super::out::distance;
use super::progress::{Progress, Show, confirmed};
use super::{Session, Usage, When, company_named, parse_id, parse_when};
use crate::{shutdown, wire};

/// Dead letters per call of the store.
const CHUNK: u32 = 200;
const INTERRUPTED: &str = "interrupted; run it again to go on with the rest";

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List dead letters, newest first
    List(ListArgs),
    /// Put dead letters back into the queue
    Replay(ChangeArgs),
    /// Take dead letters off the list; the emails stay FAILED
    Drop(ChangeArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// How many at most.
    #[arg(long, default_value_t = 50)]
    limit: u64,
}

#[derive(Debug, clap::Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only these.
    #[arg(value_name = "ID", value_parser = parse_id)]
    ids: Vec<EmailId>,
    /// All dead letters of the company.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Say how many it would be, change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before many are changed. Only a person at a terminal is asked.
    #[arg(long, short)]
    yes: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Whose dead letters.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// The code of the last failure, such as SMTP_REJECTED_550.
    #[arg(long)]
    code: Option<String>,
    /// The category of the last failure, such as PERMANENT_ERROR.
    #[arg(long, value_parser = parse_category)]
    category: Option<Category>,
    /// The address it was for.
    #[arg(long, value_name = "ADDRESS", value_parser = super::parse_address)]
    to: Option<Address>,
    /// The recipient's external id or id.
    #[arg(long)]
    recipient: Option<String>,
    /// Failed at or after: a time, or how long ago (2h, 7d).
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    since: Option<When>,
    /// Failed before.
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    until: Option<When>,
}

impl FilterArgs {
    fn filter(&self, session: &Session, ids: &[EmailId]) -> DeadLetterFilter {
        let now = session.now();
        DeadLetterFilter {
            ids: (!ids.is_empty()).then(|| ids.to_vec()),
            code: self.code.clone(),
            category: self.category,
            to: self.to.clone(),
            recipient: self.recipient.clone(),
            since: self.since.map(|when| when.at(now)),
            until: self.until.map(|when| when.at(now)),
            mode: None,
        }
    }
}

pub async fn run(session: &Session, command: Command) -> anyhow::Result<()> {
    let store = session.store().await?;
    match command {
        Command::List(args) => list(session, &*store, &args).await?,
        Command::Replay(args) => replay_matching(session, store.clone(), &args).await?,
        Command::Drop(args) => drop_matching(session, &*store, &args).await?,
    }
    store.close().await;
    Ok(())
}

async fn list(session: &Session, store: &dyn Store, args: &ListArgs) -> anyhow::Result<()> {
    let company = company_named(store, &args.filter.company).await?;
    let filter = args.filter.filter(session, &[]);
    let mut rows = Vec::new();
    let mut listed = 0_u64;
    let mut after = None;
    while listed < args.limit {
        let limit = u32::try_from(args.limit - listed).unwrap_or(CHUNK).min(CHUNK);
        let page = store.dead_letters(company.id, &filter, after.as_ref(), limit).await?;
        listed += page.items.len() as u64;
        for email in &page.items {
            if session.out.is_json() {
                session.out.json(&letter_json(email))?;
            } else {
                rows.push(letter_row(session, email));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if session.out.is_json() {
        return Ok(());
    }
    session.out.table(&["ID", "FAILED", "ATTEMPTS", "TO", "CODE", "REASON"], &rows)?;
    if after.is_some() {
        let total = store.count_dead_letters(company.id, &filter).await?;
        session.out.line(format!("{listed} of {total}; --limit shows more"))?;
    }
    Ok(())
}

async fn replay_matching(
    session: &Session,
    store: std::sync::Arc<dyn Store>,
    args: &ChangeArgs,
) -> anyhow::Result<()> {
    let company = company_named(&*store, &args.filter.company).await?;
    let filter = chosen(session, args)?;
    let gateway = wire::gateway(&session.loaded.config, store)?;
    let mut total = replay::count(&gateway, company.id, &filter).await?;
    let mut is_interrupted = false;
    if !args.dry_run
        && total.matched > 0
        && may_change(session, args, "Replay", total.matched, &company.name)?
    {
        // Not before: at the question a signal ends the command at once.
        let stop = shutdown::on_signal()?;
        let mut progress = Progress::start(Show::unless(session.out, args.quiet), Some(total.matched));
        total.replayed =
            replay_all(&gateway, company.id, filter, total.matched, &mut progress, &stop).await?;
        progress.end();
        is_interrupted = stop.is_cancelled() && total.replayed < total.matched;
    }
    total.matched = total.matched.max(total.replayed);
    let line = match args.dry_run {
        true => format!("{} would be replayed", total.matched),
        false => format!("{} of {} replayed", total.replayed, total.matched),
    };
    session.out.result(&json!({ "matched": total.matched, "replayed": total.replayed }), line)?;
    if is_interrupted {
        bail!(INTERRUPTED);
    }
    check_all_were_there(args, total.matched)
}

async fn replay_all(
    gateway: &Gateway,
    company: CompanyId,
    filter: DeadLetterFilter,
    matched: u64,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> anyhow::Result<u64> {
    let mut replayed = 0;
    let mut steps = replay::Steps::begin(gateway, filter);
    while !stop.is_cancelled()
        && let Some(more) = to_its_end(steps.next(gateway, company), progress, stop).await?
    {
        replayed += more;
        progress.at(replayed, || format!("{replayed} of {matched} replayed"));
    }
    Ok(replayed)
}

/// A step is one transaction, and is counted only by who waits for it. Who interrupts hears at once that they were heard.
async fn to_its_end<T>(step: impl Future<Output = T>, progress: &Progress, stop: &CancellationToken) -> T {
    let mut step = pin!(step);
    tokio::select! {
        done = &mut step => return done,
        () = stop.cancelled() => progress.say("stopping after this step; Ctrl-C again ends it at once"),
    }
    step.await
}

/// Asks the person at a terminal, with the number, before many are changed.
fn may_change(
    session: &Session,
    args: &ChangeArgs,
    what: &str,
    matched: u64,
    company: &str,
) -> anyhow::Result<bool> {
    let names_them = !args.ids.is_empty();
    if args.yes || names_them || session.out.is_json() {
        return Ok(true);
    }
    let letters = if matched == 1 { "1 dead letter".to_owned() } else { format!("{matched} dead letters") };
    if !confirmed(&format!("{what} {letters} of {company}?"))? {
        bail!("nothing was changed");
    }
    Ok(true)
}

async fn drop_matching(session: &Session, store: &dyn Store, args: &ChangeArgs) -> anyhow::Result<()> {
    let company = company_named(store, &args.filter.company).await?;
    let filter = chosen(session, args)?;
    let matched = store.count_dead_letters(company.id, &filter).await?;
    let (mut dropped, mut is_interrupted) = (0, false);
    if !args.dry_run && matched > 0 && may_change(session, args, "Drop", matched, &company.name)? {
        let stop = shutdown::on_signal()?;
        let mut progress = Progress::start(Show::unless(session.out, args.quiet), Some(matched));
        dropped = drop_all(session, store, company.id, &filter, &mut progress, &stop).await?;
        progress.end();
        is_interrupted = stop.is_cancelled() && dropped < matched;
    }
    let line = match args.dry_run {
        true => format!("{matched} would be dropped"),
        false => format!("{dropped} of {matched} dropped"),
    };
    session.out.result(&json!({ "matched": matched, "dropped": dropped }), line)?;
    if is_interrupted {
        bail!(INTERRUPTED);
    }
    check_all_were_there(args, matched)
}

async fn drop_all(
    session: &Session,
    store: &dyn Store,
    company: CompanyId,
    filter: &DeadLetterFilter,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> anyhow::Result<u64> {
    let mut dropped = 0;
    let mut after = None;
    loop {
        let page = store.dead_letters(company, filter, after.as_ref(), CHUNK).await?;
        for email in page.items {
            if stop.is_cancelled() {
                return Ok(dropped);
            }
            dropped += u64::from(store.drop_dead_letter(company, email.id, session.now()).await?);
            progress.at(dropped, || format!("{dropped} dropped"));
        }
        after = page.next;
        if after.is_none() {
            return Ok(dropped);
        }
    }
}

/// Nothing is changed in bulk by leaving something out: all of them have to be asked for.
fn chosen(session: &Session, args: &ChangeArgs) -> anyhow::Result<DeadLetterFilter> {
    let filter = args.filter.filter(session, &args.ids);
    if filter == DeadLetterFilter::default() && !args.all {
        bail!(Usage("say which dead letters: ids, a filter such as --code, or --all".to_owned()));
    }
    Ok(filter)
}

fn check_all_were_there(args: &ChangeArgs, matched: u64) -> anyhow::Result<()> {
    let wanted = args.ids.len() as u64;
    let missing = wanted.checked_sub(matched).filter(|missing| *missing > 0);
    missing.map_or(Ok(()), |missing| {
        Err(anyhow::anyhow!("{missing} of {wanted} are not among the dead letters"))
    })
}

fn letter_row(session: &Session, email: &Email) -> Vec<String> {
    let failure = email.last_failure.as_ref();
    vec![
        email.id.to_string(),
        email.failed_at.map_or("-".to_owned(), |at| distance(at, session.now())),
        email.attempts.to_string(),
        email.envelope.to.expose().to_owned(),
        failure.map_or("-".to_owned(), |failure| failure.code.clone()),
        failure.map_or("-".to_owned(), |failure| failure.reason.clone()),
    ]
}

fn letter_json(email: &Email) -> Value {
    let failure = email.last_failure.as_ref();
    json!({
        "id": email.id.to_string(),
        "to": email.envelope.to.expose(),
        "attempts": email.attempts,
        "createdAt": email.created_at.to_string(),
        "failedAt": email.failed_at.map(|at| at.to_string()),
        "lastFailureCode": failure.map(|failure| failure.code.clone()),
        "lastFailureCategory": failure.map(|failure| failure.category.clone()),
        "lastFailureReason": failure.map(|failure| failure.reason.clone()),
    })
}

fn parse_category(text: &str) -> Result<Category, String> {
    let names = || Category::ALL.map(Category::as_str).join(", ");
    Category::parse(text).ok_or_else(|| format!("expected one of {}", names()))
}
