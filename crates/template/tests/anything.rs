//! Whatever is thrown at a template: an answer, never a panic, and the same answer twice.

use proptest::prelude::*;
use serde_json::{Value, json};
use template::{OUTPUT_BYTES_MAX, SUBJECT_CHARS_MAX, Source, Template, text_from_html};

/// Pieces that make tags, elements and values meet in ways nobody writes, parted by `¦`.
const PIECES: &str = "{{ ¦ }}¦{% if ¦ %}¦{% endif %}¦{% for i in ¦{% endfor %}¦{% set a = ¦{{ a }}¦{{ b.c }}¦|upper¦\
    |default('x')¦ is defined¦{# ¦ #}¦{% raw %}¦{% endraw %}¦'¦\"¦<¦>¦<br>¦<!--¦-->¦<!--[if mso]>¦<![endif]-->¦]]>¦<![CDATA[¦<?x¦\
    <mj-section>¦</mj-section>¦<mj-column>¦</mj-column>¦<mj-text>¦</mj-text>¦<mj-raw>¦</mj-raw>¦<mj-image src=\"¦\" />¦\
    <a href=\"¦[¦]¦(¦)¦ + ¦ ~ ¦ * ¦1¦\n¦é¦é >¦\0¦{%- ¦ -%}¦<mj-style>¦</mj-style>¦&amp;¦jtag0x¦jtag0x0z¦{% macro m(x) %}¦\
    {% endmacro %}¦{{ m(a) }}¦{{ loop.index }}¦<mj-button href=\"{{ a }}\">¦</mj-button>¦<mj-hero>¦</mj-hero>¦<mj-table>¦\
    </mj-table>¦<mj-head>¦</mj-head>¦<mj-social>¦</mj-social>¦<mj-social-element name=\"x\">¦</mj-social-element>¦<mj-navbar>¦\
    </mj-navbar>¦<mj-carousel>¦</mj-carousel>¦<mj-carousel-image src=\"a\" />¦<mj-accordion>¦</mj-accordion>¦<mj-group>¦\
    </mj-group>¦<mj-column width=\"¦%\">¦px\">¦<mj-section padding=\"¦<mj-divider />¦<mj-spacer height=\"{{ a }}\" />¦\
    <mj-wrapper>¦</mj-wrapper>¦<mj-text font-size=\"-99999999999px\">¦<mj-column border=\"é\" padding=\"1px é 3\">";

/// Whole elements, so that MJML often gets as far as rendering.
const ELEMENTS: &str = "<mj-section><mj-column><mj-text>{{ a }}</mj-text></mj-column></mj-section>¦{% for i in b %}¦{% endfor %}¦\
    {% if a %}¦{% else %}¦{% endif %}¦<mj-section padding=\"WHAT\"><mj-column width=\"WHAT\" border=\"WHAT\"><mj-image width=\"WHAT\" src=\"x\" />\
    </mj-column></mj-section>¦<mj-hero height=\"WHAT\" background-height=\"WHAT\" background-width=\"WHAT\" mode=\"fixed-height\"><mj-text>x\
    </mj-text></mj-hero>¦<mj-wrapper padding=\"WHAT\" border=\"WHAT\">¦</mj-wrapper>¦<mj-section full-width=\"full-width\" \
    background-url=\"{{ a }}\" background-size=\"WHAT\" background-position=\"WHAT\"><mj-group width=\"WHAT\"><mj-column></mj-column>\
    </mj-group></mj-section>¦<mj-section><mj-column inner-border=\"WHAT\" padding-left=\"WHAT\"><mj-divider width=\"WHAT\" padding=\"WHAT\" />\
    <mj-button width=\"WHAT\" inner-padding=\"WHAT\">x</mj-button><mj-spacer height=\"WHAT\" /></mj-column></mj-section>¦\
    <mj-section><mj-column><mj-carousel tb-width=\"WHAT\"><mj-carousel-image src=\"x\" /></mj-carousel></mj-column></mj-section>¦\
    <mj-section><mj-column><mj-social icon-size=\"WHAT\"><mj-social-element name=\"facebook\">x</mj-social-element></mj-social>\
    </mj-column></mj-section>";

fn pieces(of: &'static str) -> impl Strategy<Value = String> {
    prop::sample::select(of.split('¦').collect::<Vec<_>>()).prop_map(str::to_owned)
}

fn any_source() -> impl Strategy<Value = String> {
    let piece = prop_oneof!["[a-c]{1,3}", "\\PC{0,6}", pieces(PIECES), pieces(PIECES)];
    prop::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

fn any_mjml() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "-?[0-9]{1,12}(px|%|em|)",
        "[0-9]px [0-9]px( [0-9]px)?",
        "\\PC{0,6}",
        Just("{{ a }}".to_owned())
    ];
    let body = prop::collection::vec(pieces(ELEMENTS), 0..6).prop_map(|pieces| pieces.concat());
    prop_oneof![
        any_source(),
        (body, value).prop_map(|(body, value)| body.replace("WHAT", &value.replace(['"', '<', '&'], ""))),
    ]
    .prop_map(|body| format!("<mjml><mj-body>{body}</mj-body></mjml>"))
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("<script>\"'")),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc]", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

fn any_email() -> impl Strategy<Value = Source> {
    let html = |html: &str| Source { subject: "s".into(), html: Some(html.into()), ..Source::default() };
    prop_oneof![
        (any_source(), any_source()).prop_map(move |(subject, written)| Source { subject, ..html(&written) }),
        any_source().prop_map(move |text| Source { text: Some(text), ..html("x") }),
        any_mjml().prop_map(|mjml| Source { subject: "s".into(), mjml: Some(mjml), ..Source::default() }),
        any_mjml().prop_map(|mjml| Source { subject: "s".into(), mjml: Some(mjml), ..Source::default() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_all_is_deterministic(source in any_email(), variables in any_json()) {
        let once = Template::compile(&source).map(|template| template.render(&variables));
        let again = Template::compile(&source).map(|template| template.render(&variables));
        prop_assert_eq!(once.as_ref().err(), again.as_ref().err());
        if let (Ok(once), Ok(again)) = (once, again) {
            prop_assert_eq!(&once, &again);
            if let Ok(email) = once {
                prop_assert!(email.html.len() <= OUTPUT_BYTES_MAX);
                prop_assert!(email.subject.chars().count() <= SUBJECT_CHARS_MAX);
                prop_assert!(!email.subject.contains(['\r', '\n']));
            }
        }
    }

    /// No value adds a sign that markup is made of.
    #[test]
    fn any_value_stays_text(value in "\\PC{0,40}") {
        let html = Some("<p title=\"{{ v }}\">{{ v }}</p>".to_owned());
        let source = Source { subject: "s".into(), html, ..Source::default() };
        let template = Template::compile(&source).expect("it compiles");
        let email = template.render(&json!({ "v": value })).expect("it renders");
        let signs = ['<', '>', '"', '\''];
        prop_assert_eq!(email.html.matches(signs).count(), "<p title=\"\"></p>".matches(signs).count());
    }

    #[test]
    fn text_is_made_of_anything(html in "(<|>|/|a |b|ul|li|pre|script|style|=|\"|href|!--|\\PC){0,40}") {
        text_from_html(&html);
    }
}
