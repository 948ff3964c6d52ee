-- Nor must they be able to use it by its second column, along all people of the server. Who shares an address is looked for
-- by the address alone: that is as many as there are companies that know it.
DROP INDEX recipients_by_email;
CREATE INDEX recipients_by_email ON recipients (lower(email));
