//! The whole gateway as its users meet it: the real binary, its commands, its HTTP API. One test binary.

mod canary;
mod clock;
mod commands;
mod config;
mod dead_letters;
mod dev;
mod fairness;
mod feedback;
mod guard;
mod importing;
mod json;
mod logs;
mod metrics;
mod migrating;
mod providers;
mod serve;
mod servers;
mod sink;
mod storage;
mod support;
mod sync_order;
mod traces;
mod watching;
