//! The binary: reads the command line, runs one command, and turns its end into an exit code (0 done, 1 failed,
//! 2 wrong usage or configuration). Commands are in `cli`; back-ends are chosen in `wire` and nowhere else.

mod bench;
mod cli;
mod config;
mod descriptors;
mod running;
mod secret;
mod shutdown;
mod telemetry;
mod threads;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

/// Many threads allocate and free small things all the time here; the system's allocator spends a tenth of the
/// processor on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    telemetry::hush_panics();
    wire::prepare_process();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help that nobody reads any more, as in `posthaste --help | head -1`, is no failure.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// One clear line on standard error (or one per problem of the configuration), and the exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    let pipe_is_closed = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if pipe_is_closed {
        return ExitCode::SUCCESS;
    }
    let (text, code) = if let Some(problems) = error.downcast_ref::<config::Problems>() {
        (problems.to_string(), 2)
    } else if error.is::<cli::Usage>() {
        (format!("posthaste: {error:#}"), 2)
    } else {
        (format!("posthaste: {error:#}"), 1)
    };
    // When standard error is closed there is nobody to tell; the exit code still says it.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(code)
}
