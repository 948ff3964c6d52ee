//! Forgetting a person: which emails name them, in which order they are gone through, and what is left of them. The same in
//! every store.

use std::fmt::Display;

use model::Address;

use crate::Cursor;
use crate::detail::Detail;

/// How many emails of a company one step looks at for copies to a person: no index leads to those, and a company may have
/// millions.
pub const LOOKED_AT: u32 = 10_000;

/// What stands where an erased address stood.
pub const ERASED_ADDRESS: &str = "erased@erased.invalid";
pub const ERASED_SUBJECT: &str = "(erased)";

/// The detail without the person: an email to them loses everything but its counts, one that only copied them, or sent
/// answers to them, loses their address.
pub fn without(detail: &Detail, address: &Address, is_to: bool) -> Detail {
    let mut detail = detail.clone();
    detail.cc.retain(|copy| !copy.same_mailbox(address));
    detail.bcc.retain(|copy| !copy.same_mailbox(address));
    detail.reply_to = detail.reply_to.filter(|reply_to| !reply_to.address.same_mailbox(address));
    if is_to {
        detail = Detail { recipient: None, headers: vec![], reply_to: None, ..detail };
    }
    detail
}

/// Whether an email to somebody else names the person: among its copies, or as where answers go.
pub fn names(detail: &Detail, address: &Address) -> bool {
    let is_copy = detail.cc.iter().chain(&detail.bcc).any(|copy| copy.same_mailbox(address));
    is_copy || detail.reply_to.as_ref().is_some_and(|reply_to| reply_to.address.same_mailbox(address))
}

/// The address as it stands in the text of a detail that names it, in lower case: a cheap first look.
pub fn in_text(address: &Address) -> String {
    let quoted = serde_json::Value::from(address.expose().to_ascii_lowercase()).to_string();
    quoted.trim_matches('"').to_owned()
}

/// How far the steps have come: first through the emails to the person, then through all of the company. A place is an
/// email, in the store's own spelling; none is before the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    To(Option<String>),
    All(Option<String>),
}

impl Reached {
    /// A cursor that is none of ours begins anew, which does no harm.
    pub fn of(cursor: Option<&Cursor>) -> Self {
        match cursor.and_then(|cursor| cursor.0.split_once('.')) {
            Some(("all", place)) => Self::All(Some(place.to_owned())),
            Some(("to", place)) => Self::To(Some(place.to_owned())),
            _ => Self::To(None),
        }
    }

    pub fn to(place: impl Display) -> Cursor {
        Cursor(format!("to.{place}"))
    }

    pub fn all(place: impl Display) -> Cursor {
        Cursor(format!("all.{place}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_says_how_far_it_came() {
        assert_eq!(Reached::of(None), Reached::To(None));
        assert_eq!(Reached::of(Some(&Reached::to(7))), Reached::To(Some("7".into())));
        assert_eq!(Reached::of(Some(&Reached::all("a-b"))), Reached::All(Some("a-b".into())));
        assert_eq!(Reached::of(Some(&Cursor("nonsense".into()))), Reached::To(None));
    }
}
