/* The hidden units of one token's feed-forward network: all of them as a grid, the strongest as bars, and the chosen one
 * over the sentence. The whole of it reacts here, without asking the server.
 *
 * window.tfviz.views.units(box, data, api). data, from tfviz/ui/tabs/layers/feed_forward.py (arrays in base64):
 *   row: FP32 values of this token;  units: those with values over the sentence, strongest first;  over: int16
 *   [unit, token] times step: FP32 [unit];  tokens, first, query;  id: of the layer;  top;  words. */
(() => {
  const states = new WeakMap();           // box -> what is drawn and chosen in it
  const HEIGHT = 280, SMALLEST = 7, LARGEST = 22; // of the grid and of a cell, in pixels

  const { el } = window.tfviz;

  const unpack = (text, Kind) => new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();
  const digits = v => v === 0 ? '0' : Math.abs(v) < 0.001 ? v.toExponential(2).replace('e-', 'e\u2212') : v.toPrecision(3);
  const said = v => digits(v).replace('-', '\u2212');

  function build(box) {
    const state = { box };
    const root = el('div', 'tv-units', box);
    state.grid = el('div', 'tv-units-grid', root);
    state.canvas = el('canvas', '', state.grid, { role: 'img' });
    state.frame = el('i', 'tv-units-frame', state.grid, { 'aria-hidden': 'true' });
    state.tip = el('span', 'tv-units-tip', state.grid, { 'aria-hidden': 'true' });
    state.tip.hidden = true;
    const list = el('div', 'tv-units-list', root);
    state.topTitle = el('h4', '', list);
    state.top = el('div', 'tv-units-top', list, { role: 'group' });
    const over = el('div', 'tv-units-over', root);
    state.overTitle = el('h4', '', over, { 'aria-live': 'polite' });
    state.tokens = el('div', 'tv-units-tokens', over, { role: 'group' });
    state.canvas.addEventListener('pointermove', event => hover(state, event));
    state.canvas.addEventListener('pointerleave', () => { state.tip.hidden = true; });
    state.canvas.addEventListener('click', event => { const unit = under(state, event); if (unit !== null) choose(state, unit); });
    new ResizeObserver(() => paint(state)).observe(state.grid);
    return state;
  }

  /* ---- the grid ---- */

  function paint(state) {
    const width = state.grid.clientWidth, n = state.row.length;
    if (!width) return;
    state.columns = columns(width, n);
    state.rows = Math.ceil(n / state.columns);
    state.cell = width / state.columns;
    const { canvas } = state, density = window.devicePixelRatio || 1, height = state.rows * state.cell;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * density); canvas.height = Math.round(height * density);
    const pen = canvas.getContext('2d'), gap = state.cell > 5 ? 1 : 0;
    const [below, zero, above] = ['below', 'zero', 'above'].map(name => rgb(css(`--tv-${name}`)));
    const largest = state.row.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-30);
    pen.scale(density, density);
    state.row.forEach((v, unit) => {
      const share = Math.sqrt(Math.abs(v) / largest), to = v < 0 ? below : above;
      pen.fillStyle = `rgb(${zero.map((c, i) => Math.round(c + (to[i] - c) * share))})`;
      pen.fillRect((unit % state.columns) * state.cell, Math.floor(unit / state.columns) * state.cell, state.cell - gap, state.cell - gap);
    });
    frame(state);
  }

  function columns(width, n) {            // a multiple of 8, so that cells keep a size that can be hit
    const wanted = Math.sqrt(n * width / HEIGHT);
    const within = Math.max(width / LARGEST, Math.min(width / SMALLEST, wanted));
    return Math.min(n, Math.max(8, Math.round(within / 8) * 8));
  }

  const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));

  function under(state, event) {
    const place = state.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / state.cell), line = Math.floor((event.clientY - place.top) / state.cell);
    const unit = line * state.columns + column;
    return column >= 0 && column < state.columns && line >= 0 && unit < state.row.length ? unit : null;
  }

  function hover(state, event) {
    const unit = under(state, event);
    state.tip.hidden = unit === null;
    if (unit === null) return;
    state.tip.textContent = `${state.words.unit} ${unit}: ${said(state.row[unit])}`;
    const x = (unit % state.columns + .5) * state.cell, y = Math.floor(unit / state.columns) * state.cell;
    state.tip.style.left = `${Math.max(0, Math.min(x - state.tip.offsetWidth / 2, state.grid.clientWidth - state.tip.offsetWidth))}px`;
    state.tip.style.top = `${y - state.tip.offsetHeight - 4}px`;
  }

  function frame(state) {
    if (!state.cell) return;
    const x = (state.unit % state.columns) * state.cell, y = Math.floor(state.unit / state.columns) * state.cell;
    Object.assign(state.frame.style, { left: `${x - 2}px`, top: `${y - 2}px`, width: `${state.cell + 3}px`, height: `${state.cell + 3}px` });
  }

  /* ---- the strongest, and one over the sentence ---- */

  function choose(state, unit) {
    state.unit = unit; state.chosen = state.id;
    frame(state);
    for (const button of state.top.children) button.setAttribute('aria-pressed', String(Number(button.dataset.unit) === unit));
    sentence(state);
  }

  function list(state) {
    const strongest = [...state.units.slice(0, state.top_n)], largest = Math.abs(state.row[strongest[0]]) || 1;
    state.top.replaceChildren(...strongest.map(unit => {
      const v = state.row[unit];
      const button = el('button', '', null, { type: 'button', 'data-unit': unit, 'aria-pressed': String(unit === state.unit), title: `${state.words.unit} ${unit}: ${said(v)}` });
      el('span', '', button, { text: unit });
      el('i', v < 0 ? 'below' : 'above', button, { style: `width:${(100 * Math.abs(v) / largest).toFixed(1)}%` });
      el('b', '', button, { text: said(v) });
      button.addEventListener('click', () => choose(state, unit));
      return button;
    }));
  }

  function sentence(state) {
    const at = state.units.indexOf(state.unit), n = state.labels.length;
    state.overTitle.textContent = `${state.words.unit} ${state.unit}: ${state.words.tokens}`;
    if (at < 0) return state.tokens.replaceChildren(el('p', 'tv-soft', null, { text: state.words.absent }));
    const values = state.labels.map((_, i) => i + state.first === state.query ? state.row[state.unit] : state.over[at * n + i] * state.step[at]);
    const high = Math.max(0, ...values), low = Math.min(0, ...values), span = high - low || 1;
    state.tokens.style.setProperty('--tv-zero-line', `${(100 * high / span).toFixed(1)}%`);
    const most = Math.max(high, -low);
    state.tokens.replaceChildren(...values.map((v, i) => bar(state, v, i, { high, span, most })));
  }

  function bar(state, v, i, { high, span, most }) {
    const on = i + state.first === state.query, label = state.labels[i];
    const button = el('button', on ? 'on' : '', null, { type: 'button', 'aria-pressed': String(on), title: `${label}: ${said(v)}` });
    const well = el('span', 'well', button, { 'aria-hidden': 'true' });
    const top = 100 * (v > 0 ? high - v : high) / span, size = 100 * Math.abs(v) / span;
    el('i', v < 0 ? 'below' : 'above', well, { style: `top:${top.toFixed(1)}%;height:${size.toFixed(1)}%` });
    el('small', '', button, { text: Math.abs(v) >= most / 4 ? said(v) : '\u00a0' });
    el('bdi', '', button, { text: label, dir: 'auto' });
    button.addEventListener('click', () => state.api.select({ query: i + state.first }));
    return button;
  }

  (window.tfviz.views ??= {}).units = (box, data, api) => {
    const state = states.get(box) ?? build(box);
    states.set(box, state);
    const focused = box.contains(document.activeElement) && document.activeElement.title;
    Object.assign(state, {
      api, id: data.id, row: unpack(data.row, Float32Array), units: unpack(data.units, data.wide ? Uint32Array : Uint16Array),
      step: unpack(data.step, Float32Array), over: unpack(data.over, Int16Array),
      labels: data.tokens, first: data.first, query: data.query, words: data.words, top_n: data.top,
    });
    if (state.chosen !== data.id || state.unit >= state.row.length) { state.unit = state.units[0]; state.chosen = ''; }
    state.canvas.setAttribute('aria-label', `${state.row.length} ${data.words.units}. ${data.words.grid}`);
    state.topTitle.textContent = data.words.top;
    state.top.setAttribute('aria-label', data.words.top);
    state.tokens.setAttribute('aria-label', data.words.choose);
    paint(state); list(state); sentence(state);
    if (focused) [...box.querySelectorAll('button')].find(button => button.title.split(':')[0] === focused.split(':')[0])?.focus({ preventScroll: true });
  };
})();
