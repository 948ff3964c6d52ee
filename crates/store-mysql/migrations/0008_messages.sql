-- Ids that a provider gave for an email besides the one in its row: of an earlier attempt, or of one whose result came too
-- late. Few emails have any. Reports that name them find the email all the same. A prefix, since an id has no length; not
-- unique, since nothing is lost by a line that is there twice.
CREATE TABLE IF NOT EXISTS provider_messages (
    seq        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    message_id TEXT NOT NULL,
    email_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    KEY provider_messages_by_id (message_id(100)),
    KEY provider_messages_by_email (email_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};
