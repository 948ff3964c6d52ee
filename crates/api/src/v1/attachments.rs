//! Attachments: decoded, bounded, and of the type their bytes say. What a file declares itself to be is
//! believed unless its first bytes prove otherwise.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use gateway::accept::draft::{Fault, Note};
use gateway::accept::text;
use model::{Attachment, Secret};
use serde_json::Value;

use crate::form::{At, Form};
use crate::limits::{ATTACHMENTS_MAX, CONTENT_ID_LENGTH_MAX, CONTENT_TYPE_LENGTH_MAX, FILENAME_LENGTH_MAX};

pub const FIELDS: &[&str] = &["filename", "contentType", "content", "contentId"];

/// With or without the `=` at the end: both are in use.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const UNKNOWN_TYPE: &str = "application/octet-stream";

/// First bytes, the type they prove, and what may truthfully begin with them.
const SIGNATURES: &[(&[u8], &str, &[&str])] = &[
    (b"%PDF-", "application/pdf", &[]),
    (b"\x89PNG\r\n\x1a\n", "image/png", &[]),
    (b"\xff\xd8\xff", "image/jpeg", &["image/jpg", "image/pjpeg"]),
    (b"GIF87a", "image/gif", &[]),
    (b"GIF89a", "image/gif", &[]),
    (
        b"PK\x03\x04",
        "application/zip",
        &["application/vnd.", "application/x-", "application/java-", "application/epub+zip"],
    ),
    (b"\x1f\x8b", "application/gzip", &["application/x-"]),
    (b"Rar!\x1a\x07", "application/vnd.rar", &["application/x-rar"]),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed", &[]),
    (b"\x7fELF", "application/x-elf", &["application/x-"]),
    (b"MZ", "application/vnd.microsoft.portable-executable", &["application/x-"]),
];

pub fn read(form: &mut Form<'_>, bytes_max: usize, notes: &mut Vec<Note>) -> Vec<Attachment> {
    let items = form.list("attachments", ATTACHMENTS_MAX, "TOO_MANY_ATTACHMENTS");
    let root = At::Root;
    let list = At::Field(&root, "attachments");
    let mut attachments = Vec::with_capacity(items.len());
    let mut total = 0;
    for (index, item) in items.into_iter().enumerate() {
        if let Some(attachment) = read_one(form, item, At::Item(&list, index), notes) {
            total += attachment.bytes.expose().len();
            attachments.push(attachment);
        }
    }
    if total > bytes_max {
        form.push("attachments", |field| {
            let message = format!("have {total} bytes in all; at most {bytes_max} are allowed");
            Fault::too_large(field, "ATTACHMENTS_TOO_LARGE", message)
        });
    }
    attachments
}

fn read_one(form: &Form<'_>, item: Value, at: At<'_>, notes: &mut Vec<Note>) -> Option<Attachment> {
    let mut inner = Form::open(item, at, FIELDS, form.faults())?;
    let filename = filename(&mut inner);
    let declared = content_type(&mut inner);
    let content_id = content_id(&mut inner);
    let bytes = inner.required_text("content").and_then(|content| {
        BASE64
            .decode(content.as_bytes())
            .map_err(|_| inner.fault("content", "INVALID_BASE64", "is not base64"))
            .ok()
    });
    inner.finish();
    let (filename, bytes) = (filename?, bytes?);
    let (content_type, lied) = true_type(declared, &filename, &bytes);
    if lied {
        notes.push(Note {
            field: At::Field(&at, "contentType").to_string(),
            code: "CONTENT_TYPE_CORRECTED",
            message: format!("does not fit the file; it is sent as {content_type}"),
        });
    }
    Some(Attachment { filename, content_type, content_id, bytes: Secret::new(bytes) })
}

fn filename(form: &mut Form<'_>) -> Option<String> {
    let filename = form.required_text("filename")?;
    let flaw =
        text::one_line(&filename, FILENAME_LENGTH_MAX).err().map(|(_, message)| message).or_else(|| {
            let is_path = filename.contains(['/', '\\']) || filename == "." || filename == "..";
            is_path.then(|| "must be a name, not a path".to_owned())
        });
    match flaw {
        None => Some(filename),
        Some(message) => {
            form.fault("filename", "INVALID_FILENAME", message);
            None
        }
    }
}

fn content_type(form: &mut Form<'_>) -> Option<String> {
    let declared = form.text("contentType")?;
    let is_word = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let is_fine = declared.len() <= CONTENT_TYPE_LENGTH_MAX
        && declared.split_once('/').is_some_and(|(kind, subtype)| is_word(kind) && is_word(subtype));
    if !is_fine {
        form.fault(
            "contentType",
            "INVALID_CONTENT_TYPE",
            "must be such as application/pdf, without parameters",
        );
    }
    is_fine.then(|| declared.to_ascii_lowercase())
}

fn content_id(form: &mut Form<'_>) -> Option<String> {
    let id = form.text("contentId")?;
    let is_fine = (1..=CONTENT_ID_LENGTH_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte));
    if !is_fine {
        let message = format!("must have 1 to {CONTENT_ID_LENGTH_MAX} letters, digits or . _ @ + -");
        form.fault("contentId", "INVALID_CONTENT_ID", message);
    }
    is_fine.then_some(id)
}

/// The type to send it as, and whether that is another than declared.
fn true_type(declared: Option<String>, filename: &str, bytes: &[u8]) -> (String, bool) {
    let proven = SIGNATURES.iter().find(|(signature, ..)| bytes.starts_with(signature));
    match (declared, proven) {
        (Some(declared), Some((_, proven, also))) => {
            let honest = declared == *proven
                || declared == UNKNOWN_TYPE
                || also.iter().any(|prefix| declared.starts_with(prefix));
            if honest { (declared, false) } else { ((*proven).to_owned(), true) }
        }
        (Some(declared), None) => {
            let claims = SIGNATURES.iter().any(|(_, proven, _)| declared == *proven);
            if claims && !bytes.is_empty() { (UNKNOWN_TYPE.to_owned(), true) } else { (declared, false) }
        }
        (None, Some((_, proven, _))) => ((*proven).to_owned(), false),
        (None, None) => (by_ending(filename).to_owned(), false),
    }
}

fn by_ending(filename: &str) -> &'static str {
    let ending = filename.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    match ending.as_str() {
        "txt" | "log" => "text/plain",
        "csv" => "text/csv",
        "htm" | "html" => "text/html",
        "json" => "application/json",
        "xml" => "application/xml",
        "ics" => "text/calendar",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        _ => UNKNOWN_TYPE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_decide_the_type() {
        let pdf = b"%PDF-1.7".as_slice();
        let zip = b"PK\x03\x04".as_slice();
        let cases = [
            // declared                     name      bytes   type                           corrected
            (Some("application/pdf"), "a.pdf", pdf, "application/pdf", false),
            (Some("image/png"), "a.png", pdf, "application/pdf", true),
            (Some("application/pdf"), "a.pdf", b"MZ\x90".as_slice(), SIGNATURES[10].1, true),
            (Some("application/pdf"), "a.pdf", b"hello".as_slice(), UNKNOWN_TYPE, true),
            (Some("application/pdf"), "a.pdf", b"".as_slice(), "application/pdf", false),
            (Some("application/vnd.ms-excel"), "a.xlsx", zip, "application/vnd.ms-excel", false),
            (Some("text/csv"), "a.csv", b"a,b".as_slice(), "text/csv", false),
            (None, "a.bin", pdf, "application/pdf", false),
            (None, "a.CSV", b"a,b".as_slice(), "text/csv", false),
            (None, "a", b"a,b".as_slice(), UNKNOWN_TYPE, false),
        ];
        for (declared, name, bytes, expected, corrected) in cases {
            let found = true_type(declared.map(str::to_owned), name, bytes);
            assert_eq!(found, (expected.to_owned(), corrected), "{declared:?} {name}");
        }
    }
}
