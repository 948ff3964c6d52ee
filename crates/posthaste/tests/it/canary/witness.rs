//! Runs commands and calls the API, and keeps everything that came back for the search.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use super::planted::{Reader, Seen};
use crate::support::{Place, curl, err, out};

pub struct Witness<'a> {
    place: &'a Place,
    /// Where the server listens.
    pub address: String,
    pub seen: Vec<Seen>,
    /// Answers with 400 and above.
    pub refusals: usize,
}

/// A request to be made.
pub struct Call<'a> {
    pub what: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a [&'a str],
    pub body: Option<&'a [u8]>,
}

impl<'a> Witness<'a> {
    pub fn new(place: &'a Place) -> Self {
        Self { place, address: String::new(), seen: Vec::new(), refusals: 0 }
    }

    pub fn keep(&mut self, place: impl Into<String>, reader: Reader, text: impl Into<String>) {
        self.seen.push(Seen { place: place.into(), reader, text: text.into() });
    }

    /// The status and the body, `null` when it is no JSON. Headers are searched too.
    pub fn call(&mut self, call: &Call<'_>) -> (u16, Value) {
        let url = format!("http://{}{}", self.address, call.path);
        let mut args = vec!["--globoff", "--path-as-is", "-i", "-w", "\n%{http_code}", "-X", call.method];
        args.extend(call.headers.iter().flat_map(|header| ["-H", header]));
        let file = self.place.path().join("body");
        let file = format!("@{}", file.display());
        if let Some(body) = call.body {
            std::fs::write(self.place.path().join("body"), body).expect("written");
            args.extend(["-H", "Expect:", "--data-binary", &file]);
        }
        args.push(&url);
        let answer = curl(&args);
        let (answer, status) = answer.rsplit_once('\n').expect("a status follows the answer");
        let status: u16 = status.parse().expect("a number");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        self.keep_answer(call.what, status, answer, &body);
        (status, body)
    }

    fn keep_answer(&mut self, what: &str, status: u16, answer: &str, body: &Value) {
        let is_refusal = status >= 400;
        self.refusals += usize::from(is_refusal);
        let reader = if is_refusal { Reader::Anyone } else { Reader::Owner };
        self.keep(format!("the answer {status} to: {what}"), reader, answer);
        // Within a batch each email is refused for itself.
        for error in body["results"].as_array().into_iter().flatten().map(|result| &result["error"]) {
            self.keep(format!("a refusal within {what}"), Reader::Anyone, error.to_string());
        }
    }

    /// Sends bytes that are no request, and keeps whatever is answered.
    pub fn call_with_garbage(&mut self, what: &str, bytes: &[u8]) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.write_all(bytes).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("closed on our side");
        let mut answer = Vec::new();
        // A server that cuts such a connection off is right to do so.
        let _ = stream.read_to_end(&mut answer);
        self.keep(format!("the answer to: {what}"), Reader::Anyone, String::from_utf8_lossy(&answer));
    }

    /// Runs a command; what it prints is for the operator, what it complains about may end up anywhere.
    pub fn run(&mut self, args: &[&str]) {
        self.run_in(&[], args);
    }

    /// Runs a command with variables that are set for it.
    pub fn run_in(&mut self, variables: &[(&str, &str)], args: &[&str]) {
        let output = self.place.command(args).envs(variables.iter().copied()).output().expect("it runs");
        self.keep_output(args, &output, err(&output));
    }

    /// Runs a command with an argument that is wrong. It may quote that to whoever typed it, and nothing else.
    pub fn run_mistaken(&mut self, args: &[&str]) {
        let output = self.place.run(args);
        assert!(!output.status.success(), "{args:?}");
        let complaint = args.iter().fold(err(&output), |complaint, arg| complaint.replace(arg, "…"));
        self.keep_output(args, &output, complaint);
    }

    fn keep_output(&mut self, args: &[&str], output: &Output, complaint: String) {
        let command = args.join(" ");
        self.keep(format!("stdout of `{command}`"), Reader::Owner, out(output));
        self.keep(format!("stderr of `{command}`"), Reader::Anyone, complaint);
    }
}
