//! Telling open pages that something has changed. A page asks for a stream (Server-Sent Events) of its topic; the stream
//! says "changed" with a mark of what is there now, and the page's script fetches the page again and puts the new parts
//! in place of the old.
//!
//! However many tabs watch a topic, the API is asked once a second for it; where nobody watches, nothing is asked at all.
//! A stream ends with its session and with the server: a shutdown never waits for one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::inside::{Answer, Behalf};
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use model::{CompanyId, EmailId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};

use crate::fields::Query;
use crate::guard;
use crate::pages::server::gauge;
use crate::state::Ui;
use crate::visit::{At, Visit};

/// Between two looks at a topic. A slow store is asked less often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A look may take a tenth of the time at most.
const REST_PER_LOOK: u32 = 10;
/// So that proxies keep a quiet stream open, and that one whose reader is gone is noticed.
const BEAT_EVERY: Duration = Duration::from_secs(15);
/// Pages that watch at once. Those beyond it are pages without updates.
const WATCHERS_MAX: usize = 256;
/// When a browser should try again, in milliseconds, and what it hears first.
const GREETING: &str = "retry: 3000\n\n";

/// What a page is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    Server,
    Company(CompanyId),
    Email(CompanyId, EmailId),
}

/// Who watches what.
pub struct Hub {
    /// Each holds the mark of what was last seen; 0 before the first look.
    topics: Mutex<HashMap<Topic, watch::Sender<u64>>>,
    places: Arc<Semaphore>,
}

impl Default for Hub {
    fn default() -> Self {
        Self { topics: Mutex::default(), places: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }
}

impl Hub {
    /// Joins those who watch a topic; the first one sets the looking in motion.
    fn join(&self, ui: &Ui, topic: Topic) -> watch::Receiver<u64> {
        let mut topics = self.topics();
        if let Some(marks) = topics.get(&topic) {
            let mut marks = marks.subscribe();
            if *marks.borrow() != 0 {
                marks.mark_changed();
            }
            return marks;
        }
        let (sender, marks) = watch::channel(0);
        topics.insert(topic, sender);
        drop(topics);
        tokio::spawn(keep_looking(ui.clone(), topic));
        marks
    }

    /// Passes a mark on; `false` when nobody is there to hear it, and the topic is forgotten.
    fn tell(&self, topic: Topic, mark: u64) -> bool {
        let mut topics = self.topics();
        let Some(marks) = topics.get(&topic) else { return false };
        if marks.receiver_count() == 0 {
            topics.remove(&topic);
            return false;
        }
        marks.send_if_modified(|known| std::mem::replace(known, mark) != mark);
        true
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<Topic, watch::Sender<u64>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at a topic for as long as somebody watches it.
async fn keep_looking(ui: Ui, topic: Topic) {
    loop {
        let began = Instant::now();
        let mark = look(&ui, topic).await;
        if !ui.hub.tell(topic, mark) {
            return;
        }
        sleep(LOOK_EVERY.max(began.elapsed() * REST_PER_LOOK)).await;
    }
}

/// What is there now, as one number: another one when something has changed. Of a company these are its newest emails,
/// those that wait for a retry, and the day's counts, which tell of what happens to older ones.
async fn look(ui: &Ui, topic: Topic) -> u64 {
    let mut mark = DefaultHasher::new();
    match topic {
        Topic::Server => {
            let (metrics, providers) = tokio::join!(
                ui.inside.get(Behalf::Operator, "/metrics"),
                ui.inside.get(Behalf::Operator, "/v1/admin/providers")
            );
            let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
            for name in ["email_queue_size", "email_oldest_waiting_seconds", "email_dlq_size"] {
                gauge(&metrics, name).map(|value| value.round().to_bits()).hash(&mut mark);
            }
            add(&mut mark, &providers);
        }
        Topic::Company(company) => {
            let get = |path| ui.inside.get(Behalf::Company(company), path);
            let (newest, retries, today) = tokio::join!(
                get("/v1/emails?limit=50"),
                get("/v1/emails?status=RETRY_SCHEDULED&limit=25"),
                get("/v1/summary?days=1")
            );
            [newest, retries, today].iter().for_each(|answer| add(&mut mark, answer));
        }
        Topic::Email(company, id) => {
            let (email, events) = (format!("/v1/emails/{id}"), format!("/v1/emails/{id}/events"));
            let get = |path| ui.inside.get(Behalf::Company(company), path);
            let (email, events) = tokio::join!(get(&email), get(&events));
            [email, events].iter().for_each(|answer| add(&mut mark, answer));
        }
    }
    // 0 stands for nothing seen yet.
    mark.finish().max(1)
}

/// A refusal is the same as long as its kind is: its words name the request.
fn add(mark: &mut DefaultHasher, answer: &Answer) {
    answer.status.as_u16().hash(mark);
    if answer.is_fine() {
        answer.bytes.hash(mark);
    } else {
        answer.code().hash(mark);
    }
}

pub async fn of_the_server(visit: Visit) -> Response {
    watch(&visit, Topic::Server)
}

/// Of a company, or of one of its emails.
pub async fn of_a_company(at: At, Query(query): Query) -> Response {
    let topic = match query.get("email").map(str::parse) {
        None => Topic::Company(at.place.id),
        Some(Ok(email)) => Topic::Email(at.place.id, email),
        Some(Err(_)) => return StatusCode::NOT_FOUND.into_response(),
    };
    watch(&at.visit, topic)
}

fn watch(visit: &Visit, topic: Topic) -> Response {
    let ui = &visit.ui;
    let Ok(place) = Arc::clone(&ui.hub.places).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, HeaderValue::from_static("30"))])
            .into_response();
    };
    let watcher = Watcher {
        marks: ui.hub.join(ui, topic),
        draining: Box::pin({
            let ui = ui.clone();
            async move { ui.inside.draining().await }
        }),
        session: visit.visitor.session.clone(),
        ui: ui.clone(),
        _place: place,
    };
    let said = stream::unfold(Some(watcher), |watcher| async move {
        let mut watcher = watcher?;
        let (text, goes_on) = watcher.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), goes_on.then_some(watcher)))
    });
    let greeting = stream::once(async { Ok(Bytes::from_static(GREETING.as_bytes())) });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        // A proxy that gathers, compresses or keeps what passes would hold everything back.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(stream::StreamExt::chain(greeting, said))).into_response()
}

/// One stream. Its place is free again when it is dropped.
struct Watcher {
    ui: Ui,
    session: Option<String>,
    marks: watch::Receiver<u64>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    /// What to say next, and whether more follows; `None` ends the stream.
    async fn next(&mut self) -> Option<(String, bool)> {
        let changed = tokio::select! {
            biased;
            () = &mut self.draining => return None,
            changed = self.marks.changed() => Some(changed.ok()?),
            () = sleep(BEAT_EVERY) => None,
        };
        if !may_stay(&self.ui, self.session.clone()).await {
            return Some(("event: ended\ndata: session\n\n".to_owned(), false));
        }
        let text = match changed {
            Some(()) => format!("event: changed\ndata: {:x}\n\n", *self.marks.borrow_and_update()),
            None => ":\n\n".to_owned(),
        };
        Some((text, true))
    }
}

/// Asked before every word: nothing is told to somebody who has logged out, or whose key was revoked.
async fn may_stay(ui: &Ui, session: Option<String>) -> bool {
    match session {
        Some(id) => guard::known(ui, Some(id), ui.inside.now()).await.is_some(),
        None => !ui.inside.has_admin_token(),
    }
}

#[cfg(test)]
mod tests {
    use testkit::START;

    use super::*;

    #[tokio::test]
    async fn a_topic_nobody_watches_is_forgotten() {
        let hub = Hub::default();
        let topic = Topic::Company(CompanyId::new(START));
        assert!(!hub.tell(topic, 1), "never watched");
        let (sender, mut first) = watch::channel(0);
        let second = sender.subscribe();
        hub.topics().insert(topic, sender);
        assert!(hub.tell(topic, 1));
        assert!(first.has_changed().expect("open") && second.has_changed().expect("open"), "all hear it");
        first.mark_unchanged();
        assert!(hub.tell(topic, 1));
        assert!(!first.has_changed().expect("open"), "the same is not said twice");
        drop((first, second));
        assert!(!hub.tell(topic, 2));
        assert!(hub.topics().is_empty());
    }
}
