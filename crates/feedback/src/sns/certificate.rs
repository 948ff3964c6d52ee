//! Which certificates may speak for SNS.
//!
//! From a host of AWS: the file came over verified TLS from a host that is SNS's alone, so the way it came vouches for
//! it. On top of that it must be valid now and carry a name of SNS. Its chain is not built: that would need the
//! intermediates of Amazon, which change, and would add a second proof of what TLS has proved already.
//!
//! From a host the operator named: the operator vouches. Where roots are configured the certificate must be one of them
//! or be signed by one of them directly; names are not looked at, since emulators call themselves anything.

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey,
};
use model::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384,
};
use x509_parser::parse_x509_certificate;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

use super::origin::Origin;

const LABEL: &str = "CERTIFICATE";
/// More than any operator has; keeps a wrong file from becoming a list without end.
const ROOTS_MAX: usize = 512;

/// A certificate the operator trusts to sign others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoot {
    #[error("no certificate in PEM form found")]
    Empty,
    #[error("not a certificate in PEM form")]
    Unreadable,
    #[error("more than {ROOTS_MAX} certificates")]
    TooMany,
}

impl Root {
    /// Reads the certificates of a PEM file, one or several.
    pub fn read_all(pem: &str) -> Result<Vec<Self>, InvalidRoot> {
        let mut roots = Vec::new();
        for block in Pem::iter_from_buffer(pem.as_bytes()) {
            let block = block.map_err(|_| InvalidRoot::Unreadable)?;
            if block.label != LABEL || certificate(&block.contents).is_none() {
                return Err(InvalidRoot::Unreadable);
            }
            roots.push(Self(block.contents));
            if roots.len() > ROOTS_MAX {
                return Err(InvalidRoot::TooMany);
            }
        }
        if roots.is_empty() { Err(InvalidRoot::Empty) } else { Ok(roots) }
    }
}

/// Why a certificate is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    #[error("it is not a certificate in PEM form")]
    Unreadable,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("it is not valid any more")]
    Expired,
    #[error("its name is not one of SNS")]
    Name,
    #[error("no trusted root signed it")]
    Root,
    #[error("its key is not an RSA key")]
    Key,
}

/// The RSA key of a certificate that may speak for SNS. Only the first certificate of the text counts.
pub(super) fn rsa_key(
    pem: &str,
    origin: &Origin,
    roots: &[Root],
    now: Timestamp,
) -> Result<Vec<u8>, CertificateFault> {
    // Nothing may stand before it: a page that merely quotes a certificate is none.
    if !pem.trim_start().starts_with("-----BEGIN CERTIFICATE-----") {
        return Err(CertificateFault::Unreadable);
    }
    let (block, _) = Pem::read(std::io::Cursor::new(pem)).map_err(|_| CertificateFault::Unreadable)?;
    let leaf = certificate(&block.contents).ok_or(CertificateFault::Unreadable)?;
    check_validity(&leaf, now)?;
    match origin {
        Origin::Aws { region, domain } => check_name(&leaf, region, domain)?,
        Origin::Operator if roots.is_empty() => {}
        Origin::Operator => check_root(&leaf, roots, now)?,
    }
    let key = leaf.public_key();
    if key.algorithm.algorithm != OID_PKCS1_RSAENCRYPTION {
        return Err(CertificateFault::Key);
    }
    Ok(key.subject_public_key.data.to_vec())
}

/// The certificate, if that is all there is.
fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    parse_x509_certificate(der).ok().filter(|(rest, _)| rest.is_empty()).map(|(_, certificate)| certificate)
}

fn check_validity(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), CertificateFault> {
    let now = ASN1Time::from_timestamp(now.millis().div_euclid(1_000))
        .map_err(|_| CertificateFault::NotYetValid)?;
    let validity = certificate.validity();
    if now < validity.not_before {
        return Err(CertificateFault::NotYetValid);
    }
    if now > validity.not_after {
        return Err(CertificateFault::Expired);
    }
    Ok(())
}

/// The names of SNS's signing certificates. Most regions share one; China and the regions one has to opt in to have
/// their own, and a name of one region is not taken from the host of another. Both GovCloud regions sign as the west.
fn check_name(leaf: &X509Certificate<'_>, region: &str, domain: &str) -> Result<(), CertificateFault> {
    let mut names = vec![
        "sns.amazonaws.com".to_owned(),
        format!("sns.{region}.{domain}"),
        format!("sns-{region}.{domain}"),
        format!("sns-signing.{region}.{domain}"),
    ];
    if region.starts_with("us-gov-") {
        names.push(format!("sns-us-gov-west-1.{domain}"));
    }
    let is_sns = |name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let in_subject = leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok()).any(is_sns);
    let alternatives = leaf.subject_alternative_name().map_err(|_| CertificateFault::Name)?;
    let in_alternatives = alternatives.is_some_and(|alternatives| {
        alternatives
            .value
            .general_names
            .iter()
            .any(|name| matches!(name, GeneralName::DNSName(name) if is_sns(name)))
    });
    if in_subject || in_alternatives { Ok(()) } else { Err(CertificateFault::Name) }
}

fn check_root(leaf: &X509Certificate<'_>, roots: &[Root], now: Timestamp) -> Result<(), CertificateFault> {
    let vouches = |root: &Root| {
        // An emulator's own certificate may itself be on the list.
        leaf.as_raw() == root.0.as_slice()
            || certificate(&root.0).is_some_and(|root| is_signed_by(leaf, &root, now))
    };
    if roots.iter().any(vouches) { Ok(()) } else { Err(CertificateFault::Root) }
}

/// One step of a chain: a valid authority of the right name, and its signature. Longer chains are not followed.
fn is_signed_by(leaf: &X509Certificate<'_>, root: &X509Certificate<'_>, now: Timestamp) -> bool {
    let may_sign = match root.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    if !root.is_ca() || !may_sign || check_validity(root, now).is_err() {
        return false;
    }
    // The algorithm is named twice, and only the inner name is signed.
    if leaf.issuer().as_raw() != root.subject().as_raw() || leaf.signature != leaf.signature_algorithm {
        return false;
    }
    let Some(algorithm) = algorithm(leaf, root) else { return false };
    UnparsedPublicKey::new(algorithm, &root.public_key().subject_public_key.data)
        .verify(leaf.tbs_certificate.as_ref(), &leaf.signature_value.data)
        .is_ok()
}

/// How the leaf was signed, if we take that. SHA-1 is not taken: whoever makes certificates today can do better.
fn algorithm(
    leaf: &X509Certificate<'_>,
    root: &X509Certificate<'_>,
) -> Option<&'static dyn signature::VerificationAlgorithm> {
    let signed_with = &leaf.signature_algorithm.algorithm;
    let key = &root.public_key().algorithm;
    if key.algorithm == OID_PKCS1_RSAENCRYPTION {
        let algorithms: [(_, &'static dyn signature::VerificationAlgorithm); 3] = [
            (OID_PKCS1_SHA256WITHRSA, &RSA_PKCS1_2048_8192_SHA256),
            (OID_PKCS1_SHA384WITHRSA, &RSA_PKCS1_2048_8192_SHA384),
            (OID_PKCS1_SHA512WITHRSA, &RSA_PKCS1_2048_8192_SHA512),
        ];
        return algorithms.into_iter().find(|(oid, _)| oid == signed_with).map(|(_, algorithm)| algorithm);
    }
    if key.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY {
        return None;
    }
    let curve = key.parameters.as_ref()?.as_oid().ok()?;
    let algorithms: [(_, _, &'static dyn signature::VerificationAlgorithm); 4] = [
        (OID_EC_P256, OID_SIG_ECDSA_WITH_SHA256, &ECDSA_P256_SHA256_ASN1),
        (OID_EC_P256, OID_SIG_ECDSA_WITH_SHA384, &ECDSA_P256_SHA384_ASN1),
        (OID_NIST_EC_P384, OID_SIG_ECDSA_WITH_SHA256, &ECDSA_P384_SHA256_ASN1),
        (OID_NIST_EC_P384, OID_SIG_ECDSA_WITH_SHA384, &ECDSA_P384_SHA384_ASN1),
    ];
    let found = algorithms.into_iter().find(|(of, oid, _)| *of == curve && oid == signed_with);
    found.map(|(_, _, algorithm)| algorithm)
}
