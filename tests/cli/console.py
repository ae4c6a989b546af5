"""The console page in a browser, over the WebDriver protocol: console.py DRIVER-URL CALLERS-FILE, environment of `make up`."""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request

CONSOLE, LISTER, TOKEN = (os.environ["RELATA_" + n] for n in ("CONSOLE_URL", "LISTER_URL", "LISTER_TOKEN"))
WAIT_SECONDS = 30 * int(os.environ.get("RELATA_TEST_SLOWNESS", "1"))
TAB, ENTER = "\ue004", "\ue007"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
failed = 0


def ok(name, wanted, got):
    global failed
    if wanted == got:
        print(f"ok - {name}")
    else:
        print(f"not ok - {name}: wanted {wanted!r}, got {got!r}")
        failed += 1


def request(url, body=None, method=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers or {}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=120) as answer:
        return json.load(answer)


class Browser:
    def __init__(self, driver):
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium's sandbox refuses to run as root
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}}}
        made = request(driver + "/session", wanted)["value"]
        self.at = f"{driver}/session/{made['sessionId']}"

    def call(self, path, body=None, method=None):
        return request(self.at + path, body, method)["value"]

    def open(self, url):
        self.call("/url", {"url": "about:blank"})  # another fragment alone would not load the page again
        self.call("/url", {"url": url})

    def js(self, script, *args):
        return self.call("/execute/sync", {"script": script, "args": list(args)})

    def find(self, selector):
        return self.call("/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call(f"/element/{self.find(selector)}/click", {})
        self.rest()

    def fill(self, selector, text):
        element = self.find(selector)
        self.call(f"/element/{element}/clear", {})
        self.call(f"/element/{element}/value", {"text": text})

    def choose(self, selector, value):
        self.js(
            "const s = document.querySelector(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))",
            selector,
            value,
        )

    def keys(self, text):
        actions = [{"type": t, "value": c} for c in text for t in ("keyDown", "keyUp")]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})
        self.rest()

    def tab_to(self, selector):
        for _ in range(60):
            if self.js("return document.activeElement.matches(arguments[0])", selector):
                return
            self.keys(TAB)
        raise AssertionError(f"Tab never comes to {selector}")

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def shown(self, selector):
        return self.js("return document.querySelector(arguments[0]).checkVisibility()", selector)

    def rest(self):
        """Until the page is busy no more."""
        end = time.monotonic() + WAIT_SECONDS
        while self.js("return document.body.ariaBusy === 'true'"):
            assert time.monotonic() < end, "the page stays busy"
            time.sleep(0.02)

    def rows(self):
        return self.js("return [...document.querySelectorAll('#rows tr')].map(r => [...r.cells].map(c => c.textContent))")

    def sorts(self):
        return self.js("return [...document.querySelectorAll('#heads th')].map(h => [h.textContent, h.ariaSort])")


def sql(text):
    out = subprocess.run(
        ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", os.environ["RELATA_PG_DSN"], "-c", text], check=True, capture_output=True
    )
    return out.stdout.decode().split()


def stage():
    """A person who may view all organizations but the last: her pages fill soon, and something is hidden."""
    sql(
        "INSERT INTO inventory.users (id, email) VALUES ('kim.nord', 'kim.nord@support.example');"
        "INSERT INTO inventory.teams (id, organization_id, name) VALUES ('support', 'org-01', 'support');"
        "INSERT INTO inventory.memberships (team_id, user_id) VALUES ('support', 'kim.nord');"
        "INSERT INTO inventory.team_grants (team_id, relation, organization_id)"
        " SELECT 'support', 'viewer', id FROM inventory.organizations WHERE id < 'org-20'"
    )
    end = time.monotonic() + WAIT_SECONDS
    while sql("SELECT pending FROM relata.lag") != ["0"]:
        assert time.monotonic() < end, "changes stay pending"
        time.sleep(0.05)
    return "kim.nord", sql("SELECT v FROM inventory.visible('kim.nord', 'viewer') v ORDER BY v")


def ids(user, **params):
    query = urllib.parse.urlencode({"subject": f"user:{user}", **params})
    page = request(f"{LISTER}/v1/inventory/instances?{query}", headers={"Authorization": f"Bearer {TOKEN}"})
    return [str(row["id"]) for row in page["items"]]


def link(token, url=LISTER, console=CONSOLE):
    return f"{console}/#" + urllib.parse.urlencode({"url": url, "token": token})


def column(b, n):
    return [row[n] for row in b.rows()]


def lists(b, user):
    b.open(link(TOKEN))
    b.rest()
    ok("it connects with what its link says", "console: may list, name-subject, diagnose", b.text("#who"))
    ok("and hides the token from the address", False, TOKEN in b.js("return location.href"))
    b.click("#question button")
    ok("a caller without a subject is told to name one", "400 ", b.text("#problem")[:4])
    b.fill("#subject", f"user:{user}")
    b.click("#question button")
    ok("the problem is gone", False, b.shown("#problem"))
    ok("columns", ["id", "name", "owner_team_id", "catalog_item_id", "created_at ↓"], [h for h, _ in b.sorts()])
    ok("the rows are the lister's", ids(user, page_size=20), column(b, 0))
    ok("20 of them, and there are more", "20 rows of instances, there are more", b.text("#caption"))
    ok("all of them are visible by plain SQL", [], [i for i in column(b, 0) if i not in VISIBLE])

    first = column(b, 0)
    b.click("#next")
    both = ids(user, page_size=40)
    ok("the next page goes on", both, first + column(b, 0))
    b.click("#first")
    ok("the first page again", first, column(b, 0))

    b.click("#heads th:nth-child(2) button")
    ok("a click on a column sorts", ids(user, page_size=20, order_by="name"), column(b, 0))
    ok("and says so", ["name ↑", "ascending"], b.sorts()[1])
    b.click("#heads th:nth-child(2) button")
    ok("another one turns it round", ids(user, page_size=20, order_by="-name"), column(b, 0))
    ok("descending", "descending", b.sorts()[1][1])

    team = sql(f"SELECT min(owner_team_id) FROM inventory.resource_instances WHERE id IN ({','.join(VISIBLE)})")[0]
    b.choose("#filter-column", "owner_team_id")
    b.choose("#filter-op", "eq")
    b.fill("#filter-value", team)
    b.click("#question button")
    ok("a filter", {team}, set(column(b, 2)))
    ok("filtered and sorted", ids(user, page_size=20, order_by="-name", **{"filter.owner_team_id": team}), column(b, 0))
    b.fill("#size", "1000")
    b.click("#question button")
    ok("the last page has no next one", True, b.js("return document.getElementById('next').disabled"))
    b.choose("#filter-column", "")
    b.choose("#collection", "tenants")
    b.click("#question button")
    wanted = [f"org-{n:02}-{t}" for n in range(1, 20) for t in ("prod", "test")]
    ok("another collection", wanted, column(b, 0))


def explains(b, user):
    hidden = sql(f"SELECT min(id) FROM inventory.resource_instances WHERE id NOT IN ({','.join(VISIBLE)})")[0]
    b.choose("#collection", "instances")
    for what, name, wanted in ((hidden, "hidden", "has not"), (VISIBLE[0], "visible", "has")):
        b.fill("#explain-id", what)
        b.click("#explain button")
        told = b.text("#why").split("\n")[0]
        ok(f"why a row is {name}", f"user:{user} {wanted} can_view of resource_instance:{what}", told)
    ok("with each relation's decision", True, '"relation": "can_edit"' in b.text("#why"))
    b.fill("#explain-id", "999999999")
    b.click("#explain button")
    ok("a row that is absent", True, '"row": "absent"' in b.text("#why"))


def is_safe(b, user, callers):
    evil = "<img src=x onerror=\"document.title='owned'\">"
    quoted = evil.replace("'", "''")
    sql(f"UPDATE inventory.resource_instances SET name = '{quoted}', created_at = now() WHERE id = {VISIBLE[0]}")
    b.click("#question button")
    ok("a name is text, whatever is in it", [VISIBLE[0], evil], b.rows()[0][:2])
    ok("and nothing else", ["Inventory", 0], b.js("return [document.title, document.images.length]"))

    b.open(link("wrong"))
    b.rest()
    ok("a wrong token is told", "401 ", b.text("#problem")[:4])
    ok("and nothing is shown", [False] * 3, [b.shown(s) for s in ("#question", "#list", "#explain")])
    ok("who", "Not connected", b.text("#who"))
    b.open(link(TOKEN, url="http://127.0.0.1:1"))
    b.rest()
    ok("a lister that is not there", "The lister cannot be reached.", b.text("#problem"))
    b.open(link(TOKEN, console=CONSOLE.replace("127.0.0.1", "localhost")))
    b.rest()
    ok("pages of another origin read nothing", "The lister cannot be reached.", b.text("#problem"))

    secret = "one-who-may-list-alone"
    with open(callers, "a", encoding="utf-8") as f:
        f.write(f"visitor {hashlib.sha256(secret.encode()).hexdigest()} subject=user:{user}\n")
    end = time.monotonic() + WAIT_SECONDS
    while True:  # the file is read again when it has changed
        b.open(link(secret))
        b.rest()
        if not b.text("#problem").startswith("401") or time.monotonic() > end:
            break
        time.sleep(0.1)
    ok("a caller of few rights", f"visitor, user:{user}: may list", b.text("#who"))
    ok("is not offered to explain", False, b.shown("#explain"))
    b.click("#question button")
    ok("and lists as itself", ids(user, page_size=20), column(b, 0))


def by_keyboard(b, user):
    b.open(CONSOLE + "/")
    b.tab_to("#url")
    b.keys(LISTER)
    b.keys(TAB)
    b.keys(TOKEN)
    b.keys(TAB)
    b.keys(f"user:{user}")
    b.keys(ENTER)
    ok("by keyboard: connected", True, b.shown("#question"))
    b.tab_to("#question button")
    b.keys(ENTER)
    ok("by keyboard: a list", ids(user, page_size=20), column(b, 0))
    b.tab_to("#heads th:nth-child(2) button")
    b.keys(ENTER)
    b.keys(ENTER)
    ok("by keyboard: sorted, the focus stays", ids(user, page_size=20, order_by="-name"), column(b, 0))
    b.tab_to("#next")
    b.keys(ENTER)
    ok("by keyboard: the next page", ids(user, page_size=40, order_by="-name")[20:], column(b, 0))
    b.tab_to("#explain-id")
    b.keys(VISIBLE[1] + ENTER)
    ok("by keyboard: why", True, '"allowed": true' in b.text("#why"))
    unnamed = "return [...document.querySelectorAll('input, select')].filter(e => !e.labels.length).map(e => e.id)"
    ok("every field has a label", [], b.js(unnamed))


if __name__ == "__main__":
    USER, VISIBLE = stage()
    browser = Browser(sys.argv[1])
    try:
        lists(browser, USER)
        explains(browser, USER)
        is_safe(browser, USER, sys.argv[2])
        by_keyboard(browser, USER)
    finally:
        browser.call("", method="DELETE")
    sys.exit(1 if failed else 0)
