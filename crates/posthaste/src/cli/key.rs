//! `posthaste key create|list|revoke`.

use std::time::Duration;

use anyhow::bail;
use gateway::keys::make_key;
use model::{ApiKey, Company, KeyMode, Scope};
use serde_json::{Value, json};
use store::Store;

use super::out::distance;
use super::{Session, company_named, note};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a key and print it, this once
    Create(CreateArgs),
    /// List keys
    List(ListArgs),
    /// Revoke a key
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// The company it is for.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// Captures mail instead of sending it.
    #[arg(long)]
    test: bool,
    /// What the key may do: send, read or admin. May be repeated.
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope, default_values = ["send", "read"])]
    scope: Vec<Scope>,
    /// A note to recognise it by.
    #[arg(long)]
    label: Option<String>,
    /// After how many days it ends by itself.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    expires_days: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Of this company only.
    #[arg(long, value_name = "NAME")]
    company: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// Of this company only.
    #[arg(long, value_name = "NAME")]
    company: Option<String>,
    /// The key's id, or the beginning of the key as the list shows it.
    key: String,
}

pub async fn run(session: &Session, command: Command) -> anyhow::Result<()> {
    let store = session.store().await?;
    match command {
        Command::Create(args) => create(session, &*store, args).await?,
        Command::List(args) => list(session, &*store, args).await?,
        Command::Revoke(args) => revoke(session, &*store, args).await?,
    }
    store.close().await;
    Ok(())
}

/// Standard output gets the key and nothing else, so that `KEY=$(posthaste key create …)` works.
async fn create(session: &Session, store: &dyn Store, args: CreateArgs) -> anyhow::Result<()> {
    let company = company_named(store, &args.company).await?;
    let now = session.now();
    let mode = if args.test { KeyMode::Test } else { KeyMode::Live };
    let expires_at = args.expires_days.map(|days| now.plus(DAY * days));
    let mut scopes = args.scope;
    scopes.dedup();
    let made = make_key(company.id, mode, scopes, args.label, expires_at, now);
    store.add_key(made.record.clone()).await?;
    let mut json = key_json(&company, &made.record);
    if let Value::Object(members) = &mut json {
        members.insert("key".to_owned(), json!(made.text.expose()));
    }
    session.out.result(&json, made.text.expose())?;
    if !session.out.is_json() {
        note(format_args!("This is the only time the key is shown. Its id is {}.", made.record.id));
    }
    Ok(())
}

async fn list(session: &Session, store: &dyn Store, args: ListArgs) -> anyhow::Result<()> {
    let now = session.now();
    let mut rows = Vec::new();
    for (company, key) in keys(store, args.company.as_deref()).await? {
        if session.out.is_json() {
            session.out.json(&key_json(&company, &key))?;
            continue;
        }
        let state = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(end)) if end <= now => "expired",
            _ => "valid",
        };
        rows.push(vec![
            company.name,
            key.id.to_string(),
            format!("{}…", key.prefix),
            scope_names(&key).join(","),
            state.to_owned(),
            key.last_used_at.map_or("never".to_owned(), |at| distance(at, now)),
            key.label.unwrap_or_default(),
        ]);
    }
    if !session.out.is_json() {
        session.out.table(&["COMPANY", "ID", "KEY", "SCOPES", "STATE", "LAST USED", "LABEL"], &rows)?;
    }
    Ok(())
}

async fn revoke(session: &Session, store: &dyn Store, args: RevokeArgs) -> anyhow::Result<()> {
    let wanted = args.key.trim().trim_end_matches('…');
    let is_meant =
        |key: &ApiKey| key.id.to_string() == wanted || (!wanted.is_empty() && key.prefix == wanted);
    let mut found = keys(store, args.company.as_deref()).await?;
    found.retain(|(_, key)| is_meant(key));
    let (company, key) = match found.as_slice() {
        [one] => one,
        [] => bail!("there is no such key; see `posthaste key list`"),
        _ => bail!("several keys begin so; name one by its id, see `posthaste key list`"),
    };
    store.revoke_key(company.id, key.id, session.now()).await?;
    let line = format!(
        "key {}… of {} is revoked; running servers refuse it within 5 seconds",
        key.prefix, company.name
    );
    session.out.result(&json!({ "id": key.id.to_string(), "revoked": true }), line)?;
    Ok(())
}

async fn keys(store: &dyn Store, company: Option<&str>) -> anyhow::Result<Vec<(Company, ApiKey)>> {
    let companies = match company {
        Some(name) => vec![company_named(store, name).await?],
        None => store.companies().await?,
    };
    let mut keys = Vec::new();
    for company in companies {
        keys.extend(store.keys(company.id).await?.into_iter().map(|key| (company.clone(), key)));
    }
    Ok(keys)
}

fn scope_names(key: &ApiKey) -> Vec<&'static str> {
    key.scopes.iter().map(|scope| scope.as_str()).collect()
}

fn key_json(company: &Company, key: &ApiKey) -> Value {
    json!({
        "id": key.id.to_string(),
        "company": company.name,
        "mode": key.mode.as_str(),
        "scopes": scope_names(key),
        "prefix": key.prefix,
        "label": key.label,
        "createdAt": key.created_at.to_string(),
        "expiresAt": key.expires_at.map(|at| at.to_string()),
        "revokedAt": key.revoked_at.map(|at| at.to_string()),
        "lastUsedAt": key.last_used_at.map(|at| at.to_string()),
    })
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| "expected send, read or admin".to_owned())
}
