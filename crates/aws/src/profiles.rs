//! AWS's two files, `~/.aws/config` and `~/.aws/credentials`, as profiles. Pure: `settings` reads the files.
//!
//! A profile is called `[default]` in both, else `[profile NAME]` in the first and `[NAME]` in the second. Where both
//! have the same key, the second counts. A line that begins with a space goes on with the value above it.

use std::collections::HashMap;
use std::fmt;

use model::Secret;

const DEFAULT: &str = "default";

/// All profiles, and the one that is used.
#[derive(Debug, Default, Clone)]
pub struct Profiles {
    selected: String,
    profiles: HashMap<String, Profile>,
    /// What `services = NAME` of a profile leads to: endpoints by service.
    services: HashMap<String, Profile>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Profile(HashMap<String, Secret<String>>);

/// A line that cannot be read. What it says is not told, since it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub file: File,
    pub line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Config,
    Credentials,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of AWS's {} cannot be read", self.line, self.file.name())
    }
}

impl File {
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config file",
            Self::Credentials => "credentials file",
        }
    }
}

impl Profile {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| value.expose().as_str()).filter(|value| !value.is_empty())
    }
}

impl Profiles {
    /// The profiles of both files. `selected` is the name of the one to use, if somebody named one.
    pub fn parse(config: &str, credentials: &str, selected: Option<&str>) -> Result<Self, Broken> {
        let mut profiles = Self { selected: selected.unwrap_or(DEFAULT).to_owned(), ..Self::default() };
        profiles.read(config, File::Config)?;
        profiles.read(credentials, File::Credentials)?;
        Ok(profiles)
    }

    pub fn selected_name(&self) -> &str {
        &self.selected
    }

    pub fn selected(&self) -> Option<&Profile> {
        self.named(&self.selected)
    }

    pub fn named(&self, name: &str) -> Option<&Profile> {
        self.profiles.get(name)
    }

    /// A setting of the profile that is used for one service alone.
    pub fn of_service(&self, service: &str, key: &str) -> Option<&str> {
        let services = self.selected()?.get("services")?;
        let lines = self.services.get(services)?.get(service)?.lines();
        lines.filter_map(|line| line.split_once('=')).find_map(|(found, value)| {
            (found.trim().eq_ignore_ascii_case(key) && !value.trim().is_empty()).then(|| value.trim())
        })
    }

    fn read(&mut self, text: &str, file: File) -> Result<(), Broken> {
        // A section of a kind that nobody asks for is read, so that its mistakes are found, and forgotten.
        let mut unasked = Profile::default();
        let mut section: Option<&mut Profile> = None;
        let mut last_key = String::new();
        for (index, line) in text.lines().enumerate() {
            let broken = || Broken { file, line: index + 1 };
            if line.trim().is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(heading) = line.strip_prefix('[') {
                let heading = until_comment(heading, 0).strip_suffix(']').ok_or_else(broken)?;
                section = Some(self.section(heading.trim(), file).unwrap_or(&mut unasked));
                last_key.clear();
                continue;
            }
            let section = section.as_mut().ok_or_else(broken)?;
            if line.starts_with([' ', '\t']) {
                let value = section.0.get_mut(&last_key).ok_or_else(broken)?;
                *value = Secret::new(format!("{}\n{}", value.expose(), line.trim()));
                continue;
            }
            let (key, value) = until_comment(line, 1).split_once('=').ok_or_else(broken)?;
            last_key = key.trim().to_ascii_lowercase();
            if last_key.is_empty() {
                return Err(broken());
            }
            section.0.insert(last_key.clone(), Secret::new(value.trim().to_owned()));
        }
        Ok(())
    }

    fn section(&mut self, heading: &str, file: File) -> Option<&mut Profile> {
        let (kind, name) = match heading.split_once([' ', '\t']) {
            Some((kind, name)) => (kind, name.trim()),
            None => ("", heading),
        };
        let sections = match (file, kind, name) {
            (File::Config, "profile", _) | (File::Config, "", DEFAULT) | (File::Credentials, "", _) => {
                &mut self.profiles
            }
            (File::Config, "services", _) => &mut self.services,
            _ => return None,
        };
        Some(sections.entry(name.to_owned()).or_default())
    }
}

/// The line without what follows a `#` or `;`, which begins a comment after so many spaces.
fn until_comment(line: &str, spaces: usize) -> &str {
    let begins = |(at, _): &(usize, &str)| spaces == 0 || line[..*at].ends_with([' ', '\t']);
    let comment = line.match_indices(['#', ';']).find(begins);
    comment.map_or(line, |(at, _)| &line[..at]).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "# ours\n[default]\nregion = eu-west-1\n\n[profile mail]\nREGION=eu-west-3 # Paris\n\
        aws_secret_access_key = a#b\nservices = near\ns3 =\n  max_retries = 3\n[sso-session x]\nsso_region = y\n\
        [services near]\nsesv2 =\n  endpoint_url = http://127.0.0.1:1\n  other = 2\n";

    #[test]
    fn both_files_are_one() {
        let credentials =
            "[mail] ; keys\naws_access_key_id=AKID\naws_secret_access_key = second\n[profile mail]\nx=y\n";
        let profiles = Profiles::parse(CONFIG, credentials, Some("mail")).expect("profiles");
        let mail = profiles.selected().expect("the profile");
        let cases = [
            ("region", Some("eu-west-3")),
            ("aws_access_key_id", Some("AKID")),
            ("aws_secret_access_key", Some("second")),
            ("sso_region", None),
            ("x", None),
            ("s3", Some("max_retries = 3")),
        ];
        for (key, expected) in cases {
            assert_eq!(mail.get(key).map(str::trim), expected, "{key}");
        }
        assert_eq!(profiles.of_service("sesv2", "endpoint_url"), Some("http://127.0.0.1:1"));
        assert_eq!(profiles.of_service("dynamodb", "endpoint_url"), None);
        let without = Profiles::parse(CONFIG, "", None).expect("profiles");
        assert_eq!(without.selected().and_then(|profile| profile.get("region")), Some("eu-west-1"));
        let first = Profiles::parse(CONFIG, "", Some("mail")).expect("profiles");
        assert_eq!(first.selected().and_then(|mail| mail.get("aws_secret_access_key")), Some("a#b"));
        assert!(!format!("{profiles:?}").contains("second"), "{profiles:?}");
    }

    #[test]
    fn broken_lines_are_counted_and_not_quoted() {
        let cases = [
            ("[default\naws_access_key_id", 1),
            ("region = x", 1),
            ("[default]\nhunter2", 2),
            ("[default]\n = hunter2", 2),
            ("[default]\n\n  hunter2 = 1", 3),
        ];
        for (config, line) in cases {
            let broken = Profiles::parse(config, "", None).expect_err("broken");
            assert_eq!(broken, Broken { file: File::Config, line }, "{config}");
            assert!(!broken.to_string().contains("hunter2"), "{broken}");
        }
    }
}
