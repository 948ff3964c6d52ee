//! The html policy as tables: attacks that are refused, harmless html that is not, hostile sizes; and the law
//! that binds the first look to the parser.

use proptest::prelude::*;

use super::glance::{Glance, glance, glance_at_all};
use super::parse::{self, Fuel, View};
use super::{UnsafeHtml, check};

mod samples;

const VIEWS: [View; 4] = [
    View::Document { scripting: true },
    View::Document { scripting: false },
    View::Fragment { scripting: true },
    View::Fragment { scripting: false },
];

/// Largest html the gateway takes.
const HTML_BYTES_MAX: usize = 512 * 1024;

/// Harmless, but only the parser can tell: put behind a text, it makes sure that the text is parsed.
const NEEDS_PARSER: &str = "<p title='javascript: an introduction'>";

#[test]
fn attacks_are_refused() {
    for (case, html) in samples::ATTACKS {
        assert!(check(html).is_err(), "{case}: {html}");
    }
}

#[test]
fn harmless_html_is_taken() {
    for (case, html) in samples::HARMLESS {
        assert_eq!(check(html), Ok(()), "{case}: {html}");
    }
}

#[test]
fn ordinary_emails_need_no_parser() {
    for (case, html) in samples::EMAILS {
        assert_eq!((glance(html), glance_at_all(html)), (Glance::Safe, Glance::Safe), "{case}");
        for view in VIEWS {
            assert_eq!(parse::judge(html, view, 0, &Fuel::full()), Ok(()), "{case}, {view:?}");
        }
    }
}

/// It is not taken for the other, which was read before.
#[test]
fn a_style_sheet_that_begins_like_another_is_read_to_its_end() {
    let harmless = "<style>p > b></style>";
    assert_eq!(glance(harmless), Glance::Safe);
    assert_eq!(glance(&format!("{harmless}<style>p > b> a \\{{</style>")), Glance::LookCloser);
}

#[test]
fn what_the_first_look_clears_of_the_samples_the_parser_takes() {
    for (case, html) in [samples::HARMLESS, samples::ATTACKS].concat() {
        assert!(law_holds(html), "{case}: {html}");
    }
}

/// The law the first look stands on: what it clears, no view of the parser refuses.
fn law_holds(html: &str) -> bool {
    let refused = |view| parse::judge(html, view, 0, &Fuel::full()).is_err();
    glance(html) != Glance::Safe || !VIEWS.into_iter().any(refused)
}

/// An attack stays one wherever it stands in an ordinary email that is markup.
#[test]
fn attacks_inside_emails_are_refused() {
    for (email, html) in samples::EMAILS {
        for (case, attack) in samples::ATTACKS.iter().filter(|(_, attack)| attack.starts_with("<a ")) {
            let (before, after) = html.split_once("</p>").unwrap();
            assert!(check(&format!("{before}{attack}</p>{after}")).is_err(), "{case} in {email}");
        }
    }
}

#[test]
fn refusals_name_the_rule_and_the_place() {
    let cases = [
        ("<p>x</p><script>y</script>", "<script> element", Some(8)),
        ("<svg><script/></svg>", "<script> element", Some(5)),
        ("<b>é</b><a ONCLICK=x>", "event handler attribute onclick on <a>", Some(9)),
        ("<!-- <a onclick=x> --><a onclick=x>", "event handler attribute onclick on <a>", Some(22)),
        ("<a href=' JavaScript:x'>", "javascript: URL in href of <a>", Some(0)),
        ("<a href=vbscript:x>", "vbscript: URL in href of <a>", Some(0)),
        ("<a href=livescript:x>", "script URL in href of <a>", Some(0)),
        ("<iframe src='data:text/html,x'>", "data: URL holding an html document in src of <iframe>", Some(0)),
        (
            "<a href='data:image/svg+xml,x'>",
            "data: URL holding an XML or SVG document in href of <a>",
            Some(0),
        ),
        ("<p style='a:url(javascript:x)'>", "script URL in style of <p>", Some(0)),
        ("<style>@import 'javascript:x'</style>", "script URL in a <style> element", None),
        ("x<iframe srcdoc='&lt;img onerror=x>'>", "event handler attribute onerror on <img>", Some(1)),
        ("<!--[if mso]><p><b onclick=x><![endif]-->", "event handler attribute onclick on <b>", Some(16)),
        ("\u{feff}<b onclick=x>", "event handler attribute onclick on <b>", Some(3)),
        ("<p>half open <img onerror=x", "event handler attribute onerror on <img>", Some(13)),
        ("<a title=\"<a x='\" onclick=x>'", "event handler attribute onclick on <a>", Some(0)),
        ("<scr\0ipt>", "<script> element", None),
    ];
    for (html, what, offset) in cases {
        assert_eq!(check(html), Err(UnsafeHtml { what: what.to_owned(), offset }), "{html}");
    }
}

#[test]
fn messages_are_readable_and_quote_names_only() {
    let refusal = check("<p>hello<a onclick='secret()'>").unwrap_err();
    assert_eq!(refusal.to_string(), "unsafe html: event handler attribute onclick on <a> at byte 8");
    let (name, ending) = ("é\u{7}".repeat(500), "\u{b}".repeat(500));
    let refusal = check(&format!("<a{name} onclick{ending}=x>")).unwrap_err().to_string();
    assert!(refusal.len() < 160 && refusal.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{refusal}");
}

/// Every character reference that could hide a letter, a colon, a blank or a backslash makes the parser
/// decide.
#[test]
fn no_reference_slips_past_the_first_look() {
    let hides = |code: u32| code != 0 && char::from_u32(code).is_some_and(can_disguise);
    let is_noticed = |name: &str| glance(&format!("<a href=\"x&{name}\">")) == Glance::LookCloser;
    let mut hiding = 0;
    for (name, &(first, second)) in html5ever::data::NAMED_ENTITIES.entries() {
        if hides(first) || hides(second) {
            assert!(is_noticed(name), "&{name}");
            hiding += 1;
        }
    }
    assert_eq!(hiding, 5);
    assert!(["#58;", "#x3a;", "#58"].into_iter().all(is_noticed));
}

fn can_disguise(c: char) -> bool {
    c.is_ascii_alphabetic() || c.is_ascii_control() || matches!(c, ' ' | ':' | '\\')
}

fn repeated(unit: &str) -> String {
    unit.repeat((HTML_BYTES_MAX - NEEDS_PARSER.len()) / unit.len()) + NEEDS_PARSER
}

/// None of these may exhaust the stack or take long, whether they are then refused or not.
#[test]
fn hostile_nesting_is_judged_in_bounded_time() {
    let (deep, tangled) = (Err("markup nested too deeply"), Err("markup too tangled to judge"));
    let cases = [
        // case               unit                   verdict
        ("bold", "<b>", deep),
        ("divisions", "<div>", deep),
        ("nested tables", "<table><tr><td>", Ok(())),
        ("foreign and back", "<svg><foreignObject>", Ok(())),
        ("conditional comments", "<!--[if a]>", deep),
        ("tags that never end", "<a ", tangled),
        ("quotes that never end", "<a b=\"", tangled),
        ("tags in one name", "<a", tangled),
    ];
    for (case, unit, verdict) in cases {
        let what = check(&repeated(unit)).map_err(|unsafe_html| unsafe_html.what);
        assert_eq!(what.as_ref().map(|&()| ()).map_err(String::as_str), verdict, "{case}");
    }
    let deep_but_honest = "<div>".repeat(1000) + NEEDS_PARSER;
    assert_eq!(check(&deep_but_honest), Ok(()));
}

#[test]
fn hostile_attributes_are_judged_in_bounded_time() {
    let distinct = |count: usize| (0..count).map(|number| format!(" x{number}")).collect::<String>();
    let bold = |number: usize, attributes: &str| format!("<b a{number}{attributes}>");
    let cases = [
        ("one tag of many attributes", format!("<p{}>", distinct(70_000)), true),
        ("many tags of some attributes", format!("<p{}>", distinct(250)).repeat(300), false),
        ("distinct formatting", (0..50_000).map(|number| bold(number, "")).collect(), true),
        ("distinct rich formatting", (0..400).map(|number| bold(number, &distinct(200))).collect(), true),
        ("tags inside a value", format!("<a b=\"{}\">", "<a".repeat(200_000)), true),
    ];
    for (case, html, refused) in cases {
        assert_eq!(check(&(html + NEEDS_PARSER)).is_err(), refused, "{case}");
    }
}

#[test]
fn documents_inside_documents_are_followed_to_a_depth() {
    let nested = |depth: usize| {
        (0..depth).fold("<b onclick=x>".to_owned(), |inner, _| {
            format!("<iframe srcdoc=\"{}\">", inner.replace('&', "&amp;").replace('"', "&quot;"))
        })
    };
    let what = |html: &str| check(html).unwrap_err().what;
    assert_eq!(what(&nested(4)), "event handler attribute onclick on <b>");
    assert_eq!(what(&nested(5)), "markup nested too deeply");
}

#[test]
fn large_honest_emails_are_far_from_the_bounds() {
    for (case, html) in samples::EMAILS {
        let fuel = Fuel::full();
        let large = html.repeat(HTML_BYTES_MAX / html.len());
        assert_eq!(parse::judge(&large, View::Document { scripting: true }, 0, &fuel), Ok(()), "{case}");
        assert!(fuel.used_percent() < 30, "{case}: {} %", fuel.used_percent());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(6000) })]

    #[test]
    fn what_the_first_look_clears_the_parser_takes(html in hostile_html()) {
        prop_assert!(law_holds(&html));
    }

    /// What was read before and is not read again changes nothing.
    #[test]
    fn a_tag_that_stands_again_is_judged_as_before(html in hostile_html(), again in hostile_html()) {
        let html = format!("{html}{again}{html}<p class=x>{again}{html}");
        prop_assert_eq!(glance(&html), glance_at_all(&html));
    }

    /// Nothing makes it panic, and a place it names is the start of a tag.
    #[test]
    fn refusals_point_at_tags(html in hostile_html()) {
        if let Err(UnsafeHtml { offset: Some(offset), .. }) = check(&html) {
            prop_assert!(html[offset..].starts_with('<'));
        }
    }
}

fn hostile_html() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => proptest::sample::select(samples::PIECES).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 1..14).prop_map(|pieces| pieces.concat())
}
