//! Addresses of pages and of API calls, with everything in them encoded.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// One step of a path. A step of dots alone would be taken for a way up.
pub fn step(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(|byte| byte == b'.') {
        return text.replace('.', "%2E");
    }
    utf8_percent_encode(text, PLAIN).to_string()
}

/// The path with a query string of the pairs; the path alone where there are none.
pub fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    if pairs.is_empty() {
        return path.to_owned();
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    format!("{path}?{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_from_its_place() {
        let cases = [
            ("acme", "acme"),
            ("a/b?c#d", "a%2Fb%3Fc%23d"),
            ("João & filhos", "Jo%C3%A3o%20%26%20filhos"),
            ("..", "%2E%2E"),
            ("a@b.com", "a%40b.com"),
        ];
        for (text, expected) in cases {
            assert_eq!(step(text), expected);
        }
        assert_eq!(
            with_query("/ui", &[("to", "a+b@c.com"), ("tag", "x&y")]),
            "/ui?to=a%2Bb%40c.com&tag=x%26y"
        );
        assert_eq!(with_query("/ui", &[]), "/ui");
    }
}
