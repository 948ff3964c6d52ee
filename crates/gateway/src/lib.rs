//! The life of an email, from acceptance to its recorded end. Knows the ports, never a back-end.

pub mod validate;
