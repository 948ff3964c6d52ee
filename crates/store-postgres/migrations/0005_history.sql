-- Events in the order in which they were written, for those who watch. Numbers and times only grow, so the ranges of
-- pages that hold new ones are told by a BRIN index, also where pages of deleted events are used again; it is a few pages
-- large, and an insert seldom touches it, while a B-tree would cost every event an entry.
CREATE INDEX events_in_order ON events USING brin (id, created_at) WITH (pages_per_range = 64, autosummarize = on);
