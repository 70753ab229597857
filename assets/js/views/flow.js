/* One head, stage by stage: q meets every k, scores become weights, weights mix the v, the heads are joined and projected.
 *
 * window.tfviz.views.flow(box, data, api). data, made by tfviz/ui/tabs/step/flow.py:
 *   id                what is shown: trace/kind/layer/head
 *   queries, keys     labels; keys only of those shown, key_at their positions; rest: how many keys are left out
 *   rows, row         query positions whose numbers came along; the chosen one
 *   whole             query positions whose joined heads and output came along
 *   stages            [{id, letters, shape, name, say}] in order; which there are depends on the model
 *   arrays            name -> {shape, data: base64 float32}
 *   head, heads, value_dim, words
 * Walks the stages and the rows by itself; a row that did not come along is asked for by selecting its token. */
(() => {
  const { el } = window.tfviz;
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const minus = text => text.replace('-', '\u2212').replace('e-', 'e\u2212');
  const fixed = (x, digits) => x === -Infinity ? '\u2212\u221e' : minus(x.toFixed(digits));
  const exact = x => x === -Infinity ? '\u2212\u221e' : x === 0 ? '0' : minus(Math.abs(x) < 1e-4 ? x.toExponential(3) : String(+x.toPrecision(5)));
  const SIZES = { number: 66, weight: 104, gap: 14, strip: [116, 250], label: [44, 118] };
  const STAGE_MS = 1500, SPEEDS = [0.5, 1, 2, 4];
  const STRIPS = new Set(['before', 'vectors', 'values', 'mixed']);

  function floats({ shape, data }) {
    const text = atob(data), bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    const numbers = new Float32Array(bytes.buffer), width = shape.at(-1);
    let most = 0;
    for (const x of numbers) if (Math.abs(x) > most && Number.isFinite(x)) most = Math.abs(x);
    return { width, most, row: i => numbers.subarray(i * width, (i + 1) * width), at: (i, j) => numbers[i * width + j] };
  }

  /* ---- colours: below zero, zero, above zero; ink grows with the square root of the size ---- */

  function palette(box) {
    const style = getComputedStyle(box), hex = name => style.getPropertyValue(`--tv-${name}`).trim();
    const rgb = text => [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
    const [below, zero, above] = ['below', 'zero', 'above'].map(name => rgb(hex(name)));
    const table = new Uint32Array(401);
    for (let i = -200; i <= 200; i++) {
      const end = i < 0 ? below : above, part = Math.abs(i) / 200, [r, g, b] = zero.map((from, c) => Math.round(from + (end[c] - from) * part));
      table[i + 200] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    }
    return (x, most) => table[200 + Math.round(200 * Math.sign(x) * Math.sqrt(clamp(Math.abs(x) / (most || 1), 0, 1)))];
  }

  function ink(canvas, rows, cols, value, most, colour) {
    canvas.width = cols; canvas.height = rows;
    const image = new ImageData(cols, rows), pixels = new Uint32Array(image.data.buffer);
    for (let r = 0, i = 0; r < rows; r++) for (let c = 0; c < cols; c++, i++) { const x = value(r, c); if (x === x) pixels[i] = colour(x, most); }
    canvas.getContext('2d').putImageData(image, 0, 0);
  }

  /* ---- one view ---- */

  class Flow {
    constructor(box) {
      this.box = box; this.stage = Infinity; this.row = 0; this.key = 0; this.pace = STAGE_MS;
      box.classList.add('tv-step-flow');
      this.width = 0;
      const sizes = new ResizeObserver(() => box.isConnected ? this.resized() : sizes.disconnect());
      sizes.observe(box);
      const heard = ({ detail }) => box.isConnected ? this.selected(detail) : window.removeEventListener('tfviz:selected', heard);
      window.addEventListener('tfviz:selected', heard);
    }

    show(data, api) {
      const before = this.stages?.[this.stage]?.id, another = this.data?.id !== data.id;
      this.data = data; this.api = api; this.words = data.words; this.stages = data.stages;
      if (another && before && this.data.id.split('/')[0] !== this.trace) this.player.pause();
      this.trace = data.id.split('/')[0];
      const at = this.stages.findIndex(stage => stage.id === before);
      this.stage = at < 0 ? this.stages.length - 1 : at;
      this.arrays = Object.fromEntries(Object.entries(data.arrays).map(([name, packed]) => [name, floats(packed)]));
      this.row = data.rows.includes(api.place.query) ? api.place.query : data.row;
      this.key = api.place.key ?? data.key;
      this.colour = palette(this.box);
      this.build(); this.paint();
    }

    has(id) { return this.stages.some(stage => stage.id === id); }
    get at() { return this.data.rows.indexOf(this.row); }       // this row's place in the arrays
    get whole() { return this.data.whole.indexOf(this.row); }   // the same in those of all heads; -1: not here
    get place() { const i = this.data.key_at.indexOf(this.key); return i < 0 ? this.likeliest() : i; }
    likeliest() { const weights = this.arrays.weights.row(this.at); return weights.indexOf(Math.max(...weights)); }

    resized() {
      if (!this.data || this.box.clientWidth === this.width) return;
      this.build(); this.paint();
    }

    selected({ trace, kind, layer, head, query, key }) {        // the page looks elsewhere: the same head is followed at once
      if (!this.data || this.data.id !== [trace, kind, layer, head].join('/')) return;
      this.key = key;
      if (this.data.rows.includes(query)) this.row = query;
      this.paint();
    }

    /* ---- furniture ---- */

    build() {
      this.width = this.box.clientWidth;
      const focus = this.box.contains(document.activeElement) ? document.activeElement.dataset.name : '';
      this.player ??= new window.tfviz.Player(this, this.words, { speeds: SPEEDS, walk: this.words.query });
      this.box.replaceChildren(this.player.bar);
      const said = el('p', 'tv-step-said', this.box, { role: 'status' });
      this.saidName = el('b', '', said); this.said = el('span', '', said);
      this.shared();
      this.inside();
      this.outside();
      this.legend();
      this.tip = el('div', 'tv-step-tip', this.box, { 'aria-hidden': 'true' }); this.tip.hidden = true;
      this.live = el('div', 'tv-hidden', this.box, { 'aria-live': 'polite' });
      if (focus) this.box.querySelector(`[data-name="${focus}"]`)?.focus({ preventScroll: true });
    }

    shared() {                                                  // grouped-query heads: who reads the same k and v
      const { sharing, head } = this.data;
      if (!sharing.length) return;
      const line = el('p', 'tv-step-shared', this.box, { text: `${this.words.shared} ` });
      for (const one of sharing) {
        const button = el('button', one === head ? 'now' : '', line, { type: 'button', text: one, 'aria-label': `${this.words.head} ${one}`, 'aria-pressed': String(one === head), 'data-name': `shared-${one}` });
        button.addEventListener('click', () => this.api.select({ head: one }));
      }
    }

    inside() {                                                  // the band of one head: a column a stage, a line a key
      const { keys, rest, queries } = this.data, n = keys.length;
      const tall = n <= 12 ? 26 : n <= 20 ? 22 : n <= 32 ? 18 : 15;
      const columns = this.stages.filter(stage => !['sum', 'joined', 'output'].includes(stage.id));
      const label = clamp(12 + 7.6 * Math.max(...keys.map(text => [...text].length), [...queries[this.row]].length), ...SIZES.label);
      const taken = columns.reduce((sum, { id }) => sum + SIZES.gap + (STRIPS.has(id) ? 0 : id === 'weights' ? SIZES.weight : SIZES.number), label);
      const strips = columns.filter(({ id }) => STRIPS.has(id)).length;
      this.strip = clamp(Math.floor((this.width - taken) / strips), ...SIZES.strip);
      const scroll = el('div', 'tv-step-scroll', this.box, { tabindex: 0, role: 'application', 'aria-label': this.words.grid, 'data-name': 'grid' });
      this.scroll = scroll; this.columns = []; this.blocks = [];
      scroll.style.setProperty('--tall', `${tall}px`); scroll.style.setProperty('--n', n);
      const names = el('div', 'tv-step-names', scroll); names.style.width = `${label}px`;
      el('div', 'tv-step-head', names);
      this.queryName = el('div', 'tv-step-top', names);
      const body = el('div', 'tv-step-body', names);
      this.keyNames = keys.map((text, i) => {
        const name = el('button', '', body, { type: 'button', tabindex: -1, title: text });
        el('bdi', '', name, { text, dir: 'auto' });
        name.addEventListener('click', () => this.choose(i));
        return name;
      });
      if (rest) el('div', 'tv-step-rest', names, { text: fill(this.words.rest, { n: rest }) });
      const sum = this.stages.find(stage => stage.id === 'sum'), foot = el('div', 'tv-step-foot', names);
      sum.head = el('button', 'tv-step-sum', foot, { type: 'button', title: sum.name, 'data-name': 'head-sum' });
      el('i', '', sum.head, { text: this.stages.indexOf(sum) + 1 }); el('b', '', sum.head, { text: this.words.sum });
      sum.head.addEventListener('click', () => { this.player.pause(); this.go(this.stages.indexOf(sum)); });
      for (const stage of columns) this.columns.push(this.column(stage, scroll, n));
      this.listen(scroll);
    }

    column(stage, parent, n) {
      const wide = STRIPS.has(stage.id) ? this.strip : stage.id === 'weights' ? SIZES.weight : SIZES.number;
      const box = el('div', `tv-step-column tv-step-${STRIPS.has(stage.id) ? 'strips' : 'numbers'} of-${stage.id}`, parent);
      box.style.width = `${wide}px`;
      this.header(stage, box);
      const column = { stage, box, top: el('div', 'tv-step-top', box), body: el('div', 'tv-step-body', box) };
      if (this.data.rest) column.rest = el('div', 'tv-step-rest', box);
      column.foot = el('div', 'tv-step-foot', box);
      const i = this.columns.length;
      if (STRIPS.has(stage.id)) {
        if (stage.id === 'before' || stage.id === 'vectors') this.canvas(column, 'top', i, 0);
        this.canvas(column, 'body', i, 1);
        if (stage.id === 'mixed') { if (column.rest) this.canvas(column, 'rest', i, 2); this.canvas(column, 'foot', i, 3); }
      } else {
        column.cells = Array.from({ length: n }, () => el('div', '', column.body));
        this.blocks.push({ column, part: 'body', node: column.body, i, band: 1, cols: 1, rows: n });
      }
      return column;
    }

    header(stage, parent) {
      const at = this.stages.indexOf(stage);
      const head = el('button', 'tv-step-head', parent, { type: 'button', title: stage.name, 'data-name': `head-${stage.id}` });
      el('i', '', head, { text: at + 1 }); el('em', 'tv-hidden', head, { text: ` ${stage.name} ` }); el('b', '', head, { text: stage.letters }); el('span', '', head, { text: stage.shape });
      head.addEventListener('click', event => { event.stopPropagation(); this.player.pause(); this.go(at); });
      stage.head = head;
    }

    canvas(column, part, i, band) {
      column[`${part}Canvas`] = el('canvas', '', column[part], { 'aria-hidden': 'true' });
      this.blocks.push({ column, part, node: column[part], i, band });
    }

    outside() {                                                 // the band of all heads: joined, times W_O
      this.after = null;
      if (!this.has('joined')) return;
      const { heads, value_dim, head } = this.data, [joined, output] = ['joined', 'output'].map(id => this.stages.find(stage => stage.id === id));
      const band = el('div', 'tv-step-after', this.box), tall = clamp(Math.round(170 / heads), 8, 18);
      band.style.setProperty('--tall', `${tall}px`);
      const left = el('div', 'tv-step-column of-joined', band);
      this.header(joined, left);
      const both = el('div', 'tv-step-joined', left), names = el('div', 'tv-step-heads', both);
      for (let h = 0; h < heads; h++) {
        const name = el('button', h === head ? 'now' : '', names, { type: 'button', text: h, 'aria-label': `${this.words.head} ${h}`, 'aria-pressed': String(h === head), tabindex: h === head ? 0 : -1, 'data-name': `joined-${h}` });
        name.addEventListener('click', () => this.api.select({ head: h }));
      }
      names.addEventListener('keydown', event => {
        const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (!step) return;
        const to = clamp(head + step, 0, heads - 1);
        event.preventDefault(); event.stopPropagation(); names.children[to].focus(); this.api.select({ head: to });
      });
      const grid = el('div', 'tv-step-cells', both), frame = el('div', 'tv-step-frame', grid);
      frame.style.top = `${head * tall}px`;
      const times = el('div', 'tv-step-times', band);
      el('b', '', times, { text: this.words.times }); el('span', '', times, { text: this.words.projection }); 
      const right = el('div', 'tv-step-column of-output', band);
      this.header(output, right);
      const cells = el('div', 'tv-step-cells', right), size = this.arrays.output.width, lines = Math.ceil(size / value_dim), low = clamp(Math.round(heads * tall / lines), 5, 18);
      cells.style.setProperty('--tall', `${low}px`); cells.style.height = `${low * lines}px`; grid.style.height = `${tall * heads}px`;
      const wide = `${clamp(value_dim * 6, 160, Math.min(340, this.width - 30))}px`;
      grid.style.width = cells.style.width = wide;
      this.after = { left, times, right, grid, cells, lines, joined: el('canvas', '', grid, { 'aria-hidden': 'true' }), output: el('canvas', '', cells, { 'aria-hidden': 'true' }) };
      this.blocks.push({ part: 'joined', node: grid, i: 0, band: 4, rows: heads, cols: value_dim }, { part: 'output', node: cells, i: 1, band: 4, rows: lines, cols: value_dim });
      this.listen(band);
    }

    legend() {
      const line = el('p', 'tv-step-legend', this.box, { 'aria-hidden': 'true' });
      el('i', 'below', line); el('span', '', line, { text: this.words.below }); el('i', 'zero', line); el('span', '', line, { text: '0' });
      el('i', 'above', line); el('span', '', line, { text: this.words.above });
      if (this.has('scores') && this.words.blocked) { el('i', 'blocked', line); el('span', '', line, { text: this.words.blocked }); }
      el('span', 'more', line, { text: this.words.ink });
    }

    /* ---- ink ---- */

    paint() {
      const { data, arrays, at, place } = this, n = data.keys.length;
      if (at < 0) return;
      this.queryName.replaceChildren(); el('bdi', '', this.queryName, { text: data.queries[this.row], dir: 'auto' });
      this.keyNames.forEach((name, i) => name.setAttribute('aria-pressed', String(i === place)));
      for (const column of this.columns) STRIPS.has(column.stage.id) ? this.paintStrips(column, n) : this.paintNumbers(column, n);
      this.paintAfter();
      this.paintStage();
    }

    paintStrips({ stage, topCanvas, bodyCanvas, restCanvas, footCanvas }, n) {
      const { arrays, at, colour } = this, [query, key] = stage.id === 'before' ? ['query_before', 'key_before'] : ['query', 'key'];
      if (topCanvas) ink(topCanvas, 1, arrays[query].width, (_, c) => arrays[query].at(at, c), arrays[query].most, colour);
      const body = stage.id === 'values' || stage.id === 'mixed' ? arrays.value : arrays[key], weights = arrays.weights.row(at);
      const value = stage.id === 'mixed' ? (r, c) => weights[r] * body.at(r, c) : body.at;
      ink(bodyCanvas, n, body.width, value, body.most, colour);
      if (restCanvas) ink(restCanvas, 1, body.width, (_, c) => arrays.rest.at(at, c), body.most, colour);
      if (footCanvas) ink(footCanvas, 1, body.width, (_, c) => arrays.sum.at(at, c), body.most, colour);
    }

    paintNumbers({ stage, cells, rest, foot }) {
      const { arrays, at, words } = this, values = arrays[stage.id].row(at), weights = stage.id === 'weights';
      const blocked = arrays.blocked?.row(at), hidden = stage.id === 'scores' || weights ? blocked : null;
      values.forEach((x, i) => {
        const cell = cells[i], off = Boolean(hidden?.[i]);
        cell.textContent = off && weights ? exact(x) : fixed(x, weights ? 3 : 2);
        cell.classList.toggle('blocked', off);
        cell.style.setProperty('--part', weights ? x : 0);
        cell.style.setProperty('--at', i);
      });
      if (!weights) return;
      const left = arrays.rest_weight?.at(at, 0) ?? 0;
      if (rest) rest.textContent = fixed(left, 3);
      foot.textContent = `${words.total} ${fixed(values.reduce((a, b) => a + b, left), 3)}`;
    }

    paintAfter() {
      if (!this.after) return;
      const { after, arrays, whole, data, colour } = this, size = arrays.output.width, wide = data.value_dim, here = whole >= 0;
      after.grid.classList.toggle('waiting', !here); after.cells.classList.toggle('waiting', !here);
      if (!here) return;
      ink(after.joined, data.heads, wide, (r, c) => arrays.joined.at(whole, r * wide + c), arrays.joined.most, colour);
      ink(after.output, after.lines, wide, (r, c) => r * wide + c < size ? arrays.output.at(whole, r * wide + c) : NaN, arrays.output.most, colour);
    }

    paintStage() {
      const { stages, stage } = this, now = stages[stage];
      stages.forEach((one, i) => {
        one.head?.classList.toggle('now', i === stage);
        one.head?.setAttribute('aria-current', i === stage ? 'step' : 'false');
      });
      const at = id => stages.findIndex(one => one.id === id), later = id => at(id) > stage;
      for (const { stage: one, box, foot } of this.columns) {
        box.classList.toggle('later', later(one.id)); box.classList.toggle('now', one === now);
        if (one.id === 'mixed') { foot.classList.toggle('later', later('sum')); foot.classList.toggle('now', now.id === 'sum'); }
      }
      if (this.after) {
        this.after.left.classList.toggle('later', later('joined')); this.after.times.classList.toggle('later', later('output')); this.after.right.classList.toggle('later', later('output'));
      }
      this.saidName.textContent = `${stage + 1}. ${now.name}`;
      this.said.textContent = this.sentence(now);
      const shown = this.columns.find(({ stage: one }) => one === now || (now.id === 'sum' && one.id === 'mixed'))?.box;
      if (shown && this.scroll.scrollWidth > this.scroll.clientWidth + 2) this.scroll.scrollTo({ left: shown.offsetLeft - this.scroll.clientWidth + shown.offsetWidth + 8 });
    }

    sentence(stage) {
      const { arrays, at, place, data } = this, of = name => arrays[name]?.at(at, place) ?? 0, blocked = of('blocked') === 1;
      const values = {
        query: data.queries[this.row], other: data.keys[place], n: data.keys.length + data.rest, head: data.head,
        raw: fixed(of('raw'), 2), scaled: fixed(of('scaled'), 2), capped: fixed(of('capped'), 2), bias: fixed(of('bias'), 2), before: fixed(this.has('capped') ? of('capped') : of('scaled'), 2),
        score: fixed(arrays.scores.at(at, place), 2), weight: fixed(of('weights'), 3),
      };
      return fill((blocked && stage.say_blocked) || stage.say, values);
    }

    /* ---- time ---- */

    go(stage) { this.stage = clamp(stage, 0, this.stages.length - 1); this.paintStage(); }
    turn(by) {
      if (by < 0 && this.stage === 0) { if (this.row > 0) { this.walk(-1); this.go(this.stages.length - 1); } return; }
      if (by > 0 && this.stage === this.stages.length - 1) { if (this.row < this.data.queries.length - 1) { this.walk(1); this.go(0); } return; }
      this.go(this.stage + by);
    }
    walk(by) {                                                  // to another query: the page's selection follows
      const to = clamp(this.row + by, 0, this.data.queries.length - 1);
      if (to === this.row) return false;
      if (this.data.rows.includes(to)) { this.row = to; this.paint(); }
      this.api.select({ query: to });
      return true;
    }
    begin() { if (this.stage === this.stages.length - 1) this.go(0); }
    get ended() { return this.stage === this.stages.length - 1 && this.row === this.data.queries.length - 1; }

    /* ---- reading a cell: pointer, or arrow keys ---- */

    choose(i) { this.key = this.data.key_at[i]; this.paint(); this.api.select({ key: this.key }); }

    listen(root) {
      const find = event => this.blocks.find(block => block.node.contains(event.target));
      root.addEventListener('pointermove', event => { const block = find(event); block ? this.point(block, ...this.cell(block, event)) : this.hide(); });
      root.addEventListener('pointerleave', () => this.hide());
      root.addEventListener('click', event => {
        const block = find(event);
        if (block?.part === 'body') this.choose(this.cell(block, event)[0]);
        if (block?.part === 'joined') this.api.select({ head: this.cell(block, event)[0] });
      });
      if (root !== this.scroll) return;
      root.addEventListener('keydown', event => { if (event.target === root) this.arrows(event); });
      root.addEventListener('blur', () => { this.cursor = null; this.hide(); });
    }

    size(block) {
      const wide = { before: 'key_before', vectors: 'key', values: 'value', mixed: 'value' }[block.column?.stage.id];
      return [block.rows ?? (block.part === 'body' ? this.data.keys.length : 1), block.cols ?? this.arrays[wide].width];
    }

    cell(block, event) {
      const area = block.node.getBoundingClientRect(), [rows, cols] = this.size(block);
      return [clamp(Math.floor((event.clientY - area.top) / area.height * rows), 0, rows - 1), clamp(Math.floor((event.clientX - area.left) / area.width * cols), 0, cols - 1)];
    }

    point(block, r, c) {
      const text = this.read(block, r, c);
      if (!text) return this.hide();
      const area = block.node.getBoundingClientRect(), own = this.box.getBoundingClientRect(), [rows, cols] = this.size(block);
      this.tip.replaceChildren(); el('bdi', '', this.tip, { text }); this.tip.hidden = false;
      const x = area.left - own.left + (c + 0.5) / cols * area.width, y = area.top - own.top + r / rows * area.height;
      this.tip.style.left = `${clamp(x - this.tip.offsetWidth / 2, 0, Math.max(0, own.width - this.tip.offsetWidth))}px`;
      this.tip.style.top = `${y - this.tip.offsetHeight - 6}px`;
      return text;
    }

    hide() { this.tip.hidden = true; }

    read({ column, part }, r, c) {
      const { data, arrays, at, whole, words } = this, query = data.queries[this.row], wide = data.value_dim;
      if (part === 'joined') return whole < 0 ? '' : `${words.head} ${r} [${c}] = ${exact(arrays.joined.at(whole, r * wide + c))}`;
      if (part === 'output') {
        const i = r * wide + c;
        if (whole < 0 || i >= arrays.output.width) return '';
        return `${words.output} [${i}] = ${exact(arrays.output.at(whole, i))}, ${words.model} ${exact(arrays.model.at(whole, i))}`;
      }
      const id = column.stage.id, key = data.keys[r], number = x => exact(x);
      if (part === 'top') return `q(${query}) [${c}] = ${number(arrays[id === 'before' ? 'query_before' : 'query'].at(at, c))}`;
      if (part === 'rest') return `${words.others} [${c}] = ${number(arrays.rest.at(at, c))}`;
      if (part === 'foot') return `\u03a3 \u03b1v [${c}] = ${number(arrays.sum.at(at, c))}`;
      if (id === 'before') return `k(${key}) [${c}] = ${number(arrays.key_before.at(r, c))}`;
      if (id === 'vectors') return `k(${key}) [${c}] = ${number(arrays.key.at(r, c))}, q\u00b7k: ${number(arrays.key.at(r, c) * arrays.query.at(at, c))}`;
      if (id === 'values') return `v(${key}) [${c}] = ${number(arrays.value.at(r, c))}`;
      if (id === 'mixed') return `${number(arrays.weights.at(at, r))} \u00b7 v(${key}) [${c}] = ${number(arrays.weights.at(at, r) * arrays.value.at(r, c))}`;
      return `${query} \u2192 ${key}: ${column.stage.letters} = ${number(arrays[id].at(at, r))}`;
    }

    arrows(event) {
      const by = event.shiftKey ? 8 : 1, move = { ArrowLeft: [0, -by], ArrowRight: [0, by], ArrowUp: [-by, 0], ArrowDown: [by, 0] }[event.key];
      if (event.key === 'Enter' && this.cursor?.block.part === 'body') return this.choose(this.cursor.r);
      if (!move) return;
      event.preventDefault();
      this.cursor ??= { block: this.blocks.find(({ part }) => part === 'body'), r: this.place, c: -Math.max(0, move[1]) };
      let { block, r, c } = this.cursor;
      r += move[0]; c += move[1];
      const [rows, cols] = this.size(block), order = block.band * 100 + block.i;
      const to = r < 0 ? this.near(block, -1) : r >= rows ? this.near(block, 1) : c < 0 ? this.beside(block, -1) : c >= cols ? this.beside(block, 1) : null;
      if (to) {
        const [toRows, toCols] = this.size(to);
        r = r < 0 ? toRows - 1 : r >= rows ? 0 : Math.min(r, toRows - 1);
        c = c < 0 ? toCols - 1 : c >= cols ? 0 : Math.min(c, toCols - 1);
        block = to;
      }
      const [n, m] = this.size(block);
      this.cursor = { block, r: clamp(r, 0, n - 1), c: clamp(c, 0, m - 1), order };
      this.live.textContent = this.point(block, this.cursor.r, this.cursor.c) || '';
    }

    near(block, by) {                                           // the block above or below it
      return this.blocks.filter(one => Math.sign(one.band - block.band) === by && (one.i === block.i || one.band === 4 || block.band === 4))
        .sort((a, b) => Math.abs(a.band - block.band) - Math.abs(b.band - block.band) || Math.abs(a.i - block.i) - Math.abs(b.i - block.i))[0];
    }
    beside(block, by) { return this.blocks.filter(one => one.band === block.band && Math.sign(one.i - block.i) === by).sort((a, b) => Math.abs(a.i - block.i) - Math.abs(b.i - block.i))[0]; }
  }

  const views = new WeakMap();
  ((window.tfviz ??= {}).views ??= {}).flow = (box, data, api) => {
    if (!views.has(box)) views.set(box, new Flow(box));
    views.get(box).show(data, api);
  };
})();
