-- What an email costs in indexes and in copies of its row.

-- A claim takes the emails of a page together: as many new versions of rows as the page has must fit beside the old ones.
-- At 60 a fifth of all updates did not, and each of those wrote to every index of the table.
ALTER TABLE email_outbox SET (fillfactor = 45);

-- The tags of an email are in its row as well: so they are found when it is deleted.
DROP INDEX email_tags_by_email;
