//! Where an email stands in a trace: the W3C trace context, as far as it has to be kept with an email and passed on.
//! Who makes spans and sends them is `gateway::trace`'s and the binary's matter.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The place of a span in its trace. Prints as a `traceparent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    pub trace: NonZeroU128,
    pub span: NonZeroU64,
    /// Whoever began the trace wants it recorded.
    pub is_sampled: bool,
}

const SAMPLED: u8 = 0b0000_0001;

impl TraceContext {
    /// Reads a `traceparent`. What is not well-formed is none: a new trace is begun then.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, rest) = text.split_at_checked(2)?;
        let rest = rest.strip_prefix('-')?;
        let (trace, rest) = rest.split_at_checked(32)?;
        let rest = rest.strip_prefix('-')?;
        let (span, rest) = rest.split_at_checked(16)?;
        let rest = rest.strip_prefix('-')?;
        let (flags, more) = rest.split_at_checked(2)?;
        // Later versions may say more behind another dash; the first one says nothing more.
        let ends_well = more.is_empty() || (version != "00" && more.starts_with('-'));
        let is_known = is_hex(version) && version != "ff";
        if !ends_well || !is_known || ![trace, span, flags].into_iter().all(is_hex) {
            return None;
        }
        Some(Self {
            trace: NonZeroU128::new(u128::from_str_radix(trace, 16).ok()?)?,
            span: NonZeroU64::new(u64::from_str_radix(span, 16).ok()?)?,
            is_sampled: u8::from_str_radix(flags, 16).ok()? & SAMPLED != 0,
        })
    }

    /// The trace's id as people search for it.
    pub fn trace_text(&self) -> String {
        format!("{:032x}", self.trace)
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_read_as_the_standard_has_it() {
        let good = |text: &str, is_sampled: bool| (text.to_owned(), Some(is_sampled));
        let bad = |text: &str| (text.to_owned(), None);
        let cases = [
            good(&format!("00-{TRACE}-{SPAN}-01"), true),
            good(&format!("00-{TRACE}-{SPAN}-00"), false),
            good(&format!("00-{TRACE}-{SPAN}-03"), true),
            good(&format!("cc-{TRACE}-{SPAN}-01"), true),
            good(&format!("cc-{TRACE}-{SPAN}-01-what-is-to-come"), true),
            bad(&format!("cc-{TRACE}-{SPAN}-01what-is-to-come")),
            bad(&format!("00-{TRACE}-{SPAN}-01-more")),
            bad(&format!("ff-{TRACE}-{SPAN}-01")),
            bad(&format!("00-{}-{SPAN}-01", TRACE.to_uppercase())),
            bad(&format!("00-{}-{SPAN}-01", "0".repeat(32))),
            bad(&format!("00-{TRACE}-{}-01", "0".repeat(16))),
            bad(&format!("00-+{}-{SPAN}-01", &TRACE[1..])),
            bad(&format!("00-{TRACE}-{SPAN}-0")),
            bad(&format!("00_{TRACE}-{SPAN}-01")),
            bad("00-é"),
            bad(""),
        ];
        for (text, expected) in cases {
            assert_eq!(TraceContext::parse(&text).map(|context| context.is_sampled), expected, "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let context = TraceContext::parse(&text).expect("well-formed");
        assert_eq!((context.to_string(), context.trace_text()), (text, TRACE.to_owned()));
    }
}
