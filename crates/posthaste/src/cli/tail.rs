//! `posthaste tail`: what happens to emails, line by line, as it happens. Reads the store by the numbers of the events, so
//! it costs the same however long the history is, and waits for a store that goes away.

use std::collections::HashMap;
use std::time::Duration;

use model::{Address, CompanyId, EventKind, Status, Timestamp};
use serde_json::{Value, json};
use store::{Happening, Store, StoreError, Watch};
use tokio_util::sync::CancellationToken;

use super::out::{self, duration};
use super::{Session, When, company_named, note, parse_when};
use crate::shutdown;

/// Between two looks at the store when nothing is new.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at a store that is away.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Events are written a little after they happened, at the latest when an attempt ends.
const WRITTEN_WITHIN: Duration = Duration::from_secs(120);
const SUBJECT_LENGTH: usize = 40;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only emails of this company.
    #[arg(long, value_name = "NAME")]
    company: Option<String>,
    /// Only when an email comes to this status, such as FAILED. May be repeated.
    #[arg(long, value_name = "STATUS", value_parser = parse_status)]
    status: Vec<Status>,
    /// Only these events, such as OPENED. May be repeated.
    #[arg(long, value_name = "EVENT", value_parser = parse_event)]
    event: Vec<EventKind>,
    /// Only emails about this entity, by its id.
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Only emails to this address.
    #[arg(long, value_name = "ADDRESS", value_parser = super::parse_address)]
    to: Option<Address>,
    /// Begin in the past: a time, or how long ago (15m, 2h) [default: now].
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    since: Option<When>,
    /// End after this many lines [default: go on until Ctrl-C].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Whole ids and subjects.
    #[arg(long)]
    long: bool,
}

/// What is shown of all that happens.
struct Filter {
    company: Option<CompanyId>,
    statuses: Vec<Status>,
    events: Vec<EventKind>,
    entity: Option<String>,
    to: Option<Address>,
    since: Option<Timestamp>,
}

impl Filter {
    fn lets_pass(&self, happening: &Happening) -> bool {
        let Happening { company, to, entity, event, .. } = happening;
        self.company.is_none_or(|wanted| wanted == *company)
            && (self.statuses.is_empty() || reached(event.kind).is_some_and(|it| self.statuses.contains(&it)))
            && (self.events.is_empty() || self.events.contains(&event.kind))
            && self.entity.as_ref().is_none_or(|wanted| entity.as_ref() == Some(wanted))
            && self.to.as_ref().is_none_or(|wanted| wanted.same_mailbox(to))
            && self.since.is_none_or(|since| event.at >= since)
    }
}

/// The status an email has come to with this event.
fn reached(kind: EventKind) -> Option<Status> {
    match kind {
        EventKind::Accepted => Some(Status::Accepted),
        EventKind::Enqueued | EventKind::Replayed => Some(Status::Enqueued),
        EventKind::Received => Some(Status::Processing),
        EventKind::RetryScheduled => Some(Status::RetryScheduled),
        EventKind::Sent => Some(Status::Sent),
        EventKind::Delivered => Some(Status::Delivered),
        EventKind::Bounced => Some(Status::Bounced),
        EventKind::Complained => Some(Status::Complained),
        EventKind::Failed => Some(Status::Failed),
        EventKind::Invalid => Some(Status::Invalid),
        EventKind::Expired => Some(Status::Expired),
        EventKind::Cancelled => Some(Status::Cancelled),
        _ => None,
    }
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let Some(store) = stop.run_until_cancelled(session.store()).await else { return Ok(()) };
    let store = store?;
    let now = session.now();
    let filter = Filter {
        company: match &args.company {
            Some(name) => Some(company_named(&*store, name).await?.id),
            None => None,
        },
        statuses: args.status.clone(),
        events: args.event.clone(),
        entity: args.entity.clone(),
        to: args.to.clone(),
        since: args.since.map(|when| when.at(now)),
    };
    let first = match filter.since {
        Some(since) => store.first_event_since(since.minus(WRITTEN_WITHIN)).await?,
        None => store.last_event().await? + 1,
    };
    if !session.out.is_json() {
        note(format_args!("Following what happens; Ctrl-C ends it."));
    }
    let mut printer = Printer::new(session, args);
    let followed = follow(session, &*store, Watch::from(first), &filter, &mut printer, &stop).await;
    store.close().await;
    followed
}

/// Until it is stopped, or has printed enough.
async fn follow(
    session: &Session,
    store: &dyn Store,
    mut watch: Watch,
    filter: &Filter,
    printer: &mut Printer<'_>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut is_away = false;
    loop {
        let look = look(store, &mut watch, filter, printer, session.now());
        let pause = match stop.run_until_cancelled(look).await {
            None | Some(Ok(Enough::Yes)) => return Ok(()),
            Some(Ok(Enough::No)) => {
                if std::mem::take(&mut is_away) {
                    note(format_args!("posthaste: the store is back"));
                }
                if watch.is_behind() { Duration::ZERO } else { LOOK_EVERY }
            }
            Some(Err(error)) if error.downcast_ref().is_some_and(StoreError::is_temporary) => {
                if !std::mem::replace(&mut is_away, true) {
                    note(format_args!("posthaste: {error:#}; trying again"));
                }
                AGAIN_AFTER
            }
            Some(Err(error)) => return Err(error),
        };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enough {
    Yes,
    No,
}

async fn look(
    store: &dyn Store,
    watch: &mut Watch,
    filter: &Filter,
    printer: &mut Printer<'_>,
    now: Timestamp,
) -> anyhow::Result<Enough> {
    // Before the events are read, since what is read and not printed would be lost by an error.
    printer.learn_companies(store).await?;
    for happening in watch.look(store, now).await? {
        if filter.lets_pass(&happening) && printer.print(&happening)? == Enough::Yes {
            return Ok(Enough::Yes);
        }
    }
    Ok(Enough::No)
}

struct Printer<'s> {
    session: &'s Session,
    companies: HashMap<CompanyId, String>,
    /// A company came that is not known by name yet.
    is_unsure: bool,
    left: Option<u64>,
    looks: Looks,
}

/// How a line for people looks.
#[derive(Debug, Clone, Copy)]
struct Looks {
    colours: bool,
    long: bool,
    /// Not where all are of one company.
    with_company: bool,
}

impl<'s> Printer<'s> {
    fn new(session: &'s Session, args: &Args) -> Self {
        let looks =
            Looks { colours: out::has_colours(), long: args.long, with_company: args.company.is_none() };
        Self { session, companies: HashMap::new(), is_unsure: true, left: args.limit, looks }
    }

    async fn learn_companies(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if std::mem::take(&mut self.is_unsure) {
            let companies = store.companies().await.inspect_err(|_| self.is_unsure = true)?;
            self.companies = companies.into_iter().map(|company| (company.id, company.name)).collect();
        }
        Ok(())
    }

    fn print(&mut self, happening: &Happening) -> std::io::Result<Enough> {
        let name = self.companies.get(&happening.company).cloned();
        self.is_unsure |= name.is_none();
        let name = name.unwrap_or_else(|| happening.company.to_string());
        let out = self.session.out;
        if out.is_json() {
            out.json(&line_json(happening, &name))?;
        } else {
            out.line(line(happening, &name, self.looks))?;
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(if self.left == Some(0) { Enough::Yes } else { Enough::No })
    }
}

fn line_json(happening: &Happening, company: &str) -> Value {
    json!({
        "number": happening.number,
        "at": happening.event.at.to_string(),
        "type": happening.event.kind.as_str(),
        "id": happening.email.to_string(),
        "company": company,
        "mode": happening.mode.as_str(),
        "status": happening.status.as_str(),
        "to": happening.to.expose(),
        "subject": happening.subject.expose(),
        "entity": happening.entity,
        "provider": provider(happening),
        "metadata": happening.event.metadata,
    })
}

/// Time, event, email, company, address, subject, provider, cause.
fn line(happening: &Happening, company: &str, looks: Looks) -> String {
    let kind = happening.event.kind;
    let time = happening.event.at.to_string();
    let time = time.get(5..23).unwrap_or(&time).replace('T', " ");
    let id = happening.email.to_string();
    let id = if looks.long { id } else { format!("…{}", id.get(24..).unwrap_or(&id)) };
    let subject = happening.subject.expose();
    let subject = if looks.long { subject.clone() } else { shortened(subject, SUBJECT_LENGTH) };
    let padded = format!("{:<17}", kind.as_str());
    let painted = match colour(kind) {
        Some(colour) if looks.colours => format!("\x1b[{colour}m{padded}\x1b[0m"),
        _ => padded,
    };
    let mut line = format!("{time}  {painted}  {id}");
    if looks.with_company {
        line.push_str(&format!("  {}", printable(company)));
    }
    line.push_str(&format!("  {}  {:?}", printable(happening.to.expose()), printable(&subject)));
    if let Some(provider) = provider(happening) {
        line.push_str(&format!("  via {}", printable(provider)));
    }
    if let Some(cause) = cause(happening) {
        line.push_str(&format!("  {}", printable(&cause)));
    }
    line
}

/// Whom this event is about: the one it names, or from the attempt on the one that was tried.
fn provider(happening: &Happening) -> Option<&str> {
    let named = happening.event.metadata.get("provider").and_then(Value::as_str);
    let is_before_it = matches!(
        happening.event.kind,
        EventKind::Accepted
            | EventKind::Intaking
            | EventKind::Invalid
            | EventKind::Enqueued
            | EventKind::Received
            | EventKind::Validated
            | EventKind::ValidationFailed
            | EventKind::Replayed
    );
    named.or(happening.provider.as_deref().filter(|_| !is_before_it))
}

/// Why it happened, and what follows.
fn cause(happening: &Happening) -> Option<String> {
    let metadata = &happening.event.metadata;
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut parts: Vec<String> = Vec::new();
    match (text("errorCode"), text("errorMessage")) {
        (Some(code), Some(message)) => parts.push(format!("{code}: {message}")),
        (Some(code), None) => parts.push(code.to_owned()),
        (None, _) => parts.extend(text("reason").map(str::to_owned)),
    }
    if let Some(delay) = metadata.get("backoffDelay").and_then(Value::as_u64) {
        parts.push(format!("again in {}", duration(Duration::from_millis(delay))));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Green went well, red did not, yellow may still, grey is on the way.
fn colour(kind: EventKind) -> Option<u8> {
    match kind {
        EventKind::Sent | EventKind::Delivered | EventKind::Opened | EventKind::Clicked => Some(32),
        EventKind::Failed
        | EventKind::Bounced
        | EventKind::Complained
        | EventKind::Invalid
        | EventKind::Expired
        | EventKind::ValidationFailed => Some(31),
        EventKind::RetryScheduled
        | EventKind::OutcomeUnknown
        | EventKind::LeaseLost
        | EventKind::LateResult
        | EventKind::SoftBounced
        | EventKind::DeliveryDelayed => Some(33),
        EventKind::Received | EventKind::Validated | EventKind::SentAttempt | EventKind::Intaking => Some(90),
        _ => None,
    }
}

fn shortened(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length - 1).chain(['…']).collect()
}

/// A subject or a server's answer must not give orders to the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn parse_status(text: &str) -> Result<Status, String> {
    let names = || Status::ALL.map(Status::as_str).join(", ");
    text.to_ascii_uppercase().parse().map_err(|_| format!("expected one of {}", names()))
}

fn parse_event(text: &str) -> Result<EventKind, String> {
    let names = || EventKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
    text.to_ascii_uppercase().parse().map_err(|_| format!("expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use model::{Address, EmailId, Event, KeyMode, Secret};
    use testkit::START;

    use super::*;

    const PLAIN: Looks = Looks { colours: false, long: false, with_company: true };

    fn happening(event: Event) -> Happening {
        Happening {
            number: 7,
            email: EmailId::from_parts(START, [7; 10]),
            company: CompanyId::new(START),
            mode: KeyMode::Live,
            status: Status::Failed,
            to: Address::trusted("ana@example.com".into()),
            subject: Secret::new("Your order".into()),
            entity: Some("order-7".into()),
            provider: Some("main".into()),
            event,
        }
    }

    #[test]
    fn a_line_says_what_happened_to_which_email_and_why() {
        let event = Event::new(EventKind::RetryScheduled, START)
            .with("errorCode", "SMTP_TRANSIENT_450")
            .with("errorMessage", "try later")
            .with("backoffDelay", 5_000);
        let line = line(&happening(event), "acme", PLAIN);
        for part in [
            "  RETRY_SCHEDULED  ",
            "acme  ana@example.com  \"Your order\"  via main",
            "SMTP_TRANSIENT_450: try later; again in 5 s",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!line.contains('\x1b'), "{line}");
    }

    #[test]
    fn hostile_words_give_no_orders_to_the_terminal() {
        let mut hostile = happening(Event::new(EventKind::Sent, START).with("reason", "\x1b]0;x\x07"));
        hostile.subject = Secret::new("a\x1b[2J\r\nb".into());
        let line = line(&hostile, "ac\x1bme", PLAIN);
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }

    #[test]
    fn long_subjects_and_ids_are_shortened_unless_asked_for() {
        let mut happening = happening(Event::new(EventKind::Sent, START));
        happening.subject = Secret::new("x".repeat(80));
        let id = happening.email.to_string();
        let short = line(&happening, "acme", PLAIN);
        assert!(!short.contains(&id) && short.contains(&id[24..]) && short.contains("xxx…"), "{short}");
        let long = line(&happening, "acme", Looks { long: true, ..PLAIN });
        assert!(long.contains(&id) && long.contains(&"x".repeat(80)), "{long}");
    }

    #[test]
    fn filters() {
        let happening = happening(Event::new(EventKind::Failed, START));
        let all = || Filter {
            company: None,
            statuses: vec![],
            events: vec![],
            entity: None,
            to: None,
            since: None,
        };
        let address = |text: &str| Some(Address::trusted(text.into()));
        let later = START.plus(Duration::from_secs(1));
        let cases = [
            ("none", all(), true),
            ("company", Filter { company: Some(happening.company), ..all() }, true),
            ("other company", Filter { company: Some(CompanyId::new(START)), ..all() }, false),
            ("status", Filter { statuses: vec![Status::Sent, Status::Failed], ..all() }, true),
            ("other status", Filter { statuses: vec![Status::Sent], ..all() }, false),
            ("event", Filter { events: vec![EventKind::Failed], ..all() }, true),
            ("other event", Filter { events: vec![EventKind::Opened], ..all() }, false),
            ("entity", Filter { entity: Some("order-7".into()), ..all() }, true),
            ("other entity", Filter { entity: Some("order".into()), ..all() }, false),
            ("address", Filter { to: address("ANA@example.com"), ..all() }, true),
            ("other address", Filter { to: address("bob@example.com"), ..all() }, false),
            ("since", Filter { since: Some(START), ..all() }, true),
            ("later", Filter { since: Some(later), ..all() }, false),
        ];
        for (case, filter, passes) in cases {
            assert_eq!(filter.lets_pass(&happening), passes, "{case}");
        }
    }

    /// Every status but those that an email leaves at once can be waited for.
    #[test]
    fn every_status_is_reached_by_an_event() {
        for status in Status::ALL {
            assert!(EventKind::ALL.iter().any(|kind| reached(*kind) == Some(status)), "{status}");
        }
    }
}
