//! Every setting there is, its kind, and the nearest known name to one that is not there. What the values
//! mean is decided in `check`.

/// What a setting holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Printed as `***`.
    Secret,
    /// Printed without its password.
    Url,
    /// A whole number, both ends allowed.
    Count(u64, u64),
    Choice(&'static [&'static str]),
    Texts,
    Secrets,
    Counts,
}

impl Kind {
    /// May be read from a file named by a `..._FILE` variable.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Url | Self::Secrets)
    }
}

#[derive(Debug)]
pub struct Key {
    /// Dotted; `*` stands for a name of the user's choice.
    pub pattern: &'static str,
    pub kind: Kind,
}

/// A year: no wait or lease is longer.
const YEAR_SECS: u64 = 366 * 24 * 3600;
/// A hundred years.
const DAYS_MAX: u64 = 36_600;
/// More would not fit into the largest request the API reads, in which base64 makes four bytes of three.
const ATTACHMENTS_BYTES_MAX: u64 = 10 * 1024 * 1024;

/// A terabyte: nobody wants more of a disk to lie idle.
const RESERVE_MB_MAX: u64 = 1024 * 1024;

pub const KEYS: &[Key] = &[
    key("listen", Kind::Text),
    key("admin_token", Kind::Secret),
    key("environment", Kind::Text),
    key("public_url", Kind::Text),
    key("default_retry", Kind::Text),
    key("ttl_secs", Kind::Count(1, YEAR_SECS)),
    key("store.url", Kind::Url),
    key("store.reserve_mb", Kind::Count(0, RESERVE_MB_MAX)),
    key("queue.engine", Kind::Text),
    key("content.url", Kind::Text),
    key("worker.concurrency", Kind::Count(1, 10_000)),
    key("worker.listen", Kind::Text),
    key("worker.lease_secs", Kind::Count(1, 3_600)),
    key("providers.*.kind", Kind::Text),
    key("providers.*.url", Kind::Url),
    key("providers.*.api_key", Kind::Secret),
    key("providers.*.region", Kind::Text),
    key("providers.*.endpoint", Kind::Text),
    key("providers.*.configuration_set", Kind::Text),
    key("providers.*.rate_per_sec", Kind::Count(1, 1_000_000)),
    key("providers.*.webhook_secret", Kind::Secret),
    key("providers.*.webhook_topic_arn", Kind::Text),
    key("webhook_trust.hosts", Kind::Texts),
    key("webhook_trust.roots", Kind::Texts),
    key("routes.default", Kind::Texts),
    key("retry.*.delays_secs", Kind::Counts),
    key("retry.*.max_attempts", Kind::Count(1, 100)),
    key("alerts.admin_email", Kind::Text),
    key("alerts.language", Kind::Choice(&["en", "pt", "es", "it"])),
    key("reputation.guard", Kind::Choice(&["on", "off"])),
    key("reputation.volume_min", Kind::Count(1, 1_000_000_000)),
    key("reputation.bounces_warn_per_mille", Kind::Count(1, 1_000)),
    key("reputation.bounces_pause_per_mille", Kind::Count(1, 1_000)),
    key("reputation.complaints_warn_per_mille", Kind::Count(1, 1_000)),
    key("reputation.complaints_pause_per_mille", Kind::Count(1, 1_000)),
    key("retention.content_days", Kind::Count(0, DAYS_MAX)),
    key("retention.emails_days", Kind::Count(0, DAYS_MAX)),
    key("retention.dead_letters_days", Kind::Count(0, DAYS_MAX)),
    key("guard.mode", Kind::Choice(&["capture", "redirect", "allow"])),
    key("guard.redirect_to", Kind::Text),
    key("guard.allow", Kind::Texts),
    key("privacy.seal_keys", Kind::Secrets),
    key("privacy.hash_key", Kind::Secret),
    key("limits.requests_per_sec", Kind::Count(1, 1_000_000)),
    key("limits.attachments_bytes_max", Kind::Count(0, ATTACHMENTS_BYTES_MAX)),
    key("limits.connections_max", Kind::Count(1, 65_536)),
    key("log.format", Kind::Choice(&["auto", "json", "human"])),
    key("log.level", Kind::Text),
    key("telemetry.otlp_endpoint", Kind::Url),
    key("telemetry.otlp_headers", Kind::Secrets),
    key("telemetry.sample_per_mille", Kind::Count(0, 1_000)),
];

const fn key(pattern: &'static str, kind: Kind) -> Key {
    Key { pattern, kind }
}

/// What stands under a name.
pub enum Found {
    Setting(&'static Key),
    /// A table that holds settings or further tables.
    Section,
    Nothing,
}

pub fn find(path: &str) -> Found {
    let names: Vec<&str> = path.split('.').collect();
    let fits = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('.').collect();
        let is_prefix = names.len() <= parts.len()
            && names.iter().zip(&parts).all(|(name, part)| *part == "*" || name == part);
        is_prefix.then_some(parts.len() == names.len())
    };
    let mut found = Found::Nothing;
    for known in KEYS {
        match fits(known.pattern) {
            Some(true) => return Found::Setting(known),
            Some(false) => found = Found::Section,
            None => {}
        }
    }
    found
}

/// The known setting or section that looks most like `path`.
pub fn nearest(path: &str) -> String {
    let names: Vec<&str> = path.split('.').collect();
    let last = names.last().copied().unwrap_or_default();
    let named = |pattern: &str| -> String {
        let fill = |(place, part): (usize, &str)| match (part, names.get(place)) {
            ("*", Some(name)) => (*name).to_owned(),
            ("*", None) => "NAME".to_owned(),
            _ => part.to_owned(),
        };
        pattern.split('.').enumerate().map(fill).collect::<Vec<_>>().join(".")
    };
    let sections = KEYS.iter().filter_map(|known| known.pattern.split_once('.').map(|(section, _)| section));
    let candidates = KEYS.iter().map(|known| named(known.pattern)).chain(sections.map(str::to_owned));
    let score = |candidate: &String| {
        let ending = candidate.rsplit('.').next().unwrap_or_default();
        // One more for a name that is right but in the wrong place.
        distance(path, candidate).min(distance(last, ending) + 1)
    };
    candidates.min_by_key(score).unwrap_or_default()
}

/// The text among `known` that looks most like `text`, when it looks at all alike.
pub fn nearest_of<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (best, steps) = known
        .into_iter()
        .map(|candidate| (candidate, distance(text, candidate)))
        .min_by_key(|pair| pair.1)?;
    (steps <= 1 + text.chars().count() / 3).then_some(best)
}

/// How many letters have to be changed, added, removed or swapped with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut rows = vec![vec![0_usize; right.len() + 1]; left.len() + 1];
    for (row, line) in rows.iter_mut().enumerate() {
        line[0] = row;
    }
    rows[0] = (0..=right.len()).collect();
    for row in 1..=left.len() {
        for column in 1..=right.len() {
            let same = left[row - 1] == right[column - 1];
            let changed = rows[row - 1][column - 1] + usize::from(!same);
            let mut best = changed.min(rows[row - 1][column] + 1).min(rows[row][column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1];
            if swapped {
                best = best.min(rows[row - 2][column - 2] + 1);
            }
            rows[row][column] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name() {
        let cases = [
            ("retires", "retry"),
            ("lisen", "listen"),
            ("store.ulr", "store.url"),
            ("store_url", "store.url"),
            ("lease_secs", "worker.lease_secs"),
            ("worker.concurency", "worker.concurrency"),
            ("retry.slow.max_atempts", "retry.slow.max_attempts"),
            ("providers.relay.typ", "providers.relay.url"),
            ("stoer", "store"),
        ];
        for (path, expected) in cases {
            assert_eq!(nearest(path), expected, "{path}");
        }
    }

    #[test]
    fn names_that_look_alike() {
        assert_eq!(nearest_of("realy", ["relay", "capture"]), Some("relay"));
        assert_eq!(nearest_of("mailgun", ["relay", "capture"]), None);
    }

    #[test]
    fn settings_sections_and_nothing() {
        assert!(matches!(find("retry.slow.delays_secs"), Found::Setting(_)));
        assert!(matches!(find("retry.slow"), Found::Section));
        assert!(matches!(find("retry"), Found::Section));
        assert!(matches!(find("retires"), Found::Nothing));
        assert!(matches!(find("store.url.x"), Found::Nothing));
    }
}
