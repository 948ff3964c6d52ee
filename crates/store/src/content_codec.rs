//! How content is kept in a store: one compressed block per email, the same for every store, so that the
//! database spends no time on compression and a dump can be read by any of them.
//!
//! With zstd at its quickest: an email takes half the room that lz4 left it, for some ten microseconds more. What is
//! written is what databases log, sync and keep, so this pays for itself (docs/BENCHMARKS.md).

use std::cell::RefCell;
use std::io::Cursor;

use model::privacy::Secret;
use model::{Attachment, Content};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::compress_bound;

/// The first byte of a block says how it is packed. Another way, or another layout, gets another number.
const ZSTD_V1: u8 = 2;
/// Of earlier versions: lz4 of the same layout.
const LZ4_V1: u8 = 1;
/// After it and the length of what is packed.
const PACKED_AT: usize = 1 + 4;

const LEVEL: i32 = 1;

thread_local! {
    /// Their tables are made once per thread: that takes longer than to pack an email.
    static COMPRESSOR: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(LEVEL).expect("the level is one of zstd's"));
    static DECOMPRESSOR: RefCell<Decompressor<'static>> =
        RefCell::new(Decompressor::new().expect("without a dictionary nothing can be wrong"));
}

const COMPOSED: u8 = 0;
const RAW: u8 = 1;

/// The block is damaged or of a layout this program does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored content cannot be read")]
pub struct UnreadableContent;

pub fn encode(content: &Content) -> Vec<u8> {
    let mut plain = Vec::with_capacity(content.size_bytes() + 64);
    match content {
        Content::Raw(eml) => {
            plain.push(RAW);
            put(&mut plain, eml);
        }
        Content::Composed { html, text, attachments } => {
            plain.push(COMPOSED);
            put(&mut plain, html.as_bytes());
            put_optional(&mut plain, text.as_deref());
            for attachment in attachments {
                put(&mut plain, attachment.filename.as_bytes());
                put(&mut plain, attachment.content_type.as_bytes());
                put_optional(&mut plain, attachment.content_id.as_deref());
                put(&mut plain, attachment.bytes.expose());
            }
        }
    }
    pack(&plain)
}

/// Into one buffer, which nobody fills with zeros first: what is inside is copied once more when the buffer is cut to what
/// it needs, and never else.
fn pack(plain: &[u8]) -> Vec<u8> {
    let length = u32::try_from(plain.len()).expect("a request is far smaller than 4 GiB");
    let mut head = Vec::with_capacity(PACKED_AT + compress_bound(plain.len()));
    head.push(ZSTD_V1);
    head.extend_from_slice(&length.to_le_bytes());
    let mut block = Cursor::new(head);
    block.set_position(PACKED_AT as u64);
    COMPRESSOR
        .with_borrow_mut(|zstd| zstd.compress_to_buffer(plain, &mut block))
        .expect("room for the worst case");
    let mut block = block.into_inner();
    block.shrink_to_fit();
    block
}

fn unpack(block: &[u8]) -> Result<Vec<u8>, UnreadableContent> {
    let (head, packed) = block.split_at_checked(PACKED_AT).ok_or(UnreadableContent)?;
    let length = u32::from_le_bytes(head[1..].try_into().map_err(|_| UnreadableContent)?) as usize;
    let plain = match head[0] {
        ZSTD_V1 => DECOMPRESSOR
            .with_borrow_mut(|zstd| zstd.decompress(packed, length))
            .map_err(|_| UnreadableContent)?,
        LZ4_V1 => lz4_flex::decompress(packed, length).map_err(|_| UnreadableContent)?,
        _ => return Err(UnreadableContent),
    };
    if plain.len() == length { Ok(plain) } else { Err(UnreadableContent) }
}

pub fn decode(block: &[u8]) -> Result<Content, UnreadableContent> {
    let plain = unpack(block)?;
    let (&kind, mut rest) = plain.split_first().ok_or(UnreadableContent)?;
    match kind {
        RAW => Ok(Content::Raw(take(&mut rest)?.to_vec())),
        COMPOSED => {
            let html = take_text(&mut rest)?;
            let text = take_optional(&mut rest)?;
            let mut attachments = Vec::new();
            while !rest.is_empty() {
                attachments.push(Attachment {
                    filename: take_text(&mut rest)?,
                    content_type: take_text(&mut rest)?,
                    content_id: take_optional(&mut rest)?,
                    bytes: Secret::new(take(&mut rest)?.to_vec()),
                });
            }
            Ok(Content::Composed { html, text, attachments })
        }
        _ => Err(UnreadableContent),
    }
}

fn put(plain: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("a request is far smaller than 4 GiB");
    plain.extend_from_slice(&length.to_le_bytes());
    plain.extend_from_slice(bytes);
}

/// An absent text is told from an empty one by a leading count of 0 or 1.
fn put_optional(plain: &mut Vec<u8>, text: Option<&str>) {
    plain.push(u8::from(text.is_some()));
    if let Some(text) = text {
        put(plain, text.as_bytes());
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], UnreadableContent> {
    let (length, after) = rest.split_at_checked(4).ok_or(UnreadableContent)?;
    let length = u32::from_le_bytes(length.try_into().map_err(|_| UnreadableContent)?);
    let (bytes, after) = after
        .split_at_checked(usize::try_from(length).map_err(|_| UnreadableContent)?)
        .ok_or(UnreadableContent)?;
    *rest = after;
    Ok(bytes)
}

fn take_text(rest: &mut &[u8]) -> Result<String, UnreadableContent> {
    String::from_utf8(take(rest)?.to_vec()).map_err(|_| UnreadableContent)
}

fn take_optional(rest: &mut &[u8]) -> Result<Option<String>, UnreadableContent> {
    let (&present, after) = rest.split_first().ok_or(UnreadableContent)?;
    *rest = after;
    if present == 0 { Ok(None) } else { take_text(rest).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_reads_back() {
        let attachment = |content_id: Option<&str>| Attachment {
            filename: "año.pdf".into(),
            content_type: "application/pdf".into(),
            content_id: content_id.map(Into::into),
            bytes: Secret::new(vec![0, 1, 255]),
        };
        let contents = [
            Content::Composed { html: "<p>olá</p>".into(), text: None, attachments: vec![] },
            Content::Composed {
                html: "<p>x</p>".repeat(2_000),
                text: Some(String::new()),
                attachments: vec![attachment(None), attachment(Some("logo"))],
            },
            Content::Raw(b"Subject: x\r\n\r\nbody".to_vec()),
        ];
        for content in contents {
            assert_eq!(decode(&encode(&content)), Ok(content));
        }
    }

    /// What an earlier version stored.
    #[test]
    fn lz4_is_still_read() {
        let content = Content::Composed { html: "<p>hello</p>".repeat(9), text: None, attachments: vec![] };
        let block = encode(&content);
        let plain = unpack(&block).expect("just packed");
        let mut earlier = vec![LZ4_V1];
        earlier.extend(lz4_flex::compress_prepend_size(&plain));
        assert_eq!(decode(&earlier), Ok(content));
        for end in 1..earlier.len() {
            assert_eq!(decode(&earlier[..end]), Err(UnreadableContent), "cut at {end}");
        }
    }

    #[test]
    fn damage_is_an_error_not_a_panic() {
        let block =
            encode(&Content::Composed { html: "<p>hello</p>".into(), text: None, attachments: vec![] });
        assert_eq!(decode(&[]), Err(UnreadableContent));
        assert_eq!(decode(&[9, 1, 2]), Err(UnreadableContent));
        for end in 1..block.len() {
            assert_eq!(decode(&block[..end]), Err(UnreadableContent), "cut at {end}");
        }
    }
}
