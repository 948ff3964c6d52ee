"""What has to hold on every page, looked at in the page itself. Each look gives a list of complaints in words."""

import time

from stage import until

# Text on its ground, by WCAG 2: 4.5, or 3 where it is large. Colours are asked of a canvas, which understands them all.
CONTRAST = """() => {
  const context = Object.assign(document.createElement('canvas'), { width: 1, height: 1 })
    .getContext('2d', { willReadFrequently: true });
  const seen = new Map();
  const colour = (text) => {
    if (!seen.has(text)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = text;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      seen.set(text, [r, g, b, a / 255]);
    }
    return seen.get(text);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = colour(getComputedStyle(at).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    const dark = getComputedStyle(document.documentElement).colorScheme.startsWith('dark');
    return layers.reverse().reduce((below, layer) => over(layer, below), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, two) => {
    const [a, b] = [light(one), light(two)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const isShown = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.display === 'none' || style.visibility === 'hidden' || style.clipPath !== 'none') return false;
      if (at.matches(':disabled')) return false;
    }
    return element.getClientRects().length > 0;
  };
  const opacity = (element) => {
    let left = 1;
    for (let at = element; at; at = at.parentElement) left *= Number(getComputedStyle(at).opacity);
    return left;
  };
  const complaints = new Set();
  const judge = (element, text, style) => {
    const below = ground(element);
    const [r, g, b, a] = colour(style.color);
    const found = ratio(over([r, g, b, a * opacity(element)], below), below);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (found < (isLarge ? 3 : 4.5)) {
      const name = element.tagName.toLowerCase() + [...element.classList].map((c) => '.' + c).join('');
      complaints.add(`contrast ${found.toFixed(2)} of ${name} "${text.slice(0, 30)}"`);
    }
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    if (!text || element.closest('script, style, noscript, title, option') || !isShown(element)) continue;
    looked += 1;
    judge(element, text, getComputedStyle(element));
  }
  for (const field of document.querySelectorAll('input, textarea, select')) {
    if (field.type === 'hidden' || !isShown(field)) continue;
    if (field.placeholder && !field.value) judge(field, field.placeholder, getComputedStyle(field, '::placeholder'));
    if (field.value && field.type !== 'checkbox') judge(field, field.value, getComputedStyle(field));
  }
  if (looked < 5) complaints.add('hardly any text to look at');
  return [...complaints];
}"""

# Names for whoever does not see: every field has a label, every button and link a name, every frame a title.
NAMES = """() => {
  const complaints = [];
  const tell = (element) => element.outerHTML.slice(0, 120);
  const words = (element) => (element.getAttribute('aria-label') || element.textContent || element.title || '').trim();
  for (const field of document.querySelectorAll('input, select, textarea')) {
    if (field.type === 'hidden') continue;
    const labels = [...(field.labels || [])].map((label) => label.textContent.trim()).join('');
    if (!labels && !field.getAttribute('aria-label')) complaints.push('no label: ' + tell(field));
  }
  for (const element of document.querySelectorAll('a[href], button, summary')) {
    if (!words(element) && !element.querySelector('img[alt], svg[aria-label]')) complaints.push('no name: ' + tell(element));
  }
  for (const frame of document.querySelectorAll('iframe')) if (!frame.title) complaints.push('no title: ' + tell(frame));
  for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) complaints.push('no alt: ' + tell(image));
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) complaints.push('id twice: ' + id);
  if (document.querySelectorAll('h1').length !== 1) complaints.push('not one h1');
  if (!document.documentElement.lang) complaints.push('no language');
  if (!document.title) complaints.push('no title');
  for (const element of document.querySelectorAll('body [style]:not([style=""])')) complaints.push('an inline style: ' + tell(element));
  return complaints;
}"""

# Nothing may stick out sideways; what scrolls inside a box of its own may.
SIDEWAYS = """() => {
  const root = document.scrollingElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  const inBox = (element) => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement) {
      if (getComputedStyle(at).overflowX !== 'visible') return true;
    }
    return false;
  };
  const out = [...document.body.querySelectorAll('*')]
    .filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !inBox(element))
    .map((element) => element.tagName.toLowerCase() + '.' + [...element.classList].join('.') + ' ' +
      element.textContent.trim().slice(0, 30));
  return [`scrolls sideways by ${root.scrollWidth - root.clientWidth}px: ${out.slice(0, 3).join('; ')}`];
}"""

# What has the focus, and whether one sees it. Called after each press of Tab.
FOCUS = """() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const hasOutline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  const isSeen = box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight;
  const place = `${Math.round(box.top)} to ${Math.round(box.bottom)} of ${innerHeight}`;
  return {
    name: `${element.outerHTML.slice(0, 100)}, ${place}, ${hasOutline ? 'outlined' : 'without outline'}`,
    visible: element.tagName === 'IFRAME' || (isSeen && (hasOutline || style.boxShadow !== 'none')),
  };
}"""

TABS_MAX = 40
SETTLE_SECS = 5


def focus(page):
    """Goes through the page by Tab, as somebody without a mouse does."""
    def step():
        page.keyboard.press("Tab")
        return page.evaluate(FOCUS)

    outside = 0
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    for _ in range(TABS_MAX):
        seen = step()
        if seen is None:
            # The way leads through the browser itself once, and through frames, which are processes of their own: one
            # that stands still keeps the focus for so long.
            outside += 1
            if outside == 2:
                break
            seen = until("Tab leads somewhere", step)
        if not seen["visible"]:
            # A page that grows at this moment is in its place with the next frame.
            seen = settled(page)
        if not seen["visible"]:
            return [f"focus is not to be seen: {seen['name']}"]
    return []


def settled(page):
    """What has the focus, when one sees it or when there is no more to wait for."""
    deadline = time.monotonic() + SETTLE_SECS
    while True:
        seen = page.evaluate(FOCUS)
        if (seen and seen["visible"]) or time.monotonic() > deadline:
            return seen or {"name": "nothing any more", "visible": False}
        time.sleep(0.05)


def everything(page):
    """The complaints about a page as it is now, in its present width and colours."""
    return [complaint for look in (CONTRAST, NAMES, SIDEWAYS) for complaint in page.evaluate(look)]
