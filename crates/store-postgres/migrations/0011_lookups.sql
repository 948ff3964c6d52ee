-- While a table is empty all its indexes look alike to the planner. Those who look for a person by a name or a document
-- must not be able to use this one, along all people of the company: so it does not begin with the company.
DROP INDEX recipients_by_email;
CREATE INDEX recipients_by_email ON recipients (lower(email), company_id);
