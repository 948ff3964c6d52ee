-- At thousands of events per second the server cannot keep its list of what is to be told in this index, and says so in its
-- log each time, with the whole statement. The program asks for it (tidy.rs), and a vacuum does it anyway.
ALTER INDEX events_in_order SET (autosummarize = off);
