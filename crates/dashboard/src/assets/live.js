
// Live pages: the stream says that something changed, the page is fetched again and what differs is put in place, so that
// focus, selection, scroll and what is typed stay. At most once a second, never while nobody looks.
(() => {
  'use strict';
  const KEPT = 'posthaste-live';
  const GAP_MS = 1000;
  const COME_BACK_MS = 15000;
  const WORDS = { off: 'Live', live: 'Live', paused: 'Paused', reconnecting: 'Reconnecting' };
  const kept = () => { try { return localStorage.getItem(KEPT); } catch { return null; } };
  const keep = (word) => { try { localStorage.setItem(KEPT, word); } catch { /* then for this page only */ } };

  let isPaused = kept() === 'paused';
  let source = null;
  let seen = null;
  let timer = 0;
  let comeBack = 0;
  let ranAt = 0;
  let isBusy = false;
  let turn = 0;

  const page = () => document.querySelector('main[data-stream]');
  const show = (state) => {
    const button = document.querySelector('[data-live-switch]');
    if (!button) return;
    button.dataset.state = state;
    button.setAttribute('aria-pressed', String(isPaused));
    button.querySelector('.word').textContent = WORDS[state];
  };

  // One tree becomes the other with as few changes as its keys allow.
  // By attribute: a form with a field called "id" would give that field for its id.
  const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute('data-key') || node.getAttribute('id') : '') || '';
  const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const morph = (from, to) => {
    if (from.isEqualNode(to)) return;
    if (from.nodeType !== 1) { from.nodeValue = to.nodeValue; return; }
    if (from.nodeName === 'IFRAME' && from.getAttribute('src') !== to.getAttribute('src')) {
      from.replaceWith(document.importNode(to, true));
      return;
    }
    for (const { name, value } of [...to.attributes]) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      // What a person has opened stays open.
      if (!to.hasAttribute(name) && !(name === 'open' && from.nodeName === 'DETAILS')) from.removeAttribute(name);
    }
    if (from.nodeName === 'INPUT' || from.nodeName === 'TEXTAREA') return;
    const known = new Map([...from.children].filter(keyOf).map((child) => [keyOf(child), child]));
    let at = from.firstChild;
    for (const next of [...to.childNodes]) {
      const key = keyOf(next);
      const match = key ? known.get(key) : at;
      if (match && isSame(match, next)) {
        if (match === at) at = at.nextSibling; else from.insertBefore(match, at);
        morph(match, next);
      } else {
        const made = from.insertBefore(document.importNode(next, true), at);
        if (next.nodeType === 1 && next.hasAttribute('data-key')) fresh(made);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };
  const fresh = (line) => {
    line.classList.add('fresh');
    setTimeout(() => line.classList.remove('fresh'), 2500);
  };

  // What somebody has the focus on stays where they look, however much the page above it grows.
  const inPlace = (change) => {
    const held = document.activeElement;
    const top = held.getBoundingClientRect().top;
    change();
    if (held === document.body || held !== document.activeElement || top < 0 || top > innerHeight) return;
    scrollBy(0, held.getBoundingClientRect().top - top);
  };

  const fetched = async (address) => {
    const response = await fetch(address, { cache: 'no-store', headers: { Accept: 'text/html' } });
    // The session is over: the page itself leads to the login.
    if (response.redirected && new URL(response.url).pathname === '/ui/login') { location.reload(); return null; }
    if (!response.ok) return null;
    return new DOMParser().parseFromString(await response.text(), 'text/html');
  };
  const tell = () => document.dispatchEvent(new Event('posthaste:shown'));

  // A menu that is open, or a question, is not pulled away under the hand.
  const isInUse = () => document.querySelector('details.confirm[open], dialog[open]') !== null;
  const refresh = async () => {
    timer = 0;
    if (isPaused || document.hidden || !page()) return;
    if (isBusy || isInUse()) { timer = setTimeout(refresh, GAP_MS); return; }
    isBusy = true;
    const began = turn;
    try {
      const next = await fetched(location.href);
      if (next && began === turn && !isPaused && !isInUse()) {
        inPlace(() => {
          for (const part of document.querySelectorAll('[data-live]')) {
            const other = next.querySelector(`[data-live="${part.dataset.live}"]`);
            if (other) morph(part, other);
          }
        });
        tell();
      }
    } catch { /* the stream will say when it is back */ }
    ranAt = performance.now();
    isBusy = false;
  };
  const ask = () => {
    if (!timer) timer = setTimeout(refresh, Math.max(0, GAP_MS - (performance.now() - ranAt)));
  };

  const close = () => {
    clearTimeout(comeBack);
    if (source) source.close();
    source = null;
  };
  const open = () => {
    close();
    const main = page();
    if (!main || document.hidden) return;
    if (isPaused) { show('paused'); return; }
    show('off');
    source = new EventSource(main.dataset.stream);
    source.onopen = () => show('live');
    source.addEventListener('changed', (event) => {
      if (event.data === seen) return;
      seen = event.data;
      ask();
    });
    source.addEventListener('ended', () => { close(); location.reload(); });
    source.onerror = () => {
      show('reconnecting');
      // Refused, not lost: the browser itself does not try again. Perhaps the session is over; the page itself knows.
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        comeBack = setTimeout(() => { fetched(location.href).catch(() => null).finally(open); }, COME_BACK_MS);
      }
    };
  };

  const setPaused = (paused) => {
    isPaused = paused;
    keep(paused ? 'paused' : 'live');
    if (paused) { close(); show('paused'); } else { seen = null; open(); }
  };

  // Other messages and tabs without a new page, where there is script.
  const go = async (address, isBack) => {
    turn += 1;
    const began = turn;
    let next = null;
    try { next = await fetched(address); } catch { /* then the slow way */ }
    if (began !== turn) return;
    const other = next && next.querySelector('main');
    if (!other) { location.href = address; return; }
    if (!isBack) history.pushState(null, '', address);
    document.title = next.title;
    const main = document.querySelector('main');
    const stream = main.dataset.stream;
    morph(main, other);
    if (main.dataset.stream !== stream) { seen = null; open(); }
    tell();
  };
  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-live-switch]');
    if (button) { setPaused(!isPaused); return; }
    const link = event.target.closest('a[data-swap]');
    if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.href, false);
  });
  addEventListener('popstate', () => go(location.href, true));

  document.addEventListener('keydown', (event) => {
    if (event.key !== 'p' || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest('input, select, textarea, [contenteditable]') || !page()) return;
    setPaused(!isPaused);
  });
  // Browsers allow few connections to one place: a tab that nobody sees gives its own back.
  document.addEventListener('visibilitychange', () => { if (document.hidden) close(); else { seen = null; open(); } });
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => { if (event.persisted) open(); });
  addEventListener('storage', (event) => {
    if (event.key !== KEPT || (event.newValue === 'paused') === isPaused) return;
    isPaused = event.newValue === 'paused';
    open();
  });
  document.addEventListener('DOMContentLoaded', open);

  // "3 min ago" grows older by itself. The server's clock counts, not the reader's.
  let lag = 0;
  const ago = (moment) => {
    const past = Date.now() + lag - moment;
    const secs = Math.floor(Math.abs(past) / 1000);
    if (secs === 0) return past >= 0 ? 'just now' : 'now';
    const length = secs < 60 ? `${secs} s` : secs < 3600 ? `${Math.floor(secs / 60)} min`
      : secs < 86400 ? `${Math.floor(secs / 3600)} h` : `${Math.floor(secs / 86400)} d`;
    return past >= 0 ? `${length} ago` : `in ${length}`;
  };
  const tick = () => {
    if (document.hidden) return;
    for (const time of document.querySelectorAll('time[data-ago]')) {
      const words = ago(Date.parse(time.dateTime));
      if (time.textContent !== words) time.textContent = words;
    }
  };
  const setLag = () => {
    const main = document.querySelector('main[data-now]');
    if (main) lag = Number(main.dataset.now) - Date.now();
  };
  document.addEventListener('DOMContentLoaded', () => { setLag(); setInterval(tick, 5000); });
  document.addEventListener('visibilitychange', tick);
  document.addEventListener('posthaste:shown', tick);
})();
