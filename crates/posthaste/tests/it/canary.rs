//! Personal data and secrets are planted into everything that goes in, and looked for in everything that comes out:
//! the log at its loudest, metrics, refusals, complaints of commands, the database.
//!
//! Names of unknown fields are not planted: a refusal has to name them, so that the caller can mend them.

mod planted;
mod rude;
mod traffic;
mod witness;

use std::fs::File;
use std::process::{Child, Command};

use serde_json::Value;

use crate::sink::Sink;
use crate::support::{Place, until};
use planted::{Planted, Reach, Reader};
use traffic::{Keys, Traffic};
use witness::Witness;

const COMPANY: &str = "acme";
const PASSWORD_ENCODED: &str = "%2F%40";
const PASSWORD_DECODED: &str = "/@";

/// Everything but the keys, which the gateway makes itself.
fn plant() -> Planted {
    let mut planted = Planted::default();
    let people = "to copyone copytwo blindone blindtwo reply erased filter batchto rawto refused busy dropped quoted \
                  locked stranger companyadmin alertsadmin clito";
    for name in people.split_whitespace() {
        planted.plant(name, Reach::Owners, "#.Ana+x@mail.#.example");
    }
    // The sink knows by the domain what to do.
    for (name, domain) in
        [("nobody", "550.test"), ("later", "451.test"), ("cut", "reset.test"), ("unwanted", "554.test")]
    {
        planted.plant(name, Reach::Owners, &format!("#.Ana@{domain}"));
    }
    let owners = [
        ("from", "Loja # São <loja@acme.example>"),
        ("sender", "# <#@acme.example>"),
        ("subject", "Olá, # & \"você\""),
        ("html", "<p style='color:red'>Olá <b>#</b> &amp; \"tchau\"</p>"),
        ("htmlclosely", "<!-- <script>#</script> --><p title=\"onclick\">#</p>"),
        ("text", "Olá #,\n\"tchau\""),
        ("header", "a \"#\" b"),
        ("tag", "tag-#"),
        ("filename", "Nota de #, \"ção\".txt"),
        ("attachment", "conteúdo #\r\n"),
        ("contentid", "#@acme"),
        ("nome", "José \"#\" d'Ávila"),
        ("erasedname", "Maria # da Silva"),
        ("razao", "Padaria # & Filhos Ltda/ME"),
        ("recipient", "cliente-#"),
        ("external", "pedido/#"),
        ("entityid", "clube-#"),
        ("entityname", "Clube \"#\" São"),
        ("template", "template-#"),
        ("rawsubject", "Pedido # pronto"),
        ("rawbody", "<p>Corpo # aqui</p>"),
        ("rawheader", "linha #"),
        ("company", "Firma #"),
        ("label", "chave de #"),
        ("clisubject", "Assunto #"),
    ];
    for (name, pattern) in owners {
        planted.plant(name, Reach::Owners, pattern);
    }
    planted.plant("idempotency", Reach::Database, "pedido #/1");
    planted.plant("callback", Reach::Database, "https://hooks.acme.example/mail?secret=#");
    for name in ["admintoken", "password", "wrongpassword", "wrongkey", "wrongtoken"] {
        planted.plant(name, Reach::Nobody, "#-0123456789");
    }
    planted.plant_secret("sealkey", &"5ea1c0de9a7b".repeat(6)[..64]);
    planted.plant_secret("hashkey", &"4a54c0de3f1d".repeat(6)[..64]);
    planted.plant_document("cpf", "529.982.247-25");
    planted.plant_document("cpfhashed", "111.444.777-35");
    planted.plant_document("cpferased", "123.456.789-09");
    planted.plant_document("cnpj", "11.222.333/0001-81");
    planted.plant_document("cnpjletters", "12.ABC.345/01DE-35");
    planted
}

fn settings(planted: &Planted, sink: &Sink, rude_port: u16) -> String {
    format!(
        r#"admin_token = "{token}"
[providers.main]
kind = "smtp"
url = "{main}"
[providers.locked]
kind = "smtp"
url = "{locked}"
[providers.rude]
kind = "smtp"
url = "smtp://127.0.0.1:{rude_port}?tls=none"
[routes]
default = ["main"]
[retry.fast]
delays_secs = [1]
max_attempts = 2
[alerts]
admin_email = "{admin}"
[privacy]
seal_keys = ["{seal}"]
hash_key = "{hash}"
[log]
format = "json"
level = "trace"
"#,
        token = planted.text("admintoken"),
        main = sink.url(&format!("gateway:{}{PASSWORD_ENCODED}@", planted.text("password"))),
        locked = sink.url(&format!("gateway:{}@", planted.text("wrongpassword"))),
        admin = planted.text("alertsadmin"),
        seal = planted.text("sealkey"),
        hash = planted.text("hashkey"),
    )
}

/// The server, with all it prints in files.
struct Logged {
    child: Child,
}

impl Logged {
    fn start(place: &Place) -> Self {
        let file = |name: &str| File::create(place.path().join(name)).expect("a file");
        let mut command = place.command(&["serve"]);
        command.env("POSTHASTE_LISTEN", "127.0.0.1:0").stdout(file("server.out")).stderr(file("server.err"));
        Self { child: command.spawn().expect("the binary starts") }
    }

    fn address(place: &Place) -> String {
        until("it listens", || {
            let log = read(place, "server.err");
            let line = log.lines().find(|line| line.contains("\"listening\""))?;
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["address"].as_str().expect("an address").to_owned())
        })
    }

    fn stop(mut self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(killed.expect("kill runs").success());
        let ended = until("the server ends", || self.child.try_wait().expect("it can be asked"));
        assert_eq!(ended.code(), Some(0));
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(place: &Place, name: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(place.path().join(name)).expect("it is there")).into_owned()
}

/// The keys of the company; they are planted too.
fn keys(place: &Place, planted: &mut Planted) -> Keys {
    let from = planted.text("from").to_owned();
    place.print(&["company", "add", COMPANY, "--from", &from, "--sender", "@acme.example"]);
    let scopes = ["--scope", "send", "--scope", "read", "--scope", "admin"];
    let live = place.print(&[&["key", "create", "--company", COMPANY][..], &scopes].concat());
    let test = place.print(&["key", "create", "--company", COMPANY, "--test"]);
    planted.plant_secret("livekey", live.trim());
    planted.plant_secret("testkey", test.trim());
    Keys {
        live: format!("X-API-Key: {}", live.trim()),
        test: format!("X-API-Key: {}", test.trim()),
        admin: format!("X-Admin-Token: {}", planted.text("admintoken")),
    }
}

/// The commands an operator uses, in the right way and in wrong ones.
fn commands(witness: &mut Witness<'_>, planted: &Planted, place: &Place, ids: &[String]) {
    for id in ids {
        witness.run(&["show", id]);
        witness.run(&["--json", "show", id]);
        witness.run(&["explain", id]);
    }
    place.write("mail.html", planted.text("html"));
    place.write("unsafe.html", &format!("<script>{}</script>", planted.text("html")));
    let (to, subject) = (planted.text("clito"), planted.text("clisubject"));
    let send = ["send", "--company", COMPANY, "--to", to, "--subject", subject, "--html"];
    let send_with = |more: &[&'static str]| [&send[..], more].concat();
    witness.run(&send_with(&["mail.html", "--test"]));
    witness.run(&send_with(&["unsafe.html"]));
    witness.run(&[&send_with(&["mail.html", "--from"])[..], &[planted.text("stranger")]].concat());
    witness.run(&["send", "--company", COMPANY, "--to", to, "--subject", "a\nb", "--html", "mail.html"]);
    for args in [
        &["company", "list"][..],
        &["company", "add", COMPANY, "--from", planted.text("sender")],
        &["key", "list"],
        &["config"],
        &["doctor"],
        &["dlq", "list", "--company", COMPANY],
        &["dlq", "list", "--company", COMPANY, "--to", planted.text("nobody")],
        &["dlq", "replay", "--company", COMPANY, "--to", planted.text("filter")],
        &["dlq", "drop", "--company", COMPANY, "--recipient", planted.text("recipient")],
        &["erase", "--company", COMPANY, planted.text("erased")],
        &["erase", "--company", COMPANY, planted.text("erased")],
    ] {
        witness.run(args);
        witness.run(&[&["--json"], args].concat());
    }
}

/// Arguments that are wrong.
fn mistakes(witness: &mut Witness<'_>, planted: &Planted) {
    let address = format!("{} x", planted.text("clito"));
    let key = planted.text("livekey");
    for args in [
        &["erase", "--company", COMPANY, &address][..],
        &["dlq", "list", "--company", COMPANY, "--to", &address],
        &["company", "add", "other", "--from", &address],
        &["show", planted.text("clito")],
        &["show", key],
        &["explain", key],
        &["key", "revoke", key],
        &["key", "list", "--company", key],
        &["dlq", "replay", "--company", COMPANY, key],
    ] {
        witness.run_mistaken(args);
    }
}

/// Configurations that are wrong where a secret stands.
fn wrong_configurations(witness: &mut Witness<'_>, planted: &Planted, place: &Place) {
    let (token, password) = (planted.text("admintoken"), planted.text("password"));
    let admin = planted.text("alertsadmin");
    let provider = |url: &str| format!("[providers.x]\nkind = \"smtp\"\nurl = \"{url}\"\n");
    let files = [
        format!("admin_token = \"{token}\n"),
        format!("admin_token = {token}\n"),
        format!("admin_token = [\"{token}\"]\n"),
        format!("admin_tokn = \"{token}\"\n"),
        format!("admin_token = \"{token}\"\nadmin_token = \"{token}\"\n"),
        provider(&format!("http://gateway:{password}@localhost")),
        provider(&format!("smtp://gateway:{password}@localhost:99999")),
        provider(&format!("smtp://{password}@localhost")),
        provider(&format!("smtp://gateway:{password}@localhost?tsl=none")),
        format!("[providers.x]\nkind = \"smtp\"\nurl = \"smtp://localhost\"\npassword = \"{password}\"\n"),
        format!("[store]\nurl = \"postgres://gateway:{password}@localhost/mail\"\n"),
        format!("[privacy]\nseal_keys = [\"{}0\"]\n", planted.text("sealkey")),
        format!("[privacy]\nhash_key = \"{}0\"\n", planted.text("hashkey")),
        format!("[alerts]\nadmin_email = \"{admin} x\"\n"),
    ];
    for file in files {
        place.write("wrong.toml", &file);
        for command in ["config", "serve", "doctor"] {
            witness.run(&["--config", "wrong.toml", command]);
        }
    }
    let url = format!("smtp//gateway:{password}@localhost");
    let variables = [
        ("POSTHASTE_ADMIN_TOKEN", &token[..15]),
        ("POSTHASTE_ADMIN_TOKN", token),
        ("POSTHASTE_PROVIDERS__MAIN__URL", &url),
        ("POSTHASTE_PRIVACY__HASH_KEY", token),
        ("POSTHASTE_STORE__URL", &url),
        ("ADMIN_EMAIL", token),
    ];
    for variable in variables {
        witness.run_in(&[variable], &["config"]);
    }
    witness.run(&["--store", &format!("mysql://gateway:{password}@localhost/mail"), "company", "list"]);
}

#[test]
fn process_what_is_private_stays_private() {
    let mut planted = plant();
    let password = format!("gateway:{}{PASSWORD_DECODED}", planted.text("password"));
    let sink = Sink::start_keeping(&["--auth", &password]);
    let place = Place::new();
    place.write("posthaste.toml", &settings(&planted, &sink, rude::start()));
    let keys = keys(&place, &mut planted);
    let server = Logged::start(&place);
    let mut witness = Witness::new(&place);
    witness.address = Logged::address(&place);

    let mut traffic = Traffic { witness: &mut witness, planted: &planted, keys };
    let sent = traffic.what_goes_well();
    let failed = traffic.what_fails_at_the_provider();
    // At once: those that are tried again end differently later.
    for (id, status) in &failed {
        place.wait_for(id, status);
    }
    let raw = traffic.raw_messages();
    traffic.wrong_bodies();
    traffic.garbage();
    traffic.strangers();
    traffic.filters();
    traffic.administration();
    for id in &sent {
        place.wait_for(id, "SENT");
    }
    for (id, status) in raw.iter().zip(["SENT", "SENT", "INVALID"]) {
        place.wait_for(id, status);
    }
    let ids = [sent, failed.into_iter().map(|(id, _)| id).collect(), raw].concat();
    traffic.look_at(&ids);
    commands(&mut witness, &planted, &place, &ids);
    mistakes(&mut witness, &planted);
    wrong_configurations(&mut witness, &planted, &place);
    let metrics = crate::support::curl(&[&format!("http://{}/metrics", witness.address)]);
    witness.keep("the metrics", Reader::Anyone, metrics);
    server.stop();
    search(&planted, witness, &place, &sink);
}

/// Looks for the canaries, and first whether there was anything to find.
fn search(planted: &Planted, mut witness: Witness<'_>, place: &Place, sink: &Sink) {
    let log = read(place, "server.err");
    let loud = ["\"attempt ended\"", "\"a request was answered\"", "\"DEBUG\""];
    assert!(loud.iter().all(|part| log.contains(part)), "the log is not at its loudest");
    let went_out = planted.found_plainly_in(&sink.messages());
    assert!(went_out.contains("subject") && went_out.contains("html") && went_out.contains("rawbody"));
    assert!(planted.len() >= 40, "{}", planted.len());
    println!(
        "{} canaries, {} answers and outputs searched, {} of them refusals, {} lines of log, {} emails sent",
        planted.len(),
        witness.seen.len(),
        witness.refusals,
        log.lines().count(),
        sink.arrivals().len(),
    );
    witness.keep("the log", Reader::Anyone, log);
    witness.keep("the server's stdout", Reader::Anyone, read(place, "server.out"));
    for name in ["posthaste.db", "posthaste.db-wal"] {
        if place.path().join(name).exists() {
            witness.keep(name, Reader::Thief, read(place, name));
        }
    }
    let leaks = planted.leaks(&witness.seen);
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n"));
}
