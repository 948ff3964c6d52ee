//! Labels under traffic that would like them to grow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt as _;
use metrics_exporter_prometheus::PrometheusBuilder;
use model::{Bounce, EmailId, RetryPolicy};
use store::{Acceptance, Accepted};
use testkit::{START, a_company, an_email_at};

use super::*;
use crate::testing::{FakeProvider, Stage, settings};
use crate::worker::run_once;

const COMPANIES: u32 = 40;
const EMAILS_PER_COMPANY: u32 = 10;
const ATTEMPTS: u32 = 9;

/// What observability/METRICS.md promises: labels by metric, and how many series there may be.
fn written() -> BTreeMap<String, (BTreeSet<String>, usize)> {
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let table = include_str!("../../../../observability/METRICS.md");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = words(cells[1]).remove(0);
        (name, (words(cells[3]).into_iter().collect(), cells[4].parse().expect("a number")))
    })
    .collect()
}

/// Names and labels of what is served; the parts of a histogram count as one.
fn served(text: &str) -> BTreeMap<String, BTreeSet<Vec<(String, String)>>> {
    let mut series: BTreeMap<String, BTreeSet<Vec<(String, String)>>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (place, _value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = place.split_once('{').unwrap_or((place, ""));
        let suffixes = ["_bucket", "_sum", "_count"];
        let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let labels = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once("=\""));
        let labels: Vec<_> = labels
            .filter(|(name, _)| *name != "le")
            .map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned()))
            .collect();
        series.entry(base.to_owned()).or_default().insert(labels);
    }
    series
}

/// Every answer has another text, and a code that a hostile server could have made up.
fn a_hostile_provider() -> FakeProvider {
    let calls = Arc::new(AtomicU32::new(0));
    FakeProvider::new(move |_| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let code = match call % 4 {
            0 => format!("SMTP_REJECTED_{}", 500 + call % 100),
            1 => format!("SMTP_TRANSIENT_{}", 400 + call % 100),
            2 => format!("SMTP_REJECTED_{call}"),
            _ => format!("WHAT_THE_PROVIDER_SAID_{call}"),
        };
        let retried = [Category::Transient, Category::Quota, Category::Timeout];
        let error = SendError {
            code: ErrorCode::from_string(code),
            category: retried[call as usize % retried.len()],
            original_code: Some(format!("code-{call}")),
            retry_after: None,
            detail: format!("text {call} of a provider"),
            taken: Taken::No,
            trouble: None,
            refused: None,
        };
        std::future::ready(Err(error)).boxed()
    })
}

async fn hostile_traffic() -> Stage {
    let mut stage = Stage::with(a_hostile_provider()).await;
    let policy = RetryPolicy { max_attempts: ATTEMPTS, ..RetryPolicy::fast() };
    let retry_policies = [(policy.name.clone(), policy)].into();
    stage.gateway.settings =
        Arc::new(crate::Settings { retry_policies, worker_concurrency: 64, ..settings() });
    for number in 0..COMPANIES {
        let company = a_company(&format!("company-{number}"));
        stage.gateway.store.add_company(company.clone()).await.expect("a company");
        let emails = (0..EMAILS_PER_COMPANY).map(|_| an_email_at(company.id, START)).collect();
        let acceptance =
            Acceptance { company: company.id, emails, key: None, daily_limit: None, now: stage.clock_now() };
        assert_eq!(stage.gateway.store.accept(acceptance).await, Ok(Accepted::Stored));
    }
    for _ in 0..ATTEMPTS {
        while run_once(&stage.gateway).await.expect("the store works") > 0 {}
        stage.pass(Duration::from_secs(700));
    }
    stage
}

#[tokio::test]
async fn no_label_grows_with_the_traffic() {
    let recorder = PrometheusBuilder::new().set_buckets(&[1.0]).expect("a bucket").build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    describe();
    let stage = hostile_traffic().await;
    let failed = (COMPANIES * EMAILS_PER_COMPANY) as usize;
    assert_eq!(stage.provider.handed().len(), failed * ATTEMPTS as usize, "every attempt was made");
    for attempt in 0..5_000 {
        let verdict = Verdict::Retry {
            due_at: START,
            failure: testkit::a_failure(&format!("CODE_{attempt}")),
            outcome_unknown: false,
        };
        attempt_ended(&verdict, Status::RetryScheduled, attempt, Duration::ZERO);
    }
    let applied = Reported::Applied {
        email: EmailId::new(START),
        company: stage.company.id,
        status: Status::Bounced,
        moved: true,
    };
    reported(ReportKind::Bounced(Bounce::Hard), &applied);
    webhook_in("main", "applied");
    provider_stands("main", Some(14), true);
    waiting(&QueueStats::default(), START);
    enqueued(Duration::ZERO);

    let written = written();
    let served = served(&recorder.handle().render());
    for (name, series) in &served {
        let (labels, at_most) = written.get(name).unwrap_or_else(|| panic!("{name} is not in METRICS.md"));
        for one in series {
            let used: BTreeSet<String> = one.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(&used, labels, "the labels of {name}");
        }
        assert!(
            series.len() <= *at_most,
            "{name} has {} series, at most {at_most} are promised",
            series.len()
        );
    }
    let values = |label: &str| -> BTreeSet<&str> {
        let all = served[SEND_RESULT].iter().flatten();
        all.filter(|(name, _)| name == label).map(|(_, value)| value.as_str()).collect()
    };
    assert_eq!(values("attempt"), BTreeSet::from(["1", "2", "3", "4", "5", "6+"]));
    assert_eq!(values("status"), BTreeSet::from(["success", "retryable_error", "permanent_error"]));
    // The replies that are known, what stands for the others of SMTP and for all else, and success.
    let codes_max = SMTP_REPLIES.len() * 2 + 4;
    assert!(values("error_code").len() <= codes_max, "{:?}", values("error_code"));
}

#[test]
fn codes_are_folded() {
    let cases = [
        (ErrorCode::NETWORK_ERROR, "NETWORK_ERROR"),
        (ErrorCode::from_string("SMTP_REJECTED_550".into()), "SMTP_REJECTED_550"),
        (ErrorCode::from_string("SMTP_REJECTED_599".into()), "SMTP_REJECTED_5yz"),
        (ErrorCode::from_string("SMTP_TRANSIENT_499".into()), "SMTP_TRANSIENT_4yz"),
        (ErrorCode::from_string("SMTP_REJECTED_123456".into()), "SMTP_REJECTED_5yz"),
        (ErrorCode::from_string("NETWORK_ERROR".into()), "OTHER"),
        (ErrorCode::from_string("free text".into()), "OTHER"),
    ];
    for (code, expected) in cases {
        assert_eq!(bounded_code(&code), expected, "{code}");
    }
    assert_eq!([0, 1, 5, 6, 4_000].map(bounded_attempt), ["1", "1", "5", "6+", "6+"]);
}
