/* Grids of queries x keys: masks (blocked is hatched), scores, weights; one cell is pointed at in all of them at once.
 *
 * window.tfviz.views.masks(box, data, api), called again with new data on the same box:
 *   data.queries, data.keys  [{text, pad}];  data.bits  uint16 [query x key]: bit i is set where mask data.names[i] blocks;
 *   data.strips  [{title, grids: [{title, sign, kind: mask | flag | signed | weight, masks: [names], texts, values: float32, largest}]}];
 *   data.causes  names of the masks as they are read aloud;  data.words  {grid, blocked, open, nothing, nan}.
 * The grids of a strip stand in one line where there is room, signs between them, and share the query labels at its left. */
(() => {
  const LABEL = 9, SIGN = 30, COMFORT = 9, TEXT = 14, FLOOR = 5; // pixels: a label's height, between two grids, a cell to read well, one with text in it, the smallest cell
  const SIDE = 256;                     // of a grid with few cells, which need not be as large as there is room
  const kept = new WeakMap();           // box -> what it shows and which cell is pointed at

  const { el } = window.tfviz;

  const bytes = base64 => Uint8Array.from(atob(base64), c => c.charCodeAt(0)).buffer;
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

  function number(x) {
    if (x === 0) return '0';
    if (!Number.isFinite(x)) return Number.isNaN(x) ? 'NaN' : x < 0 ? '\u2212\u221e' : '\u221e';
    const text = Math.abs(x) < 0.001 ? x.toExponential(2) : x.toPrecision(3);
    return text.replace('-', '\u2212');
  }

  /* ---- what stands in a cell ---- */

  const isBlocked = (state, grid, at) => (state.bits[at] & grid.mask) !== 0;
  const nothing = (state, grid, query) => { for (let key = 0; key < state.nk; key++) if (!isBlocked(state, grid, query * state.nk + key)) return false; return true; };

  function said(state, grid, at) {      // the cell in words or figures
    if (grid.kind === 'flag') return isBlocked(state, grid, at) ? '\u2260' : '=';
    if (grid.values) return number(grid.values[at]);
    if (grid.texts) return grid.texts[isBlocked(state, grid, at) ? 1 : 0];
    return isBlocked(state, grid, at) ? state.words.blocked : state.words.open;
  }

  /* ---- colours ---- */

  function rgb(text) {
    const hex = text.trim().replace('#', ''), full = hex.length === 3 ? [...hex].map(c => c + c).join('') : hex;
    return [0, 2, 4].map(i => parseInt(full.slice(i, i + 2), 16));
  }
  const mix = (a, b, x) => a.map((v, i) => Math.round(v + (b[i] - v) * x));
  const paint = c => `rgb(${c.join(',')})`;
  const luminance = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b) / 255;

  function palette(box) {
    const style = getComputedStyle(box), css = name => style.getPropertyValue(`--tv-${name}`), at = name => rgb(css(name) || '#808080');
    const [low, mid, high] = ['scale-low', 'scale-mid', 'scale-high'].map(at), [below, zero, above] = ['below', 'zero', 'above'].map(at);
    const text = { dark: '#1b2333', light: '#ffffff' };
    return {
      weight: x => { const s = 2 * Math.sqrt(clamp(x, 0, 1)); return s < 1 ? mix(low, mid, s) : mix(mid, high, s - 1); },
      signed: x => x < 0 ? mix(zero, below, -x) : mix(zero, above, x),
      open: mix(at('accent-soft'), at('accent'), 0.16), line: css('line'), soft: css('soft'), ink: css('ink'), hatch: css('hatch'), ground: css('hatch-bg'), warn: css('warn'), warnSoft: css('warn-soft'),
      over: colour => luminance(colour) > 0.55 ? text.dark : text.light,
    };
  }

  function hatching(colours) {
    const ratio = window.devicePixelRatio || 1, tile = document.createElement('canvas'), size = tile.width = tile.height = Math.round(7 * ratio), pen = tile.getContext('2d');
    pen.fillStyle = colours.ground; pen.fillRect(0, 0, size, size);
    pen.strokeStyle = colours.hatch; pen.lineWidth = 1.4 * ratio; pen.beginPath();
    for (const shift of [-size, 0, size]) { pen.moveTo(shift, 0); pen.lineTo(shift + size, size); }
    pen.stroke();
    return tile;
  }

  /* ---- one grid on its canvas ---- */

  function drawCells(state, grid, canvas, cell, colours, tile) {
    const ratio = window.devicePixelRatio || 1, { nq, nk } = state, pen = canvas.getContext('2d'), line = cell >= 9 ? 1 : 0;
    canvas.width = Math.round(nk * cell * ratio); canvas.height = Math.round(nq * cell * ratio);
    canvas.style.width = `${nk * cell}px`; canvas.style.height = `${nq * cell}px`;
    const pattern = pen.createPattern(tile, 'repeat');
    pen.font = `${clamp(Math.round(cell * 0.5), 9, 12) * ratio}px ${getComputedStyle(canvas).fontFamily}`;
    pen.textAlign = 'center'; pen.textBaseline = 'middle';
    for (let query = 0; query < nq; query++) for (let key = 0; key < nk; key++) {
      const at = query * nk + key, x = Math.round(key * cell * ratio), y = Math.round(query * cell * ratio);
      const w = Math.round((key + 1) * cell * ratio) - x - line * ratio, h = Math.round((query + 1) * cell * ratio) - y - line * ratio;
      const [fill, text] = look(state, grid, at, colours, pattern, cell >= 34);
      pen.fillStyle = fill; pen.fillRect(x, y, w, h);
      if (!text || cell < 12 || pen.measureText(text[0]).width > w - 2 * ratio) continue;
      pen.fillStyle = text[1]; pen.fillText(text[0], x + w / 2, y + h / 2 + ratio * 0.5);
    }
  }

  function look(state, grid, at, colours, pattern, large) { // [fill, [text, its colour] or nothing]
    const blocked = isBlocked(state, grid, at);
    if (grid.kind === 'flag') return blocked ? [colours.warnSoft, ['\u2260', colours.warn]] : [paint(colours.open)];
    if (grid.kind === 'mask') {
      const text = grid.texts && [grid.texts[blocked ? 1 : 0], blocked ? colours.soft : colours.ink];
      return [blocked ? pattern : paint(colours.open), text];
    }
    const value = grid.values[at];
    if (Number.isNaN(value)) return [colours.warnSoft, ['NaN', colours.warn]];
    if (blocked) return [pattern];
    const fill = grid.kind === 'weight' ? colours.weight(value) : colours.signed(clamp(value / (grid.largest || 1), -1, 1));
    return [paint(fill), large && [value.toFixed(2).replace('-', '\u2212'), colours.over(fill)]];
  }

  /* ---- layout: as many grids of a strip in one line as fit ---- */

  function cellSize(state, n, room, most) { return Math.min(most, Math.floor((room - state.label - (n - 1) * SIGN) / (n * state.nk))); }

  function arrange(state, strip, room) { // [grids in a line, pixels of a cell]
    const least = strip.grids.some(grid => grid.texts) ? TEXT : COMFORT, most = clamp(Math.floor(SIDE / Math.max(state.nq, state.nk)), 18, 40);
    for (let n = strip.grids.length; n > 1; n--) if (cellSize(state, n, room, most) >= least) return [n, cellSize(state, n, room, most)];
    return [1, Math.max(FLOOR, cellSize(state, 1, room, most))];
  }

  function labels(state, side, cell, parent, className) {
    const step = Math.ceil(LABEL / cell), bar = el('div', className, parent, { 'aria-hidden': 'true' });
    bar.style.fontSize = `${clamp(cell + 0.5, 9.5, 11.5)}px`;
    state[side].forEach((token, i) => {
      const node = el('bdi', `${token.pad ? 'pad' : ''}${i % step ? ' skip' : ''}`, bar, { text: token.text, 'data-i': i });
      if (side === 'queries') node.style.cssText = `top:${i * cell}px;height:${cell}px;line-height:${cell}px`;
      else node.style.cssText = `left:${i * cell}px;width:${cell}px;line-height:${cell}px`;
    });
    return bar;
  }

  const long = text => [...text].reduce((n, c) => n + (c.codePointAt(0) > 0x2e7f ? 1.8 : 1), 0); // in Latin letters

  function build(state) {
    const { box, data } = state, room = box.clientWidth;
    state.width = room;
    if (!room) return;
    state.root.replaceChildren();
    state.marks = [];
    const colours = palette(state.root), tile = hatching(colours);
    state.label = Math.min(104, 14 + 7 * Math.max(...state.queries.map((token, query) => long(token.text) + (state.nothing[query] ? 2 : 0))));
    const deep = Math.min(78, 8 + 7 * Math.max(...state.keys.map(token => long(token.text))));
    for (const strip of state.strips) {
      const part = el('section', 'tv-masks-strip', state.root);
      if (strip.title) el('p', 'tv-masks-title', part, { text: strip.title });
      const [perLine, cell] = arrange(state, strip, room);
      for (let from = 0; from < strip.grids.length; from += perLine) {
        const line = el('div', 'tv-masks-grids', part);
        strip.grids.slice(from, from + perLine).forEach((grid, i) => drawGrid(state, grid, line, { cell, deep, first: i === 0, sign: from + i > 0 ? grid.sign : '', colours, tile }));
      }
    }
    state.read = el('p', 'tv-masks-read', state.root, { 'aria-live': 'polite' });
    point(state, state.at, true);
  }

  function drawGrid(state, grid, line, { cell, deep, first, sign, colours, tile }) {
    if (!first) el('span', 'tv-masks-sign', line, { text: sign, 'aria-hidden': 'true' }).style.width = `${SIGN}px`;
    const figure = el('figure', 'tv-masks-grid', line), top = el('figcaption', '', figure);
    if (first) figure.style.paddingLeft = `${state.label}px`;
    el('span', '', top, { text: first && sign ? `${sign} ${grid.title}` : grid.title });
    const value = el('b', '', top), frame = el('div', 'tv-masks-frame', figure);
    frame.style.cssText = `width:${state.nk * cell}px;height:${state.nq * cell}px`;
    top.style.maxWidth = `${Math.max(state.nk * cell, 96)}px`;
    drawCells(state, grid, el('canvas', '', frame), cell, colours, tile);
    const rows = first ? labels(state, 'queries', cell, frame, 'tv-masks-queries') : null;
    if (rows) {
      rows.style.width = `${state.label}px`;
      [...rows.children].forEach((node, query) => { if (state.nothing[query]) { node.classList.add('nothing'); node.title = state.words.nothing; } });
    }
    const columns = labels(state, 'keys', cell, frame, 'tv-masks-keys');
    frame.style.marginBottom = `${deep}px`;
    const mark = el('div', 'tv-masks-mark', frame), across = el('div', 'tv-masks-across', frame), down = el('div', 'tv-masks-down', frame);
    state.marks.push({ grid, cell, value, rows, columns, mark, across, down });
    frame.addEventListener('pointermove', event => { if (event.pointerType !== 'touch') point(state, cellAt(frame, cell, event)); });
    frame.addEventListener('pointerleave', () => point(state, state.at));
    frame.addEventListener('click', event => { state.at = cellAt(frame, cell, event); point(state, state.at); });
  }

  function cellAt(frame, cell, event) {
    const { left, top } = frame.getBoundingClientRect();
    return [Math.floor((event.clientY - top) / cell), Math.floor((event.clientX - left) / cell)];
  }

  /* ---- the cell pointed at ---- */

  function point(state, [q, k]) {
    const query = clamp(q, 0, state.nq - 1), key = clamp(k, 0, state.nk - 1), at = query * state.nk + key;
    for (const { grid, cell, value, rows, columns, mark, across, down } of state.marks) {
      mark.style.cssText = `transform:translate(${key * cell}px,${query * cell}px);width:${cell}px;height:${cell}px`;
      across.style.cssText = `top:${query * cell}px;height:${cell}px`;
      down.style.cssText = `left:${key * cell}px;width:${cell}px`;
      value.textContent = said(state, grid, at);
      for (const [bar, i] of [[rows, query], [columns, key]]) if (bar) [...bar.children].forEach((node, j) => node.classList.toggle('now', i === j));
    }
    const causes = state.data.causes.filter((_, i) => state.bits[at] & (1 << i));
    const from = el('span', 'query', null, { text: state.queries[query].text }), to = el('span', 'key', null, { text: state.keys[key].text });
    const why = causes.length ? `${state.words.blocked}: ${causes.join(' + ')}` : state.data.causes.length ? state.words.open : '';
    state.read.replaceChildren(from, ` (${query}) \u2192 `, to, ` (${key})${why ? ` \u00b7 ${why}` : ''}`);
  }

  function move(state, event) {
    const [query, key] = state.at;
    const to = { ArrowLeft: [query, key - 1], ArrowRight: [query, key + 1], ArrowUp: [query - 1, key], ArrowDown: [query + 1, key], Home: [query, 0], End: [query, state.nk - 1],
      PageUp: [0, key], PageDown: [state.nq - 1, key] }[event.key];
    if (!to) return;
    event.preventDefault();
    state.at = [clamp(to[0], 0, state.nq - 1), clamp(to[1], 0, state.nk - 1)];
    point(state, state.at);
  }

  /* ---- once a box, then once a value ---- */

  function newState(box) {
    const state = { box, at: null };
    state.root = el('div', 'tv-masks', box, { role: 'application', tabindex: 0 });
    state.root.addEventListener('keydown', event => move(state, event));
    const sizes = new ResizeObserver(() => {
      if (!box.isConnected) return sizes.disconnect();
      if (state.data && box.clientWidth !== state.width) build(state);
    });
    sizes.observe(box);
    kept.set(box, state);
    return state;
  }

  window.tfviz.views.masks = (box, data) => {
    const state = kept.get(box) ?? newState(box), { words } = data, maskOf = names => names.reduce((sum, name) => sum | (1 << data.names.indexOf(name)), 0);
    const strips = data.strips.map(strip => ({ ...strip, grids: strip.grids.map(grid => ({ ...grid, mask: maskOf(grid.masks), values: grid.values && new Float32Array(bytes(grid.values)) })) }));
    Object.assign(state, { data, strips, words, queries: data.queries, keys: data.keys, nq: data.queries.length, nk: data.keys.length, bits: new Uint16Array(bytes(data.bits)) });
    const whole = { mask: maskOf(data.whole) };
    state.nothing = data.queries.map((_, query) => data.whole.length > 0 && nothing(state, whole, query));
    const tokens = JSON.stringify([data.queries, data.keys]);
    if (tokens !== state.tokens) state.at = [Math.max(0, state.queries.findLastIndex(token => !token.pad)), Math.max(0, state.keys.findIndex(token => !token.pad))];
    state.tokens = tokens;
    state.root.setAttribute('aria-label', words.grid);
    build(state);
  };

  document.addEventListener('click', event => { // a row of the batch chooses itself on the workbench
    const row = event.target.closest?.('[data-masks-row]')?.dataset.masksRow;
    if (row) document.querySelector(`#masks-row input[value="${row}"]`)?.click();
  });
})();
