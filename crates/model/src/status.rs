//! Where an email is, and every legal move from there. This table is the only place that knows; every store
//! applies a move only to a row that still has the status the move leaves from.

use std::fmt;
use std::str::FromStr;

/// Where an email is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    Accepted,
    Enqueued,
    Processing,
    RetryScheduled,
    Sent,
    Delivered,
    Bounced,
    Complained,
    Failed,
    Invalid,
    Expired,
    Cancelled,
}

/// What can happen to an email that changes where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// Its content was checked and it may enter the queue.
    IntakePassed,
    /// Its content was checked and refused.
    IntakeFailed,
    /// A worker leased it.
    Claim,
    /// A provider took it.
    Send,
    /// The attempt failed in a way that may pass.
    Defer,
    /// Given up for good.
    Fail,
    /// Its worker gave it back untouched, or vanished before it called the provider.
    Release,
    /// Its time to live ran out.
    Expire,
    /// The company withdrew it.
    Cancel,
    /// A person asked for it to be due now.
    RetryNow,
    /// A person took it out of the dead letters.
    Replay,
    /// The provider reported that it has it.
    ReportSent,
    /// The provider took it and reported that it did not send it after all.
    ReportFailed,
    /// The provider reported it delivered.
    ReportDelivered,
    /// The provider reported that it bounced for good.
    ReportBounced,
    /// The provider reported a complaint.
    ReportComplained,
}

impl Status {
    pub const ALL: [Self; 12] = [
        Self::Accepted,
        Self::Enqueued,
        Self::Processing,
        Self::RetryScheduled,
        Self::Sent,
        Self::Delivered,
        Self::Bounced,
        Self::Complained,
        Self::Failed,
        Self::Invalid,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The whole machine: one line per legal move.
    pub fn after(self, step: Move) -> Result<Self, IllegalMove> {
        use Move::*;
        use Status::*;
        match (self, step) {
            (Accepted, IntakePassed) => Ok(Enqueued),
            (Accepted, IntakeFailed) => Ok(Invalid),
            (Enqueued | RetryScheduled, Claim) => Ok(Processing),
            (Processing, Send) => Ok(Sent),
            (Processing, Defer) => Ok(RetryScheduled),
            (Processing | RetryScheduled, Fail) => Ok(Failed),
            (Processing, Release) => Ok(Enqueued),
            (Accepted | Enqueued | RetryScheduled | Processing, Expire) => Ok(Expired),
            (Accepted | Enqueued | RetryScheduled | Processing, Cancel) => Ok(Cancelled),
            (Enqueued | RetryScheduled, RetryNow) => Ok(Enqueued),
            (Failed, Replay) => Ok(Enqueued),
            // A report proves what became of the mail, whatever we believed, and never moves it backwards; in whatever
            // order reports come, they end in the same status.
            (Enqueued | Processing | RetryScheduled, ReportSent) => Ok(Sent),
            (Enqueued | Processing | RetryScheduled | Sent, ReportFailed) => Ok(Failed),
            (
                Enqueued | Processing | RetryScheduled | Sent | Failed | Expired | Cancelled,
                ReportDelivered,
            ) => Ok(Delivered),
            (
                Enqueued | Processing | RetryScheduled | Sent | Failed | Expired | Cancelled | Delivered,
                ReportBounced,
            ) => Ok(Bounced),
            (
                Enqueued | Processing | RetryScheduled | Sent | Failed | Expired | Cancelled | Delivered
                | Bounced,
                ReportComplained,
            ) => Ok(Complained),
            (from, step) => Err(IllegalMove { from, step }),
        }
    }

    /// Waiting for a worker, now or later.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Enqueued | Self::RetryScheduled)
    }

    /// Nothing more will be done with it unless a report or a person says so.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Accepted | Self::Enqueued | Self::Processing | Self::RetryScheduled)
    }

    /// The name users see, in the API, the database and the logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "ACCEPTED",
            Self::Enqueued => "ENQUEUED",
            Self::Processing => "PROCESSING",
            Self::RetryScheduled => "RETRY_SCHEDULED",
            Self::Sent => "SENT",
            Self::Delivered => "DELIVERED",
            Self::Bounced => "BOUNCED",
            Self::Complained => "COMPLAINED",
            Self::Failed => "FAILED",
            Self::Invalid => "INVALID",
            Self::Expired => "EXPIRED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl Move {
    pub const ALL: [Self; 16] = [
        Self::IntakePassed,
        Self::IntakeFailed,
        Self::Claim,
        Self::Send,
        Self::Defer,
        Self::Fail,
        Self::Release,
        Self::Expire,
        Self::Cancel,
        Self::RetryNow,
        Self::Replay,
        Self::ReportSent,
        Self::ReportFailed,
        Self::ReportDelivered,
        Self::ReportBounced,
        Self::ReportComplained,
    ];
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a status")]
pub struct UnknownStatus;

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(UnknownStatus)
    }
}

/// A move the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an email that is {from} cannot {step:?}")]
pub struct IllegalMove {
    pub from: Status,
    pub step: Move,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine as a picture: a change of the table shows up here.
    #[test]
    fn every_move_from_every_status() {
        let mut table = String::new();
        for from in Status::ALL {
            let moves: Vec<String> = Move::ALL
                .into_iter()
                .filter_map(|step| from.after(step).ok().map(|to| format!("{step:?}>{to}")))
                .collect();
            table.push_str(&format!("{from}: {}\n", moves.join(" ")));
        }
        let expected = "\
ACCEPTED: IntakePassed>ENQUEUED IntakeFailed>INVALID Expire>EXPIRED Cancel>CANCELLED
ENQUEUED: Claim>PROCESSING Expire>EXPIRED Cancel>CANCELLED RetryNow>ENQUEUED ReportSent>SENT ReportFailed>FAILED ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
PROCESSING: Send>SENT Defer>RETRY_SCHEDULED Fail>FAILED Release>ENQUEUED Expire>EXPIRED Cancel>CANCELLED ReportSent>SENT ReportFailed>FAILED ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
RETRY_SCHEDULED: Claim>PROCESSING Fail>FAILED Expire>EXPIRED Cancel>CANCELLED RetryNow>ENQUEUED ReportSent>SENT ReportFailed>FAILED ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
SENT: ReportFailed>FAILED ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
DELIVERED: ReportBounced>BOUNCED ReportComplained>COMPLAINED
BOUNCED: ReportComplained>COMPLAINED
COMPLAINED: 
FAILED: Replay>ENQUEUED ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
INVALID: 
EXPIRED: ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
CANCELLED: ReportDelivered>DELIVERED ReportBounced>BOUNCED ReportComplained>COMPLAINED
";
        assert_eq!(table, expected);
    }

    #[test]
    fn names_read_back() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert_eq!("sent".parse::<Status>(), Err(UnknownStatus));
    }
}
