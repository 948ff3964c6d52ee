//! A copy of an email that is kept: sent once more as it was, or let out of the capture mailbox to a real provider by a
//! person. It is a new email, with a life and a history of its own.
//!
//! What ties it to the first one is its request id, `resend:` or `release:` and the id of the first: it is indexed, shown
//! and written with the email itself, and nobody can hand one in over HTTP. So either email leads to the other.

use model::email::Wishes;
use model::{
    Address, CompanySettings, Content, Email, EmailId, Envelope, KeyMode, Mailbox, NewEmail, Recipient,
    Status,
};
use store::StoreError;

use super::draft::Fault;
use super::known::SUPPRESSED;
use super::{Answer, Desk, NotTaken, Request, commit, prepared, rules, write_receipt};
use crate::gates::route_text;
use crate::keys::Caller;
use crate::suppressions::{names, recipients};
use crate::{CAPTURE, Gateway, lookup, route};

/// What a copy is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The same email once more.
    Resend,
    /// What was captured goes to a real provider.
    Release,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::Resend, Self::Release];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resend => "resend",
            Self::Release => "release",
        }
    }

    /// The request id of the copies of an email.
    pub fn request_id(self, original: EmailId) -> String {
        format!("{}:{original}", self.as_str())
    }
}

/// Which email one is a copy of, as its request id tells.
pub fn original_of(request_id: &str) -> Option<(Purpose, EmailId)> {
    let (word, id) = request_id.split_once(':')?;
    let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.as_str() == word)?;
    Some((purpose, id.parse().ok()?))
}

/// What is wanted.
#[derive(Debug, Clone)]
pub enum Order {
    Resend,
    Release {
        /// The first real one of the company's route unless named.
        provider: Option<String>,
        /// The email's own recipient unless named.
        to: Option<Address>,
    },
}

/// Why there is no copy. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum NotCopied {
    #[error("there is no such email")]
    Missing,
    #[error("its content is no longer kept")]
    ContentGone,
    /// It has not reached its end, or was refused as it came in.
    #[error("the email is {0}")]
    NotCopyable(Status),
    #[error("a test key never reaches a provider")]
    TestKey,
    #[error("no real provider is configured")]
    NoRealProvider,
    #[error("the environment keeps this email in the capture mailbox")]
    StaysCaptured,
    #[error("the copy is not acceptable")]
    Faults(Vec<Fault>),
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
}

impl From<StoreError> for NotCopied {
    fn from(error: StoreError) -> Self {
        Self::NotTaken(error.into())
    }
}

/// Makes the copy and answers as to any email that is handed in.
pub async fn copy(
    desk: &Desk,
    caller: &Caller,
    request: Request,
    id: EmailId,
    order: Order,
) -> Result<Answer, NotCopied> {
    let gateway = &desk.gateway;
    let found = lookup::content(gateway, caller.company.id, id).await?;
    let (original, content) = found.ok_or(NotCopied::Missing)?;
    let email = copied(gateway, caller, &request, original, content, order)?;
    let everybody: Vec<Address> = recipients(&email.envelope).cloned().collect();
    let suppressed = gateway.suppressions.among(&*gateway.store, caller.company.id, &everybody).await?;
    if names(&suppressed, &email.envelope.to) {
        let message = "is on the company's suppression list; lift it there first";
        return Err(NotCopied::Faults(vec![Fault::unacceptable("to", SUPPRESSED, message)]));
    }
    tracing::info!(
        outboxId = %email.id, requestId = email.request_id, companyId = %email.company, route = email.route,
        "a copy of an email was asked for"
    );
    let mut answer = String::from("{");
    write_receipt(&mut answer, &email, &[]);
    answer.push('}');
    Ok(commit(desk, prepared(&caller.company, request, vec![email], answer)).await?)
}

/// The copy, if there may be one. Pure.
fn copied(
    gateway: &Gateway,
    caller: &Caller,
    request: &Request,
    original: Email,
    content: Option<Content>,
    order: Order,
) -> Result<NewEmail, NotCopied> {
    if !original.status.is_final() || original.status == Status::Invalid {
        return Err(NotCopied::NotCopyable(original.status));
    }
    let (id, priority, external_id) = (original.id, original.priority, original.external_id.clone());
    let was_live = original.mode == KeyMode::Live;
    let plan = match order {
        Order::Resend => plan_resend(caller, original),
        Order::Release { provider, to } => plan_release(gateway, caller, original, provider, to)?,
    };
    let Plan { purpose, mode, mut envelope, recipient, entity, wishes } = plan;
    let content = content.ok_or(NotCopied::ContentGone)?;
    let (settings, company) = (&gateway.settings, &caller.company.settings);
    if was_live && matches!(content, Content::Composed { .. }) {
        forget_withdrawn_sender(&mut envelope, company);
    }
    let ways = route::ways(settings, &gateway.providers, company, mode, &wishes, &envelope);
    let is_captured = ways == [CAPTURE];
    if purpose == Purpose::Release && is_captured {
        return Err(NotCopied::StaysCaptured);
    }
    let sender = rules::sender(company, mode, envelope.from.as_ref(), is_captured);
    let faults: Vec<Fault> =
        sender.into_iter().chain(rules::sender_beside_from(company, mode, &content)).collect();
    if !faults.is_empty() {
        return Err(NotCopied::Faults(faults));
    }
    let now = request.now;
    Ok(NewEmail {
        id: EmailId::new(now),
        company: caller.company.id,
        request_id: purpose.request_id(id),
        mode,
        // Its content was checked when the first one was taken.
        status: Status::Enqueued,
        route: route_text(&ways),
        envelope: rules::with_sender(envelope, company),
        recipient,
        external_id,
        entity,
        priority,
        created_at: now,
        due_at: now,
        scheduled_at: None,
        expires_at: now.plus(settings.ttl),
        wishes,
        content,
        trace: None,
    })
}

/// A copy goes out as today's mail does: from today's default, where the company may no longer use the sender of the first.
/// An .eml names its sender itself, and a test email may have named anybody.
fn forget_withdrawn_sender(envelope: &mut Envelope, company: &CompanySettings) {
    let is_withdrawn = |from: &Mailbox| !company.may_send_as(&from.address);
    if company.from.is_some() && envelope.from.as_ref().is_some_and(is_withdrawn) {
        envelope.from = None;
    }
}

/// How the copy differs from the first.
struct Plan {
    purpose: Purpose,
    mode: KeyMode,
    envelope: Envelope,
    recipient: Option<Recipient>,
    entity: Option<model::Entity>,
    wishes: Wishes,
}

/// As it was. A test key makes a test email of it, whatever the first one was.
fn plan_resend(caller: &Caller, original: Email) -> Plan {
    let mode = if caller.key.mode == KeyMode::Test { KeyMode::Test } else { original.mode };
    Plan {
        purpose: Purpose::Resend,
        mode,
        envelope: original.envelope,
        recipient: original.recipient,
        entity: original.entity,
        wishes: original.wishes,
    }
}

/// To one address and nobody else: whoever releases an email names one, and copies would go to people nobody thought of.
/// Nothing of it counts for the entity, since it is no part of the company's real mail.
fn plan_release(
    gateway: &Gateway,
    caller: &Caller,
    original: Email,
    provider: Option<String>,
    to: Option<Address>,
) -> Result<Plan, NotCopied> {
    if caller.key.mode == KeyMode::Test {
        return Err(NotCopied::TestKey);
    }
    let provider = match provider {
        Some(name) if is_real(gateway, &name) => name,
        Some(_) => return Err(NotCopied::Faults(vec![not_real(gateway)])),
        None => first_real(gateway, caller).ok_or(NotCopied::NoRealProvider)?,
    };
    let same = to.as_ref().is_none_or(|to| to.same_mailbox(&original.envelope.to));
    let to = to.unwrap_or_else(|| original.envelope.to.clone());
    Ok(Plan {
        purpose: Purpose::Release,
        mode: KeyMode::Live,
        envelope: Envelope { to, cc: Vec::new(), bcc: Vec::new(), ..original.envelope },
        recipient: original.recipient.filter(|_| same),
        entity: None,
        wishes: Wishes { provider: Some(provider), callback_url: None, ..original.wishes },
    })
}

/// One that carries mail away.
fn is_real(gateway: &Gateway, name: &str) -> bool {
    gateway.providers.get(name).is_some_and(|provider| provider.kind() != CAPTURE)
}

fn not_real(gateway: &Gateway) -> Fault {
    let real: Vec<&str> =
        gateway.providers.keys().map(String::as_str).filter(|name| is_real(gateway, name)).collect();
    let there = if real.is_empty() { "none".to_owned() } else { real.join(", ") };
    let message = format!("is not a provider that sends; there are: {there}");
    Fault::unacceptable("provider", "UNKNOWN_PROVIDER", message)
}

/// Of the company's route, of the default route, of all.
fn first_real(gateway: &Gateway, caller: &Caller) -> Option<String> {
    let own = caller.company.settings.route.iter().flatten();
    let mut names = own.chain(&gateway.settings.default_route).chain(gateway.providers.keys());
    names.find(|name| is_real(gateway, name)).cloned()
}

#[cfg(test)]
mod tests {
    use testkit::START;

    use super::*;

    #[test]
    fn a_copy_names_its_original() {
        let id = EmailId::new(START);
        for purpose in Purpose::ALL {
            assert_eq!(original_of(&purpose.request_id(id)), Some((purpose, id)));
        }
        let foreign =
            [String::new(), "resend:".into(), format!("RESEND:{id}"), format!("x:{id}"), id.to_string()];
        for text in foreign {
            assert_eq!(original_of(&text), None, "{text}");
        }
    }
}
