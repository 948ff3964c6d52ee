
// The mailbox: what was read is remembered in this browser, and previews are as wide as one likes.
(() => {
  'use strict';
  const READ = 'posthaste-read';
  const WIDTH = 'posthaste-width';
  const REMEMBERED_MAX = 2000;
  const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* then for this page only */ } };

  let read = new Set((kept(READ) || '').split(' ').filter(Boolean));
  const remember = (ids) => {
    for (const id of ids) read.add(id);
    read = new Set([...read].slice(-REMEMBERED_MAX));
    keep(READ, [...read].join(' '));
  };
  const letters = () => [...document.querySelectorAll('[data-letter]')];

  const mark = () => {
    const opened = document.querySelector('[data-opened]');
    if (opened && !read.has(opened.dataset.opened)) remember([opened.dataset.opened]);
    let unread = 0;
    for (const letter of letters()) {
      const isUnread = !read.has(letter.dataset.letter);
      letter.classList.toggle('unread', isUnread);
      if (isUnread) unread += 1;
    }
    const count = document.querySelector('[data-unread-count]');
    if (count) count.textContent = unread ? `${unread} unread` : 'All read';
    if (count) document.title = document.title.replace(/^\(\d+\) /, '').replace(/^/, unread ? `(${unread}) ` : '');
  };

  const widen = () => {
    const chosen = kept(WIDTH) || 'desktop';
    for (const button of document.querySelectorAll('button[data-width]')) {
      button.setAttribute('aria-pressed', String(button.dataset.width === chosen));
    }
    for (const stage of document.querySelectorAll('.stage')) stage.dataset.width = chosen;
  };

  document.addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (!button) return;
    if ('readAll' in button.dataset) { remember(letters().map((letter) => letter.dataset.letter)); mark(); }
    if (button.dataset.width) { keep(WIDTH, button.dataset.width); widen(); }
  });
  addEventListener('storage', (event) => {
    if (event.key === READ) { read = new Set((event.newValue || '').split(' ').filter(Boolean)); mark(); }
  });
  for (const name of ['DOMContentLoaded', 'posthaste:shown']) {
    document.addEventListener(name, () => { mark(); widen(); });
  }
})();
