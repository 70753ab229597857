/* The Attention view of tfviz: tokens, all heads, and the map of the chosen head. One canvas component in gr.HTML.
 *
 * This file is the body of js_on_load(element, props, trigger, watch, server); no library, no build step, no globals.
 *   props.value    {trace, kinds, token_lists, select, first} or null: what is small, and the head at `select` in `first`.
 *                  Drawn by watch('value', ...).
 *   props.labels   "view.xxx" -> sentence, in the page's language.
 *   server.head / row / overview   one object in, one object out: matrices come one head at a time, as base64.
 *   server.grown   {trace, run, place} -> {value}: the same sentence with the tokens that a run of the Generate tab wrote
 *                  (window.tfviz.written, tfviz:written). It stands here instead of props.value, with `origin` and `written`.
 *   trigger('select', {kind, layer, head, query, key})   150 ms after the reader's last choice;  trigger('gone')   trace no longer kept.
 * On window: hears tfviz:select {trace, kind, query, replay} from the answer and shows that row at its largest weight, and
 * tfviz:select {trace, kind, layer, head, query, key} (any of the last four) from the other tabs; window.tfviz.scene is what they look at;
 * sends tfviz:selected {trace, kind, layer, head, query, key, replay} whenever another place is on show. `replay`: no choice of the reader's.
 * The root carries data-trace, and data-painted="<trace>/<kind>/<layer>/<head>" once that head's map is on the canvas.
 *
 * Weights are drawn from codes: 0 = blocked, 1..255 -> weight ((code - 1) / 254)^2, so ink grows with the square root
 * and small weights show. float32 replies are coded here; uint8 replies (large matrices) and thumbnails come coded. */

const root = element.querySelector('.tv-attention');
const KEEP_HEADS = 32, NOTIFY_MS = 150, SLOW_MS = 200, PATIENCE_MS = 150, LABEL_PX = 11;
const LEGEND = [0, 0.05, 0.25, 0.5, 1];

let value = null;                       // what Python sent last
let kind = null;                        // the entry of value.kinds on show
let sel = null;                         // {kind, layer, head, query, key}
let shown = null;                       // the head on the map: {id, codes, weights or null, rows, n_query, n_key, badges, caption}
let hoverCell = null, hoverHead = null; // what the pointer is on
let grid = null, plot = null;           // geometry of the two canvases
let palette = null;                     // code -> RGBA
let image = new ImageData(1, 1);         // pixels on their way to a canvas, kept between paints
let alone = '', joining = '';          // runs of the Generate tab: whose tokens the reader does not want here; that is asked for
let width = 0, generation = 0, tokensDrawn = '', touched = false; // touched: the reader has chosen, so Python's choice no longer counts
const heads = new Map(), pending = new Map(), remembered = new Map(), sheets = new Map(), strips = new Map();

/* ---- small helpers ---- */

const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const dpr = () => window.devicePixelRatio || 1;
const sleep = ms => new Promise(done => setTimeout(done, ms));
const css = name => getComputedStyle(root).getPropertyValue(name).trim();
const rect = (node, x, y, w, h) => { node.style.cssText = `transform:translate(${x}px,${y}px);width:${w}px;height:${h}px`; };
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };

function t(key, values = {}) {          // a sentence with its {values}; n = 1 has its own form
  const labels = props.labels || {}, one = values.n === 1 && labels[`view.${key}.one`];
  return (one || labels[`view.${key}`] || key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

function el(tag, className, parent, attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, text] of Object.entries(attributes)) name === 'text' ? node.textContent = text : node.setAttribute(name, text);
  if (parent) parent.append(node);
  return node;
}

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), out = new Uint8Array(text.length);
  for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

const floats = base64 => new Float32Array(bytes(base64).buffer);
const decode = code => code ? ((code - 1) / 254) ** 2 : NaN;

function encode(weights) {
  const codes = new Uint8Array(weights.length);
  for (let i = 0; i < codes.length; i++) { const w = weights[i]; codes[i] = w === w ? 1 + Math.round(254 * Math.sqrt(clamp(w, 0, 1))) : 0; }
  return codes;
}

function number(w, exact) {             // three significant digits; two when it was read from a code
  if (w === 0) return '0';
  if (Math.abs(w) < 0.001) return w.toExponential(exact ? 2 : 0).replace('e-', 'e\u2212');
  return exact ? (w >= 0.9995 && w < 1.0005 ? w.toFixed(3) : w.toPrecision(3)) : `\u2248 ${w.toPrecision(2)}`;
}

/* ---- colours: read from the tokens once per redraw ---- */

function oklab(hex) {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b), m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b),
    s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s, 0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}

function srgb([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3, s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s]
    .map(c => Math.round(255 * clamp(c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055, 0, 1)));
}

function readColours() {
  const stops = ['low', 'mid', 'high'].map(name => oklab(css(`--tv-scale-${name}`) || '#808080'));
  palette = new Uint32Array(256);       // palette[0] stays transparent: the hatching shows through
  for (let code = 1; code < 256; code++) {
    const at = 2 * (code - 1) / 254, i = Math.min(1, Math.floor(at));
    const [r, g, b] = srgb(stops[i].map((v, c) => v + (stops[i + 1][c] - v) * (at - i)));
    palette[code] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }
  const sample = Array.from({ length: 9 }, (_, i) => { const p = palette[1 + Math.round(254 * i / 8)]; return `rgb(${p & 255},${p >> 8 & 255},${p >> 16 & 255})`; });
  ui.scale.style.background = `linear-gradient(90deg,${sample})`;
  ui.mapCanvas.style.background = ui.blockedSwatch.style.background = hatching();
  (window.tfviz ??= {}).ink = { palette, hatching: hatching() }; // other drawings of weights take the same colours
}

function hatching() {                   // the sign for a blocked cell, on every screen, as a CSS background
  const tile = document.createElement('canvas'), size = tile.width = tile.height = Math.round(7 * dpr()), pen = tile.getContext('2d');
  pen.fillStyle = css('--tv-hatch-bg'); pen.fillRect(0, 0, size, size);
  pen.strokeStyle = css('--tv-hatch'); pen.lineWidth = dpr();
  pen.beginPath();
  for (const shift of [-size, 0, size]) { pen.moveTo(shift, 0); pen.lineTo(shift + size, size); }
  pen.stroke();
  return `url(${tile.toDataURL()}) 0 0 / 7px 7px`;
}

function inkOnto(canvas, codes, w, h) { // codes at native resolution, one pixel a cell
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  if (image.width !== w || image.height !== h) image = new ImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = palette[codes[i]];
  canvas.getContext('2d').putImageData(image, 0, 0);
}

/* ---- the page furniture, built once ---- */

function figure(className, parent) {    // title, note on the right, body, foot: the frame of every picture
  const box = el('section', `tv-figure ${className}`, parent), top = el('header', '', box);
  return { box, title: el('h2', '', top), note: el('span', '', top), body: el('div', '', box), foot: el('p', 'tv-foot', box) };
}

function build() {
  root.replaceChildren();
  const ui = { line: el('div', 'tv-line', root, { 'aria-hidden': 'true' }) };
  const empty = el('div', 'tv-empty', root);
  el('div', 'block', empty);
  el('p', '', el('div', 'block', empty), { text: t('empty') });
  ui.grown = el('div', 'tv-grown', root, { role: 'status' });
  ui.grownSaid = el('span', '', ui.grown);
  ui.grownButton = el('button', '', ui.grown, { type: 'button' });
  ui.grown.hidden = true;
  ui.strips = el('div', 'tv-below', root);
  ui.kinds = el('div', 'tv-kinds tv-below', root, { role: 'radiogroup', 'aria-label': t('kinds') });
  const views = el('div', 'tv-views', root);
  ui.heads = figure('tv-heads', views);
  ui.heads.body.className = 'tv-scroll';
  ui.grid = el('div', 'tv-grid', ui.heads.body, { tabindex: 0, role: 'application' });
  ui.gridCanvas = el('canvas', '', ui.grid, { 'aria-hidden': 'true' });
  ui.ticks = el('div', '', ui.grid, { 'aria-hidden': 'true' });
  ui.layerNow = el('span', 'tv-tick left now', ui.grid, { 'aria-hidden': 'true' });
  ui.headHover = el('div', 'tv-frame light', ui.grid);
  ui.headFrame = el('div', 'tv-frame', ui.grid);
  ui.headTip = el('div', 'tv-tip', ui.grid, { 'aria-hidden': 'true' });
  ui.map = figure('tv-one', views);
  ui.error = el('p', 'tv-error', ui.map.body, { role: 'alert' });
  ui.plot = el('div', 'tv-plot', ui.map.body);
  ui.rows = el('div', 'tv-axis queries', ui.plot, { 'aria-hidden': 'true' });
  ui.matrix = el('div', 'tv-map', ui.plot, { tabindex: 0, role: 'application' });
  ui.mapCanvas = el('canvas', '', ui.matrix, { 'aria-hidden': 'true' });
  ui.crossRow = el('div', 'tv-cross query', ui.matrix);
  ui.crossColumn = el('div', 'tv-cross key', ui.matrix);
  ui.cellHover = el('div', 'tv-frame light', ui.matrix);
  ui.cellFrame = el('div', 'tv-frame', ui.matrix);
  ui.columns = el('div', 'tv-axis keys', ui.plot, { 'aria-hidden': 'true' });
  ui.read = el('div', 'tv-read', ui.map.body);
  const legend = el('div', 'tv-legend', ui.map.body);
  el('span', '', legend, { text: t('legend') });
  const scale = el('div', 'tv-scale', legend);
  ui.scale = el('div', 'bar', scale);
  for (const w of LEGEND) el('span', 'tick', scale, { text: String(w).replace(/^0\./, '.') }).style.left = `${100 * Math.sqrt(w)}%`;
  ui.blocked = el('span', 'tv-blocked', legend);
  ui.blockedSwatch = el('span', 'swatch', ui.blocked);
  el('span', '', ui.blocked, { text: t('blocked_legend') });
  ui.badges = el('ul', 'tv-badges', ui.map.body);
  ui.caption = el('p', 'tv-caption', ui.map.body);
  ui.live = el('div', 'sr-only', root, { 'aria-live': 'polite' });
  ui.heads.title.textContent = t('heads');
  ui.map.note.textContent = t('direction');
  ui.map.title.title = ui.heads.title.title = t('counted');
  ui.error.hidden = ui.headTip.hidden = ui.headHover.hidden = ui.cellHover.hidden = true;
  return ui;
}

const native = document.createElement('canvas');
const ui = build();

/* ---- tokens ---- */

const listOf = side => value.token_lists[kind[`${side}_list`]].tokens;
const CJK = /^[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+$/, PICTURE = /\p{Extended_Pictographic}|\p{Regional_Indicator}/u;

function tokenLabel(token, className) {
  const label = el('span', `tv-label ${className} ${CJK.test(token.text) ? 'upright' : PICTURE.test(token.text) ? 'level' : ''}`);
  label.append(...tokenText(token));
  return label;
}

function tokenText(token) {             // text of a visitor: textContent only, direction isolated
  const parts = [el('bdi', '', null, { dir: 'auto', text: token.text })];
  if (token.piece) parts.push(el('sub', '', null, { text: token.piece[0] }));
  return parts;
}

function drawStrips() {
  strips.clear(); ui.strips.replaceChildren();
  const lists = Object.entries(value.token_lists);
  for (const [name, { title, tokens }] of lists) {
    const box = el('fieldset', 'tv-strip', ui.strips), legend = el('legend', lists.length > 1 ? '' : 'sr-only', box, { text: title || t('tokens') });
    const bar = el('div', 'tv-tokens', null, { role: 'toolbar', 'aria-label': legend.textContent }), chips = tokens.map((token, i) => chip(token, tokens[i + 1], i, bar));
    box.append(bar);
    const strip = { name, box, bar, chips, marked: {} };
    strips.set(name, strip);
    bar.addEventListener('click', event => { const button = event.target.closest('button'); if (button) pickToken(name, Number(button.dataset.i)); });
    rove(bar, () => chips, i => pickToken(name, i));
  }
  if (value.altered) el('p', 'tv-altered', ui.strips, { role: 'status', dir: 'auto', text: value.altered });
}

function chip(token, next, i, bar) {
  const later = token.piece && token.piece[0] > 1 && i > 0, piece = token.piece ? later ? 'piece later' : 'piece' : '';
  const names = [token.joined || later ? 'joined' : '', next && (next.joined || next.piece?.[0] > 1) ? 'joins' : '', piece, token.special ? 'special' : '', token.typed ? 'typed' : '', token.written ? 'written' : ''];
  const button = el('button', names.filter(Boolean).join(' '), bar, { type: 'button', title: token.title, tabindex: -1, 'aria-pressed': 'false' });
  button.dataset.i = i;
  if (later) button.setAttribute('aria-label', `${token.text} ${token.piece[0]}/${token.piece[1]}`);
  button.append(...(later ? tokenText(token).slice(1) : tokenText(token)));
  return button;
}

function rove(box, items, pick) {       // one tab stop for a row of buttons: arrows, Home and End move the choice
  box.addEventListener('keydown', event => {
    const all = items(), at = all.indexOf(event.target), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? all.length - 1 : step && at >= 0 ? clamp(at + step, 0, all.length - 1) : -1;
    if (to < 0) return;
    event.preventDefault(); pick(to); all[to].focus({ preventScroll: all.length > 60 });
  });
}

function pickToken(name, i) {
  if (name === kind.query_list) choose({ query: i });
  else if (name === kind.key_list) choose({ key: i });
}

function markStrips() {
  for (const strip of strips.values()) {
    const query = strip.name === kind.query_list ? sel.query : -1, key = strip.name === kind.key_list ? sel.key : -1;
    strip.box.disabled = query < 0 && key < 0;
    mark(strip, 'is-query', query); mark(strip, 'is-key', key);
    const stop = strip.chips[Math.max(0, query >= 0 ? query : key)];
    if (strip.stop && strip.stop !== stop) strip.stop.tabIndex = -1;
    if (stop && strip.stop !== stop) { stop.tabIndex = 0; if (strip.chips.length > 40) scrollTo(strip.bar, stop); }
    strip.stop = stop;
  }
}

function mark(strip, name, i) {
  const old = strip.marked[name], now = strip.chips[i];
  if (old === now) return;
  old?.classList.remove(name); now?.classList.add(name);
  strip.marked[name] = now;
  for (const button of [old, now]) button?.setAttribute('aria-pressed', String(/is-(query|key)/.test(button.className)));
}

function scrollTo(bar, button) {        // inside the strip only: the page must not jump
  const top = button.offsetTop, bottom = top + button.offsetHeight;
  if (top < bar.scrollTop) bar.scrollTop = top - 4;
  else if (bottom > bar.scrollTop + bar.clientHeight) bar.scrollTop = bottom - bar.clientHeight + 4;
}

function drawKinds() {
  ui.kinds.replaceChildren();
  ui.kinds.hidden = value.kinds.length < 2;
  for (const { key, label } of value.kinds) {
    const button = el('button', '', ui.kinds, { type: 'button', role: 'radio', text: label });
    button.dataset.kind = key;
    button.addEventListener('click', () => chooseKind(key));
  }
}

rove(ui.kinds, () => [...ui.kinds.children], i => chooseKind(value.kinds[i].key));

/* ---- all heads ---- */

const xOf = head => grid.left + head * (grid.w + grid.gap) + Math.floor(head / grid.group) * grid.between;
const yOf = layer => grid.top + layer * (grid.h + grid.gap);

function layoutGrid() {
  const { n_layers: layers, n_heads: n, n_kv_heads: kv, thumb } = kind, phone = width < 640, group = kv && kv < n ? n / kv : n;
  const roomW = (phone ? width : Math.min(400, width * 0.4)) - 22 - (n / group - 1) * 8, roomH = phone ? 9999 : 750, room = Math.min(roomH / layers, roomW / n);
  const aspect = thumb ? clamp(thumb[1] / thumb[0], 0.6, 1.7) : 1, gap = room > 44 ? 6 : room > 16 ? 3 : 1;
  let h = clamp(Math.floor(Math.min(roomH / layers - gap, (roomW / n - gap) / aspect)), 12, 84);
  if (thumb) { const whole = Math.round(h / thumb[0]) * thumb[0]; if (whole > 0.7 * h && whole < (phone ? 1.01 : 1.2) * h) h = whole; }
  grid = { left: 22, top: 16, w: Math.round(h * aspect), h, gap, group, between: n > group ? 8 : 0, layers, n };
  const w = xOf(n - 1) + grid.w + 3, tall = yOf(layers - 1) + grid.h + 3;
  Object.assign(ui.grid.style, { width: `${w}px`, height: `${tall}px` });
  ui.heads.box.style.setProperty('--tv-grid-width', `${w}px`);
  Object.assign(ui.gridCanvas, { width: Math.round(w * dpr()), height: Math.round(tall * dpr()) });
  Object.assign(ui.gridCanvas.style, { width: `${w}px`, height: `${tall}px` });
  ui.ticks.replaceChildren();
  for (let l = 0; l < layers; l += layers > 12 ? 5 : 1) el('span', 'tv-tick left', ui.ticks, { text: l }).style.top = `${yOf(l) + h / 2}px`;
  if (grid.between) for (let g = 0; g < kv; g++) groupTick(g);
  else for (let i = 0, step = grid.w < 14 ? 4 : grid.w < 18 ? 2 : 1; i < n; i += step) el('span', 'tv-tick top', ui.ticks, { text: i }).style.left = `${xOf(i) + grid.w / 2}px`;
  ui.grid.setAttribute('aria-label', t('grid_label', { layers, heads: n }));
  const parts = [`${t('layers', { n: layers })} \u00d7 ${t('heads_count', { n })}`];
  if (grid.between) parts.push(t('per_group', { n: group }));
  setText(ui.heads.note, parts.join(' \u00b7 '));
  const { n_query: queries, n_key: keys } = kind, [rows, columns] = thumb ?? [queries, keys];
  const block = { down: Math.ceil(queries / rows), across: Math.ceil(keys / columns) };  // as thumbnails.py pools
  setText(ui.heads.foot, block.down * block.across === 1 ? '' : t('reduced', { queries, keys, rows, columns, ...block }));
}

function groupTick(g) {
  const room = grid.group * (grid.w + grid.gap) - grid.gap, node = el('span', 'tv-tick top group', ui.ticks, { text: room < 30 ? g : t('group', { n: g }) });
  Object.assign(node.style, { left: `${xOf(g * grid.group)}px`, width: `${room}px` });
}

function paintGrid() {
  const ctx = ui.gridCanvas.getContext('2d'), sheet = sheets.get(kind.key), scale = dpr();
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, ui.gridCanvas.width, ui.gridCanvas.height);
  ctx.strokeStyle = css('--tv-line'); ctx.lineWidth = 1;
  ctx.imageSmoothingEnabled = Boolean(sheet) && grid.h * scale < sheet.rows; ctx.imageSmoothingQuality = 'medium';
  for (let l = 0; l < grid.layers; l++) {
    if (sheet) inkOnto(native, sheet.codes.subarray(l * grid.n * sheet.rows * sheet.cols), sheet.cols, sheet.rows * grid.n);
    for (let i = 0, y = yOf(l); i < grid.n; i++) {
      if (sheet) ctx.drawImage(native, 0, i * sheet.rows, sheet.cols, sheet.rows, xOf(i), y, grid.w, grid.h);
      ctx.strokeRect(xOf(i) - 0.5, y - 0.5, grid.w + 1, grid.h + 1);
    }
  }
}

async function loadThumbs(of) {         // small ones came with the value, large ones are asked for
  const { trace } = value;
  let { thumbs, thumb } = of;
  if (!thumbs) {
    const reply = await server.overview({ trace, kind: of.key }).catch(() => null);
    if (!reply || reply.gone || !reply.thumbs || !value || value.trace !== trace) return;
    ({ thumbs, thumb } = reply);
  }
  sheets.set(of.key, { codes: bytes(thumbs), rows: thumb[0], cols: thumb[1] });
}

function frameHead() {
  if (!grid) return;                    // another tab is open, and this one was never seen
  const pad = 3;
  rect(ui.headFrame, xOf(sel.head) - pad, yOf(sel.layer) - pad, grid.w + 2 * pad, grid.h + 2 * pad);
  setText(ui.layerNow, String(sel.layer));
  ui.layerNow.style.top = `${yOf(sel.layer) + grid.h / 2}px`;
  frameHoverHead();
}

function frameHoverHead() {
  ui.headHover.hidden = ui.headTip.hidden = !hoverHead;
  if (!hoverHead) return;
  const x = xOf(hoverHead.head), y = yOf(hoverHead.layer), right = hoverHead.head >= grid.n / 2; // the tip stays inside the grid
  rect(ui.headHover, x - 2, y - 2, grid.w + 4, grid.h + 4);
  setText(ui.headTip, t('head_small', hoverHead));
  ui.headTip.style.cssText = `top:${y < 40 ? y + grid.h + 5 : y - 26}px;${right ? `right:${xOf(grid.n - 1) - x + 1}px` : `left:${x - 2}px`}`;
}

function headAt(event) {
  const box = ui.grid.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const layer = Math.floor((y - grid.top) / (grid.h + grid.gap));
  let head = -1;
  for (let i = 0; i < grid.n; i++) if (x >= xOf(i) - grid.gap / 2) head = i;
  return head < 0 || x > xOf(head) + grid.w + grid.between || layer < 0 || layer >= grid.layers ? null : { layer, head };
}

const sameHead = (a, b) => a?.layer === b?.layer && a?.head === b?.head;

function seeHead(layer, head) {         // keep the framed head in sight inside its own scrolling box
  const box = ui.heads.body;
  if (!grid) return;
  if (box.scrollHeight <= box.clientHeight && box.scrollWidth <= box.clientWidth) return;
  box.scrollTop = clamp(box.scrollTop, yOf(layer) + grid.h - box.clientHeight + 12, yOf(layer) - 20);
  box.scrollLeft = clamp(box.scrollLeft, xOf(head) + grid.w - box.clientWidth + 12, xOf(head) - 24);
}

/* ---- one head's map ---- */

function layoutMap() {
  const queries = listOf('query'), keys = listOf('key'), nq = kind.n_query, nk = kind.n_key, phone = width < 640;
  const gutter = labelRoom(queries, phone ? 84 : 130), drop = labelRoom(keys, 104), total = ui.map.box.clientWidth || width;
  const roomW = Math.min(total - gutter - 7, 660), roomH = phone ? Math.max(roomW, 280) : Math.max(nq, nk) <= 16 ? 560 : 640;
  const stretch = Math.max(nq / nk, nk / nq) > 3 ? 4 : 1, side = Math.min(roomW / nk, roomH / nq, 72);
  const [cw, ch] = [Math.min(roomW / nk, side * stretch), Math.min(roomH / nq, side * stretch)].map(snap);
  const w = Math.round(cw * nk), h = Math.round(ch * nq);
  plot = { w, h, cw: w / nk, ch: h / nq, nq, nk };
  Object.assign(ui.mapCanvas.style, { width: `${w}px`, height: `${h}px` });
  Object.assign(ui.matrix.style, { width: `${w}px`, height: `${h}px` });
  Object.assign(ui.rows.style, { width: `${gutter}px`, height: `${h}px` });
  Object.assign(ui.columns.style, { width: `${w}px`, height: `${drop}px` });
  ui.map.box.firstChild.style.maxWidth = `${Math.max(gutter + 6 + w, 340)}px`;
  axis(ui.rows, queries, plot.ch, 'top'); axis(ui.columns, keys, plot.cw, 'left');
  ui.crossRow.hidden = ui.crossColumn.hidden = Math.min(plot.cw, plot.ch) >= 14;
}

function snap(cell) {                   // whole device pixels where that costs little: every cell then looks alike
  const unit = 1 / dpr(), whole = Math.floor(cell / unit) * unit;
  return whole >= 0.86 * cell ? whole : cell;
}

function labelRoom(tokens, most) {
  let longest = 2;
  for (const { text, piece } of tokens) {
    let n = piece ? 1 : 0;
    for (const c of text) n += c > '\u2e80' ? 1.75 : 1;
    if (n > longest) longest = n;
  }
  return Math.min(most, Math.ceil(longest * 7.7) + 6);
}

function axis(box, tokens, cell, side) {
  const step = cell >= LABEL_PX ? 1 : Math.ceil(15 / cell), made = document.createDocumentFragment();
  box.classList.toggle('thin', step > 1); box.dataset.step = step;
  for (let i = 0; i < tokens.length; i += step) {
    const label = tokenLabel(tokens[i], tokens[i].written ? 'written' : '');
    label.style[side] = `${(i + 0.5) * cell}px`;
    made.append(label);
  }
  box.replaceChildren(made);
}

function pointAt(box, tokens, cell, side, i, className) { // the one chosen (or hovered) label, above its neighbours
  const under = `under-${className}`, step = Number(box.dataset.step);
  box.querySelector(`.${className}`)?.remove();
  for (const old of box.querySelectorAll(`.${under}`)) old.classList.remove(under);
  if (i < 0 || !tokens[i]) return;
  for (const near of [Math.floor(i / step), Math.ceil(i / step)]) if (Math.abs(near * step - i) * cell < 13) box.children[near]?.classList.add(under);
  const label = tokenLabel(tokens[i], className);
  label.style[side] = `${(i + 0.5) * cell}px`;
  box.append(label);
}

function frameCell() {
  if (!plot) return markStrips();
  pointAt(ui.rows, listOf('query'), plot.ch, 'top', sel.query, 'chosen');
  pointAt(ui.columns, listOf('key'), plot.cw, 'left', sel.key, 'chosen');
  boxCell(ui.cellFrame, sel.query, sel.key, 0);
  const [tall, wide] = [plot.ch, plot.cw].map(cell => cell < 4 ? 2 : cell + 2);
  rect(ui.crossRow, 0, (sel.query + 0.5) * plot.ch - tall / 2, plot.w, tall);
  rect(ui.crossColumn, (sel.key + 0.5) * plot.cw - wide / 2, 0, wide, plot.h);
  markStrips(); readout();
}

function frameHoverCell() {
  const at = hoverCell || { query: -1, key: -1 };
  pointAt(ui.rows, listOf('query'), plot.ch, 'top', at.query === sel.query ? -1 : at.query, 'hover');
  pointAt(ui.columns, listOf('key'), plot.cw, 'left', at.key === sel.key ? -1 : at.key, 'hover');
  ui.cellHover.hidden = !hoverCell;
  if (hoverCell) boxCell(ui.cellHover, at.query, at.key, 0);
  readout();
}

function boxCell(node, query, key, pad) { // never smaller than one can see
  const w = Math.max(plot.cw + 2 * pad, 9), h = Math.max(plot.ch + 2 * pad, 9);
  rect(node, (key + 0.5) * plot.cw - w / 2, (query + 0.5) * plot.ch - h / 2, w, h);
}

function paintMap() {
  if (!shown || !plot) return;
  const side = Math.ceil(Math.max(shown.n_key / (plot.w * dpr()), shown.n_query / (plot.h * dpr()))); // cells a screen pixel
  const { codes, n_key, n_query } = side > 1 ? largest(shown, side) : shown;
  inkOnto(ui.mapCanvas, codes, n_key, n_query); // one pixel a cell; the browser only ever makes it larger, so it stays crisp
}

function largest(head, side) {          // a matrix with more cells than pixels: the largest weight of each block, so that no line fades
  if (head.pooled?.side === side) return head.pooled;
  const { codes, n_key: nk, n_query: nq } = head, width = Math.ceil(nk / side), height = Math.ceil(nq / side), out = new Uint8Array(width * height);
  for (let i = 0; i < nq; i++) {
    const to = Math.floor(i / side) * width, from = i * nk;
    for (let j = 0; j < nk; j++) { const at = to + Math.floor(j / side); if (codes[from + j] > out[at]) out[at] = codes[from + j]; }
  }
  return head.pooled = { side, codes: out, n_key: width, n_query: height };
}

function cellAt(event) {
  const box = ui.matrix.getBoundingClientRect();
  return { query: clamp(Math.floor((event.clientY - box.top) / plot.ch), 0, plot.nq - 1), key: clamp(Math.floor((event.clientX - box.left) / plot.cw), 0, plot.nk - 1) };
}

/* ---- reading numbers ---- */

function weightAt({ rows, weights, codes, n_key: n }, query, key) {
  const row = rows.get(query);
  if (row) return { w: row[key], exact: true };
  return weights ? { w: weights[query * n + key], exact: true } : { w: decode(codes[query * n + key]), exact: false };
}

function sumOf(from, line) {            // of a row or a column, over the cells that are not blocked
  const { n_query: nq, n_key: nk } = from, across = 'query' in line;
  let sum = 0, exact = true;
  for (let i = 0; i < (across ? nk : nq); i++) {
    const cell = weightAt(from, across ? line.query : i, across ? i : line.key);
    if (cell.w === cell.w) sum += cell.w;
    exact &&= cell.exact;
  }
  return !exact ? `\u2248 ${sum.toPrecision(2)}` : across ? sum.toFixed(3) : number(sum, true);
}

function readout() {
  const { query, key } = hoverCell || sel;
  if (!shown || query >= shown.n_query || key >= shown.n_key) return ui.read.replaceChildren();
  const { w, exact } = weightAt(shown, query, key), from = listOf('query')[query], to = listOf('key')[key];
  const figure = w === w ? number(w, exact) : t('blocked');
  const sums = [t('row_sum', { value: sumOf(shown, { query }) }), t('column_sum', { value: sumOf(shown, { key }) })];
  const a = el('span', 'query'), b = el('span', 'key');
  a.append(...tokenText(from)); b.append(...tokenText(to));
  ui.read.replaceChildren(a, ` (${query}) \u2192 `, b, ` (${key}): `, el('b', '', null, { text: figure }), ...sums.map(text => el('span', 'more', null, { text: ` \u00b7 ${text}` })));
  if (!exact) wantRow(shown, query);
}

let rowTimer = 0, rowBusy = false;
function wantRow(of, query) {           // the exact row, once the reader rests on it; one request at a time
  clearTimeout(rowTimer);
  rowTimer = setTimeout(async () => {
    if (rowBusy) return wantRow(of, query);
    rowBusy = true;
    const reply = await server.row({ ...of.where, query }).catch(() => null);
    rowBusy = false;
    if (reply?.gone) return gone();
    if (!reply?.weights) return;
    of.rows.set(query, floats(reply.weights));
    if (shown === of && (hoverCell || sel).query === query) readout();
  }, 60);
}

const announce = () => setText(ui.live, `${t('head_small', sel)}. ${ui.read.textContent}`);

/* ---- fetching heads ---- */

const idOf = ({ kind: k, layer, head }, trace = value.trace) => `${trace}/${k}/${layer}/${head}`;

function fetchHead(at, trace = value.trace) { // from the cache, from a request under way, or from the server
  const id = idOf(at, trace), where = { trace, kind: at.kind, layer: at.layer, head: at.head };
  if (heads.has(id)) { const kept = heads.get(id); heads.delete(id); heads.set(id, kept); return Promise.resolve(kept); }
  if (!pending.has(id)) pending.set(id, server.head(where).then(reply => keepHead(id, where, reply)).finally(() => pending.delete(id)));
  return pending.get(id);
}

function keepHead(id, where, reply) {
  if (!reply || reply.gone || reply.error) return reply || {};
  const weights = reply.format === 'f32' ? floats(reply.weights) : null;
  const codes = weights ? encode(weights) : reply.lower ? fromLower(bytes(reply.weights), reply.n_query) : bytes(reply.weights);
  const head = { ...reply, id, where, codes, weights, rows: new Map(), blocked: codes.includes(0) };
  heads.set(id, head);
  for (const old of heads.keys()) if (heads.size > KEEP_HEADS) heads.delete(old);
  return head;
}

function fromLower(packed, n) {         // a causal matrix may travel as its lower triangle only: row i has i + 1 cells
  const codes = new Uint8Array(n * n);
  for (let i = 0, at = 0; i < n; at += ++i) codes.set(packed.subarray(at, at + i + 1), i * n);
  return codes;
}

async function showHead() {             // only while somebody looks; only the newest choice paints; a held arrow key does not queue up requests
  if (!root.clientWidth) return;
  const id = idOf(sel), mine = generation;
  if (heads.has(id)) return paintHead(heads.get(id));
  while (pending.size > 2) { await Promise.race(pending.values()).catch(() => {}); if (mine !== generation || id !== idOf(sel)) return; }
  const slow = setTimeout(() => { root.dataset.slow = ''; }, SLOW_MS);
  const reply = await fetchHead(sel).catch(() => ({ error: t('error') }));
  clearTimeout(slow);
  if (mine !== generation || id !== idOf(sel)) return;
  delete root.dataset.slow;
  if (reply.codes) paintHead(reply); else fail(reply);
}

function paintHead(head) {
  delete root.dataset.slow;
  shown = head;
  paintMap(); frameTexts(); readout();
  root.dataset.painted = head.id;
  idle(prefetchNeighbours, 300);
}

function fail(reply) {
  if (reply.gone) return gone();
  setText(ui.error, reply.error || t('error'));
  ui.error.hidden = false;
}

function frameTexts() {                 // what belongs to the head painted, not to the one asked for
  ui.error.hidden = true;
  setText(ui.map.title, t('head', sel));
  ui.matrix.setAttribute('aria-label', t('map_label', { ...sel, queries: kind.n_query, keys: kind.n_key }));
  ui.blocked.hidden = !shown.blocked;
  const badges = (shown.badges || []).map(({ state, text, title }) => {
    const item = el('li', state, null, title ? { title } : {});
    if (state !== 'note') { el('b', '', item, { text: state === 'ok' ? '\u2713' : '!', 'aria-hidden': 'true' }); el('span', 'sr-only', item, { text: t(`badge_${state}`) }); }
    item.append(text);
    return item;
  });
  ui.badges.replaceChildren(...badges);
  ui.badges.hidden = !badges.length;
  setText(ui.caption, shown.caption || ''); ui.caption.hidden = !shown.caption;
}

let idleTimer = 0;
function idle(what, after) { clearTimeout(idleTimer); idleTimer = setTimeout(what, after); }

async function prefetch(at) {           // quietly, one at a time, and never in the way of a choice
  if (pending.size || heads.has(idOf(at))) return;
  await fetchHead(at).catch(() => {});
  if (value && hoverHead && !heads.has(idOf({ kind: sel.kind, ...hoverHead })) && at.kind === sel.kind && !sameHead(at, hoverHead)) prefetch({ kind: sel.kind, ...hoverHead });
}

async function prefetchNeighbours() {
  const mine = generation, from = idOf(sel), { layer, head } = sel;
  for (const [l, h] of [[layer, head + 1], [layer, head - 1], [layer + 1, head], [layer - 1, head]]) {
    if (!element.isConnected || mine !== generation || from !== idOf(sel)) return;
    if (l >= 0 && h >= 0 && l < kind.n_layers && h < kind.n_heads) await prefetch({ kind: sel.kind, layer: l, head: h });
  }
}

/* ---- choosing ---- */

let notifyTimer = 0;
function choose(change, replay = false) {
  const before = idOf(sel);
  Object.assign(sel, change);
  remembered.set(sel.kind, { ...sel });
  if (idOf(sel) === before) frameCell();
  else { frameHead(); seeHead(sel.layer, sel.head); showHead(); }
  tell(replay);
  if (!replay) touched = true;
  clearTimeout(notifyTimer);
  if (!replay) notifyTimer = setTimeout(() => { trigger('select', { ...sel }); announce(); }, NOTIFY_MS);
}

function valid(select, among = value) { // clamp whatever comes into what this value has
  const of = among.kinds.find(k => k.key === select?.kind) || among.kinds[0], inside = (x, n, otherwise) => clamp(Number.isInteger(x) ? x : otherwise, 0, Math.max(0, n - 1));
  const { layer, head, query, key } = select || {};
  return { kind: of.key, layer: inside(layer, of.n_layers, 0), head: inside(head, of.n_heads, 0), query: inside(query, of.n_query, of.n_query - 1), key: inside(key, of.n_key, 0) };
}

function tell(replay) {                 // the page's other parts look at what this view shows
  (window.tfviz ??= {}).scene = { trace: value.trace, origin: value.origin, kinds: value.kinds, token_lists: value.token_lists, sel: { ...sel } };
  window.dispatchEvent(new CustomEvent('tfviz:selected', { detail: { trace: value.trace, ...sel, replay } }));
}

function move({ trace, kind: key, replay = false, ...to }) { // to a layer, head, query or key that another part names
  if (trace !== value?.trace || !value.kinds.some(k => k.key === key)) return;
  if (key !== kind.key) chooseKind(key, replay);
  choose(valid({ ...sel, ...to }), replay);
}

async function showRow({ trace, kind: key, query, replay = false }) {
  if (trace !== value?.trace || !value.kinds.some(k => k.key === key)) return;
  if (key !== kind.key) chooseKind(key, replay);
  choose({ query: clamp(query, 0, kind.n_query - 1) }, replay);
  const id = idOf(sel), { codes, n_key } = await fetchHead(sel).catch(() => ({}));
  if (!codes || trace !== value?.trace || id !== idOf(sel) || sel.query !== query) return;
  const row = codes.subarray(query * n_key, (query + 1) * n_key);
  choose({ key: row.indexOf(Math.max(...row)) }, replay);
}

function chooseKind(key, replay = false) {
  if (key === kind.key) return;
  const from = sel;
  sel = valid(remembered.get(key) || { ...from, kind: key });
  useKind(); layout(); showHead();
  choose({}, replay);
}

function useKind() {
  kind = value.kinds.find(k => k.key === sel.kind);
  hoverCell = hoverHead = null;
  for (const button of ui.kinds.children) {
    const on = button.dataset.kind === kind.key;
    button.setAttribute('aria-checked', String(on)); button.tabIndex = on ? 0 : -1;
  }
}

/* ---- drawing everything ---- */

function layout() {
  width = root.clientWidth;
  if (!kind || !width) return;
  for (const { bar } of strips.values()) bar.classList.toggle('long', bar.scrollHeight > 130);
  layoutGrid(); layoutMap();
  if (shown && (shown.n_query !== kind.n_query || shown.n_key !== kind.n_key)) { shown = null; delete root.dataset.painted; }
  const mine = kind;
  if (sheets.has(mine.key)) paintGrid();
  else { paintGrid(); loadThumbs(mine).then(() => { if (kind === mine) paintGrid(); }); }
  frameHead(); paintMap(); frameCell(); frameHoverCell(); seeHead(sel.layer, sel.head);
}

async function show(next = props.value) { // a new value: wait a moment for its first map, so that picture and labels change together
  const mine = ++generation;
  for (const timer of [idleTimer, notifyTimer, rowTimer]) clearTimeout(timer);
  delete root.dataset.slow;
  if (!next?.kinds?.length) return showNothing();
  const own = touched && next.kinds.some(k => k.key === sel.kind); // a model with other kinds of attention opens where Python says
  const select = valid(own ? sel : next.select || sel, next), fresh = next.trace !== value?.trace;
  if (next.first && next.select) { const { kind: k, layer, head } = next.select, where = { trace: next.trace, kind: k, layer, head }; keepHead(idOf(where, next.trace), where, next.first); }
  if (fresh && kind) await Promise.race([fetchHead(select, next.trace).catch(() => {}), sleep(PATIENCE_MS)]);
  if (mine !== generation) return;
  value = next; sel = select;
  if (fresh) forget();
  root.removeAttribute('data-empty');
  const tokens = JSON.stringify(next.token_lists);
  if (tokens !== tokensDrawn) { drawStrips(); tokensDrawn = tokens; }
  drawKinds(); useKind(); layout();
  root.dataset.trace = value.trace;
  showHead(); tell(false); sayGrown();
}

/* ---- a sentence that was gone on with (assets/js/views/decode.js) ---- */

const written = () => { const run = window.tfviz?.written; return run && run.trace === props.value?.trace ? run : null; };

async function join() {                 // the tokens that were generated come in when somebody looks
  const run = written();
  sayGrown();
  if (!run || !root.clientWidth || [alone, joining, value?.run].includes(run.run)) return;
  joining = run.run;
  const reply = await server.grown({ ...run, place: sel }).catch(() => null);
  joining = '';
  if (reply?.value && written() === run && alone !== run.run) show({ ...reply.value, run: run.run });
}

function sayGrown() {
  const run = written();
  ui.grown.hidden = !run || !value || (!value.origin && alone !== run.run);
  if (ui.grown.hidden) return;
  setText(ui.grownSaid, value.origin ? t('grown', { n: value.written }) : t('grown_alone'));
  setText(ui.grownButton, t(value.origin ? 'grown_hide' : 'grown_show'));
}

ui.grownButton.addEventListener('click', () => {
  if (value.origin) { alone = value.run; show(); } else { alone = ''; join(); }
});

function gone() {                       // of a sentence that was gone on with, its beginning may still be there
  if (!value?.origin) return trigger('gone');
  alone = value.run; show();
}

function showNothing() {
  value = kind = null; tokensDrawn = ''; forget();
  delete root.dataset.trace;
  root.setAttribute('data-empty', '');
}

function forget() {                     // everything that belonged to the trace before
  remembered.clear(); sheets.clear();
  shown = null; delete root.dataset.painted;
  ui.mapCanvas.width += 0;
}

/* ---- pointer and keyboard ---- */

ui.grid.addEventListener('pointermove', event => {
  const at = event.pointerType === 'touch' || !kind ? null : headAt(event);
  if (sameHead(at, hoverHead)) return;
  hoverHead = at; frameHoverHead();
  if (at) prefetch({ kind: sel.kind, ...at });
});
ui.grid.addEventListener('pointerleave', () => { hoverHead = null; if (kind) frameHoverHead(); });
ui.grid.addEventListener('pointerdown', event => { const at = kind && headAt(event); if (at) fetchHead({ kind: sel.kind, ...at }).catch(() => {}); });
ui.grid.addEventListener('click', event => { const at = headAt(event); if (at) choose(at); });
ui.grid.addEventListener('keydown', event => {
  const { layer, head } = sel, [L, H] = [kind.n_layers - 1, kind.n_heads - 1];
  const to = { ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head], Home: [0, 0], End: [L, H],
    PageUp: [layer - 5, head], PageDown: [layer + 5, head] }[event.key];
  if (!to) return;
  event.preventDefault(); choose({ layer: clamp(to[0], 0, L), head: clamp(to[1], 0, H) });
});

function readAt(event) {
  const at = cellAt(event);
  if (hoverCell && at.query === hoverCell.query && at.key === hoverCell.key) return;
  hoverCell = at; frameHoverCell();
}
function stopReading() { hoverCell = null; if (kind) frameHoverCell(); }

ui.matrix.addEventListener('pointermove', event => { if (kind && plot) readAt(event); });
ui.matrix.addEventListener('pointerleave', stopReading);
ui.matrix.addEventListener('pointercancel', stopReading);
ui.matrix.addEventListener('click', event => { choose(cellAt(event)); if (event.pointerType === 'touch') stopReading(); });
ui.matrix.addEventListener('keydown', event => {
  const { query, key } = sel, by = event.shiftKey ? 10 : 1, [Q, K] = [plot.nq - 1, plot.nk - 1];
  const to = { ArrowLeft: [query, key - by], ArrowRight: [query, key + by], ArrowUp: [query - by, key], ArrowDown: [query + by, key],
    Home: [event.ctrlKey ? 0 : query, 0], End: [event.ctrlKey ? Q : query, K], PageUp: [query - 10, key], PageDown: [query + 10, key] }[event.key];
  if (!to) return;
  event.preventDefault(); hoverCell = null; choose({ query: clamp(to[0], 0, Q), key: clamp(to[1], 0, K) }); frameHoverCell();
});

const themes = new MutationObserver(() => {
  if (!element.isConnected) return themes.disconnect();
  readColours();
  if (kind && width) { paintGrid(); paintMap(); }
});
themes.observe(document.body, { attributes: true, attributeFilter: ['class'] });
new ResizeObserver(() => { if (root.clientWidth !== width) { layout(); if (kind) showHead(); join(); } }).observe(root);

const onSelect = ({ detail }) => { if (element.isConnected) 'replay' in detail ? showRow(detail) : move(detail); else window.removeEventListener('tfviz:select', onSelect); };
window.addEventListener('tfviz:select', onSelect);
const onGone = () => { if (element.isConnected) gone(); else window.removeEventListener('tfviz:gone', onGone); };
window.addEventListener('tfviz:gone', onGone);

const onWritten = () => { if (element.isConnected) join(); else window.removeEventListener('tfviz:written', onWritten); };
window.addEventListener('tfviz:written', onWritten);

readColours();
watch('value', () => show());
show();
