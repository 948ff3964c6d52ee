//! How far a long command has come: a bar on a terminal, a line every few seconds elsewhere, nothing for programs. Goes to
//! standard error; standard output belongs to the result.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::note;
use super::out::Out;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often a bar is drawn, at most, per second.
const DRAWS_PER_SEC: u8 = 8;

/// Whether the person wants to see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    Yes,
    No,
}

impl Show {
    /// Not to programs, and not to who asked for quiet.
    pub fn unless(out: Out, quiet: bool) -> Self {
        if quiet || out.is_json() { Self::No } else { Self::Yes }
    }
}

pub enum Progress {
    Bar(ProgressBar),
    Lines { total: Option<u64>, last: Instant },
    Silent,
}

impl Progress {
    /// Of `total` steps, where it is known how many there are.
    pub fn start(show: Show, total: Option<u64>) -> Self {
        if show == Show::No {
            return Self::Silent;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines { total, last: Instant::now() };
        }
        let template = match total {
            Some(_) => "{bar:30} {percent:>3} %  {msg}  {eta} left",
            None => "{spinner} {msg}  {elapsed}",
        };
        let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SEC);
        let bar = ProgressBar::with_draw_target(total, target);
        bar.set_style(
            ProgressStyle::with_template(template).expect("the templates are right").progress_chars("=> "),
        );
        bar.enable_steady_tick(Duration::from_millis(250));
        Self::Bar(bar)
    }

    /// `done` steps are behind; the words are made only when they are shown.
    pub fn at(&mut self, done: u64, words: impl FnOnce() -> String) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(words());
            }
            Self::Lines { total, last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                match total {
                    Some(total) => note(format_args!("{} %: {}", percent(done, *total), words())),
                    None => note(format_args!("{}", words())),
                }
            }
            Self::Lines { .. } | Self::Silent => {}
        }
    }

    /// A line that stays, beside what moves.
    pub fn say(&self, text: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| note(format_args!("{text}"))),
            Self::Lines { .. } => note(format_args!("{text}")),
            Self::Silent => {}
        }
    }

    /// Takes the bar away; the result is what is left to read.
    pub fn end(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn percent(done: u64, total: u64) -> u64 {
    done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100)
}

/// Asks the person at the terminal. Where there is none, who wrote the command has decided.
pub fn confirmed(question: &str) -> std::io::Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(true);
    }
    write!(std::io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents() {
        assert_eq!([percent(0, 10), percent(5, 10), percent(10, 10)], [0, 50, 100]);
        assert_eq!([percent(0, 0), percent(20, 10), percent(u64::MAX, 10)], [100, 100, 100]);
    }
}
