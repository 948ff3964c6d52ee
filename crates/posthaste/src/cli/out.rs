//! Printing: lines and tables for people, JSON for programs. Every write may fail with a broken pipe, which the
//! caller passes up and `main` takes for a quiet end.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use model::Timestamp;
use serde_json::Value;

/// Where a command's result goes, and how.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    pub format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Human,
    Json,
}

impl Out {
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    pub fn line(self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(io::stdout(), "{text}")
    }

    /// One value on one line.
    pub fn json(self, value: &Value) -> io::Result<()> {
        self.line(value)
    }

    /// The JSON for programs, or the line for people.
    pub fn result(self, json: &Value, line: impl std::fmt::Display) -> io::Result<()> {
        match self.format {
            Format::Json => self.json(json),
            Format::Human => self.line(line),
        }
    }

    pub fn table(self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        self.line(table(header, rows).trim_end())
    }
}

/// Whether standard output is a terminal that shows colours, and nobody asked for none.
pub fn has_colours() -> bool {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    io::stdout().is_terminal() && !is_plain
}

/// A word to the person at the terminal, beside the result. When nobody is there to read it, that is no failure.
pub fn note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Columns two spaces apart, as wide as their widest cell.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let lines: Vec<&Vec<String>> =
        std::iter::once(&titles).filter(|_| !header.is_empty()).chain(rows).collect();
    let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A duration as people say it: `12 ms`, `3.4 s`, `5 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn duration(duration: Duration) -> String {
    let (ms, secs) = (duration.as_millis(), duration.as_secs());
    let pair = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        small => format!("{big} {big_unit} {small} {small_unit}"),
    };
    match secs {
        0 => format!("{ms} ms"),
        1..60 if ms.is_multiple_of(1000) => format!("{secs} s"),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => pair(secs / 60, "min", secs % 60, "s"),
        3_600..86_400 => pair(secs / 3_600, "h", secs % 3_600 / 60, "min"),
        _ => pair(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

/// A moment and how far from now it is: `2026-01-31T12:00:00.250Z (3 s ago)`.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    format!("{at} ({})", distance(at, now))
}

pub fn distance(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        return format!("in {}", duration(at.since(now)));
    }
    format!("{} ago", duration(now.since(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_say_them() {
        let cases = [
            (0, "0 ms"),
            (12, "12 ms"),
            (1_000, "1 s"),
            (3_400, "3.4 s"),
            (60_000, "1 min"),
            (320_000, "5 min 20 s"),
            (7_500_000, "2 h 5 min"),
            (273_600_000, "3 d 4 h"),
        ];
        for (ms, expected) in cases {
            assert_eq!(duration(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["name", "n"], &rows), "name    n\na       1\nlonger  2\n");
        assert_eq!(table(&[], &rows), "a       1\nlonger  2\n");
    }
}
