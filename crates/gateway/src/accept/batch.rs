//! A batch: each email is checked for itself, and one answer is given to all. Of a batch that is more than the company has
//! left of its day, the first are taken as far as they fit.

use std::fmt::Write as _;
use std::ops::Range;

use store::Acceptance;

use super::draft::{Draft, Fault};
use super::{Desk, Known, Prepared, Request, check, prepared, text, write_receipt, write_refusal};
use crate::keys::Caller;

/// In the place of the receipt of an email that did not fit.
const NONE_LEFT: &str = "\"error\":{\"status\":429,\"code\":\"DAILY_LIMIT_EXCEEDED\",\"detail\":\"the company's emails of \
    the day are used up; the count starts anew at midnight UTC\",\"errors\":[]}";

/// What is said of each email, in order.
#[derive(Debug)]
pub struct Results {
    text: String,
    /// Where the receipts of those that are fine stand in it.
    receipts: Vec<Range<usize>>,
    total: usize,
    request_id: String,
}

/// Checks each email of a batch for itself and prepares one answer to all.
pub fn prepare_many(
    desk: &Desk,
    caller: &Caller,
    request: Request,
    drafts: Vec<Result<Draft, Vec<Fault>>>,
    known: &Known,
) -> Prepared {
    let total = drafts.len();
    let mut emails = Vec::with_capacity(total);
    let mut results = Results {
        text: String::with_capacity(total * 320),
        receipts: Vec::with_capacity(total),
        total,
        request_id: request.id.clone(),
    };
    for (index, draft) in drafts.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(results.text, "{comma}{{\"index\":{index},");
        match draft.and_then(|draft| check(desk, caller, &request, draft, known)) {
            Ok((email, notes)) => {
                let from = results.text.len();
                write_receipt(&mut results.text, &email, &notes);
                results.receipts.push(from..results.text.len());
                emails.push(email);
            }
            Err(faults) => write_refusal(&mut results.text, &faults),
        }
        results.text.push('}');
    }
    let answer = results.answer(emails.len());
    Prepared { results: Some(results), ..prepared(&caller.company, request, emails, answer) }
}

impl Results {
    /// The answer when the first `accepted` of those that are fine are taken.
    fn answer(&self, accepted: usize) -> String {
        let rejected = self.total - accepted;
        let mut answer = String::with_capacity(self.text.len() + 128);
        let request_id = text(&self.request_id);
        let _ = write!(
            answer,
            "{{\"accepted\":{accepted},\"rejected\":{rejected},\"requestId\":{request_id},\"results\":["
        );
        let mut from = 0;
        for receipt in self.receipts.iter().skip(accepted) {
            answer.push_str(&self.text[from..receipt.start]);
            answer.push_str(NONE_LEFT);
            from = receipt.end;
        }
        answer.push_str(&self.text[from..]);
        answer.push_str("]}");
        answer
    }

    /// The first of the emails, as many as are left, and the answer to that: it is also what the key stands for.
    pub fn fitting(&self, mut acceptance: Acceptance, left: u32) -> (Acceptance, String) {
        let fewer = acceptance.emails.len().saturating_sub(1);
        acceptance.emails.truncate(usize::try_from(left).unwrap_or(usize::MAX).min(fewer));
        let answer = self.answer(acceptance.emails.len());
        if let Some(key) = &mut acceptance.key {
            key.answer.clone_from(&answer);
        }
        (acceptance, answer)
    }
}
