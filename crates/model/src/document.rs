//! CPF and CNPJ, the numbers by which Brazil knows people and companies: what a valid one is, and how to
//! notice one where none may stand. They are personal data: a `Document` prints masked, and only its hash is
//! ever stored.

use std::fmt;

use sha2::{Digest, Sha256};

/// How each kind is written, `#` standing for a digit and `@` for a digit or, since 2026, a letter.
const CPF: &[u8] = b"###.###.###-##";
const CNPJ: &[u8] = b"@@.@@@.@@@/@@@@-##";

/// Weights of the last check digit; the first one has the same without the leading weight.
const CPF_WEIGHTS: &[u32] = &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2];
const CNPJ_WEIGHTS: &[u32] = &[6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentKind {
    Cpf,
    Cnpj,
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpf => "cpf",
            Self::Cnpj => "cnpj",
        })
    }
}

/// Why a text is not a document number. Never quotes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDocument {
    #[error("not written like a CPF or CNPJ")]
    Shape,
    #[error("{0} with wrong check digits")]
    CheckDigits(DocumentKind),
    #[error("{0} of one repeated digit")]
    Repeated(DocumentKind),
}

/// A CPF or CNPJ whose check digits are right, without punctuation and in upper case.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Document {
    kind: DocumentKind,
    number: String,
}

impl Document {
    /// Takes the number with its punctuation, without, or with part of it; never with other characters
    /// inside.
    pub fn parse(text: &str) -> Result<Self, InvalidDocument> {
        let text = text.trim_ascii().as_bytes();
        let whole = |kind, pattern| {
            let reading = read(text, pattern, Punctuation::Optional)?;
            (reading.bytes_read == text.len()).then_some((kind, reading.number))
        };
        let (kind, number) = whole(DocumentKind::Cpf, CPF)
            .or_else(|| whole(DocumentKind::Cnpj, CNPJ))
            .ok_or(InvalidDocument::Shape)?;
        // Most such numbers have right check digits, and all are what people type to fill a field.
        if number.bytes().all(|byte| Some(byte) == number.bytes().next()) {
            return Err(InvalidDocument::Repeated(kind));
        }
        if !check_digits_are_right(kind, number.as_bytes()) {
            return Err(InvalidDocument::CheckDigits(kind));
        }
        Ok(Self { kind, number })
    }

    pub const fn kind(&self) -> DocumentKind {
        self.kind
    }

    /// The number itself. Whoever calls this answers for where it goes.
    pub fn expose(&self) -> &str {
        &self.number
    }

    /// SHA-256 of the number as 64 lower-case hexadecimal digits: what applications send as `cpfCnpjHash`.
    pub fn sha256_hex(&self) -> String {
        Sha256::digest(self.number.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(***)", self.kind)
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Is there a document number in clear in this text? One with its full punctuation always counts. Bare digits are what
/// order and customer numbers look like, and one in a hundred of those has right check digits: they count only where
/// the text itself says what they are, as `cpf-52998224725` does.
pub fn looks_like_document(text: &str) -> bool {
    let bytes = text.as_bytes();
    (is_punctuated(bytes) && holds(bytes, Punctuation::Required))
        || (names_document(bytes) && holds(bytes, Punctuation::Optional))
}

/// Most texts are not: they need no closer look.
fn is_punctuated(bytes: &[u8]) -> bool {
    [CPF, CNPJ].into_iter().any(|pattern| {
        let is_mark = |byte: &&u8| !b"#@".contains(byte);
        pattern.iter().filter(is_mark).all(|mark| bytes.contains(mark))
    })
}

/// A number of that form which is no part of a longer one.
fn holds(bytes: &[u8], punctuation: Punctuation) -> bool {
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    (0..bytes.len()).filter(|&at| at == 0 || !digit_at(at - 1)).any(|start| {
        let rest = &bytes[start..];
        // Without its marks a CNPJ of letters is any word of that length.
        let is_fit = |byte: &u8| punctuation == Punctuation::Required || byte.is_ascii_digit();
        rest.first().is_some_and(is_fit)
            && [CPF, CNPJ].into_iter().any(|pattern| {
                read(rest, pattern, punctuation).is_some_and(|reading| {
                    !digit_at(start + reading.bytes_read) && Document::parse(&reading.number).is_ok()
                })
            })
    })
}

fn names_document(bytes: &[u8]) -> bool {
    let names = |name: &[u8]| bytes.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name));
    names(b"cpf") || names(b"cnpj")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Punctuation {
    Required,
    Optional,
}

struct Reading {
    /// Without punctuation, in upper case.
    number: String,
    bytes_read: usize,
}

/// Reads a number of this pattern off the front of the text.
fn read(text: &[u8], pattern: &[u8], punctuation: Punctuation) -> Option<Reading> {
    let mut number = String::new();
    let mut bytes_read = 0;
    for &wanted in pattern {
        let byte = text.get(bytes_read).copied();
        match (wanted, byte) {
            (b'#', Some(digit @ b'0'..=b'9')) => number.push(char::from(digit)),
            (b'@', Some(sign)) if sign.is_ascii_alphanumeric() => {
                number.push(char::from(sign.to_ascii_uppercase()))
            }
            (b'#' | b'@', _) => return None,
            (mark, Some(byte)) if mark == byte => {}
            _ if punctuation == Punctuation::Optional => continue,
            _ => return None,
        }
        bytes_read += 1;
    }
    Some(Reading { number, bytes_read })
}

fn check_digits_are_right(kind: DocumentKind, number: &[u8]) -> bool {
    let weights = match kind {
        DocumentKind::Cpf => CPF_WEIGHTS,
        DocumentKind::Cnpj => CNPJ_WEIGHTS,
    };
    let check_digit_is_right = |at: usize, weights: &[u32]| {
        // A letter counts as its ASCII code less that of `0`, as the tax authority defined it.
        let sum: u32 =
            number[..at].iter().zip(weights).map(|(&sign, weight)| u32::from(sign - b'0') * weight).sum();
        let digit = match sum % 11 {
            0 | 1 => 0,
            rest => 11 - rest,
        };
        u32::from(number[at] - b'0') == digit
    };
    let last = number.len() - 1;
    check_digit_is_right(last - 1, &weights[1..]) && check_digit_is_right(last, weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_normalised() {
        use DocumentKind::{Cnpj, Cpf};
        let cases = [
            // case                          text                     kind  normalised
            ("cpf, digits", "52998224725", Cpf, "52998224725"),
            ("cpf, punctuated", "529.982.247-25", Cpf, "52998224725"),
            ("cpf, hyphen only", "529982247-25", Cpf, "52998224725"),
            ("cpf, blanks around", " 111.444.777-35\n", Cpf, "11144477735"),
            ("cpf, check digit 0", "123.456.789-09", Cpf, "12345678909"),
            ("cpf, leading zeros", "000.000.001-91", Cpf, "00000000191"),
            ("cnpj, digits", "11222333000181", Cnpj, "11222333000181"),
            ("cnpj, punctuated", "11.222.333/0001-81", Cnpj, "11222333000181"),
            ("cnpj, leading zeros", "00.000.000/0001-91", Cnpj, "00000000000191"),
            ("cnpj, letters, official sample", "12.ABC.345/01DE-35", Cnpj, "12ABC34501DE35"),
            ("cnpj, lower-case letters", "12abc34501de35", Cnpj, "12ABC34501DE35"),
        ];
        for (case, text, kind, normalised) in cases {
            let document = Document::parse(text).unwrap_or_else(|invalid| panic!("{case}: {invalid}"));
            assert_eq!((document.kind(), document.expose()), (kind, normalised), "{case}");
        }
    }

    #[test]
    fn wrong_numbers_are_refused() {
        use DocumentKind::{Cnpj, Cpf};
        use InvalidDocument::{CheckDigits, Repeated, Shape};
        let cases = [
            ("empty", "", Shape),
            ("blank", "   ", Shape),
            ("ten digits", "5299822472", Shape),
            ("twelve digits", "529982247250", Shape),
            ("thirteen digits", "1122233300018", Shape),
            ("fifteen digits", "112223330001810", Shape),
            ("text after it", "529.982.247-25x", Shape),
            ("mark in the wrong place", "5299.82.247-25", Shape),
            ("doubled mark", "529..982.247-25", Shape),
            ("blank inside", "529 982 247 25", Shape),
            ("cpf with a letter", "52998224A25", Shape),
            ("full-width digits", "５２９９８２２４７２５", Shape),
            ("arabic digits", "٥٢٩٩٨٢٢٤٧٢٥", Shape),
            ("cnpj with an accented letter", "12.ÁBC.345/01DE-35", Shape),
            ("cnpj with letters as check digits", "12.ABC.345/01DE-AB", Shape),
            ("cpf, first check digit wrong", "529.982.247-35", CheckDigits(Cpf)),
            ("cpf, last check digit wrong", "529.982.247-26", CheckDigits(Cpf)),
            ("cpf, digits swapped", "592.982.247-25", CheckDigits(Cpf)),
            ("cnpj, first check digit wrong", "11.222.333/0001-91", CheckDigits(Cnpj)),
            ("cnpj, last check digit wrong", "11.222.333/0001-82", CheckDigits(Cnpj)),
            ("cnpj, letter changed", "12.ABD.345/01DE-35", CheckDigits(Cnpj)),
            ("cpf of ones", "111.111.111-11", Repeated(Cpf)),
            ("cpf of zeros", "00000000000", Repeated(Cpf)),
            ("cnpj of zeros", "00000000000000", Repeated(Cnpj)),
            ("cnpj of nines", "99.999.999/9999-99", Repeated(Cnpj)),
        ];
        for (case, text, invalid) in cases {
            assert_eq!(Document::parse(text), Err(invalid), "{case}");
        }
    }

    #[test]
    fn every_single_wrong_digit_is_noticed() {
        for valid in ["52998224725", "11222333000181"] {
            for at in 0..valid.len() {
                for digit in '0'..='9' {
                    let mut text = valid.to_owned();
                    text.replace_range(at..=at, &digit.to_string());
                    assert_eq!(Document::parse(&text).is_ok(), text == valid, "digit {at} as {digit}");
                }
            }
        }
    }

    #[test]
    fn documents_print_masked_and_hash_without_punctuation() {
        let cpf = Document::parse("529.982.247-25").unwrap();
        let cnpj = Document::parse("11222333000181").unwrap();
        assert_eq!(format!("{cpf} {cpf:?} {cnpj} {cnpj:?}"), "cpf(***) cpf(***) cnpj(***) cnpj(***)");
        assert_eq!(cpf.sha256_hex(), Document::parse("52998224725").unwrap().sha256_hex());
        assert_eq!(cpf.sha256_hex(), "7281dfb5e8becca0a1c5e77c1268baacb0f983572b8c204fd8df72b24175b231");
    }

    #[test]
    fn documents_in_clear_are_noticed() {
        let cases = [
            ("cpf alone", "529.982.247-25", true),
            ("cnpj alone", "11.222.333/0001-81", true),
            ("cnpj with letters", "12.ABC.345/01DE-35", true),
            ("in a sentence", "o CPF 529.982.247-25, titular", true),
            ("after a colon, before a stop", "CPF:529.982.247-25.", true),
            ("in brackets", "(11.222.333/0001-81)", true),
            ("glued to a letter", "cpf529.982.247-25x", true),
            ("after an accented letter", "nº529.982.247-25", true),
            ("second of two", "000.000.000-00 e 529.982.247-25", true),
            ("in an address", "529.982.247-25@example.com", true),
            ("empty", "", false),
            ("plain words", "order 4711 for Maria", false),
            ("bare, called what it is", "cpf-52998224725", true),
            ("bare, in capitals", "CNPJ 11222333000181", true),
            ("bare, glued", "cpf52998224725", true),
            ("half punctuated, called what it is", "CPF: 529982247-25", true),
            ("bare cnpj with letters, called what it is", "cnpj=12ABC34501DE35", true),
            ("called so, wrong check digits", "cpf-52998224726", false),
            ("called so, part of a longer number", "cpf-152998224725", false),
            ("called so, no number", "cpf missing, order 4711", false),
            ("11 digits", "52998224725", false),
            ("14 digits", "11222333000181", false),
            ("order of 11 digits", "order-52998224725", false),
            ("half punctuated", "529982247-25", false),
            ("wrong check digits", "529.982.247-26", false),
            ("repeated digit", "111.111.111-11", false),
            ("digit before", "1529.982.247-25", false),
            ("digit after", "529.982.247-251", false),
            ("cut short", "529.982.247-2", false),
            ("ip address and port", "192.168.100.100-25", false),
            ("hexadecimal id", "0190b2e8-7c3a-7d52-9982-247252998224", false),
            ("only non-ASCII", "日本語のテキスト", false),
        ];
        for (case, text, noticed) in cases {
            assert_eq!(looks_like_document(text), noticed, "{case}");
        }
    }
}
