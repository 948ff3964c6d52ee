//! The alerts to a company's admin, as templates that ship with the gateway. A company may put its own in their place
//! by the same names. When an alert is raised, and to whom it goes, is the gateway's business.
//!
//! Variables: `emailId` is the only one that must be there. `entity` (a name), `to`, `company`, `at`, `subject`,
//! `reason` and `provider` are shown if given; `suppressed` says whether the address is on the list now; `attempts` is a
//! list of `{at, code, reason}`. The subject names the entity, else the recipient, else the email.

use crate::source::Source;

/// Subject, html and text of one alert, from the folder `alerts`.
macro_rules! shipped {
    ($path:literal) => {
        (
            include_str!(concat!("../alerts/", $path, ".subject.txt")),
            include_str!(concat!("../alerts/", $path, ".html")),
            include_str!(concat!("../alerts/", $path, ".text.txt")),
        )
    };
}

/// What an alert is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alert {
    Bounce,
    Complaint,
    RepeatedFailures,
}

impl Alert {
    pub const ALL: [Alert; 3] = [Alert::Bounce, Alert::Complaint, Alert::RepeatedFailures];

    /// The name under which its template is kept.
    pub fn name(self) -> &'static str {
        match self {
            Alert::Bounce => "admin-email-bounce",
            Alert::Complaint => "admin-email-complaint",
            Alert::RepeatedFailures => "admin-email-repeated-failures",
        }
    }
}

/// A language in which the alerts ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Language {
    #[default]
    English,
    Portuguese,
    Spanish,
    Italian,
}

impl Language {
    pub const ALL: [Language; 4] =
        [Language::English, Language::Portuguese, Language::Spanish, Language::Italian];

    pub fn code(self) -> &'static str {
        match self {
            Language::English => "en",
            Language::Portuguese => "pt",
            Language::Spanish => "es",
            Language::Italian => "it",
        }
    }

    /// The language of a tag such as `pt-BR` or `es_MX`.
    pub fn of_tag(tag: &str) -> Option<Language> {
        let code = tag.split(['-', '_']).next()?;
        Self::ALL.into_iter().find(|language| language.code().eq_ignore_ascii_case(code))
    }
}

/// The template of an alert as it ships.
pub fn source(alert: Alert, language: Language) -> Source {
    let (subject, html, text) = match (language, alert) {
        (Language::English, Alert::Bounce) => shipped!("en/admin-email-bounce"),
        (Language::English, Alert::Complaint) => shipped!("en/admin-email-complaint"),
        (Language::English, Alert::RepeatedFailures) => shipped!("en/admin-email-repeated-failures"),
        (Language::Portuguese, Alert::Bounce) => shipped!("pt/admin-email-bounce"),
        (Language::Portuguese, Alert::Complaint) => shipped!("pt/admin-email-complaint"),
        (Language::Portuguese, Alert::RepeatedFailures) => shipped!("pt/admin-email-repeated-failures"),
        (Language::Spanish, Alert::Bounce) => shipped!("es/admin-email-bounce"),
        (Language::Spanish, Alert::Complaint) => shipped!("es/admin-email-complaint"),
        (Language::Spanish, Alert::RepeatedFailures) => shipped!("es/admin-email-repeated-failures"),
        (Language::Italian, Alert::Bounce) => shipped!("it/admin-email-bounce"),
        (Language::Italian, Alert::Complaint) => shipped!("it/admin-email-complaint"),
        (Language::Italian, Alert::RepeatedFailures) => shipped!("it/admin-email-repeated-failures"),
    };
    Source { subject: subject.into(), html: Some(html.into()), mjml: None, text: Some(text.into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Rendered, Template};

    fn render(alert: Alert, language: Language, variables: &Value) -> Rendered {
        let template = Template::compile(&source(alert, language)).expect("a shipped template compiles");
        template.render(variables).unwrap_or_else(|error| panic!("{alert:?} {language:?}: {error}"))
    }

    fn full() -> Value {
        json!({
            "entity": "Clube & Cia", "to": "ana@example.com", "company": "Acme <Ltda>", "at": "2026-11-16 10:00 UTC",
            "emailId": "0190-abc", "subject": "Sua fatura", "reason": "550 no such user", "provider": "ses",
            "attempts": [
                { "at": "2026-11-14 09:00 UTC", "code": "SMTP_550", "reason": "no such user" },
                { "at": "2026-11-15 09:00 UTC" },
            ],
        })
    }

    fn each() -> impl Iterator<Item = (Alert, Language)> {
        Alert::ALL.into_iter().flat_map(|alert| Language::ALL.map(|language| (alert, language)))
    }

    #[test]
    fn all_show_what_is_known() {
        for (alert, language) in each() {
            let email = render(alert, language, &full());
            let mut facts =
                vec!["ana@example.com", "Sua fatura", "550 no such user", "0190-abc", "2026-11-16 10:00 UTC"];
            if alert == Alert::RepeatedFailures {
                facts.extend(["SMTP_550", "2026-11-14 09:00 UTC", "2026-11-15 09:00 UTC"]);
            }
            for fact in facts {
                assert!(email.html.contains(fact), "{alert:?} {language:?}: {fact} in html");
                assert!(email.text.contains(fact), "{alert:?} {language:?}: {fact} in text");
            }
            assert!(email.html.contains("Acme &lt;Ltda&gt;") && email.text.contains("Acme <Ltda>"));
            assert!(email.html.contains(&format!("<html lang=\"{}\">", language.code())));
        }
    }

    #[test]
    fn all_do_with_the_id_alone_and_with_nulls() {
        let nulls = json!({
            "emailId": "0190-abc", "entity": null, "to": null, "company": null, "at": null, "subject": null,
            "reason": null, "provider": null, "attempts": null, "suppressed": null,
        });
        for (alert, language) in each() {
            let alone = render(alert, language, &json!({ "emailId": "0190-abc" }));
            assert!(alone.subject.ends_with(" - 0190-abc"), "{}", alone.subject);
            assert!(!alone.html.contains("None") && !alone.text.contains("\n\n\n"), "{}", alone.text);
            assert_eq!(render(alert, language, &nulls), alone);
        }
    }

    #[test]
    fn subjects_are_as_promised() {
        let subjects: Vec<String> =
            each().map(|(alert, language)| render(alert, language, &full()).subject).collect();
        let expected = [
            "⚠️ Email bounced - Clube & Cia",
            "⚠️ E-mail devolvido - Clube & Cia",
            "⚠️ Email rebotado - Clube & Cia",
            "⚠️ Email respinta - Clube & Cia",
            "🚨 Spam complaint - Clube & Cia",
            "🚨 Denúncia de spam - Clube & Cia",
            "🚨 Queja de spam - Clube & Cia",
            "🚨 Segnalazione di spam - Clube & Cia",
            "⚠️ Repeated failures - ana@example.com",
            "⚠️ Falhas recorrentes - ana@example.com",
            "⚠️ Fallos recurrentes - ana@example.com",
            "⚠️ Errori ripetuti - ana@example.com",
        ];
        assert_eq!(subjects, expected);
    }

    #[test]
    fn subjects_fall_back_and_stay_one_short_line() {
        let subject = |variables: Value| render(Alert::Bounce, Language::English, &variables).subject;
        assert_eq!(subject(json!({ "to": "a@b.example", "emailId": "1" })), "⚠️ Email bounced - a@b.example");
        assert_eq!(subject(json!({ "entity": "", "to": "", "emailId": "1" })), "⚠️ Email bounced - 1");
        assert_eq!(subject(json!({ "entity": "a\r\n b", "emailId": "1" })), "⚠️ Email bounced - a b");
        let long = subject(json!({ "entity": "é".repeat(500), "emailId": "1" }));
        assert_eq!(long.chars().filter(|&c| c == 'é').count(), 100);
    }

    #[test]
    fn languages_are_found_by_their_tags() {
        let cases = [
            ("en", Some(Language::English)),
            ("pt-BR", Some(Language::Portuguese)),
            ("ES_mx", Some(Language::Spanish)),
            ("it", Some(Language::Italian)),
            ("de", None),
            ("", None),
        ];
        for (tag, language) in cases {
            assert_eq!(Language::of_tag(tag), language, "{tag}");
        }
    }
}
