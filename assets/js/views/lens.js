/* The logit lens: a grid of what each layer would say at each position, and beside it the ten most probable tokens of the
 * cell under the pointer or the focus. Nothing of that asks the server; a click chooses layer and position for the page.
 *
 * window.tfviz.views.lens(box, data, api). data, from tfviz/ui/tabs/generate/lens.py (arrays in base64):
 *   id       what is shown: trace/first position;  rows: how many there are, the embedding first;  begun: the first computed
 *   layers   of each row after the embedding its number in the trace, or null
 *   tokens, first, next   labels of the columns, the position of the first, what follows each in the sentence ([]: encoders)
 *   names    labels;  ids: uint16 into them [row, column, tops];  logs: uint16, -ln p times words.steps, of the same shape
 *   final    of each column, into names;  final_logs, kl, entropy: float32, ranks: int32 [row, column]
 *   settled  of each column the lowest row from which on the top token is the final one;  layer, query, kind;  words */
(() => {
  const states = new WeakMap();           // box -> what is drawn and chosen in it
  const COLOURS = ['prob', 'rank', 'kl', 'entropy'];
  const SMALLEST = 65535;                 // the code of what is too small for one

  const { el } = window.tfviz;

  const unpack = (text, Kind) => new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();
  const short = name => name.length > 1 && name[0] === '\u2423' && name[1] !== '\u2423' ? name.slice(1) : name; // a space before a word is its word mark

  function number(x, digits = 3) {        // as tfviz.ui.i18n.significant
    if (x === 0) return '0';
    const size = Math.abs(x);
    if (size < 1e-3) return x.toExponential(digits - 1).replace('-', '\u2212').replace('e-', 'e\u2212');
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return x.toLocaleString('en', { minimumFractionDigits: places, maximumFractionDigits: places }).replace('-', '\u2212');
  }
  function percent(log) {                 // of a natural logarithm, as tfviz.ui.i18n.percent_of_log
    const value = 100 * Math.exp(log);
    if (log >= 0) return '100 %';
    if (value >= 99.95) return '>99.9 %';
    if (value >= 1e-3) return `${number(value)} %`;
    const tens = log / Math.LN10 + 2, mantissa = (10 ** (tens - Math.floor(tens))).toFixed(2);
    return `${mantissa === '10.00' ? '1.00' : mantissa}e\u2212${-Math.floor(tens) - (mantissa === '10.00')} %`;
  }

  function build(box) {
    const state = { box, colour: 'prob', cells: [] };
    const root = el('div', 'tv-lens', box);
    state.bar = el('div', 'tv-lens-bar', root);
    state.main = el('div', 'tv-lens-main', root);
    state.scroll = el('div', 'tv-lens-scroll', state.main);
    state.reader = el('div', 'tv-lens-reader', state.main);
    state.live = el('div', 'tv-hidden', root, { 'aria-live': 'polite' });
    state.scroll.addEventListener('pointerover', event => { const at = placeOf(event.target); if (at) read(state, ...at); });
    state.scroll.addEventListener('pointerleave', () => read(state, ...state.chosen));
    state.scroll.addEventListener('click', event => { const at = placeOf(event.target); if (at) choose(state, ...at); });
    state.scroll.addEventListener('focusin', event => { const at = placeOf(event.target); if (at) read(state, ...at); });
    state.scroll.addEventListener('focusout', () => read(state, ...state.chosen));
    state.scroll.addEventListener('keydown', event => walk(state, event));
    const heard = ({ detail }) => box.isConnected ? followed(state, detail) : window.removeEventListener('tfviz:selected', heard);
    window.addEventListener('tfviz:selected', heard);
    return state;
  }

  function placeOf(node) {
    const cell = node.closest?.('td[data-row]');
    return cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null;
  }

  /* ---- numbers of a cell ---- */

  const at = (state, row, column) => (row - state.data.begun) * state.data.tokens.length + column;
  const logOf = (state, i) => -state.logs[i] / state.data.words.steps;
  const topOf = (state, row, column) => state.data.names[state.ids[at(state, row, column) * state.data.tops]];
  const there = (state, row) => row >= state.data.begun;
  const rowName = (state, row) => row === 0 ? state.data.words.embedding : `${state.data.words.layer} ${state.data.layers[row - 1] ?? `(${row - 1})`}`;

  function values(state) {                // of each cell: a share of ink, and what the ends of the scale are
    const { colour, data, ranks, kl, entropy, logs } = state, words = data.words, ones = Float32Array;
    if (colour === 'prob') return { ink: ones.from(ranks, (_, i) => Math.exp(logOf(state, i * data.tops))), ends: ['0', '1'] };
    if (colour === 'rank') {
      const most = Math.log(ranks.reduce((a, b) => Math.max(a, b), 2));
      return { ink: ones.from(ranks, rank => 1 - Math.log(rank) / most), ends: [Math.round(Math.exp(most)).toLocaleString('en'), '1'] };
    }
    const array = colour === 'kl' ? kl : entropy, most = array.reduce((a, b) => Math.max(a, b), 1e-9);
    return { ink: ones.from(array, x => 1 - Math.log1p(Math.max(0, x)) / Math.log1p(most)), ends: [`${number(most)} ${words.nats}`, '0'] };
  }

  /* ---- colours: text is black or white, whichever reads better ---- */

  function palette() {
    const stops = ['low', 'mid', 'high'].map(name => css(`--tv-scale-${name}`)).map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
    const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return Array.from({ length: 65 }, (_, i) => {
      const x = i / 32, from = stops[Math.min(1, Math.floor(x))], to = stops[Math.min(2, Math.floor(x) + 1)], part = x - Math.min(1, Math.floor(x));
      const rgb = from.map((c, k) => Math.round(c + (to[k] - c) * part)), [r, g, b] = rgb.map(linear);
      return [`rgb(${rgb})`, 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000' : '#fff'];
    });
  }

  function paint(state) {
    const { ink, ends } = values(state), colours = palette(), { data } = state;
    for (let row = data.begun; row < data.rows; row++) for (let column = 0; column < data.tokens.length; column++) {
      const [ground, text] = colours[Math.round(64 * Math.min(1, ink[at(state, row, column)]))], style = state.cells[row][column].style;
      style.background = ground; style.color = text;
    }
    const { low, high } = state.legend;
    low.textContent = ends[0]; high.textContent = ends[1];
    for (const button of state.buttons) button.setAttribute('aria-pressed', String(button.dataset.colour === state.colour));
  }

  /* ---- furniture ---- */

  function bar(state) {
    const { words } = state.data;
    state.bar.replaceChildren();
    el('span', 'tv-lens-soft', state.bar, { text: words.colour });
    const group = el('div', 'tv-seg', state.bar, { role: 'group', 'aria-label': words.colour });
    state.buttons = COLOURS.map(name => {
      const button = el('button', '', group, { type: 'button', text: words[`by_${name}`], 'data-colour': name });
      button.addEventListener('click', () => { state.colour = name; paint(state); });
      return button;
    });
    const legend = el('span', 'tv-lens-legend', state.bar);
    const low = el('span', '', legend);
    el('i', '', legend, { 'aria-hidden': 'true' });
    state.legend = { low, high: el('span', '', legend) };
    const marks = el('span', 'tv-lens-marks', state.bar);
    el('b', 'tv-lens-same', marks, { text: 'Aa', 'aria-hidden': 'true' });
    el('span', '', marks, { text: words.same });
  }

  function grid(state) {
    const { data } = state, { words, tokens } = data, focused = state.scroll.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    const table = el('table', '', null, { role: 'grid', 'aria-label': words.grid, style: `--n:${tokens.length}` });
    const heads = el('tr', '', el('thead', '', table));
    el('th', 'tv-lens-corner', heads, { scope: 'col', text: words.after_layer });
    state.heads = tokens.map((token, i) => {
      const head = el('th', '', heads, { scope: 'col', title: `${data.first + i}: ${token}` });
      el('bdi', '', head, { text: token, dir: 'auto' });
      if (data.next.length) el('small', '', head, { text: data.next[i] === undefined ? '\u00a0' : `\u2192 ${data.next[i]}` });
      return head;
    });
    const body = el('tbody', '', table);
    state.cells = []; state.names = [];
    for (let row = data.rows - 1; row >= 0; row--) {
      const line = el('tr', '', body);
      state.names[row] = el('th', '', line, { scope: 'row', text: row === 0 ? words.embedding_short : data.layers[row - 1] ?? '\u2013', title: rowName(state, row) });
      state.cells[row] = tokens.map((_, column) => cell(state, line, row, column));
    }
    state.scroll.replaceChildren(table);
    if (focused) state.cells[focused[0]]?.[focused[1]]?.focus({ preventScroll: true });
  }

  function cell(state, line, row, column) {
    const { data } = state, node = el('td', '', line, { tabindex: -1, 'data-row': row, 'data-column': column });
    if (!there(state, row)) { node.className = 'tv-lens-none'; return node; }
    const top = state.ids[at(state, row, column) * data.tops];
    el('bdi', '', node, { text: short(data.names[top]), dir: 'auto' });
    if (top === data.final[column]) node.classList.add('tv-lens-same');
    if (data.settled[column] === row && row < data.rows - 1) node.classList.add('tv-lens-settled');
    return node;
  }

  /* ---- the reader ---- */

  function read(state, row, column) {
    if (!there(state, row) || state.reading === `${row}/${column}`) return;
    state.reading = `${row}/${column}`;
    const { data, reader } = state, { words } = data, i = at(state, row, column), token = data.tokens[column];
    reader.replaceChildren();
    const title = el('p', 'tv-lens-title', reader);
    el('b', '', title, { text: rowName(state, row) });
    el('bdi', '', title, { text: token, dir: 'auto' });
    const list = el('ol', '', reader, { 'aria-label': words.top });
    for (let k = 0; k < data.tops; k++) {
      const id = state.ids[i * data.tops + k], log = logOf(state, i * data.tops + k), least = state.logs[i * data.tops + k] === SMALLEST;
      const line = el('li', id === data.final[column] ? 'same' : '', list);
      el('bdi', '', line, { text: data.names[id], dir: 'auto' });
      el('i', '', line, { style: `--part:${Math.exp(log).toFixed(4)}`, 'aria-hidden': 'true' });
      el('span', '', line, { text: `${least ? '<' : ''}${percent(log)}` });
    }
    const facts = el('dl', '', reader);
    const fact = (name, text) => { el('dt', '', facts, { text: name }); el('dd', '', facts, { text }); };
    const said = el('p', '', reader);
    said.append(`${words.final} `); el('bdi', '', said, { text: data.names[data.final[column]], dir: 'auto' });
    reader.insertBefore(said, facts);
    fact(words.rank, state.ranks[i].toLocaleString('en'));
    fact(words.prob, percent(state.finalLogs[i]));
    fact(words.kl, `${number(Math.max(0, state.kl[i]))} ${words.nats}`);
    fact(words.entropy, `${number(Math.max(0, state.entropy[i]))} ${words.nats}`);
    if (state.scroll.contains(document.activeElement)) state.live.textContent = `${rowName(state, row)}, ${token}: ${data.names[state.ids[i * data.tops]]}, ${percent(logOf(state, i * data.tops))}`;
  }

  /* ---- choosing ---- */

  function mark(state) {                  // the chosen cell, its row and its column
    const [row, column] = state.chosen;
    for (const old of state.scroll.querySelectorAll('.now, [aria-selected="true"]')) { old.classList.remove('now'); old.removeAttribute('aria-selected'); }
    for (const old of state.scroll.querySelectorAll('td[tabindex="0"]')) old.tabIndex = -1;
    state.heads[column]?.classList.add('now'); state.names[row]?.classList.add('now');
    const cell = state.cells[row]?.[column];
    if (cell) { cell.setAttribute('aria-selected', 'true'); cell.tabIndex = 0; }
    state.reading = '';
    read(state, row, column);
  }

  function choose(state, row, column) {
    const { data } = state, layer = row === 0 ? null : data.layers[row - 1];
    state.chosen = [row, column];
    state.embedding = row === 0;          // no layer of the page: it stays chosen here
    mark(state);
    state.cells[row][column].focus({ preventScroll: true });
    state.api.select({ ...(data.kind ? { kind: data.kind } : {}), ...(layer === null ? {} : { layer }), query: data.first + column });
  }

  function walk(state, event) {
    const from = placeOf(event.target), { data } = state;
    if (!from) return;
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); return choose(state, ...from); }
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0], PageUp: [5, 0], PageDown: [-5, 0], Home: [0, -1e6], End: [0, 1e6] }[event.key];
    if (!step) return;
    event.preventDefault();
    const inside = (x, low, high) => Math.max(low, Math.min(high, x));
    state.cells[inside(from[0] + step[0], data.begun, data.rows - 1)][inside(from[1] + step[1], 0, data.tokens.length - 1)].focus();
  }

  function chosen(state, { layer, query }) {
    const { data } = state, column = Math.max(0, Math.min(data.tokens.length - 1, query - data.first));
    const row = layer === null ? -1 : data.layers.indexOf(layer);
    return [state.embedding ? 0 : row < 0 ? data.rows - 1 : row + 1, column];
  }

  function followed(state, { trace, kind, layer, query }) { // the page looks elsewhere: followed at once
    const { data } = state, [row, column] = state.chosen ?? [];
    if (!data || data.id.slice(0, data.id.lastIndexOf('/')) !== trace || data.kind && kind === 'encoder') return;
    if (query < data.first || query >= data.first + data.tokens.length) return;
    if (layer !== state.layer) state.embedding = false;
    state.layer = layer;
    const to = chosen(state, { layer, query });
    if (to[0] === row && to[1] === column || !there(state, to[0])) return;
    state.chosen = to;
    mark(state);
  }

  (window.tfviz.views ??= {}).lens = (box, data, api) => {
    const state = states.get(box) ?? build(box);
    states.set(box, state);
    const look = `${data.id}/${data.begun}/${api.dark}/${data.words.grid}`, another = state.data?.id !== data.id;
    Object.assign(state, { data, api });
    if (state.look !== look) {
      state.look = look;
      Object.assign(state, {
        ids: unpack(data.ids, Uint16Array), logs: unpack(data.logs, Uint16Array), finalLogs: unpack(data.final_logs, Float32Array),
        ranks: unpack(data.ranks, Int32Array), kl: unpack(data.kl, Float32Array), entropy: unpack(data.entropy, Float32Array),
      });
      if (another) { state.embedding = false; bar(state); }
      grid(state); paint(state);
    }
    if (data.layer !== state.layer) state.embedding = false;
    state.layer = data.layer;
    state.chosen = chosen(state, data);
    if (!there(state, state.chosen[0])) state.chosen = [data.rows - 1, state.chosen[1]];
    mark(state);
    if (another) state.cells[state.chosen[0]][state.chosen[1]].parentElement && reveal(state);
  };

  function reveal(state) {                // the chosen column, when it lies outside the scroll box
    const cell = state.cells[state.chosen[0]][state.chosen[1]], { scroll } = state, margin = 80;
    if (cell.offsetLeft + cell.offsetWidth > scroll.scrollLeft + scroll.clientWidth || cell.offsetLeft < scroll.scrollLeft + margin) scroll.scrollLeft = cell.offsetLeft - scroll.clientWidth / 2;
  }
})();
