//! The dashboard over its router, with a store in memory: what pages show, and whom they refuse.

mod gateway;
mod inside;
mod live;
mod mailbox;
mod pages;
mod roles;
mod safety;
mod world;
