//! `posthaste trigger EVENT ID`: plays a provider's report of an email, so that what follows from it can be seen without
//! a provider: status, history, suppression, alert.

use anyhow::{Context as _, bail};
use gateway::sandbox::{PLAYED, play};
use model::company::KeyMode;
use model::{EmailId, ReportKind};
use serde_json::json;
use store::Reported;

use super::{Session, Usage, parse_id};
use crate::wire;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// sent, delivered, delayed, bounced, soft-bounced, complained, failed, opened or clicked.
    #[arg(value_parser = parse_kind)]
    event: ReportKind,
    /// The email's id.
    #[arg(value_parser = parse_id)]
    id: EmailId,
    /// Also for an email of a live key, whose status and suppressions are real.
    #[arg(long)]
    live: bool,
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let store = session.store().await?;
    let missing = || format!("there is no email {}", args.id);
    let company = store.company_of(args.id).await?.with_context(missing)?;
    let email = store.email(company, args.id).await?.with_context(missing)?;
    if email.mode == KeyMode::Live && !args.live {
        bail!(Usage("the email was sent with a live key; add --live if you mean it".to_owned()));
    }
    let gateway = wire::gateway(&session.loaded.config, store.clone())?;
    let provider = email.provider.unwrap_or_else(|| gateway::CAPTURE.to_owned());
    let report = format!("trigger:{}", EmailId::new(session.now()));
    let reported = play(&gateway, &provider, args.id, args.event, report).await?;
    store.close().await;
    let Reported::Applied { status, moved, .. } = reported else {
        bail!("the report was not taken: {reported:?}")
    };
    let json = json!({ "id": args.id.to_string(), "status": status.as_str(), "moved": moved });
    let words = if moved { "is now" } else { "stays" };
    session.out.result(&json, format!("{} {words} {status}", args.id))?;
    Ok(())
}

fn parse_kind(text: &str) -> Result<ReportKind, String> {
    let names = || PLAYED.map(|(name, _)| name).join(", ");
    let found = PLAYED.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, kind)| kind).ok_or_else(|| format!("expected one of {}", names()))
}
