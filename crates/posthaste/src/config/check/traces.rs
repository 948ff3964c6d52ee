//! Where traces go.

use model::Secret;

use super::Reader;
use crate::config::Traces;

const ENDPOINT: &str = "telemetry.otlp_endpoint";
const HEADERS: &str = "telemetry.otlp_headers";
/// Where collectors take traces, below their address.
const PATH: &str = "/v1/traces";

impl Reader<'_> {
    pub(super) fn traces(&mut self) -> Option<Traces> {
        let headers = self.headers();
        let endpoint = self.text(ENDPOINT)?;
        let is_web = reqwest::Url::parse(&endpoint)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.query().is_none());
        if !is_web {
            self.complain(
                ENDPOINT,
                "must be such as http://localhost:4318: the collector's address for OTLP over HTTP",
            );
            return None;
        }
        let base = endpoint.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let sample_per_mille = u32::try_from(self.count("telemetry.sample_per_mille")).unwrap_or(0);
        Some(Traces { url: Secret::new(url), headers, sample_per_mille })
    }

    fn headers(&mut self) -> Vec<(String, Secret<String>)> {
        let mut headers = Vec::new();
        for text in self.texts(HEADERS).unwrap_or_default() {
            match read_header(&text) {
                Some(header) => headers.push(header),
                None => {
                    self.complain(HEADERS, "must be a list of name=value, such as \"authorization=Bearer …\"")
                }
            }
        }
        headers
    }
}

fn read_header(text: &str) -> Option<(String, Secret<String>)> {
    let (name, value) = text.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    reqwest::header::HeaderName::from_bytes(name.as_bytes()).ok()?;
    reqwest::header::HeaderValue::from_str(value).ok()?;
    Some((name.to_owned(), Secret::new(value.to_owned())))
}
