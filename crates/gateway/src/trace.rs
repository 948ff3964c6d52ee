//! Spans of an email's path, in the manner of OpenTelemetry: the request, its acceptance, each attempt, each call to a
//! provider. Off by default, and then nothing is allocated, timed or drawn by lot. Where finished spans go is the
//! sink's matter; the binary has one that sends them to a collector.
//!
//! The context travels with the email through the store, so that an attempt in another process, hours later, is part
//! of the trace of the request. Only what is recorded is stored: an email without a context is not traced.

use std::borrow::Cow;
use std::fmt::Display;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::{Clock, TraceContext};

/// The names of the spans, once. A request's is its method and route, such as `POST /v1/email/send`.
pub const ACCEPT: &str = "accept";
pub const ATTEMPT: &str = "attempt";
pub const SEND: &str = "send";

/// The wall clock was set when it is further from the steady one than this.
const CLOCK_DRIFT_MAX: Duration = Duration::from_millis(100);

/// Takes finished spans. It must neither wait nor fail: what it has no room for it throws away and counts.
pub trait SpanSink: Send + Sync {
    fn take(&self, span: FinishedSpan);
}

/// Which part a span plays between two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Answers a request.
    Server,
    /// Asks another program.
    Client,
    /// Hands over work that is done later.
    Producer,
    /// Does work that was handed over.
    Consumer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanValue {
    Text(String),
    Number(u64),
}

/// A span that has ended, with everything a collector wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedSpan {
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    pub context: TraceContext,
    pub parent: Option<NonZeroU64>,
    /// Since 1970.
    pub started_nanos: u64,
    pub ended_nanos: u64,
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The code of what went wrong.
    pub error: Option<String>,
}

/// Begins spans, or does nothing at all.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Recorder>>);

struct Recorder {
    sink: Box<dyn SpanSink>,
    clock: Arc<dyn Clock>,
    /// Traces begun here are recorded when their number is below this, of 2^63.
    threshold: u64,
    /// A moment by both clocks. Spans are timed by the steady one, so that a child lies within its parent.
    anchor: Mutex<(u64, Instant)>,
}

impl Tracer {
    /// Records all of what others began and want recorded, and so many in a thousand of what begins here.
    pub fn new(sink: Box<dyn SpanSink>, clock: Arc<dyn Clock>, sample_per_mille: u32) -> Self {
        let share = u64::from(sample_per_mille.min(1000));
        let anchor = Mutex::new((wall_nanos(&*clock), Instant::now()));
        Self(Some(Arc::new(Recorder { sink, clock, threshold: (1 << 63) / 1000 * share + share, anchor })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The span of a request: part of the caller's trace if `traceparent` names one, else the first of a new trace.
    pub fn request(&self, name: impl FnOnce() -> String, traceparent: Option<&str>) -> Span {
        let Some(recorder) = &self.0 else { return Span::default() };
        let context = match traceparent.and_then(TraceContext::parse) {
            Some(parent) => {
                Begun { trace: parent.trace, parent: Some(parent.span), is_sampled: parent.is_sampled }
            }
            None => recorder.new_trace(),
        };
        if !context.is_sampled {
            return Span::default();
        }
        recorder.clone().begin(name().into(), SpanKind::Server, context)
    }

    /// A span that follows another one, which may have ended long ago in another process.
    pub fn follow(&self, name: &'static str, kind: SpanKind, parent: Option<TraceContext>) -> Span {
        let (Some(recorder), Some(parent)) = (&self.0, parent.filter(|parent| parent.is_sampled)) else {
            return Span::default();
        };
        let context = Begun { trace: parent.trace, parent: Some(parent.span), is_sampled: true };
        recorder.clone().begin(name.into(), kind, context)
    }
}

/// Where a new span stands.
struct Begun {
    trace: NonZeroU128,
    parent: Option<NonZeroU64>,
    is_sampled: bool,
}

impl Recorder {
    fn new_trace(&self) -> Begun {
        let trace = NonZeroU128::new(rand::random()).unwrap_or(NonZeroU128::MIN);
        // Decided by the number, so that every program that knows the same share decides alike.
        let lot = (trace.get() as u64) >> 1;
        Begun { trace, parent: None, is_sampled: lot < self.threshold }
    }

    fn begin(self: Arc<Self>, name: Cow<'static, str>, kind: SpanKind, begun: Begun) -> Span {
        let span = NonZeroU64::new(rand::random()).unwrap_or(NonZeroU64::MIN);
        let started = Instant::now();
        let finished = FinishedSpan {
            name,
            kind,
            context: TraceContext { trace: begun.trace, span, is_sampled: true },
            parent: begun.parent,
            started_nanos: self.nanos_at(started),
            ended_nanos: 0,
            attributes: Vec::new(),
            error: None,
        };
        Span(Some(Box::new(Live { finished, started, recorder: self })))
    }

    fn nanos_at(&self, now: Instant) -> u64 {
        let wall = wall_nanos(&*self.clock);
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let steady = anchor.0.saturating_add(nanos(now.saturating_duration_since(anchor.1)));
        if u128::from(steady.abs_diff(wall)) <= CLOCK_DRIFT_MAX.as_nanos() {
            return steady;
        }
        *anchor = (wall, now);
        wall
    }
}

fn wall_nanos(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now().millis()).unwrap_or(0).saturating_mul(1_000_000)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A span that goes on until it is dropped; most of the time none at all.
#[derive(Default)]
pub struct Span(Option<Box<Live>>);

struct Live {
    finished: FinishedSpan,
    started: Instant,
    recorder: Arc<Recorder>,
}

impl Span {
    /// Where it stands, for those that follow it.
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(|live| live.finished.context)
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Says more about it. Never an address, a subject or anything else that is somebody's own.
    pub fn put(&mut self, key: &'static str, value: impl Display) {
        if let Some(live) = &mut self.0 {
            live.finished.attributes.push((key, SpanValue::Text(value.to_string())));
        }
    }

    pub fn number(&mut self, key: &'static str, value: impl Into<u64>) {
        if let Some(live) = &mut self.0 {
            live.finished.attributes.push((key, SpanValue::Number(value.into())));
        }
    }

    /// It went wrong, with this code.
    pub fn fails(&mut self, code: impl Display) {
        if let Some(live) = &mut self.0 {
            live.finished.error = Some(code.to_string());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(live) = self.0.take() {
            let Live { mut finished, started, recorder } = *live;
            finished.ended_nanos = finished.started_nanos.saturating_add(nanos(started.elapsed()));
            recorder.sink.take(finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::ManualClock;

    /// Keeps what it is given.
    #[derive(Clone, Default)]
    pub struct Kept(Arc<Mutex<Vec<FinishedSpan>>>);

    impl Kept {
        pub fn spans(&self) -> Vec<FinishedSpan> {
            self.0.lock().expect("no test panics with it").clone()
        }

        pub fn tracer(&self, sample_per_mille: u32) -> Tracer {
            Tracer::new(Box::new(self.clone()), Arc::new(ManualClock::default()), sample_per_mille)
        }
    }

    impl SpanSink for Kept {
        fn take(&self, span: FinishedSpan) {
            self.0.lock().expect("no test panics with it").push(span);
        }
    }

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn request(tracer: &Tracer, traceparent: Option<&str>) -> Span {
        tracer.request(|| "GET /".to_owned(), traceparent)
    }

    #[test]
    fn whoever_began_the_trace_decides_and_else_the_share() {
        let cases = [
            // case                         share  traceparent        recorded
            ("the caller wants it", 0, Some(SAMPLED), true),
            ("the caller does not", 1000, Some(NOT_SAMPLED), false),
            ("nobody said, all", 1000, None, true),
            ("nobody said, none", 0, None, false),
            ("nonsense, all", 1000, Some("00-nonsense"), true),
        ];
        for (case, share, traceparent, recorded) in cases {
            let kept = Kept::default();
            drop(request(&kept.tracer(share), traceparent));
            assert_eq!(kept.spans().len(), usize::from(recorded), "{case}");
        }
    }

    #[test]
    fn a_share_is_about_that_share() {
        let kept = Kept::default();
        let tracer = kept.tracer(250);
        (0..4_000).for_each(|_| drop(request(&tracer, None)));
        let count = kept.spans().len();
        assert!((800..1_200).contains(&count), "{count} of 4000 at 250 in a thousand");
    }

    #[test]
    fn spans_follow_each_other_in_one_trace() {
        let kept = Kept::default();
        let tracer = kept.tracer(0);
        let mut outer = request(&tracer, Some(SAMPLED));
        outer.put("outboxId", "x");
        outer.number("attempt", 2_u32);
        let mut inner = tracer.follow(SEND, SpanKind::Client, outer.context());
        inner.fails("NETWORK_ERROR");
        drop(inner);
        drop(outer);
        let [inner, outer] = &kept.spans()[..] else { panic!("two spans") };
        let given = TraceContext::parse(SAMPLED).expect("well-formed");
        assert_eq!((outer.context.trace, outer.parent), (given.trace, Some(given.span)));
        assert_eq!((inner.context.trace, inner.parent), (given.trace, Some(outer.context.span)));
        assert_eq!((inner.error.as_deref(), outer.error.as_deref()), (Some("NETWORK_ERROR"), None));
        assert_eq!(outer.attributes.len(), 2);
        assert!(outer.started_nanos <= inner.started_nanos && inner.ended_nanos <= outer.ended_nanos);
    }

    #[test]
    fn what_is_off_or_not_recorded_has_no_context_to_keep() {
        let off = Tracer::default();
        assert!(request(&off, Some(SAMPLED)).context().is_none());
        assert!(off.follow(ATTEMPT, SpanKind::Consumer, TraceContext::parse(SAMPLED)).context().is_none());
        let kept = Kept::default();
        let tracer = kept.tracer(1000);
        assert!(tracer.follow(ATTEMPT, SpanKind::Consumer, None).context().is_none());
        assert!(
            tracer.follow(ATTEMPT, SpanKind::Consumer, TraceContext::parse(NOT_SAMPLED)).context().is_none()
        );
        assert!(kept.spans().is_empty());
    }
}
