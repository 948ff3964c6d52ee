-- Ids that a provider gave for an email besides the one in its row: of an earlier attempt, or of one whose result came too
-- late. Few emails have any. Reports that name them find the email all the same.
CREATE TABLE provider_messages (
    email_seq  INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (email_seq, message_id)
) WITHOUT ROWID;
CREATE INDEX provider_messages_by_id ON provider_messages (message_id);
