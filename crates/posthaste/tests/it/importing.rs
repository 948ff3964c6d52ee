//! `import`: lines and folders through the same acceptance as the API's, nothing twice however often it is run, and a report
//! that names what was refused.

use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Place, err, out};

fn a_place() -> Place {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "Acme <hello@acme.com>", "--sender", "@acme.com"]);
    place
}

fn email(number: usize) -> Value {
    json!({ "to": format!("ana{number}@example.com"), "subject": "Hello", "html": "<p>Hi</p>", "tags": ["imported"] })
}

fn lines(emails: impl IntoIterator<Item = Value>) -> String {
    emails.into_iter().map(|email| format!("{email}\n")).collect()
}

fn import(place: &Place, args: &[&str]) -> Output {
    let args: Vec<&str> = ["--json", "import", "--company", "acme"].iter().chain(args).copied().collect();
    place.run(&args)
}

/// The last line: what became of all.
fn report(output: &Output) -> Value {
    let text = out(output);
    let last = text.lines().last().unwrap_or_else(|| panic!("no report: {}", err(output)));
    serde_json::from_str(last).expect("JSON")
}

fn counts(output: &Output) -> (u64, u64, u64) {
    let report = report(output);
    let count = |name: &str| report[name].as_u64().expect("a count");
    (count("accepted"), count("known"), count("refused"))
}

/// How many emails wait, as the doctor sees it: nothing is sent here.
fn stored(place: &Place) -> u64 {
    let found = out(&place.run(&["--json", "doctor"]));
    let mut findings = found.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let queue = findings.find(|line| line["about"] == "queue").expect("the doctor looks at the queue");
    let words = queue["text"].as_str().expect("text");
    words
        .split(' ')
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("no number: {words}"))
}

#[test]
fn process_an_import_is_taken_once_however_often_it_is_run() {
    let place = a_place();
    place.write("mail.ndjson", &lines((0..300).map(email)));
    let first = import(&place, &["mail.ndjson", "--concurrency", "8"]);
    assert_eq!((first.status.code(), counts(&first)), (Some(0), (300, 0, 0)), "{}", err(&first));
    assert_eq!(stored(&place), 300);
    let second = import(&place, &["mail.ndjson"]);
    assert_eq!((second.status.code(), counts(&second)), (Some(0), (0, 300, 0)), "{}", err(&second));
    assert_eq!(stored(&place), 300);
    // A file that grew: only what is new is taken.
    place.write("mail.ndjson", &lines((0..310).map(email)));
    assert_eq!(counts(&import(&place, &["mail.ndjson"])), (10, 300, 0));
    assert_eq!(stored(&place), 310);
}

/// Broken off in the middle: what was told is stored, and the next run goes on.
#[test]
fn process_an_import_that_was_killed_goes_on() {
    let place = a_place();
    place.write("mail.ndjson", &lines((0..2_000).map(email)));
    let mut child = place
        .command(&["import", "--company", "acme", "mail.ndjson", "--concurrency", "4"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    crate::support::until("some are stored", || (stored(&place) > 0).then_some(()));
    child.kill().expect("killed");
    child.wait().expect("it ends");
    let there = stored(&place);
    let second = import(&place, &["mail.ndjson"]);
    let (accepted, known, refused) = counts(&second);
    assert_eq!((accepted + known, refused), (2_000, 0));
    assert_eq!(known, there, "what the first run stored, and nothing else");
    assert_eq!(stored(&place), 2_000);
}

#[test]
fn process_what_is_refused_is_named_and_the_rest_is_taken() {
    let place = a_place();
    let text = format!(
        "{}\n\n{}\n{{broken\n{}\n{}\n",
        email(1),
        json!({ "subject": "Hello", "html": "<p>Hi</p>" }),
        json!({ "to": "ana@example.com", "subject": "Hello", "html": "<script>x</script>" }),
        email(2),
    );
    place.write("mail.ndjson", &text);
    let output = import(&place, &["mail.ndjson", "--rejects", "rejects.ndjson"]);
    assert_eq!((output.status.code(), counts(&output)), (Some(1), (2, 0, 3)), "{}", err(&output));
    assert_eq!(
        report(&output)["refusedByCode"],
        json!({ "INVALID_JSON": 1, "REQUIRED": 1, "UNSAFE_HTML": 1 })
    );
    assert!(err(&output).ends_with("posthaste: 3 of 5 were refused\n"), "{}", err(&output));

    let rejects = std::fs::read_to_string(place.path().join("rejects.ndjson")).expect("a file");
    let mut rejects: Vec<Value> =
        rejects.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    rejects.sort_by_key(|line| line["line"].as_u64());
    let found: Vec<(u64, &str)> = rejects
        .iter()
        .map(|line| (line["line"].as_u64().expect("a line"), line["code"].as_str().expect("a code")))
        .collect();
    assert_eq!(found, [(3, "REQUIRED"), (4, "INVALID_JSON"), (5, "UNSAFE_HTML")]);
    assert_eq!((&rejects[0]["email"]["subject"], &rejects[1]["email"]), (&json!("Hello"), &json!("{broken")));
    assert_eq!(rejects[0]["errors"][0]["field"], "to");

    let human = place.run(&["import", "--company", "acme", "mail.ndjson"]);
    assert!(err(&human).contains("line 3: to is required (REQUIRED)"), "{}", err(&human));
    assert!(out(&human).starts_with("0 accepted, 2 already there, 3 refused\n"), "{}", out(&human));
}

#[test]
fn process_a_folder_of_messages_and_one_alone() {
    let place = a_place();
    std::fs::create_dir(place.path().join("mail")).expect("a folder");
    let message = |to: &str| format!("From: hello@acme.com\r\nTo: {to}\r\nSubject: Hi\r\n\r\nHello\r\n");
    place.write("mail/one.eml", &message("ana@example.com"));
    place.write("mail/two.EML", &message("bob@example.com"));
    place.write("mail/none.eml", "Subject: Hi\r\n\r\nto nobody\r\n");
    place.write("mail/notes.txt", "no message");
    let output = import(&place, &["mail"]);
    assert_eq!((output.status.code(), counts(&output)), (Some(1), (2, 0, 1)), "{}", err(&output));
    let refusal: Value = serde_json::from_str(out(&output).lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (refusal["file"].as_str(), refusal["code"].as_str()),
        (Some("none.eml"), Some("INVALID_MESSAGE"))
    );
    assert_eq!(counts(&import(&place, &["mail/one.eml"])), (0, 1, 0), "the folder had it");
}

#[test]
fn process_standard_input_keys_and_dry_runs() {
    let place = a_place();
    let piped = |args: &[&str], text: &str| {
        let args: Vec<&str> =
            ["--json", "import", "--company", "acme", "-"].iter().chain(args).copied().collect();
        let mut command = place.command(&args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
        child.wait_with_output().expect("it ends")
    };
    // The same line twice is one email, unless keys are named by the place.
    let twice = lines([email(1), email(1)]);
    assert_eq!(counts(&piped(&["--dry-run"], &twice)), (2, 0, 0));
    assert_eq!(stored(&place), 0, "a dry run stores nothing");
    assert_eq!(counts(&piped(&[], &twice)), (1, 1, 0));
    assert_eq!(counts(&piped(&["--key-prefix", "june-"], &twice)), (2, 0, 0));
    assert_eq!(counts(&piped(&["--key-prefix", "june-"], &twice)), (0, 2, 0));
    assert_eq!(stored(&place), 3);
    // Another email under the key of a line is no repetition.
    let changed = piped(&["--key-prefix", "june-"], &lines([email(1), email(2)]));
    assert_eq!(counts(&changed), (0, 1, 1));
    assert_eq!(report(&changed)["refusedByCode"], json!({ "IDEMPOTENCY_KEY_REUSED": 1 }));
    assert_eq!(counts(&piped(&[], "")), (0, 0, 0));
}

#[test]
fn process_wrong_usage_of_an_import_changes_nothing() {
    let place = a_place();
    place.write("mail.ndjson", &lines([email(1)]));
    std::fs::create_dir(place.path().join("empty")).expect("a folder");
    let cases: &[(&[&str], i32)] = &[
        (&["missing.ndjson"], 2),
        (&["empty"], 2),
        (&["mail.ndjson", "--concurrency", "0"], 2),
        (&["mail.ndjson", "--key-prefix", "two words"], 2),
        (&["mail.ndjson", "--rejects", "mail.ndjson"], 2),
        (&["mail.ndjson", "--rejects", "no/such/folder"], 2),
        (&[], 2),
    ];
    for (args, code) in cases {
        let output = import(&place, args);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {}", err(&output));
    }
    assert_eq!(place.run(&["import", "--company", "nobody", "mail.ndjson"]).status.code(), Some(1));
    assert_eq!(stored(&place), 0);
    assert_eq!(counts(&import(&place, &["mail.ndjson"])), (1, 0, 0), "the file is as it was");
}

/// A company that has used up its day stops the import; it goes on the next day.
#[test]
fn process_the_daily_limit_stops_an_import() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com", "--daily-limit", "5"]);
    place.write("mail.ndjson", &lines((0..20).map(email)));
    let output = import(&place, &["mail.ndjson", "--concurrency", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((counts(&output).0, &report(&output)["finished"]), (5, &json!(false)));
    assert!(err(&output).contains("used up"), "{}", err(&output));
}

#[test]
fn process_progress_is_for_people() {
    let place = a_place();
    place.write("mail.ndjson", &lines((0..50).map(email)));
    for args in [
        &["import", "--company", "acme", "mail.ndjson", "--quiet"][..],
        &["--json", "import", "--company", "acme", "mail.ndjson"],
    ] {
        let output = place.run(args);
        assert_eq!(err(&output), "", "{args:?}");
        assert_eq!(out(&output).lines().count(), 1, "{args:?}: {}", out(&output));
    }
}
