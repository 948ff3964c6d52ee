//! Panics as the log tells them: where, never in which words. A panic quotes what it stumbled over, such as the text that
//! was cut in the middle of a letter, and that may be somebody's mail. Whoever catches the panic says what became of it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write as _;
use std::panic::PanicHookInfo;

/// From here on panics are told without their words: as a line of the log, once there is one.
pub fn hush() {
    std::panic::set_hook(Box::new(tell));
}

fn tell(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    // Only with RUST_BACKTRACE: names of functions and lines of source, no values.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    if tracing::dispatcher::has_been_set() {
        tracing::error!(location, thread, backtrace, "our code panicked: this is a bug");
        return;
    }
    // With nobody to read it there is nothing to be done.
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "posthaste: our code panicked at {location}: this is a bug");
    if let Some(backtrace) = backtrace {
        let _ = writeln!(stderr, "{backtrace}");
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use serde_json::Value;

    use crate::config::{Log, LogFormat};

    const CANARY: &str = "kanarienvogel";
    /// Set in the processes that are to panic: the hook is the process's, and so is standard error.
    const WANTED: &str = "POSTHASTE_TEST_PANIC";

    /// Runs in a process of its own, started by the tests below. On its own it does nothing.
    #[test]
    fn stumbles() {
        let Ok(format) = std::env::var(WANTED) else { return };
        super::hush();
        match format.as_str() {
            "json" | "human" => {
                let format = if format == "json" { LogFormat::Json } else { LogFormat::Human };
                super::super::start_log(&Log { level: "trace".into(), format }).expect("a log");
            }
            _ => {}
        }
        let text = format!("{CANARY} é");
        let cut = std::panic::catch_unwind(|| text[..text.len() - 1].len());
        let named = std::thread::Builder::new().name("worker".into());
        let quoting = || CANARY.parse::<u32>().map_err(|_| CANARY).expect("a number");
        let expected = named.spawn(quoting).expect("a thread").join();
        assert!(cut.is_err() && expected.is_err(), "both panicked");
    }

    fn stumbling(format: &str) -> Output {
        let test = "telemetry::panics::tests::stumbles";
        let binary = std::env::current_exe().expect("a path");
        let mut command = Command::new(binary);
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(WANTED, format);
        command.env_remove("RUST_BACKTRACE").output().expect("the tests run")
    }

    #[test]
    fn a_panic_is_told_without_its_words() {
        for format in ["json", "human", "none"] {
            let output = stumbling(format);
            let all = String::from_utf8_lossy(&[output.stdout, output.stderr.clone()].concat()).into_owned();
            assert!(output.status.success() && all.contains("1 passed"), "{format}: {all}");
            assert!(!all.contains(CANARY), "{format}: {all}");
            let told = String::from_utf8(output.stderr).expect("text");
            let told: Vec<&str> = told.lines().filter(|line| line.contains("our code panicked")).collect();
            assert_eq!(told.len(), 2, "{format}: {all}");
            assert!(told.iter().all(|line| line.contains("panics.rs:")), "{format}: {told:?}");
        }
    }

    #[test]
    fn among_json_lines_a_panic_is_one_of_them() {
        let output = stumbling("json");
        let lines = String::from_utf8(output.stderr).expect("text");
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        let threads: Vec<&str> = lines.iter().filter_map(|line| line["thread"].as_str()).collect();
        assert_eq!((lines.len(), threads.last()), (2, Some(&"worker")), "{lines:?}");
        assert!(lines.iter().all(|line| line["level"] == "ERROR"), "{lines:?}");
    }
}
