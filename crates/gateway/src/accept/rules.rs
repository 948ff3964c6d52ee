//! What makes an email acceptable: pure rules over a draft, the company and the operator's settings.

use std::time::Duration;

use model::email::Wishes;
use model::{Address, CompanySettings, Content, Envelope, KeyMode, Mailbox, Timestamp};

use super::draft::{Fault, Note, When};
use crate::route::{Providers, SANDBOX_DOMAIN};
use crate::{CAPTURE, EnvironmentGuard, Settings};

/// How far ahead an email may be scheduled.
pub const SCHEDULE_AHEAD_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// When an email is due, and what to tell about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Schedule {
    pub due_at: Timestamp,
    /// Set when a later time was asked for.
    pub scheduled_at: Option<Timestamp>,
    pub note: Option<Note>,
}

/// A time in the past means now; one too far ahead is refused.
pub fn schedule(when: When, now: Timestamp) -> Result<Schedule, Fault> {
    let latest = now.plus(SCHEDULE_AHEAD_MAX);
    let (field, wanted) = match when {
        When::Now => return Ok(Schedule { due_at: now, scheduled_at: None, note: None }),
        When::After(delay) => ("delay", now.plus(delay)),
        When::At(moment) => ("scheduledAt", moment),
    };
    if wanted > latest {
        return Err(Fault::wrong(field, "OUT_OF_RANGE", "is more than 30 days ahead"));
    }
    if wanted > now {
        return Ok(Schedule { due_at: wanted, scheduled_at: Some(wanted), note: None });
    }
    let note = matches!(when, When::At(_)).then(|| Note {
        field: field.into(),
        code: "SCHEDULED_IN_PAST",
        message: "is in the past; the email is sent now".into(),
    });
    Ok(Schedule { due_at: now, scheduled_at: None, note })
}

/// May the company send as this sender, and is there any? Test keys never reach a provider and may use all.
pub fn sender(
    company: &CompanySettings,
    mode: KeyMode,
    from: Option<&Mailbox>,
    route_is_capture: bool,
) -> Option<Fault> {
    match (mode, from) {
        (KeyMode::Test, _) => None,
        (KeyMode::Live, Some(from)) => (!company.may_send_as(&from.address)).then(|| {
            Fault::unacceptable(
                "from",
                "SENDER_NOT_ALLOWED",
                "is not a sender of this company; the operator can add it to the company's senders",
            )
        }),
        (KeyMode::Live, None) => (company.from.is_none() && !route_is_capture).then(|| {
            Fault::unacceptable(
                "from",
                "NO_SENDER",
                "is missing and the company has no default sender; name one here or in the company's settings",
            )
        }),
    }
}

/// An email that names no sender has the company's from now on: another one later is for later emails.
pub fn with_sender(envelope: Envelope, company: &CompanySettings) -> Envelope {
    Envelope { from: envelope.from.or_else(|| company.from.clone()), ..envelope }
}

/// The same for all that a message names beside From, by the header it stands in. One that cannot be read is nobody's.
pub fn sender_beside_from(company: &CompanySettings, mode: KeyMode, content: &Content) -> Option<Fault> {
    let Content::Raw(eml) = content else { return None };
    let header = foreign_sender(Some(company), mode, &message::senders_beside_from(eml))?;
    Some(Fault::unacceptable(
        header,
        "SENDER_NOT_ALLOWED",
        "names a sender that is none of this company; the operator can add it to the company's senders",
    ))
}

/// The first header that names a sender as whom the company may not send.
pub fn foreign_sender(
    company: Option<&CompanySettings>,
    mode: KeyMode,
    senders: &[(&'static str, Option<Address>)],
) -> Option<&'static str> {
    let is_own = |address: &Address| company.is_some_and(|company| company.may_send_as(address));
    let mut foreign = senders.iter().filter(|(_, address)| !address.as_ref().is_some_and(is_own));
    match mode {
        KeyMode::Test => None,
        KeyMode::Live => foreign.next().map(|(header, _)| *header),
    }
}

/// Whether the email can only end in the capture mailbox; `route` decides at each attempt.
pub fn route_is_capture(
    settings: &Settings,
    company: &CompanySettings,
    wishes: &Wishes,
    to: &Address,
) -> bool {
    if settings.guard == EnvironmentGuard::Capture || to.domain().eq_ignore_ascii_case(SANDBOX_DOMAIN) {
        return true;
    }
    match (&wishes.provider, &company.route) {
        (Some(provider), _) => provider == CAPTURE,
        (None, Some(route)) => route.iter().all(|provider| provider == CAPTURE),
        (None, None) => settings.default_route.iter().all(|provider| provider == CAPTURE),
    }
}

/// The provider and the retry policy that an email asks for and that there are not.
pub fn unknown_names(
    settings: &Settings,
    providers: &Providers,
    wishes: &Wishes,
) -> (Option<Fault>, Option<Fault>) {
    let (provider, retry_policy) = (wishes.provider.as_deref(), wishes.retry_policy.as_deref());
    (
        known_name("provider", "UNKNOWN_PROVIDER", provider, providers.keys()),
        known_name("retryPolicy", "UNKNOWN_RETRY_POLICY", retry_policy, settings.retry_policies.keys()),
    )
}

/// A name that has to be one of those the operator configured.
pub fn known_name<'a>(
    field: &str,
    code: &'static str,
    name: Option<&str>,
    mut known: impl Iterator<Item = &'a String> + Clone,
) -> Option<Fault> {
    let name = name?;
    if known.clone().any(|known| known == name) {
        return None;
    }
    let first = known.next().cloned().unwrap_or_default();
    let names = known.fold(first, |names, name| names + ", " + name);
    Some(Fault::unacceptable(field, code, format!("is not known here; there are: {names}")))
}

/// Nobody gets the same email twice: leaves each address where it was named first.
pub fn without_duplicates(envelope: &mut Envelope) -> Vec<Note> {
    if envelope.cc.is_empty() && envelope.bcc.is_empty() {
        return Vec::new();
    }
    let mut seen: Vec<Address> = vec![envelope.to.clone()];
    let mut notes = Vec::new();
    for (field, addresses) in [("cc", &mut envelope.cc), ("bcc", &mut envelope.bcc)] {
        let mut position = 0;
        addresses.retain(|address| {
            let is_new = !seen.iter().any(|known| known.same_mailbox(address));
            if is_new {
                seen.push(address.clone());
            } else {
                notes.push(Note {
                    field: format!("{field}[{position}]"),
                    code: "DUPLICATE_ADDRESS",
                    message: "is named before; it was left out here".into(),
                });
            }
            position += 1;
            is_new
        });
    }
    notes
}

#[cfg(test)]
mod tests {
    use model::Secret;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    #[test]
    fn schedules() {
        let later = NOW.plus(Duration::from_secs(60));
        let edge = NOW.plus(SCHEDULE_AHEAD_MAX);
        let past = NOW.minus(Duration::from_secs(1));
        let cases = [
            // case                  when                                     due, scheduled, noted
            ("now", When::Now, Ok((NOW, None, false))),
            ("no delay", When::After(Duration::ZERO), Ok((NOW, None, false))),
            ("a delay", When::After(Duration::from_secs(60)), Ok((later, Some(later), false))),
            ("a time", When::At(later), Ok((later, Some(later), false))),
            ("in the past", When::At(past), Ok((NOW, None, true))),
            ("30 days", When::At(edge), Ok((edge, Some(edge), false))),
            ("over 30 days", When::At(edge.plus(Duration::from_millis(1))), Err("OUT_OF_RANGE")),
        ];
        for (case, when, expected) in cases {
            let found = schedule(when, NOW)
                .map(|found| (found.due_at, found.scheduled_at, found.note.is_some()))
                .map_err(|fault| fault.code);
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn senders() {
        let mailbox = |text: &str| Mailbox::parse(text).expect("valid");
        let with_default = CompanySettings {
            from: Some(mailbox("Shop <shop@a.com>")),
            senders: vec!["@b.com".into()],
            ..CompanySettings::default()
        };
        let bare = CompanySettings::default();
        let cases = [
            // case                 company        mode           from                 capture, code
            ("default", &with_default, KeyMode::Live, None, false, None),
            ("its own", &with_default, KeyMode::Live, Some("shop@a.com"), false, None),
            ("listed", &with_default, KeyMode::Live, Some("x@b.com"), false, None),
            ("foreign", &with_default, KeyMode::Live, Some("x@c.com"), false, Some("SENDER_NOT_ALLOWED")),
            ("none at all", &bare, KeyMode::Live, None, false, Some("NO_SENDER")),
            ("none, captured", &bare, KeyMode::Live, None, true, None),
            ("test, none", &bare, KeyMode::Test, None, false, None),
            ("test, any", &bare, KeyMode::Test, Some("x@c.com"), false, None),
        ];
        for (case, company, mode, from, capture, code) in cases {
            let from = from.map(mailbox);
            let fault = sender(company, mode, from.as_ref(), capture);
            assert_eq!(fault.map(|fault| fault.code), code, "{case}");
        }
    }

    #[test]
    fn names_are_known_or_listed() {
        let known = ["capture".to_owned(), "main".to_owned()];
        let check = |name| known_name("provider", "UNKNOWN_PROVIDER", name, known.iter());
        assert_eq!(check(None), None);
        assert_eq!(check(Some("main")), None);
        let message = check(Some("other")).map(|fault| fault.message);
        assert_eq!(message.as_deref(), Some("is not known here; there are: capture, main"));
    }

    #[test]
    fn duplicates_are_left_out() {
        let address = |text: &str| Address::parse(text).expect("valid");
        let mut envelope = Envelope {
            from: None,
            to: address("to@a.com"),
            cc: vec![address("x@a.com"), address("TO@a.com")],
            bcc: vec![address("X@a.com"), address("y@a.com"), address("y@a.com")],
            reply_to: None,
            subject: Secret::new("Hi".into()),
            headers: vec![],
            tags: vec![],
        };
        let fields: Vec<String> =
            without_duplicates(&mut envelope).into_iter().map(|note| note.field).collect();
        assert_eq!(fields, ["cc[1]", "bcc[0]", "bcc[2]"]);
        assert_eq!(envelope.cc, [address("x@a.com")]);
        assert_eq!(envelope.bcc, [address("y@a.com")]);
    }
}
