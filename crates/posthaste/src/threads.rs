//! On how many threads requests are served and emails sent. One core is left to the store where it is on this machine:
//! everything waits for its answers, and among as many busy threads as there are cores it waits for its turn each time.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::num::NonZero;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use crate::cli::Usage;
use crate::wire::choices::StoreChoice;

/// Tokio's own variable, which has the last word.
const VARIABLE: &str = "TOKIO_WORKER_THREADS";
const THREADS_MAX: usize = 1024;

pub fn runtime(store: &StoreChoice) -> anyhow::Result<Runtime> {
    let threads = match std::env::var_os(VARIABLE) {
        Some(text) => asked(&text)?,
        None => count(std::thread::available_parallelism().map_or(1, NonZero::get), is_here(store)),
    };
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.context("no threads to run on")
}

fn asked(text: &OsStr) -> Result<usize, Usage> {
    let threads = text
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.ok_or_else(|| Usage(format!("{VARIABLE} must be a number from 1 to {THREADS_MAX}")))
}

fn count(cores: usize, is_store_here: bool) -> usize {
    cores.saturating_sub(usize::from(is_store_here)).max(1)
}

fn is_here(store: &StoreChoice) -> bool {
    match store {
        StoreChoice::Sqlite(_) => true,
        StoreChoice::Postgres(config) => is_this_machine(config.host()),
        StoreChoice::Mysql(config) => is_this_machine(config.host()),
    }
}

/// As far as its name tells.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_on_this_machine_has_a_core_to_itself() {
        let cases = [
            ("sqlite:mail.db", true),
            ("postgres://ana@localhost/mail", true),
            ("postgres://ana@127.0.0.1:5433/mail", true),
            ("postgres://ana@[::1]/mail", true),
            ("postgres://ana@db.example.com/mail", false),
            ("mysql://ana@127.0.0.1/mail", true),
            ("mysql://ana@10.0.0.7/mail", false),
        ];
        for (url, expected) in cases {
            let store = StoreChoice::parse(url).expect("a good URL");
            assert_eq!(is_here(&store), expected, "{url}");
        }
    }

    #[test]
    fn a_wrong_number_is_explained() {
        assert_eq!(asked(OsStr::new("3")).ok(), Some(3));
        for wrong in ["", "0", "-1", "abc", "1025", "99999999999999999999"] {
            let error = asked(OsStr::new(wrong)).expect_err(wrong);
            assert!(error.to_string().contains("TOKIO_WORKER_THREADS must be a number"), "{error}");
        }
    }

    #[test]
    fn there_is_always_a_thread() {
        for (cores, is_store_here, expected) in
            [(1, true, 1), (2, true, 1), (2, false, 2), (8, true, 7), (8, false, 8)]
        {
            assert_eq!(count(cores, is_store_here), expected, "{cores} cores");
        }
    }
}
