//! What is wrong with the place where everything is kept is said in one line, with exit code 2 where a person has to
//! change something; long lists of ids do no harm.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Place, err};

fn python(place: &Place, script: &str) {
    let python = std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let ran = Command::new(python).args(["-c", script]).current_dir(place.path()).status();
    assert!(ran.expect("Python runs").success(), "{script}");
}

/// Runs the command and expects exit code 2 and one line with each of these words.
fn refused(mut command: Command, words: &[&str]) {
    let output = command.env("POSTHASTE_LISTEN", "127.0.0.1:0").output().expect("it runs");
    let said = err(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{command:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn process_a_database_that_is_newer_or_not_ours_is_refused() {
    let place = Place::new();
    place.print(&["migrate"]);
    python(&place, "import sqlite3; sqlite3.connect('posthaste.db').execute('PRAGMA user_version = 99')");
    python(&place, "import sqlite3; sqlite3.connect('theirs.db').execute('CREATE TABLE theirs (x)')");
    for args in [&["serve"][..], &["migrate"], &["company", "list"], &["--wait", "serve"]] {
        refused(place.command(args), &["schema version 99", "use a newer posthaste"]);
        let args: Vec<&str> = ["--store", "sqlite:theirs.db"].iter().chain(args).copied().collect();
        refused(place.command(&args), &["a database of another program"]);
    }
}

/// A folder that is not there is made; one that cannot be made or written to is named.
#[test]
fn process_a_folder_that_cannot_be_used_is_named() {
    let place = Place::new();
    place.print(&["--store", "sqlite:new/folder/posthaste.db", "migrate"]);
    assert!(place.path().join("new/folder/posthaste.db").exists());
    place.write("file", "no folder");
    for command in ["serve", "migrate"] {
        refused(place.command(&["--store", "sqlite:file/posthaste.db", command]), &["the directory file"]);
        refused(place.command(&["--store", "sqlite:file/below/it.db", command]), &["directory file/below"]);
        // Nobody can make files there, not even root.
        refused(place.command(&["--store", "sqlite:/proc/posthaste.db", command]), &["/proc/posthaste.db"]);
    }
}

/// Permissions do not hold root back, so the folder is mounted read-only, in a mount namespace of the command's own.
#[test]
fn process_a_read_only_folder_is_named() {
    let namespace = |place: &Place, then: &str| {
        let script = format!("mount --bind data data && mount -o remount,bind,ro data && {then}");
        let mut command = place.command(&[]);
        let binary = command.get_program().to_owned();
        command = in_place_of(command, "unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script, "sh"]).arg(binary);
        command
    };
    let place = Place::new();
    place.print(&["--store", "sqlite:data/posthaste.db", "migrate"]);
    let is_allowed =
        namespace(&place, "! touch data/x 2>/dev/null").status().is_ok_and(|status| status.success());
    if !is_allowed {
        // A container that may not mount anything: the test above has the cases that need no mount.
        println!("mount namespaces are not allowed here: read-only folders were not tried");
        return;
    }
    for (store, said) in [
        ("data/posthaste.db", "cannot write to the database data/posthaste.db: Read-only"),
        ("data/new.db", "cannot make the database data/new.db: Read-only"),
    ] {
        for command in ["serve", "migrate"] {
            let then = format!("exec \"$1\" --store sqlite:{store} {command}");
            refused(namespace(&place, &then), &[said]);
        }
    }
}

/// The same surroundings for another program.
fn in_place_of(command: Command, program: &str) -> Command {
    let mut other = Command::new(program);
    if let Some(directory) = command.get_current_dir() {
        other.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

/// The most memory the process has used so far.
fn peak_kb(pid: u32) -> u64 {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Ids are taken as they come: the first is answered while the last is not written yet, and none is kept.
#[test]
fn process_ids_without_end_are_streamed() {
    const LINES: usize = 300_000;
    /// The lines alone are 11 MB, twice that as a list of texts.
    const GROWTH_KB_MAX: u64 = 6_000;
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    let complaints = place.path().join("complaints");
    let mut command = place.command(&["--json", "show", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&complaints).expect("a file"));
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("piped");
    let mut answers = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut answered = |stdin: &mut std::process::ChildStdin| {
        stdin.write_all(format!("{id}\n").as_bytes()).expect("written");
        let answer: Value =
            serde_json::from_str(&answers.next().expect("an answer").expect("text")).expect("JSON");
        assert_eq!(answer["id"], id.as_str());
    };
    answered(&mut stdin);
    let at_first = peak_kb(child.id());
    for chunk in 0..LINES / 1_000 {
        let lines: String =
            (0..1_000).map(|line| format!("no-id-of-an-email-{:018}\n", chunk * 1_000 + line)).collect();
        stdin.write_all(lines.as_bytes()).expect("written");
    }
    answered(&mut stdin);
    let at_last = peak_kb(child.id());
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    let complaints = std::fs::read_to_string(complaints).expect("a file");
    let expected = format!("posthaste: {LINES} of {} not found", LINES + 2);
    assert_eq!(complaints.lines().last(), Some(expected.as_str()));
    assert!(at_last <= at_first + GROWTH_KB_MAX, "{at_first} kB at first, {at_last} kB at last");
}
