//! Names and values of a form or a query string.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The fields of a form that was sent, checked by `guard` to be ours.
#[derive(Debug, Clone, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn parse(text: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(text).into_owned().collect())
    }

    /// The first of that name, trimmed; nothing where it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim());
        found.filter(|value| !value.is_empty())
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Those that are given, in the order of the names.
    pub fn pick<'a>(&'a self, names: &[&'static str]) -> Vec<(&'static str, &'a str)> {
        names.iter().filter_map(|name| Some((*name, self.get(name)?))).collect()
    }
}

impl<S: Sync> FromRequestParts<S> for Fields {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// The query string.
pub struct Query(pub Fields);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(Fields::parse(parts.uri.query().unwrap_or_default().as_bytes())))
    }
}
