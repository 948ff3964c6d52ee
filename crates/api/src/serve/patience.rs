//! How long a connection waits for a head.
//!
//! A head that has begun has little time, and so has the first of a connection. Between two requests a connection may be
//! silent for longer, since load balancers keep theirs open for a minute and would meet a closed one; but not where places
//! are getting few: then silence is given no more time than a head, and those that wait longest go first.
//!
//! Hyper starts one clock when it begins to look for a head and ends the connection when that clock rings. It is given
//! this one, which also knows what has arrived. Of a head that came together with the end of the request before it only the
//! rest is seen to arrive: until then it is silence, which is bounded as well.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep as TokioSleep, sleep_until};

use crate::serve::ServeSettings;

/// Silence is cut short while fewer than one place in so many is free.
const ROOM: usize = 4;

/// The bytes that have come over a connection.
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Arc<AtomicU64>);

impl Arrivals {
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The clock of one connection.
#[derive(Clone)]
pub struct HeadTimer {
    arrivals: Arrivals,
    places: Arc<Semaphore>,
    places_max: usize,
    head_timeout: Duration,
    idle_timeout: Duration,
    /// The first head was waited for already.
    is_known: Arc<AtomicBool>,
}

impl HeadTimer {
    pub fn new(arrivals: Arrivals, places: Arc<Semaphore>, settings: &ServeSettings) -> Self {
        Self {
            arrivals,
            places,
            places_max: settings.connections_max,
            head_timeout: settings.head_timeout,
            idle_timeout: settings.idle_timeout,
            is_known: Arc::default(),
        }
    }

    fn has_room(&self) -> bool {
        self.places.available_permits() >= self.places_max.div_ceil(ROOM)
    }

    fn patience(&self) -> Patience {
        let now = Instant::now();
        let silence = if self.is_known.swap(true, Ordering::Relaxed) {
            Some(Silence { arrived: self.arrivals.so_far(), until: now + self.idle_timeout })
        } else {
            None
        };
        Patience { timer: self.clone(), silence, rings: Box::pin(sleep_until(now + self.head_timeout)) }
    }
}

impl Timer for HeadTimer {
    /// Hyper asks for a moment, never for a span; the head is all it waits for.
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.patience())
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.patience())
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

/// Nothing of the next head has come.
struct Silence {
    /// The bytes of the requests before.
    arrived: u64,
    until: Instant,
}

/// Ready when a head is no longer waited for. Polled again after whatever was read.
struct Patience {
    timer: HeadTimer,
    silence: Option<Silence>,
    rings: Pin<Box<TokioSleep>>,
}

impl Future for Patience {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.silence.as_ref().is_some_and(|silence| silence.arrived != this.timer.arrivals.so_far()) {
            this.silence = None;
            this.rings.as_mut().reset(Instant::now() + this.timer.head_timeout);
        }
        loop {
            ready!(this.rings.as_mut().poll(cx));
            let now = Instant::now();
            match &this.silence {
                Some(silence) if now < silence.until && this.timer.has_room() => {
                    // Asked again and again, so that the room that is left counts, not what there was.
                    this.rings.as_mut().reset(silence.until.min(now + this.timer.head_timeout));
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl Sleep for Patience {}
