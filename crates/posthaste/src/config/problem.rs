//! Where a value came from, and what to tell the operator when it is wrong: one line, without the value
//! itself, since it may be a secret.

use std::fmt;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File {
        name: String,
        line: usize,
    },
    Environment(String),
    /// An option or command of the command line.
    Flag(&'static str),
}

impl Origin {
    pub fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong: `place: key: what is wrong; how to mend it`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub origin: Origin,
    /// Empty when the file as a whole is meant.
    pub key: String,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { name, line: 0 } => write!(f, "{name}: ")?,
            origin => write!(f, "{origin}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.what)
    }
}

/// All that is wrong with the configuration.
#[derive(Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}
