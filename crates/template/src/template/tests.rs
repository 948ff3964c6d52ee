//! What compiling and rendering promise.

use serde_json::json;

use super::*;

fn html(html: &str) -> Source {
    Source { subject: "s".into(), html: Some(html.into()), ..Source::default() }
}

fn mjml(body: &str) -> Source {
    let mjml = format!("<mjml><mj-body>{body}</mj-body></mjml>");
    Source { subject: "s".into(), mjml: Some(mjml), ..Source::default() }
}

fn compile(source: &Source) -> Template {
    Template::compile(source).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn rendered(source: &Source, variables: Json) -> Rendered {
    compile(source).render(&variables).unwrap_or_else(|error| panic!("{error}"))
}

fn missing(source: &Source, variables: Json) -> Vec<String> {
    match compile(source).render(&variables) {
        Ok(_) => vec![],
        Err(RenderError::MissingVariables(names)) => names,
        Err(error) => panic!("{error}"),
    }
}

fn problems(source: &Source) -> Vec<String> {
    Template::compile(source).err().unwrap_or_default().iter().map(Problem::to_string).collect()
}

#[test]
fn a_template_makes_an_email() {
    let source = Source {
        subject: "Order {{ order.id }}\n".into(),
        html: Some("<p>{% for item in order.items %}{{ item.name }};{% endfor %}</p>".into()),
        mjml: None,
        text: Some("{{ order.items|length }} & more".into()),
    };
    let order = json!({ "order": { "id": 7, "items": [{ "name": "a" }, { "name": "b" }] } });
    let email = rendered(&source, order);
    assert_eq!((email.subject.as_str(), email.html.as_str()), ("Order 7", "<p>a;b;</p>"));
    assert_eq!(email.text, "2 & more");
}

#[test]
fn without_a_text_it_is_derived() {
    let email = rendered(&html("<p>Hi {{ n }}</p><a href='https://a.example'>go</a>"), json!({ "n": "<b>" }));
    assert_eq!(email.text, "Hi <b>\n\ngo (https://a.example)");
}

#[test]
fn all_missing_variables_are_named_and_no_guarded_one() {
    let cases = [
        // case                        html                                                           missing
        ("none", "{{ given }}", vec![]),
        ("printed", "{{ a }}{{ b }}{{ a }}", vec!["a", "b"]),
        ("dotted", "{{ o.a }}{{ x.y.z }}", vec!["o.a", "x.y.z"]),
        ("in a condition", "{% if a %}{% endif %}{% if not b %}{% endif %}", vec!["a", "b"]),
        ("compared", "{% if a == 1 %}{% elif b > 1 %}{% endif %}", vec!["a", "b"]),
        ("a member", "{{ 1 in a }}{{ b in list }}", vec!["a", "b"]),
        ("calculated with", "{{ a + 1 }}{{ 2 * b }}{{ c }}{{ d / e }}", vec!["a", "b", "c", "d", "e"]),
        ("filtered", "{{ a|upper }}{{ b|length }}{{ c|join(',') }}{{ d|round }}", vec!["a", "b", "c", "d"]),
        ("joined", "{{ a ~ 'x' ~ b }}", vec!["a", "b"]),
        ("an argument", "{{ 'x'|replace('x', a) }}", vec!["a"]),
        ("looped over", "{% for i in a %}{{ i.x }}{{ b }}{% endfor %}", vec!["a", "b"]),
        ("pairs", "{% for k, v in a|items %}{{ v }}{{ b }}{% endfor %}", vec!["a", "b"]),
        ("in items", "{% for i in list %}{{ i.n }}{% endfor %}", vec!["list[1].n"]),
        ("set before", "{% set y = a %}{{ y }}", vec!["a"]),
        ("by key", "{{ o['a'] }}", vec!["o['a']"]),
        ("by number", "{{ list[7] }}", vec!["list[7]"]),
        ("of a text", "{{ given.length }}", vec!["given.length"]),
        ("in a macro", "{% macro m(p) %}{{ p }}{{ a }}{% endmacro %}{{ m(b) }}", vec!["a", "b"]),
        ("calculated in a macro", "{% macro m(p) %}{{ a * 2 }}{% endmacro %}{{ m(1) }}", vec!["a"]),
        ("asked in a macro", "{% macro m() %}{% if a %}x{% endif %}{% endmacro %}{{ m() }}", vec!["a"]),
        (
            "compared beside a macro",
            "{% macro m() %}x{% endmacro %}{{ m() }}{% if a == 1 %}{% endif %}",
            vec!["a"],
        ),
        // Not noticed: the engine looks `a` up for the macro anyway, and comparing leaves no other trace.
        ("compared in a macro", "{% macro m() %}{% if a == 1 %}x{% endif %}{% endmacro %}{{ m() }}", vec![]),
        ("default", "{{ a|default('x') }}{{ o.b|d }}{{ x.y|default(1) }}", vec![]),
        ("default of a default", "{{ a|default(b)|default('x') }}", vec![]),
        ("default that is missing", "{{ a|default(b) }}", vec!["b"]),
        ("default that nobody needs", "{{ given|default(b) }}{{ given|default(c, true) }}", vec![]),
        ("is defined", "{% if a is defined %}{{ a }}{% endif %}{{ b if b is defined }}", vec![]),
        ("is defined, deeply", "{% if x.y.z is defined %}{{ x.y.z }}{% endif %}", vec![]),
        ("is undefined", "{% if a is undefined %}x{% else %}{{ a }}{% endif %}", vec![]),
        ("is not defined", "{% if a is not defined %}x{% endif %}", vec![]),
        ("is of a kind", "{% if a is string or a is mapping or a is iterable %}{{ a }}{% endif %}", vec![]),
        ("guarded and compared", "{% if a is defined and a == 1 %}x{% endif %}", vec![]),
        ("mapped with a default", "{{ list|map(attribute='n', default='x')|join }}", vec![]),
        ("mapped without", "{{ list|map(attribute='n')|join }}", vec!["list[1].n"]),
        ("selected by being there", "{{ list|selectattr('n', 'defined')|list|length }}", vec![]),
        ("in, by key", "{% if 'a' in o %}{{ o.a }}{% endif %}", vec![]),
        ("not taken", "{% if given %}x{% else %}{{ a }}{% endif %}", vec![]),
        ("guarded in a macro", "{% macro m() %}{{ a|default('') }}{% endmacro %}{{ m() }}", vec![]),
        ("in a macro not called", "{% macro m() %}{{ a }}{% endmacro %}x", vec![]),
        ("guarded beside missing", "{% if a is defined %}{{ a }}{% endif %}{{ b }}{{ c|d }}", vec!["b"]),
        ("a mere mention", "{# {{ a }} #}{% raw %}{{ b }}{% endraw %}", vec![]),
    ];
    let given = json!({ "given": "x", "o": { "k": 1 }, "list": [{ "n": 1 }, {}] });
    for (case, source, names) in cases {
        assert_eq!(missing(&html(source), given.clone()), names, "{case}");
    }
}

#[test]
fn missing_variables_of_all_parts_are_named_together() {
    let source = Source { subject: "{{ a }}".into(), text: Some("{{ c }}".into()), ..html("{{ b * 2 }}") };
    assert_eq!(missing(&source, json!({})), ["a", "b", "c"]);
    assert_eq!(missing(&source, json!(null)), ["a", "b", "c"]);
    assert_eq!(compile(&source).render(&json!([1])), Err(RenderError::NotAnObject));
}

#[test]
fn many_missing_variables_are_cut_short() {
    let items: Vec<Json> = (0..1000).map(|_| json!({})).collect();
    let names = missing(&html("{% for i in l %}{{ i.a }}{% endfor %}"), json!({ "l": items }));
    assert_eq!(names.len(), MISSING_NAMED_MAX);
}

#[test]
fn variables_cannot_inject() {
    let hostile = "\"><script>alert(1)</script>' onload='x {{ secret }} {% raw %} <mj-raw> javascript:a";
    let source = html(
        "<a href=\"{{ v }}\" title='{{ v }}'>{{ v }}</a>{{ [v] }}{{ {'k': v} }}{{ v|upper }}{{ v ~ '' }}",
    );
    let email = rendered(&source, json!({ "v": hostile, "secret": "42" }));
    let own_markup = "<a href=\"\" title=''></a>";
    for (sign, count) in [('<', 2), ('>', 2), ('"', 2), ('\'', 2)] {
        assert_eq!(own_markup.matches(sign).count(), count);
        assert_eq!(email.html.matches(sign).count(), count, "{sign} in {}", email.html);
    }
    assert!(email.html.contains("{{ secret }}") && !email.html.contains("42"));

    let source = mjml(
        "<mj-section><mj-column><mj-button href=\"{{ v }}\">{{ v }}</mj-button></mj-column></mj-section>",
    );
    let [tame, wild] = ["x", hostile].map(|v| rendered(&source, json!({ "v": v })).html);
    for sign in ['<', '>', '"', '\''] {
        assert_eq!(wild.matches(sign).count(), tame.matches(sign).count(), "{sign}");
    }
}

#[test]
fn the_author_may_trust_a_variable() {
    assert_eq!(rendered(&html("{{ v|safe }}"), json!({ "v": "<b>" })).html, "<b>");
}

#[test]
fn a_null_prints_nothing_and_is_not_missing() {
    assert_eq!(
        rendered(&html("[{{ v }}{{ v|default('x') }}{{ v|default('y', true) }}]"), json!({ "v": null })).html,
        "[y]"
    );
}

#[test]
fn subjects_are_one_short_line() {
    let subject = |value: &str| {
        let source = Source { subject: "{{ v }}".into(), ..html("x") };
        compile(&source).render(&json!({ "v": value })).map(|email| email.subject)
    };
    assert_eq!(subject(" a & <b> \n"), Ok("a & <b>".into()));
    assert_eq!(subject(&"ä".repeat(150)), Ok("ä".repeat(150)));
    assert_eq!(subject(&"ä".repeat(151)), Err(RenderError::SubjectTooLong));
    assert_eq!(subject(&"ä".repeat(100_000)), Err(RenderError::SubjectTooLong));
    for bad in ["a\r\nBcc: b@c.example", "a\nb", "a\rb", "a\u{2028}b", "a\0b"] {
        assert_eq!(subject(bad), Err(RenderError::SubjectNotOneLine), "{bad:?}");
    }
}

#[test]
fn work_and_output_are_bounded() {
    let fails = |source: &str| compile(&html(source)).render(&json!({})).expect_err("a limit");
    let endless = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
    assert_eq!(fails(endless), RenderError::TooMuchWork { field: Field::Html });
    let large = "{% for i in range(600) %}{{ 'x' * 1024 }}{% endfor %}";
    assert_eq!(fails(large), RenderError::TooLarge { field: Field::Html, bytes_max: OUTPUT_BYTES_MAX });
    let deep = "x\n{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(1) }}";
    assert_eq!(fails(deep).to_string(), "html, line 2: macros call each other too deeply");
}

#[test]
fn failures_quote_the_template_and_no_value() {
    let error =
        compile(&html("a\n{{ v // 0 }}")).render(&json!({ "v": 4711 })).expect_err("a division by zero");
    assert_eq!(error.to_string(), "html, line 2: `v // 0` cannot be calculated");
    let error = compile(&html("{{ nope(1) }}")).render(&json!({})).expect_err("no such function");
    assert_eq!(error.to_string(), "html, line 1: nope is unknown");
    let source =
        mjml("\n<mj-section><mj-column><mj-text>{{\nv }}\n{{ v // 0 }}</mj-text></mj-column></mj-section>");
    let error = compile(&source).render(&json!({ "v": 1 })).expect_err("a division by zero");
    assert_eq!(error.to_string(), "mjml, line 4: `v // 0` cannot be calculated");
}

#[test]
fn problems_of_a_source_are_told_in_words() {
    let long = "x".repeat(600 * 1024);
    let cases = [
        ("no body", Source::default(), vec!["html: give either html or mjml"]),
        (
            "two bodies",
            Source { mjml: Some("".into()), ..html("") },
            vec!["mjml: give html or mjml, not both"],
        ),
        ("too long", html(&long), vec!["html: must not be longer than 524288 bytes, has 614400"]),
        (
            "long subject",
            Source { subject: "x".repeat(1025), ..html("") },
            vec!["subject: must not be longer than 1024 bytes, has 1025"],
        ),
        ("syntax", html("a\nb{% if %}"), vec!["html, line 2: unexpected end of block"]),
        (
            "two parts",
            Source { subject: "{{".into(), ..html("{% endif %}") },
            vec![
                "subject, line 1: unexpected end of input, expected expression",
                "html, line 1: unknown statement endif",
            ],
        ),
        (
            "include",
            html("\n{% include 'subject' %}"),
            vec!["html, line 2: `include` is not available: a template stands alone"],
        ),
        (
            "import",
            html("{%- import 'x' as y %}"),
            vec!["html, line 1: `import` is not available: a template stands alone"],
        ),
        (
            "from",
            html("{% from 'x' import y %}"),
            vec!["html, line 1: `from` is not available: a template stands alone"],
        ),
        (
            "extends",
            html("{% extends 'x' %}"),
            vec!["html, line 1: `extends` is not available: a template stands alone"],
        ),
        (
            "unknown names",
            html("{{ a|shout }}\n{% if a is fine %}{% endif %}"),
            vec!["html, line 1: there is no filter `shout`", "html, line 2: there is no test `fine`"],
        ),
        (
            "mj-include",
            mjml("\n<mj-include path=\"/etc/passwd\" />"),
            vec!["mjml, line 2: `mj-include` is not available: a template stands alone"],
        ),
        ("not closed", mjml("<mj-section>"), vec!["mjml: ends too early: an element is not closed"]),
        (
            "no mjml",
            Source { subject: "".into(), mjml: Some("<p></p>".into()), ..Source::default() },
            vec!["mjml: has no `mjml` element"],
        ),
        ("jinja in mjml", mjml("\n\n{% if %}"), vec!["mjml, line 3: unexpected end of block"]),
        (
            "a tag in a width",
            mjml("\n<mj-section><mj-column width=\"{{ w }}\"></mj-column></mj-section>"),
            vec!["mjml, line 2: MJML drops `{{ w }}` here: it needs to know this value beforehand"],
        ),
    ];
    for (case, source, expected) in cases {
        assert_eq!(problems(&source), expected, "{case}");
    }
}

/// Each of these made the engine or mrml overflow the stack, which no test and no process survives.
#[test]
fn sources_that_would_overflow_the_stack_are_refused() {
    let cases = [
        ("sums", format!("{{{{ a{} }}}}", "+a".repeat(200_000))),
        ("filters", format!("{{{{ a{} }}}}", "|e".repeat(200_000))),
        ("attributes", format!("{{{{ a{} }}}}", ".b".repeat(200_000))),
        ("signs", format!("{{{{ {}a }}}}", "-".repeat(400_000))),
        ("signs, not closed", format!("{{{{ {}", "-".repeat(400_000))),
        ("nots", format!("{{% if {}a %}}", "not ".repeat(100_000))),
        ("powers", format!("{{{{ a{} }}}}", "**a".repeat(100_000))),
        ("choices", format!("{{{{ a{} }}}}", " if a else a".repeat(40_000))),
        ("brackets", format!("{{{{ {}", "(".repeat(400_000))),
        ("elifs", format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(40_000))),
        ("ifs", "{% if a %}".repeat(40_000)),
    ];
    for (case, source) in cases {
        assert!(!problems(&html(&source)).is_empty(), "{case}");
    }
    let nested = |element: &str| mjml(&element.repeat(400_000 / element.len()));
    for element in ["<mj-section>", "<mj-wrapper>", "<div>", "<p title='</p>'>"] {
        assert!(!problems(&nested(element)).is_empty(), "{element}");
    }
    let text = format!("<mj-section><mj-column><mj-text>{}", "<b>".repeat(100_000));
    assert!(!problems(&mjml(&text)).is_empty());
}

#[test]
fn what_is_just_within_the_limits_compiles() {
    // Each sign is a token, and the deepest recursion for its size.
    for source in [format!("{{{{ {}1 }}}}", "- ".repeat(399)), format!("{{{{ 1{} }}}}", "+1".repeat(199))] {
        assert_eq!(problems(&html(&source)), [""; 0]);
    }
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(100));
    assert_eq!(problems(&html(&elifs)), [""; 0]);
    let deep = format!(
        "<mj-section><mj-column><mj-text>{}x<br>{}</mj-text></mj-column></mj-section>",
        "<b>".repeat(54),
        "</b>".repeat(54)
    );
    assert_eq!(problems(&mjml(&deep)), [""; 0]);
    let breaks =
        format!("<mj-section><mj-column><mj-text>{}</mj-text></mj-column></mj-section>", "<br>".repeat(900));
    assert_eq!(problems(&mjml(&breaks)), [""; 0]);
}

/// The tags survive wherever an author may put them, and the html stays whole with none, one and three turns.
#[test]
fn jinja_tags_survive_mjml() {
    let section = "<mj-section><mj-column><mj-text>{{ i.n }}</mj-text></mj-column></mj-section>";
    let column = "<mj-column><mj-text>{{ i.n }}</mj-text></mj-column>";
    let cases = [
        ("around a section", format!("{{% for i in l %}}{section}{{% endfor %}}")),
        ("in mj-raw", format!("<mj-raw>{{% for i in l %}}</mj-raw>{section}<mj-raw>{{% endfor %}}</mj-raw>")),
        ("around a column", format!("<mj-section>{{% for i in l %}}{column}{{% endfor %}}</mj-section>")),
        ("in a column", "<mj-section><mj-column>{% for i in l %}<mj-text>{{ i.n }}</mj-text>{% endfor %}</mj-column></mj-section>".into()),
        ("in a text", "<mj-section><mj-column><mj-text>{% for i in l %}<p>{{ i.n }}</p>{% endfor %}</mj-text></mj-column></mj-section>".into()),
        ("in a table", "<mj-section><mj-column><mj-table>{% for i in l %}<tr><td>{{ i.n }}</td></tr>{% endfor %}</mj-table></mj-column></mj-section>".into()),
        ("in a wrapper", format!("<mj-wrapper>{{% for i in l %}}{section}{{% endfor %}}</mj-wrapper>")),
    ];
    for (case, body) in cases {
        let template = compile(&mjml(&body));
        for count in [0, 1, 3] {
            let items: Vec<Json> = (0..count).map(|n| json!({ "n": format!("item-{n}") })).collect();
            let html = template.render(&json!({ "l": items })).expect(case).html;
            assert_eq!(html.matches("item-").count(), count, "{case}");
            assert!(!html.contains("jtag"), "{case}");
            assert_whole(&html, case);
        }
    }
}

/// As many ends as starts, for clients that read Outlook's conditional comments and for those that do not.
fn assert_whole(html: &str, case: &str) {
    for element in ["table", "tr", "td", "div", "p"] {
        let starts =
            html.matches(&format!("<{element} ")).count() + html.matches(&format!("<{element}>")).count();
        assert_eq!(starts, html.matches(&format!("</{element}>")).count(), "{case}: {element} in {html}");
    }
    assert_eq!(html.matches("<!--[if").count(), html.matches("<![endif]").count(), "{case}");
}

/// MJML shares the width of a section among its children: a tag must not count as one.
#[test]
fn tags_between_columns_take_no_width() {
    let column = "<mj-column><mj-text>x</mj-text></mj-column>";
    let body = format!("<mj-section>{{% if 1 %}}{column}{{% endif %}}{column}</mj-section>");
    let html = rendered(&mjml(&body), json!({})).html;
    assert_eq!(
        html.matches("class=\"mj-outlook-group-fix mj-column-per-50\"").count()
            + html.matches("class=\"mj-column-per-50 mj-outlook-group-fix\"").count(),
        2,
        "{html}"
    );
}

#[test]
fn tags_in_the_head_survive_mjml_or_are_refused() {
    let head = |head: &str| {
        let mjml = format!("<mjml><mj-head>\n{head}</mj-head><mj-body></mj-body></mjml>");
        Source { subject: "s".into(), mjml: Some(mjml), ..Source::default() }
    };
    let inside = head(
        "<mj-style>{% if a %}.shown { color: {{ c }} }{% endif %}</mj-style><mj-title>{{ t }}</mj-title>",
    );
    let email = |a: bool| rendered(&inside, json!({ "a": a, "c": "red", "t": "<T>" })).html;
    assert!(
        email(true).contains(".shown { color: red }") && email(true).contains("<title>&lt;T&gt;</title>")
    );
    assert!(!email(false).contains("shown"));
    let between = head("{% if a %}<mj-style>.shown {}</mj-style>{% endif %}");
    let told = "mjml, line 2: a tag cannot stand between the elements of the head, only inside `mj-title`, \
        `mj-preview` or `mj-style`";
    assert_eq!(problems(&between), [told]);
}

#[test]
fn signs_that_mean_something_to_markup_survive_mjml() {
    let body = "<mj-section background-url=\"{{ u }}\"><mj-column><mj-text>{% if 1 < 2 and '\"' != \"'\" %}yes{% endif %}\
        {# <gone> #}<span {% if 1 %}class=\"c\"{% endif %}>{{ '<' }}</span></mj-text>\
        <mj-image src=\"{{ u }}\" alt=\"{{ a|default('>') }}\" /><mj-text>\"{% if 1 %}quoted{% endif %}\"{# c #} end</mj-text>\
        <mj-button href=\"https://x.example/?a={{ u|urlencode }}\" background-color=\"{{ c }}\">go</mj-button></mj-column></mj-section>";
    let email = rendered(&mjml(body), json!({ "u": "a b\"", "c": "#123456" })).html;
    for expected in [
        "yes",
        "&lt;</span>",
        "src=\"a b&quot;\"",
        "alt=\"&gt;\"",
        "?a=a%20b%22",
        "#123456",
        "<span class=\"c\">",
        "\"quoted\" end",
    ] {
        assert!(email.contains(expected), "{expected} in {email}");
    }
    assert!(!email.contains("gone") && !email.contains("fonts.googleapis"), "{email}");
}

/// The tokenizer under mrml panics at this unless it is kept from it.
#[test]
fn words_outside_of_ascii_survive_mjml() {
    let body = "<mj-section><mj-column><mj-text>até > 5 €> ção {{ v }}ñ</mj-text>\
        <mj-image alt=\"às > 9\" src=\"a.png\" /></mj-column></mj-section>";
    let email = rendered(&mjml(body), json!({ "v": "ü" }));
    assert!(
        email.html.contains("até > 5 €> ção üñ") && email.html.contains("alt=\"às > 9\""),
        "{}",
        email.html
    );
    assert_eq!(email.text, "até > 5 €> ção üñ\n\nàs > 9");
}

#[test]
fn variables_are_listed() {
    let source = Source {
        subject: "{{ a.b }}".into(),
        ..html("{% for i in l %}{{ i.x }}{{ range(2) }}{{ c|d }}{% endfor %}")
    };
    assert_eq!(compile(&source).variables(), ["a.b", "c", "l"]);
    let source = mjml("<mj-section><mj-column><mj-text>{{ z }}</mj-text></mj-column></mj-section>");
    assert_eq!(compile(&source).variables(), ["z"]);
}

#[test]
fn variables_that_are_not_mentioned_are_told() {
    let source = Source {
        subject: "{{ a.b }}".into(),
        ..html("{% for i in l %}{{ i.x }}{% endfor %}{{ c['d'] }}{% if e is defined %}{{ e }}{% endif %}")
    };
    let given = json!({ "a": 1, "ab": 1, "l": [], "i": 1, "c": {}, "e": 1, "range": 1, "": 1 });
    assert_eq!(compile(&source).unmentioned(&given), ["", "ab", "i", "range"]);
    assert!(compile(&source).unmentioned(&json!(null)).is_empty());
}

#[test]
fn sources_are_camel_case_json_and_print_no_content() {
    let source: Source =
        serde_json::from_value(json!({ "subject": "secret", "mjml": "m" })).expect("a source");
    assert_eq!(serde_json::to_value(&source).expect("json"), json!({ "subject": "secret", "mjml": "m" }));
    assert!(!format!("{source:?}").contains("secret"));
}
