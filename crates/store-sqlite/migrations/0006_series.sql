-- A replay begins a new series of attempts, by which a provider tells them from the last, unless one of those may have got
-- through. That is decided at the replay: an attempt whose outcome is not known must be followed by one of the same series.
ALTER TABLE email_outbox ADD COLUMN series INTEGER NOT NULL DEFAULT 0;
UPDATE email_outbox SET series = attempts_before
WHERE due_at IS NOT NULL AND attempts_before > 0 AND NOT outcome_unknown;
UPDATE email_outbox SET series = attempts_before
WHERE status = 'PROCESSING' AND attempts_before > 0 AND NOT outcome_unknown;
