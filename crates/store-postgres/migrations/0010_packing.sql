-- From here on contents are packed in a way that programs of before cannot read. They refuse to start on this schema,
-- instead of taking the content of an email for lost.
COMMENT ON COLUMN contents.body IS 'packed by the program: the first byte says how, 1 with lz4, 2 with zstd';
