-- Nor must they be able to use it by its second column, along all people of the server. Who has an address is looked for by the
-- address alone, when a person is erased: that reads those whom other companies know by it as well, and they are few.
DROP INDEX recipients_by_email;
CREATE INDEX recipients_by_email ON recipients (lower(email));
