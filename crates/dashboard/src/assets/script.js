// The dashboard's script, the first of three files that are served as one. Every page works without it; this adds the
// switch of colours, copying, and keys.
(() => {
  'use strict';
  const root = document.documentElement;
  root.classList.add('js');

  // The chosen colours, before anything is drawn. A browser may forbid to keep things.
  const kept = () => { try { return localStorage.getItem('posthaste-theme'); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem('posthaste-theme', theme); } catch { /* then for this page only */ } };
  const chosen = kept();
  if (chosen === 'light' || chosen === 'dark') root.dataset.theme = chosen;

  const isDark = () => root.dataset.theme
    ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;

  // On a phone the pages are in one line that may be longer than the screen.
  document.addEventListener('DOMContentLoaded', () => {
    // A long replay goes on by itself, slowly enough to be stopped.
    const goOn = document.querySelector('form[data-go-on]');
    if (goOn) setTimeout(() => goOn.requestSubmit(), 700);
    const here = document.querySelector('.side nav [aria-current]');
    const line = here && here.closest('nav');
    if (line) line.scrollLeft = here.offsetLeft - (line.clientWidth - here.offsetWidth) / 2;
  });

  const copy = async (button) => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      // Without TLS browsers give no clipboard except on this machine: select it instead.
      const shown = button.parentElement.querySelector('code');
      if (shown) getSelection().selectAllChildren(shown);
      return;
    }
    const before = button.textContent;
    button.textContent = '✓';
    setTimeout(() => { button.textContent = before; }, 1200);
  };

  const help = () => {
    const dialog = document.getElementById('help');
    if (!dialog) return;
    if (dialog.open) dialog.close(); else dialog.showModal();
  };

  document.addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (button && 'copy' in button.dataset) copy(button);
    if (button && 'themeSwitch' in button.dataset) {
      root.dataset.theme = isDark() ? 'light' : 'dark';
      keep(root.dataset.theme);
    }
    if (button && 'help' in button.dataset) help();
    // A question that is open closes when one looks elsewhere.
    for (const open of document.querySelectorAll('details.confirm[open]')) {
      if (!open.contains(event.target)) open.open = false;
    }
  });

  // Choices that take effect at once.
  document.addEventListener('change', (event) => {
    const select = event.target;
    if (select.dataset.all) {
      for (const box of document.querySelectorAll(`input[type=checkbox][name="${select.dataset.all}"]`)) box.checked = select.checked;
    }
    if (select.tagName === 'SELECT' && ('go' in select.dataset || 'submit' in select.dataset)) select.form.requestSubmit();
  });

  // Fields left empty would only make the address long.
  document.addEventListener('submit', (event) => {
    if (event.target.method !== 'get') return;
    for (const field of event.target.elements) if (field.name && field.value === '') field.disabled = true;
  });
  addEventListener('pageshow', () => {
    for (const field of document.querySelectorAll('form[method=get] :disabled')) field.disabled = false;
  });

  const links = () => [...document.querySelectorAll('[data-list] tbody tr, ul[data-list] > li')]
    .map((line) => line.querySelector('td.subject a, a')).filter(Boolean);
  const move = (by) => {
    const all = links();
    let now = all.findIndex((link) => link.closest('tr, li').contains(document.activeElement));
    if (now < 0) now = all.findIndex((link) => link.hasAttribute('aria-current'));
    const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + by, 0), all.length - 1);
    if (all[next]) { all[next].focus(); all[next].closest('tr, li').scrollIntoView({ block: 'nearest' }); }
  };
  const go = (name) => {
    const link = [...document.querySelectorAll('.side nav a')].find((link) => link.getAttribute('href').endsWith(name));
    if (link) location.href = link.href;
  };

  let waitsForPlace = false;
  document.addEventListener('keydown', (event) => {
    const typing = event.target.closest('input, select, textarea, [contenteditable]');
    if (event.key === 'Escape') {
      const menus = document.querySelectorAll('details.confirm[open]');
      const back = document.querySelector('a[data-back]');
      if (typing) typing.blur();
      else if (!menus.length && back && !document.querySelector('dialog[open]')) back.click();
      for (const open of menus) open.open = false;
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (waitsForPlace) {
      waitsForPlace = false;
      if (event.key === 'e') go('/emails');
      if (event.key === 'd') go('/dead-letters');
      if (event.key === 'm') go('/mailbox');
      return;
    }
    const search = document.querySelector('[data-search]');
    if (event.key === '/' && search) { event.preventDefault(); search.focus(); }
    else if (event.key === 'j') move(1);
    else if (event.key === 'k') move(-1);
    else if (event.key === 'g') waitsForPlace = true;
    else if (event.key === '?') help();
  });
})();
