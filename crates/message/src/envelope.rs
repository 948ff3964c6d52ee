//! An .eml that was handed in, read: who it is from and for, and the html it shows. What is read is what will be
//! sent, so line ends are normalised first, as they are on the way out.

use mail_parser::{Addr, HeaderName, HeaderValue, Message, MessageParser, PartType};
use model::address::NAME_LENGTH_MAX;
use model::email::{COPIES_MAX, SUBJECT_LENGTH_MAX};
use model::{Address, Envelope, InvalidAddress, Mailbox, Secret};

use crate::lines::normalised;
use crate::structure::{DEPTH_MAX, HEADER_BYTES_MAX, PARTS_MAX, TooComplex, header_block, leaves, values};

/// Headers beside From that say whom a message comes from: who handed it in for its author, and who passed it on.
const SENDERS: [(&str, HeaderName<'static>); 3] = [
    ("Sender", HeaderName::Sender),
    ("Resent-From", HeaderName::ResentFrom),
    ("Resent-Sender", HeaderName::ResentSender),
];
/// A Message-ID longer than this is somebody's joke.
const MESSAGE_ID_LENGTH_MAX: usize = 300;

/// Why an .eml cannot be taken. Names the header, never its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableMessage {
    #[error("the message has no From header with an address")]
    NoFrom,
    #[error("the message has more than one address in its From header")]
    SeveralFrom,
    #[error("the message has no To header with an address")]
    NoTo,
    #[error("the message has the header {0} more than once")]
    Repeated(&'static str),
    #[error("the message has more than {COPIES_MAX} addresses in {0}")]
    TooManyCopies(&'static str),
    #[error("the message has an address in {header} that {reason}")]
    InvalidAddress { header: &'static str, reason: InvalidAddress },
    #[error("the message has a subject of more than {SUBJECT_LENGTH_MAX} characters")]
    SubjectTooLong,
    #[error("the message has a subject with line breaks or control characters")]
    SubjectControl,
    #[error("the message has parts within parts more than {DEPTH_MAX} deep")]
    TooDeep,
    #[error("the message has more than {PARTS_MAX} parts")]
    TooManyParts,
    #[error("the message has a header of more than {HEADER_BYTES_MAX} bytes")]
    HeaderTooLong,
}

impl From<TooComplex> for UnreadableMessage {
    fn from(limit: TooComplex) -> Self {
        match limit {
            TooComplex::Depth => Self::TooDeep,
            TooComplex::Parts => Self::TooManyParts,
            TooComplex::Header => Self::HeaderTooLong,
        }
    }
}

/// Who and what, as the message's own headers say: the first address in To is `to`, further ones count as copies.
pub fn read_envelope(eml: &[u8]) -> Result<Envelope, UnreadableMessage> {
    let eml = normalised(eml);
    leaves(&eml)?;
    let header = MessageParser::new().parse_headers(header_block(&eml)).unwrap_or_default();
    let mut to = addresses(&header, HeaderName::To, "To")?.into_iter();
    let first = to.next().ok_or(UnreadableMessage::NoTo)?;
    let others = to.chain(addresses(&header, HeaderName::Cc, "Cc")?);
    let cc = without_repeats(others.filter(|address| !address.same_mailbox(&first)));
    let bcc = without_repeats(addresses(&header, HeaderName::Bcc, "Bcc")?);
    for (copies, name) in [(&cc, "To and Cc beside the first"), (&bcc, "Bcc")] {
        if copies.len() > COPIES_MAX {
            return Err(UnreadableMessage::TooManyCopies(name));
        }
    }
    Ok(Envelope {
        from: Some(sender(&header)?),
        to: first,
        cc,
        bcc,
        reply_to: reply_to(&header)?,
        subject: subject(&header)?,
        headers: vec![],
        tags: vec![],
    })
}

/// Whom the message says it comes from beside From: the header and its address, or none where that cannot be read.
/// Mail programs show them, and servers judge by them, so each has to be a sender as From has.
pub fn senders_beside_from(eml: &[u8]) -> Vec<(&'static str, Option<Address>)> {
    // A header block that goes on after this is no message that can be taken.
    let eml = normalised(&eml[..eml.len().min(HEADER_BYTES_MAX)]);
    let header = MessageParser::new().parse_headers(header_block(&eml)).unwrap_or_default();
    let mut senders = Vec::new();
    for (shown, name) in SENDERS {
        senders.extend(listed(&header, name).map(|addr| (shown, address(addr, shown).ok())));
    }
    senders
}

/// The html the message shows, decoded; all of it, if it has several. None when it has none or is too complex.
pub fn html_of(eml: &[u8]) -> Option<String> {
    let eml = normalised(eml);
    let shown: Vec<String> = leaves(&eml)
        .ok()?
        .into_iter()
        .filter(|leaf| leaf.is_html_body)
        .filter_map(|leaf| decoded(leaf.bytes))
        .collect();
    (!shown.is_empty()).then(|| shown.join("\n"))
}

/// The Message-ID of an .eml, in angle brackets.
pub fn message_id(eml: &[u8]) -> Option<String> {
    let eml = normalised(eml);
    let header = MessageParser::new().parse_headers(header_block(&eml))?;
    let id = values(&header, HeaderName::MessageId).next()?.as_text()?;
    let is_fine = id.len() <= MESSAGE_ID_LENGTH_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_fine.then(|| format!("<{id}>"))
}

fn decoded(leaf: &[u8]) -> Option<String> {
    match MessageParser::new().parse(leaf)?.parts.into_iter().next()?.body {
        PartType::Html(text) | PartType::Text(text) => Some(text.into_owned()),
        PartType::Binary(bytes) | PartType::InlineBinary(bytes) => {
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        PartType::Message(_) | PartType::Multipart(_) => None,
    }
}

/// One sender, named once: with two, the one that is checked need not be the one that is shown.
fn sender(header: &Message<'_>) -> Result<Mailbox, UnreadableMessage> {
    only_one(header, HeaderName::From, "From")?;
    let listed: Vec<&Addr<'_>> = listed(header, HeaderName::From).collect();
    match listed.as_slice() {
        [] => Err(UnreadableMessage::NoFrom),
        [sender] => mailbox(sender, "From"),
        _ => Err(UnreadableMessage::SeveralFrom),
    }
}

fn reply_to(header: &Message<'_>) -> Result<Option<Mailbox>, UnreadableMessage> {
    only_one(header, HeaderName::ReplyTo, "Reply-To")?;
    listed(header, HeaderName::ReplyTo).next().map(|addr| mailbox(addr, "Reply-To")).transpose()
}

fn subject(header: &Message<'_>) -> Result<Secret<String>, UnreadableMessage> {
    only_one(header, HeaderName::Subject, "Subject")?;
    let subject =
        values(header, HeaderName::Subject).next().and_then(HeaderValue::as_text).unwrap_or_default();
    if subject.chars().any(char::is_control) {
        return Err(UnreadableMessage::SubjectControl);
    }
    if subject.chars().count() > SUBJECT_LENGTH_MAX {
        return Err(UnreadableMessage::SubjectTooLong);
    }
    Ok(Secret::new(subject.to_owned()))
}

fn addresses(
    header: &Message<'_>,
    name: HeaderName<'static>,
    shown: &'static str,
) -> Result<Vec<Address>, UnreadableMessage> {
    listed(header, name).map(|addr| address(addr, shown)).collect()
}

fn mailbox(addr: &Addr<'_>, header: &'static str) -> Result<Mailbox, UnreadableMessage> {
    let address = address(addr, header)?;
    // The characters by which a mailbox is written are no part of a name; the message itself keeps them.
    let name: String = addr.name.as_deref().unwrap_or_default().replace(['<', '>', '"'], "");
    let name = name.trim();
    if name.chars().any(char::is_control) || name.chars().count() > NAME_LENGTH_MAX {
        return Err(UnreadableMessage::InvalidAddress { header, reason: InvalidAddress::InvalidName });
    }
    Ok(Mailbox { name: (!name.is_empty()).then(|| Secret::new(name.to_owned())), address })
}

fn address(addr: &Addr<'_>, header: &'static str) -> Result<Address, UnreadableMessage> {
    Address::parse(addr.address.as_deref().unwrap_or_default())
        .map_err(|reason| UnreadableMessage::InvalidAddress { header, reason })
}

fn without_repeats(addresses: impl IntoIterator<Item = Address>) -> Vec<Address> {
    let mut unique: Vec<Address> = Vec::new();
    for address in addresses {
        // Past the limit the list is refused, whatever else it holds; so this stays short.
        if unique.len() > COPIES_MAX {
            break;
        }
        if !unique.iter().any(|known| known.same_mailbox(&address)) {
            unique.push(address);
        }
    }
    unique
}

fn only_one(
    header: &Message<'_>,
    name: HeaderName<'static>,
    shown: &'static str,
) -> Result<(), UnreadableMessage> {
    if values(header, name).nth(1).is_some() { Err(UnreadableMessage::Repeated(shown)) } else { Ok(()) }
}

fn listed<'x>(header: &'x Message<'x>, name: HeaderName<'static>) -> impl Iterator<Item = &'x Addr<'x>> {
    values(header, name).filter_map(HeaderValue::as_address).flat_map(|list| list.iter())
}

#[cfg(test)]
mod tests;
