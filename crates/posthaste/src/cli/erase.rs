//! `posthaste erase --company NAME ADDRESS`: forgets a person, keeps the counts.

use anyhow::bail;
use model::Address;
use serde_json::json;
use store::Erased;

use super::progress::{Progress, Show};
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
    let mut progress = Progress::start(Show::unless(session.out, false), None);
    loop {
        let step = store.erase(company.id, &args.address, total.next.as_ref(), session.now(), CHUNK).await?;
        total = Erased {
            emails: total.emails + step.emails,
            recipients: total.recipients + step.recipients,
            pending: total.pending + step.pending,
            next: step.next,
        };
        progress.at(total.emails, || format!("erased from {} emails so far", total.emails));
        if total.next.is_none() {
            break;
        }
    }
    progress.end();
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
