//! Which crate may depend on which, held as a test; docs/ARCHITECTURE.md says why. Also here: every crate takes the
//! workspace lints, and `anyhow` stays in the binary. What code may do inside a crate is left to the lints.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A crate and the crates of ours it may depend on. `store-*` stands for every crate whose name starts with `store-`.
const RULES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("message", &["model"]),
    ("store", &["model"]),
    ("queue", &["model", "store"]),
    ("provider", &["model"]),
    ("feedback", &["model"]),
    ("template", &["model"]),
    ("aws", &["model"]),
    ("store-*", &["store", "model"]),
    ("queue-*", &["queue", "store", "model"]),
    ("provider-ses", &["provider", "message", "model", "aws"]),
    ("provider-*", &["provider", "message", "model"]),
    ("gateway", &["model", "store", "queue", "provider", "message", "template"]),
    ("api", &["model", "store", "gateway", "queue", "provider", "message", "feedback"]),
    ("dashboard", &["model", "gateway", "api"]),
    ("posthaste", &["*"]),
    ("testkit", &["model"]),
];

/// Tests may use these as well, in every crate.
const ALSO_IN_TESTS: &[&str] = &["testkit", "store-*", "queue-*", "provider-*"];

/// The contract suites of the ports are built with testkit, but only behind their feature `contract`: the dependency
/// has to be optional, or testkit would be part of the shipped binary.
const PORTS: &[&str] = &["store", "queue", "provider"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Normal,
    Optional,
    Test,
}

#[test]
fn crates_depend_only_downwards() {
    let packages = packages();
    let ours: Vec<&str> = packages.iter().map(name).collect();
    let complaints: Vec<String> = packages
        .iter()
        .flat_map(|package| dependencies(package).map(move |(to, kind)| (name(package), to, kind)))
        .filter(|(_, to, _)| ours.contains(to))
        .filter_map(|(from, to, kind)| complaint(from, to, kind))
        .chain(ours.iter().filter(|from| rule(from).is_none()).map(|from| {
            format!("crate `{from}` has no rule: add a line for it to RULES here and to docs/ARCHITECTURE.md")
        }))
        .collect();
    assert_none(&complaints);
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    let workspace = manifest(&root().join("Cargo.toml"));
    assert_eq!(
        workspace["workspace"]["lints"]["rust"]["unsafe_code"].as_str(),
        Some("forbid"),
        "the workspace must forbid unsafe code: set unsafe_code = \"forbid\" under [workspace.lints.rust]"
    );
    let complaints: Vec<String> = packages()
        .iter()
        .filter(|package| {
            let path = package["manifest_path"].as_str().expect("a package has a manifest");
            let lints = manifest(Path::new(path)).get("lints").cloned();
            lints.and_then(|lints| lints.get("workspace")?.as_bool()) != Some(true)
        })
        .map(|package| {
            let name = name(package);
            format!(
                "crate `{name}` has its own lints: put `[lints]` and `workspace = true` into its Cargo.toml"
            )
        })
        .collect();
    assert_none(&complaints);
}

/// Looks at dependencies, not at sources: without the dependency no file outside the tests can use it.
#[test]
fn anyhow_stays_in_the_binary() {
    let complaints: Vec<String> = packages()
        .iter()
        .filter(|package| name(package) != "posthaste")
        .filter(|package| dependencies(package).any(|(to, kind)| to == "anyhow" && kind != Kind::Test))
        .map(|package| {
            let name = name(package);
            format!("crate `{name}` uses anyhow: give it an error of its own with thiserror, which carries a class")
        })
        .collect();
    assert_none(&complaints);
}

#[test]
fn rules_say_what_they_mean() {
    let cases = [
        // from              to                kind            allowed
        ("model", "store", Kind::Normal, false),
        ("store", "model", Kind::Normal, true),
        ("store", "testkit", Kind::Optional, true),
        ("store", "testkit", Kind::Normal, false),
        ("gateway", "testkit", Kind::Optional, false),
        ("gateway", "testkit", Kind::Test, true),
        ("gateway", "store-sqlite", Kind::Normal, false),
        ("gateway", "store-sqlite", Kind::Test, true),
        ("gateway", "api", Kind::Test, false),
        ("store-sqlite", "queue-store", Kind::Normal, false),
        ("queue-store", "store", Kind::Normal, true),
        ("provider-ses", "aws", Kind::Normal, true),
        ("provider-smtp", "aws", Kind::Normal, false),
        ("dashboard", "store", Kind::Normal, false),
        ("posthaste", "store-sqlite", Kind::Normal, true),
    ];
    for (from, to, kind, allowed) in cases {
        assert_eq!(complaint(from, to, kind).is_none(), allowed, "{from} -> {to}, {kind:?}");
    }
    assert_eq!(rule("store-sqlite").map(|rule| rule.0), Some("store-*"));
    assert_eq!(rule("utils"), None);
}

/// What is wrong with an edge, if anything. A crate without a rule is complained about elsewhere, once.
fn complaint(from: &str, to: &str, kind: Kind) -> Option<String> {
    let (_, allowed) = rule(from)?;
    if any_matches(allowed, to) || (kind == Kind::Test && any_matches(ALSO_IN_TESTS, to)) {
        return None;
    }
    if PORTS.contains(&from) && to == "testkit" {
        return (kind != Kind::Optional).then(|| {
            format!(
                "`{from}` depends on `testkit` always: make the dependency optional, behind the feature `contract`"
            )
        });
    }
    let allowed = if allowed.is_empty() { "none of our crates".to_owned() } else { allowed.join(", ") };
    Some(format!(
        "`{from}` depends on `{to}`, but may depend on {allowed}: move what it needs to a crate below both, pass it \
         in through a port, or, if the design has changed, change RULES here and docs/ARCHITECTURE.md together"
    ))
}

fn rule(crate_name: &str) -> Option<(&'static str, &'static [&'static str])> {
    RULES.iter().find(|(pattern, _)| matches(pattern, crate_name)).copied()
}

fn any_matches(patterns: &[&str], crate_name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, crate_name))
}

fn matches(pattern: &str, crate_name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == crate_name, |prefix| crate_name.starts_with(prefix))
}

fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("cargo metadata lists packages").clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a package has a name")
}

/// The real name of each dependency, whatever it is called in the code.
fn dependencies(package: &Value) -> impl Iterator<Item = (&str, Kind)> {
    package["dependencies"].as_array().into_iter().flatten().map(|dependency| {
        let kind = match (dependency["kind"].as_str(), dependency["optional"].as_bool()) {
            (Some("dev"), _) => Kind::Test,
            (_, Some(true)) => Kind::Optional,
            _ => Kind::Normal,
        };
        (dependency["name"].as_str().expect("a dependency has a name"), kind)
    })
}

fn manifest(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path).expect("the manifest can be read");
    text.parse().expect("the manifest is TOML")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}
