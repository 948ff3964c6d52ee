//! What is left of an email when a person in it is forgotten, the same in every store.

use model::Address;

use crate::detail::Detail;

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
