//! `posthaste company add|list`.

use anyhow::bail;
use model::{Address, Company, CompanyId, CompanySettings, Mailbox, OnUnknown};
use serde_json::json;

use super::{Session, Usage, company_named};
use crate::config::Config;

const NAME_LENGTH_MAX: usize = 100;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Add a company
    Add(Box<AddArgs>),
    /// List all companies
    List,
    /// Let a paused company send again
    Resume {
        /// The company's name.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// Its name, by which commands and lists know it.
    name: String,
    /// The sender of emails that name none, such as "Shop <orders@example.com>".
    #[arg(long, value_name = "MAILBOX", value_parser = super::parse_mailbox)]
    from: Option<Mailbox>,
    /// Whom else it may send as: an address or @domain. May be repeated.
    #[arg(long, value_name = "SENDER", value_parser = parse_sender)]
    sender: Vec<String>,
    /// Its share of the workers against other companies.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    weight: u32,
    /// Providers to use, in order, separated by commas, instead of the default route.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    route: Option<Vec<String>>,
    /// How many of its emails may be in flight at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency_max: Option<u32>,
    /// How many of its emails may be started per second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate_per_sec: Option<u32>,
    /// How many emails it may hand in per day.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    daily_limit: Option<u32>,
    /// The retry policy of its emails that name none.
    #[arg(long, value_name = "NAME")]
    retry_policy: Option<String>,
    /// What to do when a provider may or may not have taken an email: retry or hold.
    #[arg(long, value_name = "CHOICE", value_parser = parse_on_unknown)]
    on_unknown: Option<OnUnknown>,
    /// Where its alerts go.
    #[arg(long, value_name = "ADDRESS", value_parser = super::parse_address)]
    admin_email: Option<Address>,
}

pub async fn run(session: &Session, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add(args) => add(session, *args).await,
        Command::List => list(session).await,
        Command::Resume { name } => resume(session, &name).await,
    }
}

async fn add(session: &Session, args: AddArgs) -> anyhow::Result<()> {
    check_name(&args.name)?;
    check_names_in_configuration(&session.loaded.config, &args)?;
    let now = session.now();
    let company = Company {
        id: CompanyId::new(now),
        name: args.name.trim().to_owned(),
        settings: CompanySettings {
            from: args.from,
            senders: args.sender,
            route: args.route,
            weight: args.weight,
            concurrency_max: args.concurrency_max,
            rate_per_sec: args.rate_per_sec,
            daily_limit: args.daily_limit,
            retry_policy: args.retry_policy,
            on_unknown: args.on_unknown,
            admin_email: args.admin_email,
        },
        created_at: now,
        disabled_at: None,
        pause: None,
        resumed_at: None,
    };
    let store = session.store_or_new().await?;
    store.add_company(company.clone()).await?;
    store.close().await;
    let line =
        format!("company {} added; give it a key with: posthaste key create --company {0:?}", company.name);
    session.out.result(&api::company_json(&company), line)?;
    Ok(())
}

async fn resume(session: &Session, name: &str) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, name).await?;
    let resumed = store.resume_company(company.id, session.now()).await?;
    store.close().await;
    if !resumed {
        bail!("the company {name:?} is not paused");
    }
    let json = json!({ "id": company.id.to_string(), "name": company.name, "resumed": true });
    session.out.result(
        &json,
        format!("company {} sends again; what bounced before today counts no more", company.name),
    )?;
    Ok(())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let is_fine = !name.trim().is_empty()
        && name.chars().count() <= NAME_LENGTH_MAX
        && !name.chars().any(char::is_control);
    if !is_fine {
        bail!(Usage(format!(
            "the name of a company has 1 to {NAME_LENGTH_MAX} characters and no line breaks"
        )));
    }
    Ok(())
}

/// A route or policy that does not exist would only be noticed when the first email fails.
fn check_names_in_configuration(config: &Config, args: &AddArgs) -> anyhow::Result<()> {
    let unknown = args.route.iter().flatten().find(|name| !config.providers.contains_key(*name));
    if let Some(name) = unknown {
        let known: Vec<&str> = config.providers.keys().map(String::as_str).collect();
        bail!(Usage(format!(
            "there is no provider `{name}` in the configuration; there are: {}",
            known.join(", ")
        )));
    }
    if let Some(name) = args.retry_policy.as_ref().filter(|name| !config.retry_policies.contains_key(*name)) {
        let known: Vec<&str> = config.retry_policies.keys().map(String::as_str).collect();
        bail!(Usage(format!("there is no retry policy `{name}`; there are: {}", known.join(", "))));
    }
    Ok(())
}

async fn list(session: &Session) -> anyhow::Result<()> {
    let store = session.store().await?;
    let companies = store.companies().await?;
    store.close().await;
    if session.out.is_json() {
        for company in &companies {
            session.out.json(&api::company_json(company))?;
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = companies
        .iter()
        .map(|company| {
            vec![
                company.name.clone(),
                company.id.to_string(),
                company.settings.weight.to_string(),
                company.settings.from.as_ref().map_or("-".to_owned(), Mailbox::expose),
                state(company),
            ]
        })
        .collect();
    session.out.table(&["NAME", "ID", "WEIGHT", "FROM", "STATE"], &rows)?;
    Ok(())
}

fn state(company: &Company) -> String {
    match (company.disabled_at, &company.pause) {
        (Some(at), _) => format!("off since {at}"),
        (None, Some(pause)) => format!("paused since {}: {}", pause.at, pause.reason),
        (None, None) => "on".to_owned(),
    }
}

fn parse_sender(text: &str) -> Result<String, String> {
    let whole = text.strip_prefix('@').map_or(text.to_owned(), |domain| format!("x@{domain}"));
    let address = Address::parse(&whole)
        .map_err(|_| "expected an address (a@b.com) or a domain (@b.com)".to_owned())?;
    Ok(match text.strip_prefix('@') {
        Some(_) => format!("@{}", address.domain()),
        None => address.expose().to_owned(),
    })
}

fn parse_on_unknown(text: &str) -> Result<OnUnknown, String> {
    OnUnknown::parse(text).ok_or_else(|| "expected retry or hold".to_owned())
}
