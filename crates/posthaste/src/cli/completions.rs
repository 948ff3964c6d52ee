//! `posthaste completions SHELL`.

use std::io::Write as _;

use clap::CommandFactory as _;

use super::Cli;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to make them for.
    shell: clap_complete::Shell,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "posthaste", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
