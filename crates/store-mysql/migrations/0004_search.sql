-- People search for what a request handed in, by the id its answer carried. A prefix, since the column has no length; no
-- id that is taken over HTTP is longer.
ALTER TABLE email_outbox
    ADD INDEX outbox_by_request (company_id, request_id(128));
