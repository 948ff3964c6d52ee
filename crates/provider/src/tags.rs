//! The tags of an email for providers that take pairs of a name and a value (SES, Resend).

use model::email::Outgoing;

/// Our id among a provider's tags, by which a report finds its email.
pub const ID_TAG: &str = "posthaste_id";

/// What an email's own tags have as value: they are words, not pairs.
const VALUE: &str = "true";

/// The longest name or value that both providers take.
const LENGTH_MAX: usize = 256;

/// Our id, then the email's own tags, each once. A name may have ASCII letters, digits, `_` and `-`; what else a tag
/// holds becomes `_`.
pub fn tags(email: &Outgoing) -> Vec<(String, String)> {
    let mut tags = vec![(ID_TAG.to_owned(), email.id.to_string())];
    for tag in &email.envelope.tags {
        let name = name(tag);
        if !name.is_empty() && !tags.iter().any(|(known, _)| *known == name) {
            tags.push((name, VALUE.to_owned()));
        }
    }
    tags
}

fn name(tag: &str) -> String {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    tag.trim().chars().take(LENGTH_MAX).map(|c| if is_fine(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_providers_take() {
        let long = "x".repeat(300);
        let cases = [
            ("welcome", "welcome"),
            ("não-lido", "n_o-lido"),
            ("order:42 ", "order_42"),
            ("ses:from", "ses_from"),
            ("", ""),
            (&long, &long[..LENGTH_MAX]),
        ];
        for (tag, expected) in cases {
            assert_eq!(name(tag), expected);
        }
    }
}
