//! Whatever a file or a variable says: taken or refused, one line for each problem, no secret in any of them.

use proptest::prelude::*;

use super::*;

/// Values that some setting or other takes for something.
const VALUES: &str = r#"0¦1¦-1¦45¦99999999999999999999¦0x7f¦1.5¦nan¦true¦1979-05-27T07:32:00Z¦[]¦[1, "a", [[]]]¦{ a = 1 }¦""¦"x"¦
"127.0.0.1:0"¦"[::]:99999"¦"sqlite:a.db"¦"postgres://u:geheim@h/d"¦"mysql://h"¦"dynamodb://t"¦"smtp://u:geheim@h:25"¦"smtps://"¦"ses"¦
"resend"¦"smtp"¦"production"¦"staging"¦"json"¦"fast"¦"ana@example.com"¦"whsec_geheim"¦"é\u0000\n"¦'''
'''¦"unended¦["main"]¦["main", "main"]¦
["smtp://u:geheim@h", "smtp://u:geheim@h"]¦[1, 5]"#;

fn values() -> impl Iterator<Item = &'static str> {
    VALUES.split('¦').map(|text| text.trim_start_matches('\n'))
}

fn known_keys() -> Vec<String> {
    keys::KEYS.iter().map(|key| key.pattern.replace('*', "main")).collect()
}

fn any_key() -> impl Strategy<Value = String> {
    prop::sample::select(known_keys())
}

fn any_line() -> impl Strategy<Value = String> {
    let value = prop::sample::select(values().collect::<Vec<_>>());
    let value = prop_oneof![8 => value.prop_map(str::to_owned), 1 => "\\PC{0,12}"];
    let key = prop_oneof![8 => any_key(), 1 => "[a-z_.\"é -]{0,12}"];
    prop_oneof![
        8 => (key.clone(), value).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => key.prop_map(|key| format!("[{key}]")),
        1 => "\\PC{0,30}",
    ]
}

fn problems(file: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    match load(&sources(directory.path(), file, variables)) {
        Ok(_) => Vec::new(),
        Err(Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
    }
}

proptest! {
    #[test]
    fn files(lines in prop::collection::vec(any_line(), 0..8)) {
        for told in problems(&lines.join("\n"), &[]) {
            prop_assert!(!told.contains('\n') && told.len() < 2000, "{told:?}");
            prop_assert!(!told.contains("geheim"), "{told}");
        }
    }

    #[test]
    fn variables(key in any_key(), value in prop_oneof!["\\PC{0,20}", "\\[[0-9\", ]{0,12}\\]", "[a-z]{1,8}://[a-z:@/.]{0,20}"]) {
        let name = format!("POSTHASTE_{}", key.replace('.', "__").to_uppercase());
        for told in problems("", &[(&name, &value)]) {
            prop_assert!(!told.contains('\n') && told.len() < 2000, "{told:?}");
        }
    }
}

#[test]
fn each_setting_with_each_value() {
    for key in known_keys() {
        for value in values() {
            for told in problems(&format!("{key} = {value}"), &[]) {
                assert!(!told.contains('\n') && told.len() < 2000, "{told:?}");
                assert!(!told.contains("geheim"), "{told}");
            }
        }
    }
}

#[test]
fn nesting_without_end_is_refused() {
    for (open, close) in [("[", "]"), ("{ a = ", "}")] {
        let text = format!("listen = {}{}", open.repeat(100_000), close.repeat(100_000));
        assert!(!problems(&text, &[]).is_empty(), "{open}");
    }
}
