-- A replay begins a new series of attempts, by which a provider tells them from the last, unless one of those may have got
-- through. That is decided at the replay: an attempt whose outcome is not known must be followed by one of the same series.
ALTER TABLE email_outbox ADD COLUMN series integer NOT NULL DEFAULT 0;
UPDATE email_outbox o SET series = o.attempts_before FROM email_queue q
WHERE q.email_id = o.id AND o.attempts_before > 0 AND NOT o.outcome_unknown;
