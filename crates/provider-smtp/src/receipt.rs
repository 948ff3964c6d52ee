//! The server's own id for a message, read from its last answer. Every server words it in its own way and none has
//! to give one.

/// Shorter than this, a word after `Ok` may be anything.
const BARE_ID_LENGTH_MIN: usize = 16;
const ID_LENGTH_MAX: usize = 200;

/// The id in the text of the final 250, if one is recognised.
pub fn queue_id(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    let after = |phrase: &[&str]| {
        let at = lower.windows(phrase.len()).position(|window| window == phrase)?;
        words.get(at + phrase.len()).copied()
    };
    let before = |phrase: &[&str]| {
        let at = lower.windows(phrase.len()).position(|window| window == phrase)?;
        words.get(at.checked_sub(1)?).copied()
    };
    let bare = || after(&["ok"]).filter(|word| is_last(&words, word) && word.len() >= BARE_ID_LENGTH_MIN);
    let labelled = || words.iter().find_map(|word| word.strip_prefix("id="));
    // Postfix, SendGrid; Exim; sendmail, OpenSMTPD; Amazon SES.
    after(&["queued", "as"])
        .or_else(labelled)
        .or_else(|| before(&["message", "accepted"]))
        .or_else(bare)
        .map(|id| id.trim_matches(['<', '>', '.', ',', ';']))
        .filter(|id| is_id(id))
        .map(str::to_owned)
}

fn is_last(words: &[&str], word: &str) -> bool {
    words.last() == Some(&word)
}

/// Digits are in every id and in few words.
fn is_id(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+=/$".contains(&byte);
    let is_enhanced_code =
        text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && text.contains('.');
    text.len() <= ID_LENGTH_MAX
        && text.bytes().all(is_fine)
        && text.bytes().any(|byte| byte.is_ascii_alphanumeric())
        && !is_enhanced_code
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_that_are_recognised() {
        let cases = [
            ("2.0.0 Ok: queued as 4VQZ1x2b3Hz9", Some("4VQZ1x2b3Hz9")),
            ("2.0.0 from MTA(smtp:[127.0.0.1]:10025): 250 2.0.0 Ok: queued as 1A2B3C", Some("1A2B3C")),
            ("Ok: queued as <FA.42@relay>.", Some("FA.42@relay")),
            ("OK id=1rXyZ0-000abc-2D", Some("1rXyZ0-000abc-2D")),
            ("2.0.0 41FA2B3C4D5E Message accepted for delivery", Some("41FA2B3C4D5E")),
            ("Ok 0100018bcdef0123-89abcdef-0123-4567-89ab-cdef01234567-000000", {
                Some("0100018bcdef0123-89abcdef-0123-4567-89ab-cdef01234567-000000")
            }),
            ("2.0.0 Message accepted for delivery", None),
            ("2.0.0 OK 7", None),
            ("Great success", None),
            ("queued as", None),
            ("queued as \u{1}\u{2}", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(queue_id(text).as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_server_says_an_id_is_one(text in prop_oneof![
            "\\PC{0,80}",
            "(2\\.0\\.0 )?(Ok:?|OK|ok) ?(queued as|id=|Message accepted|)[ ]?[A-Za-z0-9<>.@$/é-]{0,220}",
        ]) {
            if let Some(id) = queue_id(&text) {
                prop_assert!((1..=ID_LENGTH_MAX).contains(&id.len()), "{id}");
                prop_assert!(id.bytes().all(|byte| byte.is_ascii_graphic()) && text.contains(&id), "{id}");
            }
        }
    }
}
