//! The one style sheet and the one script (of three files), part of the binary, served under a hash of their content so that browsers
//! may keep them for ever.

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::sessions::hex;
use crate::state::Ui;

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = concat!(
    include_str!("assets/script.js"),
    include_str!("assets/live.js"),
    include_str!("assets/mailbox.js")
);

/// Where they are found.
pub struct Assets {
    pub style: String,
    pub script: String,
}

impl Assets {
    pub fn new() -> Self {
        Self { style: place(STYLE, "style.css"), script: place(SCRIPT, "script.js") }
    }
}

fn place(content: &str, name: &str) -> String {
    format!("/ui/assets/{}/{name}", hex(&Sha256::digest(content.as_bytes())[..8]))
}

pub async fn serve(State(ui): State<Ui>, Path((hash, name)): Path<(String, String)>) -> Response {
    let asked = format!("/ui/assets/{hash}/{name}");
    let (content, kind) = if asked == ui.assets.style {
        (STYLE, "text/css; charset=utf-8")
    } else if asked == ui.assets.script {
        (SCRIPT, "text/javascript; charset=utf-8")
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, content).into_response()
}
