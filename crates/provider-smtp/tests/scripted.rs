//! The SMTP provider against servers that misbehave exactly as told, inside the test. Each server is a script that
//! hears and says lines; the test waits for both sides to come to their end.

use std::future::Future;
use std::time::Duration;

use model::email::Outgoing;
use model::{Category, Content, Mailbox};
use provider::{Provider, SendError, Taken};
use provider_smtp::{SmtpConfig, SmtpProvider};
use testkit::{START, a_company, an_address, an_email};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The server's end of one connection.
struct Peer {
    stream: BufReader<TcpStream>,
    heard: Vec<String>,
}

impl Peer {
    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().await.expect("a connection");
        Self { stream: BufReader::new(stream), heard: Vec::new() }
    }

    async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).await.expect("the client listens");
    }

    /// The next line, or nothing when the client has hung up.
    async fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.stream.read_line(&mut line).await.unwrap_or(0);
        (length > 0).then(|| {
            self.heard.push(line.trim_end().to_owned());
            line
        })
    }

    async fn answer(&mut self, heard: &str, reply: &str) {
        let line = self.hear().await.expect("the client speaks");
        assert!(line.starts_with(heard), "heard {line:?} instead of {heard}");
        self.say(reply).await;
    }

    async fn greet(&mut self, offers: &str) {
        self.say("220 server.test\r\n").await;
        self.answer("EHLO", &format!("250-server.test\r\n{offers}250 HELP\r\n")).await;
    }

    /// Hears a message up to its final dot.
    async fn hear_message(&mut self) {
        self.answer("MAIL", "250 ok\r\n").await;
        self.answer("RCPT", "250 ok\r\n").await;
        self.answer("DATA", "354 go\r\n").await;
        while self.hear().await.expect("the rest of the message") != ".\r\n" {}
    }

    async fn take_message(&mut self, reply: &str) {
        self.hear_message().await;
        self.say(reply).await;
    }
}

fn outgoing() -> Outgoing {
    let email = an_email(a_company("acme").id);
    Outgoing {
        id: email.id,
        company: email.company,
        attempt: 1,
        series: 0,
        is_last_attempt: false,
        created_at: START,
        from: Mailbox::plain(an_address("shop@acme.test")),
        envelope: email.envelope,
        content: email.content,
    }
}

/// A provider that speaks to a new listener, in the clear unless the settings say otherwise.
async fn provider_and_listener(settings: &str) -> (SmtpConfig, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let config = SmtpConfig::parse(&format!("smtp://127.0.0.1:{port}?hello=client.test&{settings}"));
    (config.expect("an address"), listener)
}

fn provider(config: SmtpConfig) -> SmtpProvider {
    SmtpProvider::new(config).expect("a usable configuration")
}

/// Sends one email to a server that plays the script on the first connection.
async fn play<S, F>(settings: &str, script: S) -> Result<Option<String>, SendError>
where
    S: FnOnce(Peer) -> F,
    F: Future<Output = ()>,
{
    play_with(settings, outgoing(), script).await
}

async fn play_with<S, F>(settings: &str, email: Outgoing, script: S) -> Result<Option<String>, SendError>
where
    S: FnOnce(Peer) -> F,
    F: Future<Output = ()>,
{
    let (config, listener) = provider_and_listener(settings).await;
    let smtp = provider(config);
    let server = async { script(Peer::accept(&listener).await).await };
    let (outcome, ()) = tokio::join!(smtp.send(&email), server);
    outcome.map(|receipt| receipt.message_id)
}

fn summary(error: &SendError) -> (&str, Category, Taken) {
    (error.code.as_str(), error.category, error.taken)
}

const BROKEN: (&str, Category, Taken) = ("NETWORK_ERROR", Category::Transient, Taken::No);

#[tokio::test]
async fn a_server_with_its_own_id() {
    let id = play("tls=none", async |mut peer| {
        peer.greet("").await;
        peer.take_message("250 2.0.0 Ok: queued as 4VQZ1x2b\r\n").await;
    })
    .await;
    assert_eq!(id.expect("taken").as_deref(), Some("4VQZ1x2b"));
}

#[tokio::test]
async fn a_connection_lost_before_the_message() {
    let at_once = play("tls=none", async |peer| drop(peer)).await;
    let after_greeting = play("tls=none", async |mut peer| peer.say("220 server.test\r\n").await).await;
    let after_mail = play("tls=none", async |mut peer| {
        peer.greet("").await;
        peer.hear().await;
    })
    .await;
    let before_starttls = play("tls=required", async |mut peer| {
        peer.say("220 server.test\r\n").await;
        peer.hear().await;
    })
    .await;
    let cases = [
        ("at once", at_once),
        ("after the greeting", after_greeting),
        ("after MAIL", after_mail),
        ("before STARTTLS", before_starttls),
    ];
    for (case, outcome) in cases {
        assert_eq!(summary(&outcome.expect_err(case)), BROKEN, "{case}");
    }
}

#[tokio::test]
async fn a_connection_lost_within_the_message() {
    let mut email = outgoing();
    let line = format!("{}\r\n", "x".repeat(76));
    email.content = Content::Raw(format!("From: a@b.com\r\n\r\n{}", line.repeat(500_000)).into_bytes());
    let outcome = play_with("tls=none", email, async |mut peer| {
        peer.greet("").await;
        peer.answer("MAIL", "250 ok\r\n").await;
        peer.answer("RCPT", "250 ok\r\n").await;
        peer.answer("DATA", "354 go\r\n").await;
    })
    .await;
    let error = outcome.expect_err("the server hung up");
    assert_eq!(summary(&error), BROKEN, "the final dot never went out: {}", error.detail);
}

#[tokio::test]
async fn a_connection_lost_after_the_message() {
    let outcome = play("tls=none", async |mut peer| {
        peer.greet("").await;
        peer.hear_message().await;
    })
    .await;
    let expected = ("NETWORK_ERROR", Category::Transient, Taken::Unknown);
    assert_eq!(summary(&outcome.expect_err("no answer")), expected);
}

#[tokio::test]
async fn a_server_that_never_speaks() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(SmtpConfig { timeout: Duration::from_millis(200), ..config });
    let error = smtp.send(&outgoing()).await.expect_err("silence");
    assert_eq!(summary(&error), ("SMTP_TIMEOUT", Category::Timeout, Taken::No));
    assert_eq!(error.detail, "connecting: no answer in time");
    drop(listener);
}

#[tokio::test]
async fn nobody_waits_for_a_connection_for_ever() {
    let (config, listener) = provider_and_listener("tls=none&connections=1").await;
    let smtp = provider(SmtpConfig { timeout: Duration::from_millis(200), ..config });
    let emails = [outgoing(), outgoing()];
    let (first, second) = tokio::join!(smtp.send(&emails[0]), smtp.send(&emails[1]));
    for outcome in [first, second] {
        let error = outcome.expect_err("silence");
        assert_eq!(summary(&error), ("SMTP_TIMEOUT", Category::Timeout, Taken::No), "{}", error.detail);
    }
    drop(listener);
}

/// The server closes after its first message, with or without a word. The next message finds that out and takes a
/// fresh connection; nobody notices.
#[tokio::test]
async fn a_connection_that_died_while_idle_is_replaced() {
    for last_words in ["", "421 4.4.2 idle for too long\r\n"] {
        let (config, listener) = provider_and_listener("tls=none").await;
        let smtp = provider(config);
        let server = async {
            let mut first = Peer::accept(&listener).await;
            first.greet("").await;
            first.take_message("250 ok\r\n").await;
            first.say(last_words).await;
            drop(first);
            let mut second = Peer::accept(&listener).await;
            second.greet("").await;
            second.take_message("250 ok\r\n").await;
        };
        let client = async {
            smtp.send(&outgoing()).await.expect("the first is taken");
            smtp.send(&outgoing()).await.expect("the second is taken");
        };
        tokio::join!(client, server);
    }
}

#[tokio::test]
async fn a_connection_is_replaced_once() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(config);
    let server = async {
        let mut first = Peer::accept(&listener).await;
        first.greet("").await;
        first.take_message("250 ok\r\n").await;
        drop(first);
        let mut second = Peer::accept(&listener).await;
        second.greet("").await;
        second.hear().await;
    };
    let client = async {
        smtp.send(&outgoing()).await.expect("the first is taken");
        smtp.send(&outgoing()).await.expect_err("the fresh connection fails too")
    };
    let (error, ()) = tokio::join!(client, server);
    assert_eq!(summary(&error), BROKEN);
}

#[tokio::test]
async fn a_message_that_may_have_arrived_is_not_sent_again() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(config);
    let server = async {
        let mut peer = Peer::accept(&listener).await;
        peer.greet("").await;
        peer.take_message("250 ok\r\n").await;
        peer.hear_message().await;
    };
    let client = async {
        smtp.send(&outgoing()).await.expect("the first is taken");
        smtp.send(&outgoing()).await.expect_err("no answer to the second")
    };
    let (error, ()) = tokio::join!(client, server);
    assert_eq!(summary(&error), ("NETWORK_ERROR", Category::Transient, Taken::Unknown));
}

#[tokio::test]
async fn a_refused_transaction_is_reset() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(config);
    let server = async {
        let mut peer = Peer::accept(&listener).await;
        peer.greet("").await;
        peer.answer("MAIL", "250 ok\r\n").await;
        peer.answer("RCPT", "550-5.1.1 no\r\n550 5.1.1 such user\r\n").await;
        peer.answer("RSET", "250 ok\r\n").await;
        peer.take_message("250 ok\r\n").await;
        peer.heard
    };
    let client = async {
        let error = smtp.send(&outgoing()).await.expect_err("refused");
        assert_eq!(error.original_code.as_deref(), Some("550 5.1.1"));
        assert!(error.detail.contains("550 5.1.1 no such user"), "{}", error.detail);
        smtp.send(&outgoing()).await.expect("taken");
    };
    let ((), heard) = tokio::join!(client, server);
    assert!(!heard[..3].iter().any(|line| line.starts_with("DATA")), "{heard:?}");
}

/// A server that takes `ana@` and `eva@` and answers so for `bob@` between them.
async fn answer_to_copies(peer: &mut Peer, answer_to_bob: &str) {
    peer.greet("").await;
    peer.answer("MAIL", "250 ok\r\n").await;
    peer.answer("RCPT", "250 ok\r\n").await;
    peer.answer("RCPT TO:<bob@example.com>", answer_to_bob).await;
}

fn with_copies(is_last_attempt: bool) -> Outgoing {
    let mut email = outgoing();
    email.envelope.cc = vec![an_address("bob@example.com"), an_address("eva@example.com")];
    email.is_last_attempt = is_last_attempt;
    email
}

/// A copy that will not be taken, or not in time, does not keep the email from the others.
#[tokio::test]
async fn a_refused_copy_is_left_out() {
    let cases = [
        ("for good", "550 5.1.1 no such user\r\n", false, "SMTP_REJECTED_550", "550 5.1.1"),
        ("for good, by policy", "554 5.7.1 relay denied\r\n", false, "SMTP_REJECTED_554", "554 5.7.1"),
        ("for now, the last time", "450 4.2.0 later\r\n", true, "SMTP_TRANSIENT_450", "450 4.2.0"),
    ];
    for (case, answer_to_bob, is_last_attempt, code, original_code) in cases {
        let (config, listener) = provider_and_listener("tls=none").await;
        let smtp = provider(config);
        let server = async {
            let mut peer = Peer::accept(&listener).await;
            answer_to_copies(&mut peer, answer_to_bob).await;
            peer.answer("RCPT TO:<eva@example.com>", "250 ok\r\n").await;
            peer.answer("DATA", "354 go\r\n").await;
            while peer.hear().await.expect("the rest of the message") != ".\r\n" {}
            peer.say("250 ok\r\n").await;
            // The transaction is over: the next one needs no reset.
            peer.take_message("250 ok\r\n").await;
        };
        let client = async {
            let receipt = smtp.send(&with_copies(is_last_attempt)).await.expect(case);
            smtp.send(&outgoing()).await.expect("taken on the same connection");
            receipt
        };
        let (receipt, ()) = tokio::join!(client, server);
        let [refused] = receipt.refused.as_slice() else { panic!("{case}: {:?}", receipt.refused) };
        assert_eq!(
            (refused.code.as_str(), refused.original_code.as_deref()),
            (code, Some(original_code)),
            "{case}"
        );
        assert_eq!(refused.refused.as_deref(), Some(&an_address("bob@example.com")), "{case}");
        assert!(!refused.message.contains("bob@"), "{case}: {}", refused.message);
    }
}

/// What may pass is tried again for all of them; what is said of the server or the login is said of the email.
#[tokio::test]
async fn a_copy_that_may_pass_is_waited_for() {
    let cases = [
        ("for now", "450 4.2.0 later\r\n", false, "SMTP_TRANSIENT_450", Some("bob@example.com")),
        ("the server goes", "421 4.3.2 closing\r\n", true, "SMTP_TRANSIENT_421", None),
        ("no login", "530 5.7.0 log in first\r\n", true, "SMTP_REJECTED_530", Some("bob@example.com")),
    ];
    for (case, answer_to_bob, is_last_attempt, code, refused) in cases {
        let (config, listener) = provider_and_listener("tls=none").await;
        let smtp = provider(config);
        let server = async {
            let mut peer = Peer::accept(&listener).await;
            answer_to_copies(&mut peer, answer_to_bob).await;
            assert_eq!(peer.hear().await, None, "{case}: nothing more is said");
        };
        let client = async move {
            let error = smtp.send(&with_copies(is_last_attempt)).await.expect_err(case);
            assert_eq!(error.code.as_str(), code, "{case}");
            assert_eq!((error.refused, error.taken), (refused.map(an_address), Taken::No), "{case}");
        };
        tokio::join!(client, server);
    }
}

/// The email is for `to`: without that nobody gets it.
#[tokio::test]
async fn copies_do_not_go_alone() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(config);
    let server = async {
        let mut peer = Peer::accept(&listener).await;
        peer.greet("").await;
        peer.answer("MAIL", "250 ok\r\n").await;
        peer.answer("RCPT", "550 5.1.1 no such user\r\n").await;
        assert_eq!(peer.hear().await, None, "nothing more is said");
    };
    let client = async move {
        let error = smtp.send(&with_copies(true)).await.expect_err("refused");
        assert_eq!(error.refused, Some(outgoing().envelope.to));
    };
    tokio::join!(client, server);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let (config, listener) = provider_and_listener("tls=none").await;
    let smtp = provider(SmtpConfig { idle_max: Duration::from_millis(50), ..config });
    let server = async {
        let mut peer = Peer::accept(&listener).await;
        peer.greet("").await;
        peer.take_message("250 ok\r\n").await;
        peer.answer("QUIT", "221 bye\r\n").await;
        peer.hear().await
    };
    let (outcome, end) = tokio::join!(async { smtp.send(&outgoing()).await }, server);
    outcome.expect("taken");
    assert_eq!(end, None, "the client hung up by itself");
}

/// Somebody on the way adds an answer before TLS begins. It must not pass for one given in TLS.
#[tokio::test]
async fn words_slipped_in_before_tls() {
    let outcome = play("tls=required", async |mut peer| {
        peer.greet("250-STARTTLS\r\n").await;
        peer.answer("STARTTLS", "220 go\r\n250-evil.test\r\n250 AUTH PLAIN\r\n").await;
        let mut rest = Vec::new();
        let _ = peer.stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"EHLO"), "the client went on as if nothing had happened");
    })
    .await;
    assert_eq!(summary(&outcome.expect_err("refused")), BROKEN);
}

#[tokio::test]
async fn offers_that_are_not_made() {
    let no_tls = play("tls=required", async |mut peer| {
        peer.greet("").await;
        assert_eq!(peer.hear().await, None, "nothing is sent unprotected");
    })
    .await;
    let expected = ("SMTP_TLS_NOT_OFFERED", Category::Transient, Taken::No);
    assert_eq!(summary(&no_tls.expect_err("refused")), expected);

    let mut email = outgoing();
    email.content = Content::Raw("From: a@b.com\r\n\r\nOlá\r\n".into());
    let no_eight_bit = play_with("tls=none", email.clone(), async |mut peer| peer.greet("").await).await;
    let expected = ("SMTP_8BITMIME_NOT_OFFERED", Category::Permanent, Taken::No);
    assert_eq!(summary(&no_eight_bit.expect_err("refused")), expected);

    let eight_bit = play_with("tls=none", email, async |mut peer| {
        peer.greet("250-8BITMIME\r\n").await;
        peer.take_message("250 ok\r\n").await;
        assert_eq!(peer.heard[1], "MAIL FROM:<shop@acme.test> BODY=8BITMIME");
    })
    .await;
    eight_bit.expect("taken");
}

/// STARTTLS is not offered and not asked for: the server is greeted once more and the email goes.
#[tokio::test]
async fn tls_if_offered_does_without() {
    let outcome = play("", async |mut peer| {
        peer.greet("").await;
        peer.answer("EHLO client.test", "250 server.test\r\n").await;
        peer.take_message("250 ok\r\n").await;
    })
    .await;
    outcome.expect("taken");
}

#[tokio::test]
async fn servers_that_bend_the_rules_are_understood() {
    let sloppy = play("tls=none", async |mut peer| {
        peer.say("220\n").await;
        peer.answer("EHLO", "250-server.test\n250-   \r\n250-\r\n250\n").await;
        peer.take_message("250\r\n").await;
    })
    .await;
    sloppy.expect("taken");

    let cases: [(&[u8], &str, &str); 4] = [
        (b"550 5.1.1 usu\xe1rio inexistente\r\n", "SMTP_REJECTED_550", "usu\u{fffd}rio inexistente"),
        ("550 5.1.1 usuário\r\n".as_bytes(), "SMTP_REJECTED_550", "usuário"),
        (b"571 blocked\r\n", "SMTP_REJECTED_550", "571 blocked"),
        (b"450\r\n", "SMTP_TRANSIENT_450", "450"),
    ];
    for (reply, code, words) in cases {
        let outcome = play("tls=none", async |mut peer| {
            peer.greet("").await;
            peer.hear_message().await;
            peer.say(reply).await;
        })
        .await;
        let error = outcome.expect_err(words);
        assert_eq!((error.code.as_str(), error.taken), (code, Taken::No), "{words}");
        assert!(error.detail.contains(words), "{}", error.detail);
    }
}

#[tokio::test]
async fn replies_that_are_not_smtp() {
    let endless = play("tls=none", async |mut peer| {
        let line = [b'2'; 8192];
        while peer.stream.get_mut().write_all(&line).await.is_ok() {}
    })
    .await;
    assert_eq!(summary(&endless.expect_err("endless")), BROKEN);

    let greeting =
        play("tls=required", async |mut peer| peer.say("HTTP/1.1 400 Bad Request\r\n\r\n").await).await;
    assert_eq!(summary(&greeting.expect_err("not SMTP")), BROKEN);

    let busy = play("", async |mut peer| peer.say("421 4.3.2 too many connections\r\n").await).await;
    let expected = ("SMTP_TRANSIENT_421", Category::Transient, Taken::No);
    assert_eq!(summary(&busy.expect_err("busy")), expected);

    let no_go = play("tls=none", async |mut peer| {
        peer.greet("").await;
        peer.answer("MAIL", "250 ok\r\n").await;
        peer.answer("RCPT", "250 ok\r\n").await;
        peer.answer("DATA", "250 ok\r\n").await;
    })
    .await;
    assert_eq!(summary(&no_go.expect_err("not 354")), BROKEN);
}
