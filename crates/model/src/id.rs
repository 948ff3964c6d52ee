//! Identifiers: one type per thing, so that an email's id never goes where a company's belongs.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::clock::Timestamp;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id whose order follows `now`; the rest is random.
            pub fn new(now: Timestamp) -> Self {
                let random = Uuid::new_v4().into_bytes();
                let mut tail = [0; 10];
                tail.copy_from_slice(&random[..10]);
                Self::from_parts(now, tail)
            }

            /// The id made of a time and ten given bytes, for seeded runs.
            pub fn from_parts(now: Timestamp, random: [u8; 10]) -> Self {
                let millis = u64::try_from(now.millis()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// Takes the hyphenated form only, so that one thing has one spelling.
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if text.len() != 36 {
                    return Err(InvalidId);
                }
                Uuid::try_parse(text).map(Self).map_err(|_| InvalidId)
            }
        }
    };
}

id!(
    /// An email: at once `outboxId`, `jobId` and `id`.
    EmailId
);
id!(
    /// A company, the tenant.
    CompanyId
);
id!(
    /// An API key (its public handle, not the secret).
    KeyId
);
id!(
    /// A recipient known to a company.
    RecipientId
);
id!(
    /// Something a company's admin is to hear of.
    AlertId
);
id!(
    /// One run of one worker process; the owner of leases.
    WorkerId
);

/// The text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected 36 characters such as 0190c3d2-7b7e-7000-8000-000000000000")]
pub struct InvalidId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let early = EmailId::new(Timestamp::from_millis(1_000));
        let late = EmailId::new(Timestamp::from_millis(2_000));
        assert!(early < late);
        assert_eq!(early.to_string().parse::<EmailId>(), Ok(early));
        assert_eq!(early.uuid().get_version_num(), 7);
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in ["", "x", "0190c3d27b7e70008000000000000000", "{0190c3d2-7b7e-7000-8000-000000000000}"] {
            assert_eq!(text.parse::<EmailId>(), Err(InvalidId), "{text}");
        }
    }
}
