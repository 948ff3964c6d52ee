//! AWS's own settings: the environment first, then the profile that it names.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::environment::Environment;
use crate::profiles::{File, Profiles};

#[derive(Debug)]
pub struct Settings {
    pub environment: Environment,
    /// Files that cannot be read stand in nobody's way who does not need them.
    pub profiles: Result<Profiles, String>,
}

impl Settings {
    pub async fn load(environment: &Environment) -> Self {
        Self { environment: environment.clone(), profiles: load_profiles(environment).await }
    }

    /// A setting by the name of its variable or, after that, by its key in the profile.
    pub fn get(&self, variable: &str, key: &str) -> Option<&str> {
        self.environment.get(variable).or_else(|| self.profiles.as_ref().ok()?.selected()?.get(key))
    }

    pub fn is_true(&self, variable: &str, key: &str) -> bool {
        self.get(variable, key).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
}

async fn load_profiles(environment: &Environment) -> Result<Profiles, String> {
    let config = read(environment, File::Config).await?;
    let credentials = read(environment, File::Credentials).await?;
    let selected = environment.get("AWS_PROFILE");
    Profiles::parse(&config, &credentials, selected).map_err(|broken| broken.to_string())
}

/// A file that does not exist is an empty one. So is one in a home that belongs to somebody else, as in containers
/// whose user was changed; but not one that was named.
async fn read(environment: &Environment, file: File) -> Result<String, String> {
    let (variable, usual) = match file {
        File::Config => ("AWS_CONFIG_FILE", "~/.aws/config"),
        File::Credentials => ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    };
    let named = environment.get(variable);
    let Some(path) = expand(environment, named.unwrap_or(usual)) else {
        return Ok(String::new());
    };
    match tokio::fs::read(path).await {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound || named.is_none() => Ok(String::new()),
        Err(error) => Err(format!("AWS's {} cannot be read: {error}", file.name())),
    }
}

fn expand(environment: &Environment, path: &str) -> Option<PathBuf> {
    let Some(rest) = path.strip_prefix("~/") else {
        return Some(path.into());
    };
    let home = environment.get("HOME").or_else(|| environment.get("USERPROFILE"))?;
    Some(PathBuf::from(home).join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_that_are_missing_or_cannot_be_read() {
        let home = tempfile::tempdir().expect("a folder");
        let home = home.path().to_str().expect("a plain path");
        let aws = format!("{home}/.aws");
        std::fs::create_dir_all(format!("{aws}/config")).expect("a folder where a file should be");
        std::fs::write(format!("{aws}/credentials"), "[mail]\nregion = eu-west-3\n").expect("written");
        let (home, mail) = (("HOME", home), ("AWS_PROFILE", "mail"));
        let cases = [
            ("usual places, one of them not ours", vec![home, mail], Ok(Some("eu-west-3"))),
            ("no home", vec![mail], Ok(None)),
            ("named, missing", vec![home, mail, ("AWS_CONFIG_FILE", "~/nowhere")], Ok(Some("eu-west-3"))),
            ("named, unreadable", vec![home, mail, ("AWS_CONFIG_FILE", "~/.aws/config")], Err(())),
        ];
        for (case, variables, expected) in cases {
            let settings = Settings::load(&variables.into_iter().collect()).await;
            let found = settings.profiles.as_ref().map(|_| settings.get("AWS_REGION", "region"));
            assert_eq!(found.map_err(|_| ()), expected, "{case}");
        }
    }
}
