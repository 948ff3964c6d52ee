//! Who may reach us, where mail may go, and the keys that protect documents.

use std::net::{Ipv4Addr, SocketAddr};

use gateway::EnvironmentGuard;
use model::{Address, Secret};

use super::Reader;
use crate::config::keys::nearest_of;
use crate::config::problem::Origin;
use crate::config::{PRODUCTION, Privacy};

const ADMIN_TOKEN_LENGTH_MIN: usize = 16;
const ENVIRONMENT_LENGTH_MAX: usize = 64;

impl Reader<'_> {
    pub(super) fn admin_token(&mut self) -> Option<Secret<String>> {
        let token = self.text("admin_token")?;
        if token.len() < ADMIN_TOKEN_LENGTH_MIN {
            self.complain(
                "admin_token",
                format!("is too short to be safe; use at least {ADMIN_TOKEN_LENGTH_MIN} characters"),
            );
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.complain(
                "admin_token",
                "holds spaces or other characters that no header can carry; use letters and digits",
            );
        }
        Some(Secret::new(token))
    }

    pub(super) fn worker_listen(&mut self, has_admin_token: bool) -> Option<SocketAddr> {
        self.text("worker.listen").map(|_| self.listen("worker.listen", has_admin_token))
    }

    pub(super) fn listen(&mut self, key: &str, has_admin_token: bool) -> SocketAddr {
        let text = self.text(key).unwrap_or_default();
        let text = text.strip_prefix("localhost:").map_or(text.clone(), |port| format!("127.0.0.1:{port}"));
        let Ok(address) = text.parse::<SocketAddr>() else {
            self.complain(key, "must be an address and a port, such as 127.0.0.1:8025 or [::1]:8025");
            return SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        };
        if !address.ip().is_loopback() && !has_admin_token {
            let what = "other machines could reach it, and there is no admin_token; \
                        set admin_token or listen on 127.0.0.1";
            self.complain(key, what);
        }
        address
    }

    pub(super) fn environment(&mut self) -> String {
        let environment = self.text("environment").unwrap_or_default();
        let is_fine = environment.len() <= ENVIRONMENT_LENGTH_MAX
            && environment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_fine {
            let what = format!(
                "must be a short name such as production or staging: letters, digits, - _ . \
                 and at most {ENVIRONMENT_LENGTH_MAX} of them"
            );
            self.complain("environment", what);
        }
        let nearly = environment != PRODUCTION
            && nearest_of(&environment.to_lowercase(), [PRODUCTION, "prod"]).is_some();
        if is_fine && nearly {
            let what = "looks like production but is not spelt so, and would be guarded; \
                        write production, or another name";
            self.complain("environment", what);
        }
        environment
    }

    pub(super) fn guard(&mut self, environment: &str) -> EnvironmentGuard {
        let mode = self.text("guard.mode");
        let redirect_to = self.text("guard.redirect_to");
        let allow = self.texts("guard.allow");
        if environment == PRODUCTION {
            for key in ["guard.mode", "guard.redirect_to", "guard.allow"] {
                if self.layers.entries.contains_key(key) {
                    let what = "has no place in production, where mail goes where it is addressed; \
                                remove it or change environment";
                    self.complain(key, what);
                }
            }
            return EnvironmentGuard::Open;
        }
        let mode = mode.as_deref().unwrap_or("capture");
        // The mode of `posthaste dev` comes from the command and overrides whatever the file is for.
        let is_ours = matches!(self.origin("guard.mode"), Origin::Flag(_));
        if redirect_to.is_some() && mode != "redirect" && !is_ours {
            self.complain(
                "guard.redirect_to",
                "is only used with mode = \"redirect\"; set the mode or remove it",
            );
        }
        if allow.is_some() && mode != "allow" && !is_ours {
            self.complain("guard.allow", "is only used with mode = \"allow\"; set the mode or remove it");
        }
        match mode {
            "redirect" => self.redirect(redirect_to),
            "allow" => self.allow(allow.unwrap_or_default()),
            _ => EnvironmentGuard::Capture,
        }
    }

    pub(super) fn redirect(&mut self, to: Option<String>) -> EnvironmentGuard {
        let Some(to) = to else {
            self.complain("guard.mode", "redirect needs an address; set guard.redirect_to");
            return EnvironmentGuard::Capture;
        };
        self.address("guard.redirect_to", &to).map_or(EnvironmentGuard::Capture, EnvironmentGuard::Redirect)
    }

    pub(super) fn allow(&mut self, entries: Vec<String>) -> EnvironmentGuard {
        if entries.is_empty() {
            self.complain(
                "guard.mode",
                "allow needs a list; set guard.allow to addresses (a@b.com) and domains (@b.com)",
            );
        }
        for entry in &entries {
            let whole = entry.strip_prefix('@').map_or(entry.clone(), |domain| format!("x@{domain}"));
            if Address::parse(&whole).is_err() {
                self.complain(
                    "guard.allow",
                    "holds an entry that is neither an address (a@b.com) nor a domain (@b.com)",
                );
            }
        }
        EnvironmentGuard::Allow(entries)
    }

    pub(super) fn privacy(&mut self) -> Privacy {
        let hash_key = self.text("privacy.hash_key");
        let hash_key = hash_key.and_then(|text| self.key_of("privacy.hash_key", &text));
        let entries = self.texts("privacy.seal_keys");
        if entries.as_ref().is_some_and(Vec::is_empty) {
            self.complain("privacy.seal_keys", "is empty; give it a key or remove it");
        }
        let mut seal_keys = Vec::new();
        for digits in entries.unwrap_or_default() {
            seal_keys.extend(self.key_of("privacy.seal_keys", &digits));
        }
        Privacy { seal_keys, hash_key }
    }

    pub(super) fn key_of(&mut self, setting: &str, digits: &str) -> Option<Secret<[u8; 32]>> {
        let key = crate::secret::from_hex(digits);
        if key.is_none() {
            self.complain(setting, "must be 64 hexadecimal digits; make some with: openssl rand -hex 32");
        }
        key.map(Secret::new)
    }
}
