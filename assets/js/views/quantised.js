/* A window of a weight matrix four times: before, after, the error between, and the step of each cell's part.
 *
 * window.tfviz.views.quantised(box, data, api). data, from tfviz/ui/tabs/speed/quantisation.py (arrays in base64, [rows, columns]):
 *   rows, columns, row, column   the window's size, and what its first cell is in the matrix
 *   before, after, step   float32;  levels: int16;  width: neighbours that share a scale;  marked: channels of large activations
 *   words                 titles, and {fields} of the readout
 * Everything is here: pointing and walking ask nothing of the server. */
(() => {
  const { el } = window.tfviz;
  const states = new WeakMap(), NAMES = ['before', 'after', 'error', 'step'], CELL = 8;
  const unpack = (text, Kind) => new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const number = x => (x === 0 ? '0' : Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(3)).replace(/-/g, '\u2212');
  const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();
  const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
  const largest = list => list.reduce((a, b) => Math.max(a, Math.abs(b)), 0);

  function build(box) {
    const state = { box, at: [0, 0] };
    const root = el('div', 'tv-quantised', box);
    state.grid = el('div', 'tv-quantised-grid', root);
    state.cards = NAMES.map(name => {
      const card = el('figure', `of-${name}`, state.grid), canvas = el('canvas', '', card, { tabindex: 0, role: 'img' });
      canvas.addEventListener('pointermove', event => { const box = canvas.getBoundingClientRect(); go(state, (event.clientY - box.top) / box.height * state.data.rows, (event.clientX - box.left) / box.width * state.data.columns); });
      canvas.addEventListener('keydown', event => {
        const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (by) { event.preventDefault(); go(state, state.at[0] + by[0], state.at[1] + by[1]); }
      });
      return { name, canvas, title: el('figcaption', '', card), range: el('small', '', card) };
    });
    state.read = el('p', 'tv-quantised-read', root, { 'aria-live': 'polite' });
    return state;
  }

  function go(state, row, column) {
    const inside = (x, n) => Math.max(0, Math.min(n - 1, Math.floor(x)));
    state.at = [inside(row, state.data.rows), inside(column, state.data.columns)];
    frame(state); say(state);
  }

  function say({ data, at: [row, column], arrays, read }) {
    const i = row * data.columns + column, { words } = data;
    read.textContent = fill(words.read, {
      row: data.row + row, column: data.column + column, before: number(arrays.before[i]), after: number(arrays.after[i]),
      level: String(arrays.levels[i]).replace('-', '\u2212'), step: number(arrays.step[i]), error: number(arrays.error[i]),
    }) + (data.marked.includes(data.column + column) ? ` ${words.outlier}` : '');
  }

  function colours(state) {               // two scales: signed numbers around zero, and steps from the finest to the coarsest
    const scale = names => names.map(name => rgb(css(`--tv-${name}`)));
    const mix = (stops, x) => { const k = Math.min(1, Math.floor(x * 2)), part = x * 2 - k; return stops[k].map((c, i) => c + (stops[k + 1][i] - c) * part); };
    const signed = scale(['below', 'zero', 'above']), plain = scale(['scale-low', 'scale-mid', 'scale-high']);
    const { arrays } = state, size = largest(arrays.before) || 1, off = largest(arrays.error) || 1;
    const low = Math.min(...arrays.step), high = Math.max(...arrays.step);
    const around = most => x => mix(signed, Math.max(0, Math.min(1, 0.5 + 0.5 * x / most)));
    return {
      before: [around(size), `\u00b1${number(size)}`], after: [around(size), `\u00b1${number(size)}`],
      error: [around(off), off === 1 && !largest(arrays.error) ? '0' : `\u00b1${number(off)}`],
      step: [x => mix(plain, high > low ? (x - low) / (high - low) : 0.5), high > low ? `${number(low)} \u2013 ${number(high)}` : number(low)],
    };
  }

  function paint(state) {
    const { data, arrays, cards } = state, made = colours(state);
    for (const { name, canvas, title, range } of cards) {
      const image = new ImageData(data.columns, data.rows), [colour, ends] = made[name];
      arrays[name].forEach((x, i) => { image.data.set(colour(x), 4 * i); image.data[4 * i + 3] = 255; });
      const small = new OffscreenCanvas(data.columns, data.rows);
      small.getContext('2d').putImageData(image, 0, 0);
      canvas.width = data.columns * CELL; canvas.height = data.rows * CELL;
      canvas.picture = small;
      title.textContent = data.words[name]; range.textContent = ends;
      canvas.setAttribute('aria-label', `${data.words[name]}: ${ends}`);
    }
    frame(state);
  }

  function frame({ data, cards, at: [row, column] }) {
    for (const { name, canvas } of cards) {
      const pen = canvas.getContext('2d');
      pen.imageSmoothingEnabled = false;
      pen.drawImage(canvas.picture, 0, 0, canvas.width, canvas.height);
      pen.strokeStyle = css('--tv-line-strong'); pen.lineWidth = 1;
      for (let j = 0; name !== 'before' && j < data.columns; j++) if ((data.column + j) % data.width === 0 && j) { pen.beginPath(); pen.moveTo(j * CELL, 0); pen.lineTo(j * CELL, canvas.height); pen.stroke(); }
      pen.fillStyle = css('--tv-query');
      for (const channel of data.marked) pen.fillRect((channel - data.column) * CELL, 0, CELL, CELL);
      pen.strokeStyle = css('--tv-query'); pen.lineWidth = 3;
      pen.strokeRect(column * CELL - 1, row * CELL - 1, CELL + 2, CELL + 2);
    }
  }

  (window.tfviz.views ??= {}).quantised = (box, data) => {
    let state = states.get(box);
    if (!state) states.set(box, state = build(box));
    const first = !state.data || state.data.id !== data.id;
    state.data = data;
    state.arrays = { before: unpack(data.before, Float32Array), after: unpack(data.after, Float32Array), step: unpack(data.step, Float32Array), levels: unpack(data.levels, Int16Array) };
    state.arrays.error = state.arrays.after.map((x, i) => x - state.arrays.before[i]);
    if (first) state.at = data.at;
    paint(state); say(state);
  };
})();
