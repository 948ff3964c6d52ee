//! What providers report of emails they took: is it really from them, and what does it say.
