-- Times that people ask for by hand are moments: NOW() is right beside them in a session of any time zone, and each session
-- is shown its own. Until now they were UTC, which was right in sessions of UTC alone. What may be far in the future
-- (expires_at) stays: a TIMESTAMP ends in the year 2038 on most servers. Times that only the program reads stay too.
--
-- Each has a default of its own: servers may give a TIMESTAMP without one the time of every change. The tables are written
-- anew, and nobody else writes to them meanwhile.
ALTER TABLE email_outbox
    MODIFY COLUMN created_at TIMESTAMP(3) NOT NULL DEFAULT '2000-01-01 00:00:00',
    MODIFY COLUMN updated_at TIMESTAMP(3) NOT NULL DEFAULT '2000-01-01 00:00:00',
    MODIFY COLUMN scheduled_at TIMESTAMP(3) NULL DEFAULT NULL,
    MODIFY COLUMN sent_at TIMESTAMP(3) NULL DEFAULT NULL,
    MODIFY COLUMN delivered_at TIMESTAMP(3) NULL DEFAULT NULL,
    MODIFY COLUMN failed_at TIMESTAMP(3) NULL DEFAULT NULL,
    MODIFY COLUMN dead_at TIMESTAMP(3) NULL DEFAULT NULL,
    MODIFY COLUMN last_failure_at TIMESTAMP(3) NULL DEFAULT NULL;

ALTER TABLE events
    MODIFY COLUMN created_at TIMESTAMP(3) NOT NULL DEFAULT '2000-01-01 00:00:00';
