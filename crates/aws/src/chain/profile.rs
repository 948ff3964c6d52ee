//! How a profile leads to credentials: where they begin, and the roles that are taken on from there. Pure.

use crate::chain::sts::Role;
use crate::credentials::Credentials;
use crate::profiles::{Profile, Profiles};

#[derive(Debug, PartialEq, Eq)]
pub struct Plan<'x> {
    pub base: Base<'x>,
    /// In the order in which they are taken on.
    pub roles: Vec<Role<'x>>,
}

/// What needs no other credentials.
#[derive(Debug, PartialEq, Eq)]
pub enum Base<'x> {
    Keys(Credentials),
    /// A command that prints them.
    Process(&'x str),
    /// A role, and the file with the token that lets us take it on.
    WebIdentity(Role<'x>, &'x str),
    Environment,
    Container,
    Machine,
}

/// The way to credentials by the profile that is used; none where it does not exist or is about other things. An error
/// says what is wrong with it.
pub fn plan(profiles: &Profiles) -> Result<Option<Plan<'_>>, String> {
    let mut roles = Vec::new();
    let mut visited = vec![profiles.selected_name()];
    let Some(mut profile) = profiles.selected() else {
        return Ok(None);
    };
    let base = loop {
        let name = visited.last().copied().unwrap_or_default();
        let is_source = visited.len() > 1;
        if is_source && let Some(keys) = keys(name, profile)? {
            break Some(Base::Keys(keys));
        }
        let Some(role) = chained_role(profile) else {
            break base(name, profile)?;
        };
        roles.push(role);
        match source(name, profile)? {
            Source::Itself => break base(name, profile)?,
            Source::Profile(next) if visited.contains(&next) => {
                return Err(format!("the profile {next} leads back to itself by source_profile"));
            }
            Source::Profile(next) => {
                visited.push(next);
                profile = profiles.named(next).ok_or_else(|| format!("there is no profile {next}"))?;
            }
        }
    };
    if base.is_none() && !roles.is_empty() {
        return Err(format!(
            "the profile {} has no credentials",
            visited.last().copied().unwrap_or_default()
        ));
    }
    roles.reverse();
    Ok(base.map(|base| Plan { base, roles }))
}

enum Source<'x> {
    Itself,
    Profile(&'x str),
}

/// Whose credentials let a profile's role be taken on.
fn source<'x>(name: &str, profile: &'x Profile) -> Result<Source<'x>, String> {
    match (profile.get("source_profile"), profile.get("credential_source")) {
        (Some(source), None) if source == name => Ok(Source::Itself),
        (Some(source), None) => Ok(Source::Profile(source)),
        (None, Some(_)) => Ok(Source::Itself),
        _ => Err(format!("the profile {name} needs either source_profile or credential_source")),
    }
}

fn chained_role(profile: &Profile) -> Option<Role<'_>> {
    role(profile).filter(|_| profile.get("web_identity_token_file").is_none())
}

fn role(profile: &Profile) -> Option<Role<'_>> {
    Some(Role {
        arn: profile.get("role_arn")?,
        session_name: profile.get("role_session_name"),
        external_id: profile.get("external_id"),
    })
}

fn base<'x>(name: &str, profile: &'x Profile) -> Result<Option<Base<'x>>, String> {
    if let Some(source) = profile.get("credential_source") {
        return named_source(source).map(Some);
    }
    if let Some(token_file) = profile.get("web_identity_token_file") {
        let role = role(profile).ok_or_else(|| format!("the profile {name} lacks role_arn"))?;
        return Ok(Some(Base::WebIdentity(role, token_file)));
    }
    let logs_in = ["sso_session", "sso_start_url", "sso_account_id", "sso_role_name", "login_session"];
    if logs_in.iter().any(|key| profile.get(key).is_some()) {
        return Err(format!("the profile {name} logs in by SSO or `aws login`, which is not built in"));
    }
    if let Some(command) = profile.get("credential_process") {
        return Ok(Some(Base::Process(command)));
    }
    Ok(keys(name, profile)?.map(Base::Keys))
}

fn named_source(source: &str) -> Result<Base<'static>, String> {
    match source.to_ascii_lowercase().as_str() {
        "environment" => Ok(Base::Environment),
        "ecscontainer" => Ok(Base::Container),
        "ec2instancemetadata" => Ok(Base::Machine),
        _ => Err("credential_source must be Environment, EcsContainer or Ec2InstanceMetadata".to_owned()),
    }
}

fn keys(name: &str, profile: &Profile) -> Result<Option<Credentials>, String> {
    let token = profile.get("aws_session_token");
    match (profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            let keys = Credentials::new(id, secret);
            Ok(Some(match token {
                Some(token) => keys.with_session_token(token),
                None => keys,
            }))
        }
        (None, None) if token.is_none() => Ok(None),
        _ => Err(format!("the profile {name} needs both aws_access_key_id and aws_secret_access_key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(arn: &'static str) -> Role<'static> {
        Role { arn, session_name: None, external_id: None }
    }

    fn planned(config: &str, check: impl FnOnce(Result<Option<Plan<'_>>, String>)) {
        check(plan(&Profiles::parse(config, "", Some("p")).expect("profiles")));
    }

    #[test]
    fn ways_to_credentials() {
        let keys = || Base::Keys(Credentials::new("AKID", "s"));
        let cases = [
            ("aws_access_key_id=AKID\naws_secret_access_key=s", keys(), vec![]),
            ("credential_process=tell", Base::Process("tell"), vec![]),
            ("role_arn=r\ncredential_source=Environment", Base::Environment, vec![role("r")]),
            ("role_arn=r\ncredential_source=ec2instancemetadata", Base::Machine, vec![role("r")]),
            ("role_arn=r\ncredential_source=EcsContainer", Base::Container, vec![role("r")]),
            ("role_arn=r\nweb_identity_token_file=f", Base::WebIdentity(role("r"), "f"), vec![]),
            (
                "role_arn=r\nsource_profile=p\naws_access_key_id=AKID\naws_secret_access_key=s",
                keys(),
                vec![role("r")],
            ),
            (
                "role_arn=r\nsource_profile=q\n[profile q]\nrole_arn=r2\nsource_profile=x\n\
                 [profile x]\naws_access_key_id=AKID\naws_secret_access_key=s",
                keys(),
                vec![role("r2"), role("r")],
            ),
            (
                "role_arn=r\nexternal_id=e\nrole_session_name=n\nsource_profile=q\n[profile q]\ncredential_process=tell",
                Base::Process("tell"),
                vec![Role { arn: "r", session_name: Some("n"), external_id: Some("e") }],
            ),
        ];
        for (profile, base, roles) in cases {
            planned(&format!("[profile p]\n{profile}\n"), |found| {
                assert_eq!(found, Ok(Some(Plan { base, roles })), "{profile}");
            });
        }
    }

    #[test]
    fn profiles_about_other_things() {
        for config in ["", "[default]\naws_access_key_id=x\naws_secret_access_key=s", "[profile p]\nregion=x"]
        {
            planned(config, |found| assert_eq!(found, Ok(None), "{config}"));
        }
    }

    #[test]
    fn profiles_that_are_wrong() {
        let cases = [
            "aws_access_key_id=hunter2",
            "aws_session_token=hunter2",
            "role_arn=r",
            "role_arn=r\nsource_profile=q\ncredential_source=Environment",
            "role_arn=r\ncredential_source=Elsewhere",
            "role_arn=r\nsource_profile=nobody",
            "role_arn=r\nsource_profile=q\n[profile q]\nregion=x",
            "role_arn=r\nsource_profile=q\n[profile q]\nrole_arn=r2\nsource_profile=p",
            "web_identity_token_file=f",
            "sso_session=x\nsso_account_id=1",
            "login_session=x",
        ];
        for profile in cases {
            planned(&format!("[profile p]\n{profile}\n"), |found| {
                let reason = found.expect_err(profile);
                assert!(!reason.contains("hunter2"), "{reason}");
            });
        }
    }
}
