//! One attempt, from claim to recorded end. `worker` starts it in a task of its own; `validate`, `route` and `conclude`
//! decide, this carries out. Start reading at [`run`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use model::email::Outgoing;
use model::{
    Address, Category, Claim, Company, CompanySettings, ErrorCode, Event, EventKind, Guard, ReportKind,
    Status, Timestamp,
};
use provider::{Provider, Receipt, SEND_TIMEOUT, SendError, Taken, Trouble};
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::addressees::Addressees;
use crate::caution::is_suspect;
use crate::company_cache::CompanyCache;
use crate::conclude::{Ending, Treatment, conclude};
use crate::flight::Flight;
use crate::gates::{Gates, route_text};
use crate::route::{self, Choice, Route};
use crate::suppressions::LeftOut;
use crate::trace::{self, Span, SpanKind, Tracer};
use crate::validate;
use crate::{Gateway, observe, sandbox};

/// A provider bounds itself, since it alone knows whether its request was out. One that does not is cut here.
const SEND_CAP: Duration = SEND_TIMEOUT.saturating_add(Duration::from_secs(1));
/// The result of an attempt is worth more than its lease: as long as nobody else took the email over, a late record is
/// as good as an early one, and after that the store keeps it as an event. So it is offered for this long; to a store
/// without room for as long as it takes, since nobody else can take the email over meanwhile.
const RESULT_KEPT: Duration = Duration::from_secs(15 * 60);
/// How long an attempt waits for its turn under the provider's rate before the email is put back.
const START_WAIT: Duration = Duration::from_secs(5);
/// How long a turn is good for: a call that comes later takes another, lest those that waited for the store come all at once.
const START_KEPT: Duration = Duration::from_secs(1);
const RECORD_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECORD_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The end of an attempt that the store brought to a stop before the provider was called.
const STORE_FAILED: Ending = Ending::GivenBack { reason: "store", at_provider: false };

/// What attempts of one worker share.
pub struct Bench {
    pub gateway: Gateway,
    pub companies: CompanyCache,
    pub gates: Gates,
    /// Cancelled at shutdown: what has not begun by then is given back.
    pub stop: CancellationToken,
}

impl Bench {
    pub fn new(gateway: Gateway, stop: CancellationToken) -> Self {
        let gates = Gates::new(
            gateway.store.clone(),
            gateway.clock.clone(),
            gateway.providers.clone(),
            gateway.settings.provider_rates.clone(),
        );
        Self { gateway, companies: CompanyCache::default(), gates, stop }
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Recorded(Status),
    /// The email was cancelled, expired or taken over; whoever did that recorded it.
    Lost,
    /// The store failed: it is wise to wait a little.
    StoreTrouble,
}

/// Why an attempt stopped without an ending.
enum Stopped {
    Lost,
    Store(StoreError),
}

/// One attempt, from claim to recorded end.
pub async fn run(bench: &Bench, mut claim: Claim, addressees: &Addressees, flight: &Flight) -> Finished {
    let mut span = span_of(&bench.gateway.tracer, &claim);
    // What is done from here on is part of the attempt.
    claim.trace = span.context();
    let finished = try_once(bench, claim, addressees, flight, &mut span).await;
    match finished {
        Finished::Recorded(status) => span.put("state", status),
        Finished::Lost => span.put("state", "lost"),
        Finished::StoreTrouble => span.fails("STORE_ERROR"),
    }
    finished
}

fn span_of(tracer: &Tracer, claim: &Claim) -> Span {
    let mut span = tracer.follow(trace::ATTEMPT, SpanKind::Consumer, claim.trace);
    if span.is_on() {
        span.put("outboxId", claim.id());
        span.put("companyId", claim.company);
        span.put("requestId", &claim.request_id);
        span.number("attempt", claim.attempt);
    }
    span
}

async fn try_once(
    bench: &Bench,
    claim: Claim,
    addressees: &Addressees,
    flight: &Flight,
    span: &mut Span,
) -> Finished {
    let started = Instant::now();
    if is_suspect(&claim)
        && let Some(finished) = count_start(bench, flight).await
    {
        return finished;
    }
    let (to, attempt) = (claim.envelope.to.clone(), claim.attempt);
    let company = match bench.companies.get(&*bench.gateway.store, claim.company).await {
        Ok(company) => company,
        Err(error) => return give_back(bench, flight, STORE_FAILED, &error).await,
    };
    let settings = company.as_deref().map(|company| &company.settings);
    let treatment = Treatment::of(&claim.wishes, settings, &bench.gateway.settings);

    let mut events = Vec::new();
    let steps = carry_out(bench, claim, addressees, company.as_ref(), &treatment, flight, &mut events);
    let ending = match AssertUnwindSafe(steps).catch_unwind().await {
        Ok(Ok(ending)) => ending,
        Ok(Err(Stopped::Lost)) => return lost(flight),
        Ok(Err(Stopped::Store(error))) => return give_back(bench, flight, STORE_FAILED, &error).await,
        Err(_panic) => Ending::Panicked { at_provider: flight.is_at_provider() },
    };
    if let Some(provider) = flight.probe()
        && !matches!(ending, Ending::Sent { .. } | Ending::NotSent(_))
        && let Err(error) = bench.gates.probe_spent(provider).await
    {
        tracing::warn!(provider, %error, "a probe could not be given back; it runs out");
    }
    let now = bench.gateway.clock.now();
    let rules = treatment.rules((bench.gateway.dice)(), now);
    let played = played_report(bench, &ending, &to);
    let taken_by = if let Ending::Sent { provider, .. } = &ending { Some(provider.clone()) } else { None };
    let (verdict, concluding) = conclude(flight.facts, ending, &rules);
    events.extend(concluding);
    if let Some(code) = observe::code_of(&verdict) {
        span.fails(code);
    }
    let settlement = Settlement { guard: flight.guard(), by: SettledBy::Worker, verdict, events, now };
    let finished = record(bench, flight, settlement, started).await;
    // Not before: that it was sent must not wait for a note on the provider's health, which may be long in the writing.
    if let Some(provider) = taken_by {
        bench.gates.report(&provider, None).await;
    }
    if let (Finished::Recorded(Status::Sent), Some((provider, kind))) = (finished, played) {
        play(bench, flight, &provider, kind, attempt).await;
    }
    finished
}

/// The start of a suspect is counted before its work begins, and not before: it may be the death of this process, and
/// nobody else's fault. What became of it if it cannot begin.
async fn count_start(bench: &Bench, flight: &Flight) -> Option<Finished> {
    match bench.gateway.store.begin_suspect(flight.guard()).await {
        Ok(true) => None,
        Ok(false) => Some(lost(flight)),
        // It stays a suspect.
        Err(error) => {
            let ending = Ending::Waits { reason: "store", route: None };
            Some(give_back(bench, flight, ending, &error).await)
        }
    }
}

/// What the provider plays of its own reports, if it does.
fn played_report(bench: &Bench, ending: &Ending, to: &Address) -> Option<(String, ReportKind)> {
    let Ending::Sent { provider, .. } = ending else { return None };
    let kind = bench.gateway.providers.get(provider)?.played_report(to)?;
    Some((provider.clone(), kind))
}

/// A crash before this forgets it, which is no loss: nobody was written to.
async fn play(bench: &Bench, flight: &Flight, provider: &str, kind: ReportKind, attempt: u32) {
    let id = format!("sandbox:{}:{attempt}", flight.id);
    if let Err(error) = sandbox::play(&bench.gateway, provider, flight.id, kind, id).await {
        tracing::warn!(
            outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company, attempt, %error,
            "the report of a sandbox address could not be played"
        );
    }
}

/// Everything up to the provider's answer. `events` collects what happened and is not recorded yet.
async fn carry_out(
    bench: &Bench,
    mut claim: Claim,
    addressees: &Addressees,
    company: Option<&Arc<Company>>,
    treatment: &Treatment,
    flight: &Flight,
    events: &mut Vec<Event>,
) -> Result<Ending, Stopped> {
    let gateway = &bench.gateway;
    let company = company.map(AsRef::as_ref);
    if let Some(ending) = too_late(gateway, &claim) {
        return Ok(ending);
    }
    if let Err(invalid) = validate::all(company, &claim, addressees) {
        observe::validation_failed(invalid.validation);
        return Ok(Ending::Invalid(invalid));
    }
    events.push(validated(gateway.clock.now(), &mut claim, &addressees.suppressed));
    let fallback = CompanySettings::default();
    let settings = company.map_or(&fallback, |company| &company.settings);
    if !bench.gates.is_passable(&claim.route) && way(gateway, settings, &claim).is_some() {
        flight.strays();
    }
    let is_open = |name: &str| flight.probes(name) || bench.gates.is_open(name);
    let route = match route::choose(&gateway.settings, &gateway.providers, settings, &claim, is_open) {
        Ok(Choice::Go(route)) => route,
        Ok(Choice::Wait) => {
            return Ok(Ending::Waits { reason: "provider resting", route: way(gateway, settings, &claim) });
        }
        Err(failure) => return Ok(Ending::Unroutable(failure)),
    };
    let provider = gateway.providers.get(&route.provider).expect("the route names a provider that exists");
    let (cost, until) = (provider.rate_cost(&claim.envelope), Instant::now() + START_WAIT);
    if !bench.gates.start(&route.provider, cost, until).await.map_err(Stopped::Store)? {
        return Ok(Ending::Waits { reason: "provider rate", route: way(gateway, settings, &claim) });
    }
    if bench.stop.is_cancelled() {
        return Ok(Ending::GivenBack { reason: "shutdown", at_provider: false });
    }
    // Again, right before the call: the way here may have been long.
    if let Some(ending) = too_late(gateway, &claim) {
        return Ok(ending);
    }
    let now = gateway.clock.now();
    let content = claim.content.take().expect("an email without content does not pass validation");
    let outgoing = route.outgoing(&claim, content, &treatment.policy, now);
    let asked = Instant::now();
    begin(gateway, flight, &route, now, events).await?;
    // And again: a store that was long in answering may have used up the email's time, or its turn at the provider.
    if let Some(ending) = too_late(gateway, &claim) {
        return Ok(ending);
    }
    if asked.elapsed() > START_KEPT {
        let until = Instant::now() + START_WAIT;
        if !bench.gates.start(&route.provider, cost, until).await.map_err(Stopped::Store)? {
            return Ok(Ending::Waits { reason: "provider rate", route: way(gateway, settings, &claim) });
        }
    }
    flight.calls();
    let called = Instant::now();
    let mut call = call_of(&gateway.tracer, &claim, &route.provider);
    let ending = send(&**provider, route.provider.clone(), &outgoing).await;
    let error = if let Ending::NotSent(error) = &ending { Some(error) } else { None };
    if let Some(error) = error {
        call.fails(&error.code);
    }
    drop(call);
    observe::called(&route.provider, error, called.elapsed());
    if let Some(error) = error {
        bench.gates.report(&route.provider, Some(error)).await;
    }
    Ok(ending)
}

/// Its time is over, or may be: a clock that is in doubt must neither end an email nor let it be sent late.
fn too_late(gateway: &Gateway, claim: &Claim) -> Option<Ending> {
    if gateway.clock.now() >= claim.expires_at {
        return Some(Ending::Overdue);
    }
    let doubt = gateway.clock.doubt()?;
    doubt
        .is_too_late(claim.created_at, claim.expires_at)
        .then_some(Ending::PerhapsOverdue { known_at: doubt.until })
}

/// The span of a call to a provider. Its context stays here: it is nobody else's business.
fn call_of(tracer: &Tracer, claim: &Claim, provider: &str) -> Span {
    let mut span = tracer.follow(trace::SEND, SpanKind::Client, claim.trace);
    if span.is_on() {
        span.put("outboxId", claim.id());
        span.put("companyId", claim.company);
        span.number("attempt", claim.attempt);
        span.put("provider", provider);
    }
    span
}

/// Copies to those who must not be written to are left out; the email goes to the others.
fn validated(now: Timestamp, claim: &mut Claim, suppressed: &[Address]) -> Event {
    let event = event(EventKind::Validated, now, claim.attempt);
    let left_out = LeftOut::of(&claim.envelope, suppressed);
    left_out.take_from(&mut claim.envelope);
    left_out.tell(event)
}

/// The route of the email as it is now, if it waited by another one.
fn way(gateway: &Gateway, company: &CompanySettings, claim: &Claim) -> Option<String> {
    let (settings, providers) = (&gateway.settings, &gateway.providers);
    let ways = route::ways(settings, providers, company, claim.mode, &claim.wishes, &claim.envelope);
    Some(route_text(&ways)).filter(|route| *route != claim.route)
}

/// Records that the provider is about to be called; nothing is sent before this is committed.
async fn begin(
    gateway: &Gateway,
    flight: &Flight,
    route: &Route,
    now: Timestamp,
    events: &mut Vec<Event>,
) -> Result<(), Stopped> {
    let calling = event(EventKind::SentAttempt, now, flight.facts.attempt);
    let mut so_far = std::mem::take(events);
    so_far.push(calling.with("provider", route.provider.clone()));
    let guard = flight.guard();
    let start = AttemptStart { guard, provider: route.provider.clone(), events: so_far, now };
    let mut begun = gateway.store.begin(start.clone()).await;
    if let Err(doubt @ StoreError::InDoubt(_)) = begun {
        begun = begin_again(gateway, start).await;
        if matches!(begun, Ok(Begun::Lost)) {
            // Nobody else has our fence, so it was we who began, the first time. Given back as it is now: else it would
            // be taken for one that the provider may have, and wait for its lease and a report.
            flight.has_begun(Guard { version: guard.version + 1, ..guard });
            return Err(Stopped::Store(doubt));
        }
    }
    match begun {
        Ok(Begun::Yes(guard)) => {
            flight.has_begun(guard);
            observe::began();
            Ok(())
        }
        Ok(Begun::Lost) => Err(Stopped::Lost),
        Err(error) => Err(Stopped::Store(error)),
    }
}

/// For as long as the store says nothing, nobody knows under which guard the email could be given back.
async fn begin_again(gateway: &Gateway, start: AttemptStart) -> Result<Begun, StoreError> {
    let first_try = Instant::now();
    let mut pause = RECORD_PAUSE_MIN;
    loop {
        match gateway.store.begin(start.clone()).await {
            Err(error) if error.is_temporary() && first_try.elapsed() < RESULT_KEPT => {}
            answered => return answered,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECORD_PAUSE_MAX);
    }
}

async fn send(provider: &dyn Provider, name: String, outgoing: &Outgoing) -> Ending {
    let called = Instant::now();
    let answer = tokio::time::timeout(SEND_CAP, provider.send(outgoing)).await;
    match answer.unwrap_or_else(|_| Err(provider_hangs())) {
        Ok(Receipt { message_id, refused }) => {
            let (provider_kind, duration_ms) = (provider.kind(), millis(called.elapsed()));
            Ending::Sent { provider: name, provider_kind, message_id, duration_ms, refused }
        }
        Err(error) => Ending::NotSent(error),
    }
}

fn provider_hangs() -> SendError {
    SendError {
        code: ErrorCode::new("PROVIDER_TIMEOUT"),
        category: Category::Timeout,
        original_code: None,
        retry_after: None,
        detail: "the provider did not answer in time".into(),
        taken: Taken::Unknown,
        trouble: Some(Trouble::Outage),
        refused: None,
    }
}

/// Records the end of an attempt. The mail may be out, so a store that fails is asked again and again.
pub async fn record(bench: &Bench, flight: &Flight, settlement: Settlement, started: Instant) -> Finished {
    flight.settles(settlement.clone());
    let first_try = Instant::now();
    let mut pause = RECORD_PAUSE_MIN;
    loop {
        match bench.gateway.queue.settle(settlement.clone()).await {
            Ok(Settled::Done(status)) => {
                recorded(flight, &settlement, status, started.elapsed());
                return Finished::Recorded(status);
            }
            Ok(Settled::Late) => return late(flight),
            Err(error) if first_try.elapsed() >= RESULT_KEPT && !matches!(error, StoreError::Full(_)) => {
                return gave_up(flight, &error);
            }
            Err(error) => warn_once(flight, &error, pause),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECORD_PAUSE_MAX);
    }
}

/// Gives an email back that nothing was done with, since the store failed on the way.
async fn give_back(bench: &Bench, flight: &Flight, ending: Ending, error: &StoreError) -> Finished {
    tracing::warn!(
        outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
        attempt = flight.facts.attempt, %error,
        "the store failed before the provider was called; the email is given back"
    );
    let now = bench.gateway.clock.now();
    let treatment = Treatment::of(&flight.wishes, None, &bench.gateway.settings);
    let (verdict, events) = conclude(flight.facts, ending, &treatment.rules(0.0, now));
    let settlement = Settlement { guard: flight.guard(), by: SettledBy::Worker, verdict, events, now };
    record(bench, flight, settlement, Instant::now()).await;
    Finished::StoreTrouble
}

fn event(kind: EventKind, at: Timestamp, attempt: u32) -> Event {
    Event::new(kind, at).with("attempt", attempt)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn recorded(flight: &Flight, settlement: &Settlement, status: Status, took: Duration) {
    observe::recorded(&settlement.events);
    observe::attempt_ended(&settlement.verdict, status, flight.facts.attempt, took);
    let code = observe::code_of(&settlement.verdict);
    tracing::info!(
        outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
        attempt = flight.facts.attempt, state = %status, durationMs = millis(took), errorCode = code,
        traceId = flight.trace.map(|trace| trace.trace_text()),
        "attempt ended"
    );
}

fn lost(flight: &Flight) -> Finished {
    tracing::info!(
        outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
        attempt = flight.facts.attempt,
        "the email was cancelled, expired or taken over before the provider was called"
    );
    Finished::Lost
}

fn late(flight: &Flight) -> Finished {
    tracing::warn!(
        outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
        attempt = flight.facts.attempt,
        "the result came after the lease was lost; it is kept as an event"
    );
    Finished::Lost
}

fn gave_up(flight: &Flight, error: &StoreError) -> Finished {
    tracing::error!(
        outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
        attempt = flight.facts.attempt, %error,
        "the result could not be recorded; the email will be taken for one whose worker vanished"
    );
    Finished::StoreTrouble
}

fn warn_once(flight: &Flight, error: &StoreError, pause: Duration) {
    if pause == RECORD_PAUSE_MIN {
        tracing::warn!(
            outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
            attempt = flight.facts.attempt, %error,
            "the result could not be recorded yet; trying on"
        );
    }
}

#[cfg(test)]
mod tests;
