//! A provider's words as they may be kept and shown.

use model::privacy::mask_text;

/// The provider's words are kept up to this length.
pub const DETAIL_LENGTH_MAX: usize = 300;

/// One line, addresses masked, of bounded length.
pub fn detail(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = mask_text(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if text.chars().count() <= DETAIL_LENGTH_MAX {
        return text;
    }
    text.chars().take(DETAIL_LENGTH_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_masked_and_on_one_line() {
        assert_eq!(detail("550 <bob@example.com>\r\n  unknown\u{7}"), "550 <b***@e***.com> unknown");
        let long = detail(&"é".repeat(2000));
        assert_eq!(long.chars().count(), DETAIL_LENGTH_MAX);
        assert!(long.ends_with('…'));
    }
}
