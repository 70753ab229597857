/* The answer panel of tfviz: what the decoder predicts at each position, and the candidates of beam search.
 *
 * This file is the body of js_on_load(element, props, trigger, watch, server); no library, no build step, no globals.
 *   props.value    made by tfviz/ui/components/answer.py, every number already in words; null hides the panel.
 *   props.labels   "answer.label.xxx" -> sentence, in the page's language.
 * On window:  sends   tfviz:select {trace, kind, query, replay}   "show this row": the Attention view follows;
 *             hears   tfviz:selected {trace, kind, query, replay}   the row the view shows, whoever chose it;
 *             sends   tfviz:target {text}   the page types it into the target box.
 * Cell i is what the decoder predicts at its position i: row i of the decoder's and the cross maps. */

const root = element.querySelector('.tv-answer');
const STEP_MS = 350;

let value = null, written = '';          // what is on show; its tokens, to tell a new answer from the same one
let heard = null;                        // where the Attention view is
let cells = [], selected = -1, timer = 0, restoring = false;
let ui = null;
const live = el('div', 'sr-only', null, { 'aria-live': 'polite' });
let beamsOpen = !matchMedia('(max-width: 1180px)').matches; // beside the answer; where there is no room for that, the map comes first

const t = key => (props.labels || {})[`answer.label.${key}`] || key;
const tell = (name, detail) => window.dispatchEvent(new CustomEvent(name, { detail }));

function el(tag, className, parent, attributes = {}) { // text of a visitor: textContent only
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, text] of Object.entries(attributes)) name === 'text' ? node.textContent = text : node.setAttribute(name, text);
  if (parent) parent.append(node);
  return node;
}

const words = (text, parent) => el('bdi', '', parent, { dir: 'auto', text });

function bar(prob, parent) {
  el('i', '', el('span', 'tv-bar', parent, { 'aria-hidden': 'true' })).style.width = `${100 * prob}%`;
}

/* ---- drawing ---- */

function show() {
  stop();
  value = props.value?.cells ? props.value : null;
  root.hidden = !value;
  if (!value) { root.replaceChildren(live); cells = []; written = live.textContent = ''; return; }
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  const tokens = JSON.stringify(value.cells.map(cell => cell.text)), fresh = tokens !== written;
  written = tokens;
  build(fresh);
  mark(heard && heard.trace === value.trace ? heard : null);
  restoring = true;
  if (focused) (root.querySelector(`[data-name="${focused}"]`) || ui.replay).focus({ preventScroll: true });
  restoring = false;
}

function build(fresh) {
  root.replaceChildren(live);
  const main = el('section', 'tv-answer-main', root, { 'aria-label': t('title') }), top = el('header', '', main);
  el('h2', '', top, { text: t('title') });
  const actions = el('div', 'tv-actions', top);
  ui = { replay: button('replay', actions, replay) };
  if (!value.written) button('rewrite', actions, () => tell('tfviz:target', { text: '' }));
  const line = el('div', 'tv-answer-line', main);
  el('p', `tv-answer-text${value.text.length > 48 ? ' long' : ''}`, line).append(words(value.text || t('empty')));
  el('p', value.unsure ? 'tv-unsure' : 'tv-sure', line, { text: value.confidence });
  ui.cells = el('div', `tv-cells${fresh ? ' fresh' : ''}`, main, { role: 'toolbar', 'aria-label': t('tokens') });
  cells = value.cells.map(cell);
  el('p', 'tv-words', main, { text: value.about });
  for (const box of [line.firstChild, ui.cells]) if (box.scrollHeight > box.clientHeight + 2) box.classList.add('more');
  if (line.querySelector('.more')) line.firstChild.tabIndex = 0; // so that the keyboard can scroll it
  ui.tip = el('div', 'tv-tip-card', root, { role: 'tooltip', id: 'tv-answer-tip', hidden: '' });
  if (value.candidates.length) drawCandidates();
  if (fresh) live.textContent = `${t('title')}: ${value.text}. ${value.confidence}`;
}

function button(name, parent, act) {
  const made = el('button', '', parent, { type: 'button', text: t(name), 'data-name': name });
  made.addEventListener('click', act);
  return made;
}

function cell({ text, piece, special, prob, label }, i) {
  const made = el('button', special ? 'special' : '', ui.cells,
    { type: 'button', tabindex: i ? -1 : 0, 'aria-pressed': 'false', 'aria-label': label, 'aria-describedby': 'tv-answer-tip', 'data-name': `cell-${i}` });
  made.style.setProperty('--i', i);
  const shown = el('span', 'tv-token', made);
  words(text, shown);
  if (piece) el('sub', '', shown, { text: piece[0] });
  bar(prob, made);
  made.addEventListener('click', () => { stop(); choose(i); });
  made.addEventListener('pointerenter', event => { if (event.pointerType !== 'touch') showTip(i); });
  made.addEventListener('pointerleave', hideTip);
  made.addEventListener('focus', () => { if (!restoring) showTip(i); });
  made.addEventListener('blur', hideTip);
  made.addEventListener('keydown', event => walk(event, i));
  return made;
}

function drawCandidates() {
  const box = el('details', 'tv-beams', root), top = el('summary', '', box);
  box.open = beamsOpen;
  box.addEventListener('toggle', () => { beamsOpen = box.open; });
  const title = el('div', '', top);
  el('h2', '', title, { text: t('beams') });
  el('span', '', title, { text: t('beams_note') });
  el('span', 'tv-percent', top, { text: t('probability'), 'aria-hidden': 'true' });
  el('span', 'tv-log', top, { text: t('log'), title: t('log_title'), 'aria-hidden': 'true' });
  const list = el('ol', '', box);
  for (const one of value.candidates) {
    const made = el('button', one.shown ? 'is-shown' : '', el('li', '', list), { type: 'button', title: t('use'), 'data-name': `candidate-${one.rank}` });
    if (one.shown) made.setAttribute('aria-current', 'true');
    el('span', 'tv-rank', made, { text: one.rank });
    const name = el('span', 'tv-name', made);
    words(one.text || t('empty'), name);
    if (one.greedy) el('span', 'tv-tag', name, { text: t('greedy'), title: t('greedy_title') });
    if (!one.finished) el('span', 'tv-tag', name, { text: t('unfinished'), title: t('unfinished_title') });
    bar(one.prob, made);
    el('span', 'tv-percent', made, { text: one.percent });
    el('span', 'tv-log', made, { text: one.log_prob, title: t('log_title') });
    made.disabled = !one.text;           // an empty target would mean: write one
    made.addEventListener('click', () => tell('tfviz:target', { text: one.text }));
  }
}

/* ---- the five most probable tokens of a cell ---- */

function showTip(i) {
  if (timer) return;
  const { position, alternatives } = value.cells[i], { tip } = ui;
  tip.replaceChildren(el('p', '', null, { text: position }));
  for (const one of alternatives) {
    const row = el('div', one.chosen ? 'chosen' : '', tip);
    words(one.text, row); bar(one.prob, row);
    el('span', 'tv-percent', row, { text: one.percent });
  }
  tip.hidden = false;
  const at = cells[i].getBoundingClientRect(), box = root.getBoundingClientRect();
  tip.style.left = `${Math.max(0, Math.min(at.left - box.left, root.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${at.bottom - box.top + 6}px`;
}

function hideTip() { if (ui) ui.tip.hidden = true; }

/* ---- choosing a cell, and following the view ---- */

function choose(i, replaying = false) {
  const decoding = heard && heard.trace === value.trace && heard.kind === 'decoder';
  markCell(i);
  tell('tfviz:select', { trace: value.trace, kind: decoding && !replaying ? 'decoder' : 'cross', query: i, replay: replaying });
}

function mark(at) { markCell(at && ['cross', 'decoder'].includes(at.kind) ? at.query : -1); }

function markCell(i) {
  cells.forEach((one, at) => {
    one.classList.toggle('is-query', at === i);
    one.setAttribute('aria-pressed', String(at === i));
    one.tabIndex = at === Math.max(0, i) ? 0 : -1;
  });
  selected = i;
  const one = cells[i], box = ui.cells;
  if (one && box.scrollHeight > box.clientHeight) box.scrollTop = Math.max(Math.min(box.scrollTop, one.offsetTop - 4), one.offsetTop + one.offsetHeight + 4 - box.clientHeight);
}

function walk(event, i) {                // one tab stop for the row: arrows, Home and End move the choice
  const last = cells.length - 1, step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === 'Escape') return hideTip();
  const to = event.key === 'Home' ? 0 : event.key === 'End' ? last : step ? Math.max(0, Math.min(i + step, last)) : -1;
  if (to < 0) return;
  event.preventDefault(); stop(); choose(to); cells[to].focus({ preventScroll: cells.length > 60 });
}

const onSelected = ({ detail }) => {
  if (!element.isConnected) return window.removeEventListener('tfviz:selected', onSelected);
  heard = detail;
  if (!value || detail.trace !== value.trace) return;
  if (timer && !detail.replay) stop();   // the reader went elsewhere
  mark(detail);
};
window.addEventListener('tfviz:selected', onSelected);

/* ---- replay ---- */

function replay() {
  if (timer) return stop();
  const last = cells.length - 1;
  if (matchMedia('(prefers-reduced-motion: reduce)').matches) return choose(last);
  hideTip();
  ui.cells.classList.remove('fresh');
  ui.replay.textContent = t('stop');
  const step = i => {
    cells.forEach((one, at) => one.classList.toggle('ahead', at > i));
    timer = i < last ? setTimeout(step, STEP_MS, i + 1) : 0;
    choose(i, i < last);
    if (i === last) stop();
  };
  step(0);
}

function stop() {
  clearTimeout(timer); timer = 0;
  for (const one of cells) one.classList.remove('ahead');
  if (ui) ui.replay.textContent = t('replay');
}

watch('value', show);
show();
