-- The entities something happened to lately are listed by day, as on the other stores, without adding up all that ever was.
ALTER TABLE entity_tallies
    ADD INDEX entity_tallies_by_day (company_id, day);
