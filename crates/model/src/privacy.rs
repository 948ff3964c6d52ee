//! Types that print masked: what must not reach a log, an error or a metric cannot get there by accident,
//! since the content is only given out by `expose()`.

use std::fmt;

/// A value that prints as `***`: keys, tokens, passwords, bodies.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The content. Whoever calls this answers for where it goes.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `user@example.com` becomes `u***@e***.com`.
pub fn mask_address(address: &str) -> String {
    let Some((local, domain)) = address.rsplit_once('@') else {
        return "***".into();
    };
    let first = |text: &str| text.chars().next().map(String::from).unwrap_or_default();
    let ending = domain.rsplit_once('.').map(|(_, ending)| format!(".{ending}")).unwrap_or_default();
    format!("{}***@{}***{ending}", first(local), first(domain))
}

/// Masks every address found in free text, such as a server's answer that quotes the recipient.
pub fn mask_text(text: &str) -> String {
    let part_of_address = |c: char| c.is_alphanumeric() || "@.!#$%&'*+/=?^_`{|}~-".contains(c);
    let mut masked = String::with_capacity(text.len());
    let mut word = String::new();
    let flush = |word: &mut String, masked: &mut String| {
        if word.contains('@') {
            let trimmed = word.trim_end_matches(['.', '\'', '?', '!']);
            masked.push_str(&mask_address(trimmed));
            masked.push_str(&word[trimmed.len()..]);
        } else {
            masked.push_str(word);
        }
        word.clear();
    };
    for c in text.chars() {
        if part_of_address(c) {
            word.push(c);
        } else {
            flush(&mut word, &mut masked);
            masked.push(c);
        }
    }
    flush(&mut word, &mut masked);
    masked
}

/// A hash as it may be shown: its first eight characters.
pub fn shorten_hash(hash: &str) -> String {
    format!("{}…", hash.chars().take(8).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_masked() {
        let cases = [
            ("user@example.com", "u***@e***.com"),
            ("a@b.co.uk", "a***@b***.uk"),
            ("odd", "***"),
            ("@", "***@***"),
            ("josé@exemplo.com.br", "j***@e***.br"),
        ];
        for (address, masked) in cases {
            assert_eq!(mask_address(address), masked);
        }
    }

    #[test]
    fn addresses_inside_text_are_masked() {
        assert_eq!(
            mask_text("550 <bob.smith@example.com>: no such user (to ann@b.org)."),
            "550 <b***@e***.com>: no such user (to a***@b***.org)."
        );
        assert_eq!(mask_text("nothing here"), "nothing here");
    }

    #[test]
    fn secrets_print_as_stars() {
        let secret = Secret::new("live_abc".to_owned());
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
    }
}
