"""Reads observability/ for tests/observability.sh.

rules FILE      writes every expression of the dashboard into FILE as a recording rule, for promtool to parse
served FILE     drives the gateway that `posthaste dev --json` greeted with in FILE, and fails if a metric that the alert
                rules or the dashboard name is not served, or if an alert has no unit test in which it fires
"""

import json
import pathlib
import re
import sys
import time
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "observability"
SUFFIX = re.compile(r"_(bucket|sum|count)$")
# Words of the query language and of Prometheus itself; whatever else has the form of a name is a metric of ours.
NOT_OURS = {"up"}
METRIC = re.compile(r"\b((?:email|pipeline|provider|companies|webhooks|posthaste|process|store|trace)_[a-z0-9_]+)\b")


def panels(parts):
    for panel in parts:
        yield panel
        yield from panels(panel.get("panels", []))


def dashboard_expressions():
    board = json.loads((FOLDER / "grafana.json").read_text())
    for panel in panels(board["panels"]):
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def alert_blocks():
    """Name and expression of each alert; the file is simple enough to be read without a YAML library."""
    text = (FOLDER / "alerts.yml").read_text()
    for block in text.split("- alert: ")[1:]:
        name = block.split("\n", 1)[0].strip()
        expression = block.split("expr:", 1)[1].split("labels:", 1)[0].split("for:", 1)[0]
        yield name, expression


def write_rules(path):
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    count = 0
    for count, (title, expression) in enumerate(dashboard_expressions(), 1):
        lines += [f"      # {title}", f"      - record: dashboard:panel{count}", f"        expr: {json.dumps(expression)}"]
    assert count > 20, f"the dashboard has only {count} expressions"
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def named():
    """Each metric that is named, and where."""
    found = {}
    for where, expression in [*alert_blocks(), *dashboard_expressions()]:
        names = {SUFFIX.sub("", name) if name.endswith("_bucket") else name for name in METRIC.findall(expression)}
        assert names or where == "PosthasteDown", f"{where} names no metric"
        for name in names - NOT_OURS:
            found.setdefault(name, where)
    return found


def call(api, key, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(api + path, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def served(greeting):
    greeting = json.loads(pathlib.Path(greeting).read_text())
    api, key = greeting["api"], greeting["key"]
    for name in ["delivered", "bounced", "complained", "rejected", "throttled"]:
        call(api, key, "/v1/email/send", {"to": f"{name}@posthaste.test", "subject": "s", "html": "<p>x</p>"})
    for _ in range(200):
        text = call(api, key, "/metrics")
        done = 'pipeline_final_state_total{state="COMPLAINED"} 1' in text
        if done and "process_cpu_seconds_total" in text and "provider_breaker_open" in text:
            break
        time.sleep(0.1)
    pathlib.Path("metrics.txt").write_text(text)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    there = {SUFFIX.sub("", re.split(r"[{ ]", line)[0]) for line in lines}
    # Only a webhook of a provider makes it, and `dev` has none; METRICS.md has it, and a test of the API counts it.
    not_here = {"webhooks_in_total"}
    missing = {name: where for name, where in named().items() if name not in there | not_here}
    assert not missing, f"named, and not served: {missing}"

    tested = (FOLDER / "alerts.test.yml").read_text()
    for name, _ in alert_blocks():
        cases = tested.split(f"alertname: {name}\n")[1:]
        fires = [case.lstrip().startswith("exp_alerts:\n") for case in cases]
        assert True in fires and False in fires, f"{name} needs a test in which it fires and one in which it does not"
    print(f"{len(named())} metrics are named, and served")


if __name__ == "__main__":
    {"rules": write_rules, "served": served}[sys.argv[1]](sys.argv[2])
