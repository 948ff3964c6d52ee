//! The laws every store must pass.
