//! The known name that is nearest to a misspelled one.

/// Longer names are no misspellings of ours, and comparing them would cost.
const COMPARED_MAX: usize = 40;

/// The nearest name, if one is near enough to have been meant: a third of its letters may differ.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > COMPARED_MAX {
        return None;
    }
    let name = name.to_lowercase();
    known
        .iter()
        .map(|known| (distance(&name, &known.to_lowercase()), *known))
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters have to be put in, left out or changed to make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_find_their_word() {
        let known = ["to", "subject", "replyTo", "scheduledAt", "cc"];
        let cases = [
            ("subjet", Some("subject")),
            ("reply_to", Some("replyTo")),
            ("Subject", Some("subject")),
            ("scheduleAt", Some("scheduledAt")),
            ("ccc", Some("cc")),
            ("companyId", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(10_000), &known), None);
    }
}
