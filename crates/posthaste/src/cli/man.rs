//! `posthaste man [DIR]`: manual pages, one per command, made from the same descriptions as `--help`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use serde_json::json;

use super::Cli;
use super::out::Out;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write the pages; without it the page of posthaste itself is printed.
    directory: Option<PathBuf>,
}

const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "Done."),
    ("1", "Failed. One line on standard error says why."),
    ("2", "Wrong usage or configuration. Nothing was done."),
];

const FILES: &[(&str, &str)] = &[
    ("posthaste.toml", "The configuration, looked for in the current directory; --config names another."),
    (
        "posthaste.db",
        "The database, where store.url names none, with posthaste.db-wal and posthaste.db-shm beside it.",
    ),
    (
        "posthaste.secret",
        "Keys of this machine, beside the database. Back it up with the database, apart from it.",
    ),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("POSTHASTE_CONFIG", "The configuration file, as with --config."),
    (
        "POSTHASTE_*",
        "Every key of the configuration, in upper case with __ between levels: POSTHASTE_STORE__URL is store.url.",
    ),
    ("ADMIN_EMAIL", "Where alerts go, as alerts.admin_email."),
    ("NO_COLOR", "If set, no colours on the terminal."),
];

pub fn run(args: &Args, out: Out) -> anyhow::Result<()> {
    let mut root = Cli::command();
    root.build();
    let Some(directory) = &args.directory else {
        std::io::stdout().write_all(&page(&root)?)?;
        return Ok(());
    };
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let mut written = Vec::new();
    write(&root, directory, &mut written)?;
    let line = format!(
        "{} pages in {}; read one with: man {}",
        written.len(),
        directory.display(),
        first(directory)
    );
    out.result(&json!({ "directory": directory, "pages": written }), line)?;
    Ok(())
}

fn first(directory: &Path) -> String {
    directory.join("posthaste.1").display().to_string()
}

/// The page of a command and those of the commands below it.
fn write(command: &Command, directory: &Path, written: &mut Vec<String>) -> anyhow::Result<()> {
    let name = format!("{}.1", name(command));
    let path = directory.join(&name);
    std::fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    written.push(name);
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, directory, written)?;
    }
    Ok(())
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(format!("posthaste {version}"))
        .manual("Posthaste");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut more = Roff::new();
    list(&mut more, "EXIT STATUS", EXIT_CODES);
    list(&mut more, "FILES", FILES);
    list(&mut more, "ENVIRONMENT", ENVIRONMENT);
    see_also(&mut more, command);
    more.to_writer(&mut page)?;
    Ok(page)
}

fn list(page: &mut Roff, title: &str, lines: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (term, text) in lines {
        page.control("TP", []);
        page.text([bold(*term)]);
        page.text([roman(*text)]);
    }
}

/// The page above: `posthaste-dlq` for `posthaste-dlq-replay`. The pages below are in the list of subcommands.
fn see_also(page: &mut Roff, command: &Command) {
    let name = name(command);
    let Some((above, _)) = name.rsplit_once('-') else { return };
    let parts: [Inline; 2] = [bold(above), roman("(1)")];
    page.control("SH", ["SEE ALSO"]);
    page.text(parts);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(command: &Command, found: &mut Vec<Command>) {
        found.push(command.clone());
        command.get_subcommands().for_each(|below| all(below, found));
    }

    fn commands() -> Vec<Command> {
        let mut root = Cli::command();
        root.build();
        let mut found = Vec::new();
        all(&root, &mut found);
        found
    }

    /// What has no words here has none in `--help` either.
    #[test]
    fn every_command_and_option_is_described() {
        for command in commands() {
            let name = name(&command);
            assert!(command.get_about().is_some_and(|about| !about.to_string().is_empty()), "{name}");
            for arg in command.get_arguments() {
                let is_described = arg.get_help().is_some_and(|help| help.to_string().trim().len() > 3);
                assert!(is_described, "{name}: {}", arg.get_id());
            }
        }
    }

    #[test]
    fn every_page_has_its_parts() {
        for command in commands() {
            let name = name(&command);
            let page = String::from_utf8(page(&command).expect("a page")).expect("text");
            assert!(page.contains(".TH "), "{name}: {page}");
            for part in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES", "ENVIRONMENT"]
            {
                let heading =
                    |line: &str| line.strip_prefix(".SH ").is_some_and(|it| it.trim_matches('"') == part);
                assert!(page.lines().any(heading), "{name} has no {part}:\n{page}");
            }
            for arg in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(page.contains(&arg.replace('-', "\\-")), "{name}: --{arg}");
            }
        }
    }
}
