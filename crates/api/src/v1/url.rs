//! A URL to call back, checked for its shape. Where it leads is checked when it is called, since a name may
//! lead elsewhere by then.

use crate::form::Form;
use crate::limits::URL_LENGTH_MAX;

pub fn read(form: &mut Form<'_>, name: &str) -> Option<String> {
    let url = form.text(name)?;
    match check(&url) {
        Ok(()) => Some(url),
        Err((code, message)) => {
            form.fault(name, code, message);
            None
        }
    }
}

fn check(url: &str) -> Result<(), (&'static str, String)> {
    let invalid = |message: String| Err(("INVALID_URL", message));
    if url.len() > URL_LENGTH_MAX {
        return invalid(format!("has more than {URL_LENGTH_MAX} characters"));
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains('\\') {
        return invalid("must be a URL in ASCII without blanks".into());
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return invalid("must be a whole URL such as https://example.com/hook".into());
    };
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        return Err(("FORBIDDEN_URL", "must begin with https:// or http://".into()));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(("FORBIDDEN_URL", "must not carry a user name or password".into()));
    }
    let (host, port) = split_port(authority);
    let port_is_fine = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    if host.is_empty() || !port_is_fine {
        return invalid("must name a host, and a port from 1 to 65535 if any".into());
    }
    Ok(())
}

/// An IPv6 address stands in brackets, so its colons are no ports.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let long = format!("https://example.com/{}", "x".repeat(URL_LENGTH_MAX));
        let cases = [
            ("https://example.com/hook?x=1#y", None),
            ("HTTP://example.com:8080", None),
            ("https://[2001:db8::1]/x", None),
            ("https://[2001:db8::1]:8443/x", None),
            ("example.com", Some("INVALID_URL")),
            ("https://", Some("INVALID_URL")),
            ("https://:80/", Some("INVALID_URL")),
            ("https://example.com:99999/", Some("INVALID_URL")),
            ("https://exa mple.com/", Some("INVALID_URL")),
            ("https://example.com/\r\nX: y", Some("INVALID_URL")),
            (long.as_str(), Some("INVALID_URL")),
            ("file:///etc/passwd", Some("FORBIDDEN_URL")),
            ("gopher://example.com", Some("FORBIDDEN_URL")),
            ("https://user:secret@example.com/", Some("FORBIDDEN_URL")),
        ];
        for (url, code) in cases {
            assert_eq!(check(url).err().map(|(code, _)| code), code, "{url}");
        }
    }
}
