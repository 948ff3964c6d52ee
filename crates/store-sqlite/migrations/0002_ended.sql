-- What has ended, by the time of its end: retention finds what is old enough at once, whatever is still waiting or
-- too young. What can be replayed is not among them. `content_ref` is empty once the content has gone.
CREATE INDEX outbox_ended ON email_outbox (content_ref, updated_at)
    WHERE dead_at IS NULL
      AND (status = 'SENT' OR status = 'DELIVERED' OR status = 'BOUNCED' OR status = 'COMPLAINED' OR status = 'FAILED'
           OR status = 'INVALID' OR status = 'EXPIRED' OR status = 'CANCELLED');
