-- People search for what a request handed in, by the id its answer carried. The id never changes, so that this index is
-- written once per email.
CREATE INDEX outbox_by_request ON email_outbox (company_id, request_id);
