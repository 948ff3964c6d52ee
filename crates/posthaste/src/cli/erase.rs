//! `posthaste erase --company NAME ADDRESS`: forgets a person, keeps the counts.

use anyhow::bail;
use model::Address;
use serde_json::json;
use store::Erased;

use super::{Session, company_named};

/// Emails per call of the store: one short transaction each.
const CHUNK: u32 = 200;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The company that is to forget the person.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// The person's address.
    #[arg(value_parser = super::parse_address)]
    address: Address,
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let mut total = Erased::default();
    loop {
        let erased = store.erase(company.id, &args.address, session.now(), CHUNK).await?;
        total.emails += erased.emails;
        total.recipients += erased.recipients;
        total.pending = erased.pending;
        if !erased.more {
            break;
        }
    }
    store.close().await;
    let json = json!({ "emails": total.emails, "recipients": total.recipients, "pending": total.pending });
    session
        .out
        .result(&json, format!("erased from {} emails and {} recipients", total.emails, total.recipients))?;
    if total.pending > 0 {
        bail!(
            "{} emails are at a provider right now and were left; run this again in a minute",
            total.pending
        );
    }
    Ok(())
}
