-- People search for what a request handed in, by the id its answer carried. The column never changes after the insert, so
-- that updates of a row stay heap only.
CREATE INDEX outbox_by_request ON email_outbox (company_id, request_id, id);
