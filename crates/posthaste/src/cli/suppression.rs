//! `posthaste suppression list|add|lift`: addresses a company does not write to.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use model::suppression::SUPPRESSION_REASON_LENGTH_MAX;
use model::{Address, Suppression, SuppressionSource};
use serde_json::json;

use super::out::distance;
use super::{Session, Usage, company_named, parse_address};

/// Addresses per call of the store.
const CHUNK: usize = 500;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the addresses, newest first
    List(ListArgs),
    /// Put addresses on the list
    Add(AddArgs),
    /// Take addresses off the list
    Lift(LiftArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// The company whose list it is.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// How many at most.
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The company whose list it is.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// The addresses.
    #[arg(value_name = "ADDRESS", value_parser = parse_address)]
    addresses: Vec<Address>,
    /// A file with one address per line; - is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Why, for those who look at the list.
    #[arg(long, default_value = "added by the operator")]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub struct LiftArgs {
    /// The company whose list it is.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// The addresses.
    #[arg(value_name = "ADDRESS", required = true, value_parser = parse_address)]
    addresses: Vec<Address>,
}

pub async fn run(session: &Session, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(session, &args).await,
        Command::Add(args) => add(session, args).await,
        Command::Lift(args) => lift(session, &args).await,
    }
}

async fn list(session: &Session, args: &ListArgs) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let mut found: Vec<Suppression> = Vec::new();
    let mut after = None;
    while found.len() < args.limit {
        let wanted = u32::try_from((args.limit - found.len()).min(CHUNK)).unwrap_or(1);
        let page = store.suppressions(company.id, after.as_ref(), wanted).await?;
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    store.close().await;
    if session.out.is_json() {
        for one in &found {
            session.out.json(&json!({
                "email": one.address.expose(),
                "reason": one.reason,
                "source": one.source.as_str(),
                "emailId": one.email.map(|id| id.to_string()),
                "createdAt": one.created_at.to_string(),
            }))?;
        }
        return Ok(());
    }
    let now = session.now();
    let row = |one: &Suppression| {
        let since = distance(one.created_at, now);
        vec![one.address.expose().to_owned(), one.source.as_str().to_owned(), since, one.reason.clone()]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    session.out.table(&["ADDRESS", "SOURCE", "SINCE", "REASON"], &rows)?;
    Ok(())
}

async fn add(session: &Session, args: AddArgs) -> anyhow::Result<()> {
    let length = args.reason.chars().count();
    if !(1..=SUPPRESSION_REASON_LENGTH_MAX).contains(&length) || args.reason.chars().any(char::is_control) {
        bail!(Usage(format!(
            "the reason has 1 to {SUPPRESSION_REASON_LENGTH_MAX} characters and no line breaks"
        )));
    }
    let mut addresses = args.addresses;
    if let Some(file) = &args.file {
        addresses.extend(read(file)?);
    }
    if addresses.is_empty() {
        bail!(Usage("name addresses, or a file with --file".to_owned()));
    }
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let now = session.now();
    let mut new = 0;
    for chunk in addresses.chunks(CHUNK) {
        let suppression = |address: &Address| Suppression {
            address: address.clone(),
            reason: args.reason.clone(),
            source: SuppressionSource::Operator,
            email: None,
            created_at: now,
        };
        new += store.suppress(company.id, chunk.iter().map(suppression).collect()).await?;
    }
    store.close().await;
    let known = addresses.len() - new as usize;
    let json = json!({ "added": new, "known": known });
    session.out.result(&json, format!("{new} added, {known} on the list already"))?;
    Ok(())
}

/// One address per line; a line that holds none is named, and nothing is changed.
fn read(file: &Path) -> anyhow::Result<Vec<Address>> {
    let lines: Box<dyn std::io::BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        Box::new(std::io::BufReader::new(file))
    };
    let mut addresses = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.context("the file cannot be read")?;
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let address = Address::parse(text);
        addresses.push(address.map_err(|error| Usage(format!("line {}: the address {error}", number + 1)))?);
    }
    Ok(addresses)
}

async fn lift(session: &Session, args: &LiftArgs) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let mut lifted = 0;
    for address in &args.addresses {
        lifted += u32::from(store.lift(company.id, address).await?);
    }
    store.close().await;
    let missing = args.addresses.len() - lifted as usize;
    session.out.result(
        &json!({ "lifted": lifted, "missing": missing }),
        format!("{lifted} lifted, {missing} were not on the list"),
    )?;
    if lifted == 0 {
        bail!("no address was on the list of {}", company.name);
    }
    Ok(())
}
