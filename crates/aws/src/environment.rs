//! What the process's environment says of AWS: read once and passed on, so that nothing below reaches for it.

use std::collections::HashMap;
use std::fmt;

/// The variables that matter here. Their values may be secrets, so only their names are printed.
#[derive(Clone, Default)]
pub struct Environment(HashMap<String, String>);

impl Environment {
    pub fn of_process() -> Self {
        let matters = |name: &str| name.starts_with("AWS_") || ["HOME", "USERPROFILE"].contains(&name);
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(text).filter(|(name, _)| matters(name)).collect()
    }

    /// A variable that is set to something.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
}

impl<Name: Into<String>, Value: Into<String>> FromIterator<(Name, Value)> for Environment {
    fn from_iter<I: IntoIterator<Item = (Name, Value)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_is_not_set_and_values_are_not_printed() {
        let environment = Environment::from_iter([("AWS_REGION", " "), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        assert_eq!(environment.get("AWS_REGION"), None);
        assert_eq!(environment.get("AWS_SECRET_ACCESS_KEY"), Some("hunter2"));
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
