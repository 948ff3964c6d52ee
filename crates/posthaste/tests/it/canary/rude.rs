//! A mail server that refuses everything and quotes in its answers whatever it was told: addresses, subject, body.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

/// Starts to listen; the threads end with the test's process.
pub fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that hangs up ends its conversation, which is what is wanted.
            std::thread::spawn(move || converse(stream));
        }
    });
    port
}

/// `refused…` and `busy…` are answered at RCPT, `dropped…` by hanging up after DATA, the others by 554 there.
fn converse(stream: TcpStream) -> std::io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut say = |text: String| answers.write_all(format!("{text}\r\n").as_bytes());
    let mut lines = BufReader::new(stream).lines();
    let (mut from, mut to) = (String::new(), String::new());
    say("220 rude.test".to_owned())?;
    while let Some(line) = lines.next() {
        let line = line?;
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        match verb.as_str() {
            "EHLO" => say("250-rude.test\r\n250 8BITMIME".to_owned())?,
            "MAIL" => {
                from = line;
                say("250 ok".to_owned())?;
            }
            "RCPT" if line.contains("refused") => {
                say(format!("550-5.1.1 {line}: nobody\r\n550 5.1.1 of that name ({line}), {from}"))?;
            }
            "RCPT" if line.contains("busy") => say(format!("451 4.2.0 {line}, {from}: come back later"))?,
            "RCPT" => {
                to = line;
                say("250 ok".to_owned())?;
            }
            "DATA" => {
                say("354 go on".to_owned())?;
                let message = message(&mut lines)?;
                if to.contains("dropped") {
                    return Ok(());
                }
                say(format!("554 5.7.1 {from} {to} may not say: {message}"))?;
            }
            "QUIT" => return say("221 bye".to_owned()),
            _ => say("250 ok".to_owned())?,
        }
    }
    Ok(())
}

/// The subject, and what follows the headers, on one line.
fn message(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> std::io::Result<String> {
    const QUOTED_MAX: usize = 400;
    let mut subject = String::new();
    let mut body: Option<String> = None;
    for line in lines {
        let line = line?;
        match (line.as_str(), &mut body) {
            (".", _) => break,
            ("", None) => body = Some(String::new()),
            (text, Some(body)) => body.push_str(text),
            (text, None) if text.starts_with("Subject:") => subject = text.to_owned(),
            _ => {}
        }
    }
    Ok(format!("{subject} {}", body.unwrap_or_default()).chars().take(QUOTED_MAX).collect())
}
