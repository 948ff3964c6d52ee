//! Every wrong setting and the line it gets; that the reference is complete; what overrides what.

mod anything;

use std::os::unix::fs::PermissionsExt;

use super::*;

fn sources(directory: &Path, file: &str, variables: &[(&str, &str)]) -> Sources {
    let path = directory.join("posthaste.toml");
    std::fs::write(&path, file).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    Sources {
        file: Some(path),
        variables: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ..Sources::default()
    }
}

/// The complaints about a file and variables, without the directory the file is in.
fn complaints(file: &str, variables: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    match load(&sources(directory.path(), file, variables)) {
        Ok(_) => "fine".to_owned(),
        Err(problems) => problems.to_string().replace(&format!("{}/", directory.path().display()), ""),
    }
}

fn loaded(file: &str, variables: &[(&str, &str)]) -> Loaded {
    let directory = tempfile::tempdir().expect("a directory");
    load(&sources(directory.path(), file, variables)).unwrap_or_else(|problems| panic!("{problems}"))
}

/// `wrong.txt` holds cases: a name, lines of a file, variables, and what is said of them.
#[test]
fn wrong_settings() {
    for case in include_str!("wrong.txt").split("\n\n") {
        let lines_after = |mark: &str| -> String {
            let lines: Vec<&str> = case.lines().filter_map(|line| line.strip_prefix(mark)).collect();
            lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
        };
        let variables = lines_after("$");
        let variables: Vec<(&str, &str)> =
            variables.lines().filter_map(|line| line.split_once('=')).collect();
        assert_eq!(complaints(&lines_after("|"), &variables), lines_after(">"), "{case}");
    }
}

#[test]
fn all_problems_at_once_from_top_to_bottom() {
    let text = complaints(
        "lisen = \"x\"\n[worker]\nconcurrency = 0\nlease_secs = 5",
        &[("POSTHASTE_TTL_SECS", "no")],
    );
    let places: Vec<&str> = text.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        places,
        ["posthaste.toml:1", "posthaste.toml:3", "posthaste.toml:4", "POSTHASTE_TTL_SECS"],
        "{text}"
    );
}

#[test]
fn what_is_wrong_never_shows_a_secret() {
    let file = r#"
        admin_token = "s3cret"
        [store]
        url = "oracle://ana:s3cret@h"
        [privacy]
        hash_key = "s3cret"
        seal_keys = ["s3cret"]
        [providers.relay]
        kind = "smtp"
        url = ["s3cret"]
        [providers.other]
        kind = "capture"
        url = "smtp://ana:s3cret@h"
    "#;
    let text = complaints(file, &[("POSTHASTE_ADMIN_TOKEN", "s3cret x")]);
    assert!(text.lines().count() >= 6, "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    let broken = complaints("admin_token = \"s3cret\nlisten = s3cret", &[]);
    assert!(broken.contains("not valid TOML") && !broken.contains("s3cret"), "{broken}");
}

#[test]
fn variables_win_over_the_file_and_the_file_over_defaults() {
    let file = "listen = \"127.0.0.1:1\"\nttl_secs = 100";
    let loaded = loaded(
        file,
        &[("POSTHASTE_LISTEN", "127.0.0.1:2"), ("PATH", "x"), ("POSTHASTE_SERVICE_HOST", "10.0.0.1")],
    );
    assert_eq!(loaded.config.listen.port(), 2);
    assert_eq!(loaded.config.ttl, Duration::from_secs(100));
    assert_eq!(loaded.config.lease, Duration::from_secs(45));
    let shown = show::lines(&loaded.entries);
    let origin = |key: &str| {
        shown.iter().find(|line| line.key == key).map(|line| line.origin.clone()).unwrap_or_default()
    };
    assert_eq!(origin("listen"), "POSTHASTE_LISTEN");
    assert!(origin("ttl_secs").ends_with("posthaste.toml:2"), "{}", origin("ttl_secs"));
    assert_eq!(origin("worker.lease_secs"), "default");
    assert_eq!(origin("admin_token"), "unset");
}

#[test]
fn lists_and_names_from_variables() {
    let variables = [
        ("POSTHASTE_PROVIDERS__RELAY__KIND", "smtp"),
        ("POSTHASTE_PROVIDERS__RELAY__URL", "smtp://localhost:25"),
        ("POSTHASTE_ROUTES__DEFAULT", "relay, capture"),
        ("POSTHASTE_RETRY__SLOW__DELAYS_SECS", "[60, 600]"),
        ("POSTHASTE_RETRY__SLOW__MAX_ATTEMPTS", "3"),
        ("POSTHASTE_DEFAULT_RETRY", "slow"),
    ];
    let config = loaded("", &variables).config;
    assert_eq!(config.default_route, ["relay", "capture"]);
    assert_eq!(config.retry_policies["slow"].delays, [60, 600].map(Duration::from_secs));
    assert_eq!(config.default_retry_policy, "slow");
}

#[test]
fn secrets_from_files_lose_their_line_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, "0123456789abcdef\n").expect("written");
    let file = path.display().to_string();
    let config = loaded("", &[("POSTHASTE_ADMIN_TOKEN_FILE", file.as_str())]).config;
    assert_eq!(config.admin_token.map(Secret::into_inner).as_deref(), Some("0123456789abcdef"));
    let both = complaints(
        "",
        &[("POSTHASTE_ADMIN_TOKEN_FILE", file.as_str()), ("POSTHASTE_ADMIN_TOKEN", "0123456789abcdef")],
    );
    assert_eq!(
        both,
        "POSTHASTE_ADMIN_TOKEN_FILE: admin_token: POSTHASTE_ADMIN_TOKEN is set too; unset one of the two"
    );
}

#[test]
fn an_open_file_with_secrets_is_a_warning_or_with_strict_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |file: &str, strict: bool| {
        let sources = Sources { strict, ..sources(directory.path(), file, &[]) };
        let path = directory.path().join("posthaste.toml");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        load(&sources)
    };
    let secret = "admin_token = \"0123456789abcdef\"";
    let warnings = open(secret, false).map(|loaded| loaded.warnings).unwrap_or_default();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].what.starts_with("others can read this secret (mode 0644); run: chmod 600 "),
        "{}",
        warnings[0]
    );
    assert!(open(secret, true).is_err());
    assert!(open("listen = \"127.0.0.1:1\"", true).is_ok(), "no secrets, no harm");
    assert!(open("[store]\nurl = \"sqlite:x.db\"", true).is_ok(), "a path is no secret");
}

#[test]
fn admin_email_is_taken_and_never_made_up() {
    let address = |variables: &[(&str, &str)]| {
        loaded("", variables).config.admin_email.map(|address| address.expose().to_owned())
    };
    assert_eq!(address(&[]), None);
    assert_eq!(address(&[("ADMIN_EMAIL", "ops@example.com")]).as_deref(), Some("ops@example.com"));
    let both = [("ADMIN_EMAIL", "ops@example.com"), ("POSTHASTE_ALERTS__ADMIN_EMAIL", "other@example.com")];
    assert_eq!(address(&both).as_deref(), Some("other@example.com"));
    for invalid in ["", "ops"] {
        let loaded = loaded("", &[("ADMIN_EMAIL", invalid)]);
        assert_eq!((loaded.config.admin_email, loaded.warnings.len()), (None, 1), "{invalid:?}");
    }
}

#[test]
fn traces_go_nowhere_unless_a_collector_is_named() {
    let url = |file: &str, variables: &[(&str, &str)]| {
        loaded(file, variables).config.traces.map(|traces| traces.url.expose().clone())
    };
    let ours = "[telemetry]\notlp_endpoint = \"https://ours.test/otlp/\"";
    let theirs = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs.test:4318");
    assert_eq!(url("", &[]), None);
    assert_eq!(url(ours, &[]).as_deref(), Some("https://ours.test/otlp/v1/traces"));
    assert_eq!(url("", &[theirs]).as_deref(), Some("http://theirs.test:4318/v1/traces"));
    assert_eq!(
        url(ours, &[theirs]).as_deref(),
        Some("https://ours.test/otlp/v1/traces"),
        "the file is about us"
    );
    assert_eq!(url("", &[theirs, ("OTEL_SDK_DISABLED", "true")]), None);
    assert_eq!(url("", &[theirs, ("OTEL_TRACES_EXPORTER", "none")]), None);
    let grpc = loaded("", &[theirs, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    assert_eq!((grpc.config.traces.is_none(), grpc.warnings.len()), (true, 1));

    let given = [theirs, ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a secret, x-other=b=c")];
    let traces = loaded("", &given).config.traces.expect("a collector");
    let headers: Vec<(&str, &str)> =
        traces.headers.iter().map(|(name, value)| (name.as_str(), value.expose().as_str())).collect();
    assert_eq!(headers, [("x-key", "a secret"), ("x-other", "b=c")]);
    assert!(!format!("{traces:?}").contains("a secret"), "{traces:?}");
    assert_eq!(traces.sample_per_mille, 1000);
}

#[test]
fn guards_and_routes_without_a_word() {
    let config = loaded("environment = \"staging\"", &[]).config;
    assert_eq!(config.guard, EnvironmentGuard::Capture);
    assert_eq!(config.default_route, ["capture"]);
    let config = loaded("[providers.relay]\nkind = \"smtp\"\nurl = \"smtp://localhost:25\"", &[]).config;
    assert_eq!(config.guard, EnvironmentGuard::Open);
    assert_eq!(config.default_route, ["relay"]);
}

/// The reference names every setting, with its default or commented out, and nothing else.
#[test]
fn the_reference_is_complete() {
    let is_setting = |line: &str| {
        let name = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let uncommented: Vec<&str> = DEFAULTS
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if is_setting(rest) || rest.starts_with('[') => rest,
            _ => line,
        })
        .collect();
    let mut layers = Layers::default();
    layers.read_defaults(&uncommented.join("\n"));
    let complaints: Vec<String> = layers.problems.iter().map(ToString::to_string).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    for known in keys::KEYS {
        let parts: Vec<&str> = known.pattern.split('.').collect();
        let fits = |key: &String| {
            let names: Vec<&str> = key.split('.').collect();
            names.len() == parts.len()
                && names.iter().zip(&parts).all(|(name, part)| *part == "*" || name == part)
        };
        assert!(layers.entries.keys().any(fits), "{} is not in config.default.toml", known.pattern);
    }
    assert!(loaded("", &[]).warnings.is_empty());
}

#[test]
fn the_reserve_is_the_stores_own_choice_unless_it_is_set() {
    let reserve = |file: &str| match loaded(file, &[]).config.store {
        StoreChoice::Sqlite(sqlite) => sqlite.reserve_bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(reserve(""), None);
    assert_eq!(reserve("[store]\nreserve_mb = 0"), Some(0));
    assert_eq!(reserve("[store]\nreserve_mb = 100"), Some(100 * 1024 * 1024));
}
