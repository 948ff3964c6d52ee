//! Settings from the environment: `POSTHASTE_STORE__URL` for `store.url`, `..._FILE` for secrets kept in
//! files, `ADMIN_EMAIL`, and what OpenTelemetry calls its collector.

use std::path::Path;

use model::Address;

use super::keys::{self, Found, Kind};
use super::layers::{Layers, Value, list_from_toml};
use super::problem::{Origin, Problem};

const PREFIX: &str = "POSTHASTE_";
const ADMIN_EMAIL: &str = "ADMIN_EMAIL";
const ADMIN_EMAIL_KEY: &str = "alerts.admin_email";
const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const OTEL_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const OTLP_ENDPOINT_KEY: &str = "telemetry.otlp_endpoint";
const OTLP_HEADERS_KEY: &str = "telemetry.otlp_headers";
/// A secret is a line or a few; a larger file was named by mistake.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Names with our prefix that are not settings: the option `--config`, what the test scripts use, and what
/// Kubernetes sets by itself in every container when a service is called `posthaste`.
fn is_no_setting(name: &str) -> bool {
    let tests = ["TEST_", "SCHEMA_", "CHAOS_", "BENCH_"].iter().any(|prefix| name.starts_with(prefix));
    let ours = name == "CONFIG" || tests;
    let kubernetes = name == "PORT" || name.starts_with("PORT_") || name.starts_with("SERVICE_");
    ours || kubernetes
}

/// Whether a variable is meant for us.
pub fn is_setting(variable: &str) -> bool {
    variable.strip_prefix(PREFIX).is_some_and(|name| !is_no_setting(name))
}

/// The variable for a setting.
pub fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_uppercase())
}

/// Reads the variables; their order does not matter.
pub fn read(layers: &mut Layers, variables: &[(String, String)]) {
    let mut ours: Vec<(&str, &str)> = variables
        .iter()
        .filter(|(name, _)| is_setting(name))
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str())))
        .collect();
    ours.sort_unstable();
    read_admin_email(layers, variables);
    read_otel(layers, variables);
    for (name, value) in &ours {
        read_one(layers, name, value, &ours);
    }
}

fn read_one(layers: &mut Layers, name: &str, value: &str, all: &[(&str, &str)]) {
    let origin = Origin::Environment(format!("{PREFIX}{name}"));
    let key = name.to_lowercase().replace("__", ".");
    if let Found::Setting(known) = keys::find(&key) {
        return put(layers, &key, known.kind, value, origin);
    }
    let in_file = name.strip_suffix("_FILE").map(|base| (base, base.to_lowercase().replace("__", ".")));
    if let Some((base, key)) = &in_file
        && let Found::Setting(known) = keys::find(key)
    {
        if !known.kind.is_secret() {
            let what = format!("only secrets are read from files; set {PREFIX}{base} instead");
            return layers.complain(origin, key, what);
        }
        if all.iter().any(|(other, _)| other == base) {
            let what = format!("{PREFIX}{base} is set too; unset one of the two");
            return layers.complain(origin, key, what);
        }
        return match read_secret(value) {
            Ok(secret) => put(layers, key, known.kind, secret.trim_end_matches(['\r', '\n']), origin),
            Err(what) => layers.complain(origin, key, what),
        };
    }
    let meant = variable(&keys::nearest(&key));
    layers.complain(origin, &key, format!("there is no such setting; did you mean {meant}?"));
}

fn put(layers: &mut Layers, key: &str, kind: Kind, text: &str, origin: Origin) {
    if text.trim().is_empty() {
        let what = "is set but empty, which is not the same as unset; unset it or give it a value";
        return layers.complain(origin, key, what);
    }
    match value_of(kind, text) {
        Some(value) => layers.put(key, kind, value, origin),
        None => layers.complain(origin, key, "is not a list; write a,b,c or [\"a\", \"b\"]"),
    }
}

/// The text as the kind of setting has it. What is no number stays a text, for the type check to name.
fn value_of(kind: Kind, text: &str) -> Option<Value> {
    let number =
        |text: &str| text.trim().parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Integer);
    match kind {
        Kind::Text | Kind::Secret | Kind::Url | Kind::Choice(_) => Some(Value::Text(text.to_owned())),
        Kind::Count(..) => Some(number(text)),
        Kind::Texts | Kind::Secrets | Kind::Counts if text.trim().starts_with('[') => {
            list_from_toml(text.trim())
        }
        Kind::Texts | Kind::Secrets => {
            Some(Value::List(text.split(',').map(|item| Value::Text(item.trim().to_owned())).collect()))
        }
        Kind::Counts => Some(Value::List(text.split(',').map(number).collect())),
    }
}

fn read_secret(file: &str) -> Result<String, String> {
    let path = Path::new(file);
    let size_bytes = std::fs::metadata(path)
        .map_err(|error| format!("cannot read {file}: {error}; check the path"))?
        .len();
    if size_bytes > SECRET_FILE_BYTES_MAX {
        return Err(format!(
            "{file} is larger than {SECRET_FILE_BYTES_MAX} bytes; name a file that holds the secret only"
        ));
    }
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {file}: {error}; check its mode and owner"))
}

/// The names every program with OpenTelemetry reads. They are often set for all programs of a machine, so what the file
/// says of ours comes first, and a collector that speaks gRPC only is worth a warning.
fn read_otel(layers: &mut Layers, variables: &[(String, String)]) {
    let get = |wanted: &str| {
        let found = variables.iter().find(|(name, value)| name == wanted && !value.trim().is_empty());
        found.map(|(_, value)| value.trim())
    };
    let is_off = get("OTEL_SDK_DISABLED") == Some("true") || get("OTEL_TRACES_EXPORTER") == Some("none");
    let Some(endpoint) = get(OTEL_ENDPOINT) else { return };
    if is_off || layers.entries.contains_key(OTLP_ENDPOINT_KEY) {
        return;
    }
    let origin = Origin::Environment(OTEL_ENDPOINT.to_owned());
    if get("OTEL_EXPORTER_OTLP_PROTOCOL") == Some("grpc") {
        let what = "is not used, since OTEL_EXPORTER_OTLP_PROTOCOL is grpc and traces are sent over HTTP only; \
                    set telemetry.otlp_endpoint to the collector's HTTP port";
        layers.warnings.push(Problem { origin, key: OTLP_ENDPOINT_KEY.to_owned(), what: what.to_owned() });
        return;
    }
    layers.put(OTLP_ENDPOINT_KEY, Kind::Url, Value::Text(endpoint.to_owned()), origin);
    if let Some(headers) = get(OTEL_HEADERS)
        && let Some(value) = value_of(Kind::Secrets, headers)
    {
        layers.put(OTLP_HEADERS_KEY, Kind::Secrets, value, Origin::Environment(OTEL_HEADERS.to_owned()));
    }
}

/// A name that other programs use too: what is wrong with it is worth a warning, not a refusal to start.
fn read_admin_email(layers: &mut Layers, variables: &[(String, String)]) {
    let Some((_, value)) = variables.iter().find(|(name, _)| name == ADMIN_EMAIL) else {
        return;
    };
    let origin = Origin::Environment(ADMIN_EMAIL.to_owned());
    match Address::parse(value) {
        Ok(_) => layers.put(ADMIN_EMAIL_KEY, Kind::Text, Value::Text(value.clone()), origin),
        Err(error) => layers.warnings.push(Problem {
            origin,
            key: ADMIN_EMAIL_KEY.to_owned(),
            what: format!(
                "{error}; it is not used, and alerts are in the log only unless another address is set"
            ),
        }),
    }
}
