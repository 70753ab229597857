/* The KV cache of a real generation, step by step: what is computed, what is read, what the cache holds, what it costs.
 *
 * window.tfviz.views.cache(box, data, api). data, made by tfviz/ui/tabs/cache/steps.py:
 *   id, own           the trace; the kind of the decoder's self-attention
 *   tokens, said      labels of the prompt and of what the model wrote; folded: positions of the prompt before `tokens`
 *   memory, n_memory  labels of the encoder's tokens, and how many there are
 *   kv_heads, q_heads, cross_heads, cross_q_heads   a number a layer
 *   steps             [{new, total, first, read, ms, bytes, work, ended}]; where a window drops keys, first and read have a number a layer
 *   kind, layer, head, group, heads, groups, dims   the chosen head;  rows, row_lengths, rest: its attention, -1 out of reach
 *   vectors           {q, k, v: {shape, ink: base64 int8, few}}, once all steps are there
 *   formula, wanted, choices, done, words
 * Everything is here: scrubbing and playing ask nothing of the server. */
(() => {
  const { el } = window.tfviz;
  const svg = (tag, parent, attributes) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    parent.append(node);
    return node;
  };
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const sum = list => list.reduce((a, b) => a + b, 0);
  const ENOUGH = 5;                       // decode steps from which their medians are compared
  const median = list => { const sorted = [...list].sort((a, b) => a - b), i = sorted.length >> 1; return sorted.length % 2 ? sorted[i] : (sorted[i - 1] + sorted[i]) / 2; };
  const whole = n => n.toLocaleString('en-US');
  const digits = x => x === 0 ? '0' : x >= 1000 ? whole(Math.round(x)) : x.toPrecision(3).replace(/e-0?/, 'e\u2212');
  const scaled = (x, units, by) => { let i = 0; while (x >= 1000 && i < units.length - 1) { x /= by; i++; } return `${digits(x)} ${units[i]}`.trim(); };
  const bytes = n => scaled(n, ['B', 'KiB', 'MiB', 'GiB'], 1024);
  const count = n => scaled(n, ['', 'K', 'M', 'G', 'T'], 1000);
  const shown = text => {                 // on an axis: of several pictures joined to one, the first
    const [first, ...others] = [...text.replace(/\ufe0f/g, '')];
    return others.includes('\u200d') ? `${first}\u2026${text.match(/[\u2080-\u2089]+$/)?.[0] ?? ''}` : text;
  };
  const length = text => sum([...text].map(one => one > '\u2e80' || text.startsWith('U+') ? 12.5 : 7.4));
  const stands = text => /[\u2e80-\uffff]|^U\+/.test(text); // one character below the other
  const number = x => String(x).replace('-', '\u2212').replace('e-', 'e\u2212');
  const unpack = text => Uint8Array.from(atob(text), one => one.charCodeAt(0)).buffer;
  const STEP_MS = 900, SPEEDS = [0.5, 1, 2, 4], PARTS = ['projections', 'scores', 'values', 'feed_forward', 'output'];
  const SIZE = { labels: [30, 88], lane: 18, gap: 10, attention: 76, least: 13, most: 44 };

  class Cache {
    constructor(box) {
      this.box = box; this.at = 0; this.follow = true; this.pace = STEP_MS; this.width = 0;
      box.classList.add('tv-cache');
      const sizes = new ResizeObserver(() => {
        if (!box.isConnected) return sizes.disconnect();
        if (this.data && box.clientWidth && box.clientWidth !== this.width) { this.build(); this.paint(); this.reveal(); }
      });
      sizes.observe(box);
    }

    show(data, api) {
      if (this.data && this.data.id !== data.id) { this.player.pause(); this.follow = true; }
      this.data = data; this.api = api; this.words = data.words;
      const rows = new Float32Array(unpack(data.rows));
      let from = 0;
      this.rows = data.row_lengths.map(n => rows.subarray(from, from += n));
      this.ink = data.vectors && Object.fromEntries(Object.entries(data.vectors).map(([name, one]) => [name, new Int8Array(unpack(one.ink))]));
      this.at = this.follow ? data.steps.length - 1 : Math.min(this.at, data.steps.length - 1);
      const style = getComputedStyle(this.box);
      this.colour = Object.fromEntries(['query', 'query-soft', 'key', 'accent', 'above', 'below', 'zero', 'line', 'line-strong', 'hatch', 'hatch-bg', 'ink', 'soft', 'panel'].map(name => [name, style.getPropertyValue(`--tv-${name}`).trim()]));
      this.build(); this.paint();
      if (this.follow) this.reveal();
    }

    get step() { return this.data.steps[this.at]; }
    get columns() { const { folded, tokens, steps, wanted, done } = this.data; return (folded ? 1 : 0) + tokens.length + (done ? steps.length : wanted); }
    position(column) { return this.data.folded ? column ? this.data.folded + column - 1 : 0 : column; }
    column(position) { return this.data.folded ? Math.max(0, position - this.data.folded + 1) : position; }
    label(position) {
      const { tokens, said, folded } = this.data, i = position - folded;
      return i < 0 ? '' : i < tokens.length ? tokens[i] : said[i - tokens.length] ?? '';
    }

    /* ---- furniture ---- */

    build() {
      this.width = this.box.clientWidth;
      const active = this.box.contains(document.activeElement) ? document.activeElement.dataset.name : '';
      const scrolled = this.scroll?.scrollLeft ?? 0;
      this.buildPlayer();
      this.own = this.block('own');
      this.scroll = this.own.scroll;
      this.legend();
      this.cross = this.data.cross_heads.length ? this.block('cross') : null;
      const cards = el('div', 'tv-cache-cards', this.box);
      this.memory = this.card(cards, 'memory', false); this.work = this.card(cards, 'work', true); this.time = this.card(cards, 'time', true);
      this.tensors = el('section', 'tv-cache-tensors', this.box);
      this.tip = el('div', 'tv-cache-tip', this.box, { 'aria-hidden': 'true' }); this.tip.hidden = true;
      this.scroll.scrollLeft = scrolled;
      if (active) this.box.querySelector(`[data-name="${active}"]`)?.focus({ preventScroll: true });
    }

    buildPlayer() {
      const { words, data } = this, more = data.choices.find(n => n > data.wanted);
      this.player ??= new window.tfviz.Player(this, words, { speeds: SPEEDS, slider: true });
      this.moreButton ??= this.player.wish('more', () => this.goOn());
      this.moreButton.textContent = fill(words.more, { n: more });
      this.moreButton.hidden = !more || !data.done || data.steps.at(-1).ended || data.steps.length !== data.wanted;
      this.box.replaceChildren(this.player.bar);
      const said = el('p', 'tv-cache-said', this.box, { role: 'status' });
      this.saidWhich = el('b', '', said); this.said = el('span', '', said);
    }

    block(which) {                                              // lanes that share their columns: labels, computed, cache, attention
      const { data, words } = this, own = which === 'own', chosen = (data.kind === 'cross') !== own;
      const heads = own ? data.kv_heads : data.cross_heads, n = own ? this.columns : data.memory.length, rows = sum(heads);
      const gutter = this.width < 560 ? 96 : 132, room = this.width - gutter - 4, texts = own ? [...data.tokens, ...data.said] : data.memory;
      const longest = Math.max(...texts.map(text => length(shown(text)))), wide = clamp(Math.floor(room / n), SIZE.least, SIZE.most);
      const upright = longest + 8 <= wide, above = upright ? SIZE.labels[0] : clamp(14 + longest, ...SIZE.labels);
      const tall = clamp(Math.floor((own ? 270 : 150) / rows), 2, 12), between = tall > 3 ? 3 : 1;
      const lanes = [];
      let y = 4;
      const lane = (name, height) => { lanes.push({ name, y, height }); y += height + SIZE.gap; };
      if (own) { lane('with', SIZE.lane); lane('without', SIZE.lane); }
      lane(own ? 'cache' : 'cross', rows * tall + heads.length * between);
      if (chosen) lane('attention', SIZE.attention);
      const root = el('div', `tv-cache-block of-${which}`, this.box);
      const names = el('div', 'tv-cache-gutter', root); names.style.width = `${gutter}px`; names.style.height = `${above + y}px`;
      if (own) el('span', 'tv-cache-lane of-computed', names, { text: words.computed }).style.top = `${above - 2}px`;
      for (const one of lanes) {
        const name = el('span', `tv-cache-lane of-${one.name}`, names, { text: words[one.name] });
        name.style.top = `${above + one.y}px`;
        if (one.name === 'attention') el('small', '', name, { text: `${words.layer} ${data.layer} · ${words.head} ${data.head}` });
      }
      const scroll = el('div', 'tv-cache-scroll', root, { tabindex: 0, role: 'group', 'aria-label': `${words.grid}: ${words[own ? 'cache' : 'cross']}`, 'data-name': `scroll-${which}` });
      const inner = el('div', 'tv-cache-inner', scroll); inner.style.width = `${n * wide}px`;
      const labels = el('div', `tv-cache-labels${upright ? ' upright' : ''}`, inner); labels.style.height = `${above}px`;
      const cells = Array.from({ length: n }, (_, c) => { const cell = el('span', '', labels); cell.style.width = `${wide}px`; el('bdi', '', cell, { dir: 'auto' }); if (!own) this.name(cell, data.memory[c], wide); return cell; });
      const canvas = el('canvas', '', inner, { 'aria-hidden': 'true' }), ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(n * wide * ratio); canvas.height = Math.round(y * ratio); canvas.style.width = `${n * wide}px`; canvas.style.height = `${y}px`;
      const tops = [];
      let top = lanes.find(({ name }) => name === 'cache' || name === 'cross').y;
      for (const count of heads) { tops.push(top); top += count * tall + between; }
      const block = { which, root, names, scroll, cells, canvas, ratio, lanes, n, wide, tall, heads, tops, chosen, above };
      this.ticks(block);
      if (!own) el('p', 'tv-cache-once', this.box, { text: fill(words['cross.once'], { n: whole(data.n_memory) }) });
      canvas.addEventListener('pointermove', event => this.point(block, event));
      canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
      canvas.addEventListener('click', event => { const at = this.row(block, this.over(canvas, event)[1]); if (at) this.choose(block, ...at); });
      return block;
    }

    name(cell, text, wide) {                                    // a column's label: Chinese and the like upright, or level where it fits
      const label = cell.firstChild, short = shown(text);
      label.textContent = short; cell.title = text;
      label.className = !stands(short) ? '' : length(short) + 4 <= wide ? 'level' : 'stands';
    }

    ticks({ names, tops, heads, tall, chosen, above }) {         // layer numbers beside the cache, as many as there is room for
      const each = Math.max(1, Math.ceil(13 / (heads[0] * tall + 1))), { layer } = this.data;
      tops.forEach((y, i) => {
        const on = chosen && i === layer;
        if (i % each && !on) return;
        if (chosen && !on && Math.abs(y - tops[layer]) < 12) return;
        const tick = el('i', on ? 'now' : '', names, { text: i });
        tick.style.top = `${above + y + heads[i] * tall / 2 - 7}px`;
      });
    }

    legend() {
      const line = el('p', 'tv-cache-legend', this.box, { 'aria-hidden': 'true' });
      const evicted = this.data.steps.some(step => step.first);
      for (const name of ['new', 'read', 'again.cell', ...(evicted ? ['evicted'] : []), 'to_come']) { const one = el('span', '', line); el('i', name.replace('.', '-'), one); one.append(this.words[name]); }
      if (evicted) el('span', 'more', line, { text: fill(this.words.sliding, { n: this.data.formula.window }) });
    }

    card(parent, name, bars) {
      const root = el('section', `tv-cache-card of-${name}`, parent);
      el('h3', '', root, { text: this.words[name] });
      const card = { root, big: el('p', 'tv-cache-big', root), body: el('div', '', root) };
      if (name === 'time') {
        card.typical = el('p', 'tv-cache-sum', card.body);
        card.once = el('p', 'tv-cache-sum', card.body, { text: this.words.once });
      }
      if (bars) card.bars = ['with', 'without'].map(way => {
        const line = el('div', `tv-cache-way of-${way}`, card.body);
        el('span', '', line, { text: this.words[way] });
        const track = el('div', 'tv-cache-track', line);
        return { track, parts: [], value: el('b', '', line) };
      });
      else card.lines = Array.from({ length: 3 }, () => el('p', 'tv-cache-sum', card.body));
      if (name === 'work') {
        const legend = el('p', 'tv-cache-parts', card.body, { 'aria-hidden': 'true' });
        PARTS.forEach((part, i) => { const one = el('span', '', legend); el('i', `p${i}`, one); one.append(this.words[part]); });
      }
      card.chart = this.chart(root, name);
      return card;
    }

    series(name) {
      const steps = this.data.steps;
      if (name === 'memory') return [steps.map(step => sum(step.bytes))];
      if (name === 'work') return [0, 1].map(i => steps.map(step => sum(step.work[i])));
      return [0, 1].map(i => steps.map(step => step.ms[i]));
    }

    chart(parent, name) {                                       // each step's figures in one small chart; a click goes there
      const W = 300, H = 74, lines = this.series(name), n = this.data.done ? this.data.steps.length : this.data.wanted, top = Math.max(...lines.flat()) || 1;
      const x = i => n < 2 ? W / 2 : 4 + i / (n - 1) * (W - 8), y = value => H - 3 - value / top * (H - 10);
      const root = svg('svg', parent, { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', class: 'tv-cache-chart', 'aria-hidden': 'true' });
      svg('line', root, { x1: 0, x2: W, y1: H - 2, y2: H - 2, class: 'axis' });
      const cursor = svg('line', root, { y1: 0, y2: H, class: 'cursor' });
      lines.forEach((values, k) => {
        const line = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(' ');
        if (lines.length === 1) svg('polygon', root, { points: `${x(0)},${H - 2} ${line} ${x(values.length - 1)},${H - 2}`, class: 'area' });
        svg('polyline', root, { points: line, class: k ? 'without' : 'with' });
      });
      root.addEventListener('click', event => {
        const area = root.getBoundingClientRect();
        this.player.pause(); this.go(Math.round(((event.clientX - area.left) / area.width * W - 4) / (W - 8) * (n - 1)));
      });
      return { cursor, x };
    }

    /* ---- one step ---- */

    paint() {
      const { step, data, words } = this, first = this.at === 0, token = data.said[this.at], n = step.total;
      const key = !first ? 'decode' : step.new === 1 ? 'prefill.one' : 'prefill', ways = [0, 1];
      const place = fill(words.step, { i: this.at + 1, n: data.steps.length });
      this.player.paint(this.at, data.steps.length, place);
      this.saidWhich.textContent = place;
      const read = [...new Set([step.read].flat())].sort((a, b) => a - b), reads = read.length > 1 ? `${whole(read[0])} \u2013 ${whole(read.at(-1))}` : whole(read[0]);
      this.said.textContent = fill(words[key], { n: first ? whole(n) : reads, last: this.label(n - 1), token }) + (step.ended ? ` ${words.ended}` : '');
      this.paintBlock(this.own);
      if (this.cross) this.paintBlock(this.cross);
      const { formula: f } = data, factors = f.kv_heads ? `2 \u00d7 ${f.layers} \u00d7 ${f.kv_heads} \u00d7 ${f.head_dim} \u00d7 ${f.element} B = ` : '';
      const [own, cross] = step.bytes;
      this.memory.big.textContent = bytes(own + cross);
      const texts = [`${factors}${whole(f.token)} B ${words.token}`, `${words.measured}: ${whole(own)} B${own % f.token ? '' : ` = ${whole(own / f.token)} \u00d7 ${whole(f.token)} B`}`, cross ? `${words.cross}: ${whole(cross)} B` : ''];
      this.memory.lines.forEach((line, i) => { line.textContent = texts[i]; line.hidden = !texts[i]; });
      const work = ways.map(i => sum(step.work[i])), most = Math.max(...data.steps.map(one => sum(one.work[1])));
      this.work.big.textContent = first ? words.same : fill(words.less, { x: digits(work[1] / work[0]) });
      this.work.bars.forEach(({ track, value }, i) => {
        while (track.children.length < PARTS.length) el('i', `p${track.children.length}`, track);
        PARTS.forEach((part, k) => { track.children[k].style.width = `${100 * step.work[i][k] / most}%`; track.children[k].title = `${words[part]}: ${whole(step.work[i][k])}`; });
        value.textContent = count(work[i]); value.title = whole(work[i]);
      });
      const slowest = Math.max(...data.steps.map(one => Math.max(...one.ms)));
      this.headline(first);
      this.time.bars.forEach(({ track, value }, i) => {
        if (!track.children.length) el('i', i ? 'without' : 'with', track);
        track.firstChild.style.width = `${100 * step.ms[i] / slowest}%`;
        value.textContent = `${digits(step.ms[i])} ms`;
      });
      for (const { chart } of [this.memory, this.work, this.time]) { const x = chart.x(this.at); chart.cursor.setAttribute('x1', x); chart.cursor.setAttribute('x2', x); }
      this.paintTensors();
      this.tip.hidden = true;
    }

    headline(first) {                                           // which way is faster: no single run says it
      const { data, words, time } = this, later = data.steps.slice(1), enough = later.length >= ENOUGH;
      const [cached, uncached] = [0, 1].map(i => median(later.map(one => one.ms[i]))), gain = uncached / cached;
      const verdict = enough ? fill(words[gain >= 1 ? 'faster' : 'slower'], { x: Math.max(gain, 1 / gain).toFixed(2) }) : words.few;
      time.big.textContent = first ? words['same.work'] : verdict;
      time.typical.textContent = enough ? fill(words.median, { with: digits(cached), without: digits(uncached) }) : '';
    }

    reads(layer) { const { read } = this.step; return Array.isArray(read) ? read[layer] : read; }

    state(position, layer) {
      const { total, new: fresh, first } = this.step;
      if (position >= total) return 'to_come';
      if (first && position < first[layer]) return position < total - this.reads(layer) ? 'evicted' : 'leaving';
      return position >= total - fresh ? 'new' : 'read';
    }

    paintBlock(block) {
      const { canvas, ratio, lanes, n, wide, tall, heads, tops, cells, which, chosen } = block, { colour, data, step } = this;
      const pen = canvas.getContext('2d'), own = which === 'own', inset = wide > 5 ? 1 : 0, height = canvas.height / ratio;
      const lane = name => lanes.find(one => one.name === name);
      pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, n * wide, height);
      const cell = (c, y, h, fillStyle, alpha = 1) => { pen.globalAlpha = alpha; pen.fillStyle = fillStyle; pen.fillRect(c * wide + inset, y, wide - 2 * inset || 1, h); pen.globalAlpha = 1; };
      const hatch = (c, y, h) => {
        cell(c, y, h, colour['hatch-bg']);
        pen.save(); pen.beginPath(); pen.rect(c * wide + inset, y, wide - 2 * inset || 1, h); pen.clip();
        pen.strokeStyle = colour['line-strong']; pen.lineWidth = 1; pen.beginPath();
        for (let x = -h; x < wide; x += 5) { pen.moveTo(c * wide + x, y + h); pen.lineTo(c * wide + x + h, y); }
        pen.stroke(); pen.restore();
      };
      for (let c = 0; c < n; c++) {
        const p = own ? this.position(c) : c, fresh = own ? p < step.total && p >= step.total - step.new : this.at === 0;
        const next = own && p === step.total, here = !own || p < step.total;
        if (own) {
          const text = data.folded && !c ? fill(this.words.rest, { n: whole(data.folded) }) : p <= step.total ? this.label(p) : '';
          if (cells[c].title !== text) this.name(cells[c], text, wide);
        }
        cells[c].className = next ? 'next' : fresh ? 'new' : here ? 'read' : '';
        if (own && fresh && this.at) { pen.globalAlpha = 1; pen.fillStyle = colour['query-soft']; pen.fillRect(c * wide, 0, wide, height); }
        if (own) {
          const [with_, again] = ['with', 'without'].map(lane);
          fresh ? cell(c, with_.y, with_.height, colour.query) : this.outline(pen, c, with_, wide, inset);
          here ? cell(c, again.y, again.height, fresh ? colour.query : colour.above, fresh ? 1 : .62) : this.outline(pen, c, again, wide, inset);
        }
        heads.forEach((count, layer) => {
          const state = own ? this.state(p, layer) : fresh ? 'new' : 'read', y = tops[layer], lit = chosen && layer === data.layer;
          if (state === 'to_come') return cell(c, y, count * tall - (tall > 3 ? 1 : 0), colour.line, .55);
          if (state === 'evicted') return hatch(c, y, count * tall);
          if (state === 'leaving') { hatch(c, y, count * tall); return cell(c, y, count * tall, fresh ? colour.query : colour.key, .4); }
          for (let h = 0; h < count; h++) cell(c, y + h * tall, tall - (tall > 3 ? 1 : 0), state === 'new' ? colour.query : colour.key, state === 'new' ? lit ? 1 : .78 : lit && h === data.group ? .95 : lit ? .6 : .36);
        });
      }
      if (chosen) {
        const y = tops[data.layer];
        pen.strokeStyle = colour.accent; pen.lineWidth = 1.5;
        pen.strokeRect(.75, y - 1.25, n * wide - 1.5, heads[data.layer] * tall + 1.5);
        this.paintAttention(pen, lane('attention'), n, wide, inset, own);
      }
    }

    outline(pen, c, { y, height }, wide, inset) {
      pen.strokeStyle = this.colour.line; pen.lineWidth = 1;
      pen.strokeRect(c * wide + inset + .5, y + .5, Math.max(1, wide - 2 * inset - 1), height - 1);
    }

    weight(column, own) {                                       // of the shown row: -1 out of reach
      const { data } = this, row = this.rows[this.at];
      if (!own || !data.folded) return row[column];
      return column ? row[column - 1] : data.rest[this.at];
    }

    paintAttention(pen, { y, height }, n, wide, inset, own) {
      const { colour } = this, values = Array.from({ length: n }, (_, c) => this.weight(c, own)), low = y + height - 1;
      const most = Math.max(...values.filter(Number.isFinite), 1e-9), room = height - 16;
      pen.fillStyle = colour.line; pen.fillRect(0, low, n * wide, 1);
      const told = new Set(values.map((value, c) => [value, c]).filter(([value]) => value >= .005).sort((a, b) => b[0] - a[0]).slice(0, wide >= 26 ? 5 : 1).map(([, c]) => c));
      pen.font = `11px ${getComputedStyle(this.box).getPropertyValue('--tv-mono') || 'monospace'}`; pen.textAlign = 'center';
      values.forEach((value, c) => {
        if (!(value > 0)) return;
        const tall = Math.max(1, value / most * room);
        pen.fillStyle = colour.accent; pen.fillRect(c * wide + inset, low - tall, wide - 2 * inset || 1, tall);
        if (!told.has(c)) return;
        pen.fillStyle = colour.ink; pen.fillText(value.toFixed(2), clamp(c * wide + wide / 2, 13, n * wide - 13), low - tall - 4);
      });
    }

    paintTensors() {
      const { data, step, words } = this, cross = data.kind === 'cross', [dim, valueDim] = data.dims, held = cross ? data.n_memory : this.reads(data.layer);
      const fresh = cross ? (this.at ? 0 : data.n_memory) : step.new, tail = cross ? '_cross' : '';
      this.tensors.replaceChildren();
      el('h3', '', this.tensors, { text: fill(words.tensors, { layer: data.layer }) });
      const scroll = el('div', 'tv-cache-wide', this.tensors, { tabindex: 0, role: 'group', 'aria-label': fill(words.tensors, { layer: data.layer }), 'data-name': 'tensors' });
      const table = el('table', '', scroll), head = el('tr', '', el('thead', '', table)), body = el('tbody', '', table);
      for (const name of ['tensor', 'shape', 'strip', 'first']) el('th', '', head, { scope: 'col', text: words[name] });
      el('small', '', head.children[1], { text: words.axes });
      const signs = el('small', '', head.children[2], { text: words['strip.rows'] });
      for (const sign of ['below', 'above']) { const one = el('span', '', signs); el('i', sign, one); one.append(words[sign]); }
      el('small', '', head.children[3], { text: words['first.row'] });
      const line = (name, of, shape, group) => {
        const row = el('tr', `of-${name[0]}`, body);
        el('th', '', row, { scope: 'row', text: words[name] });
        el('td', 'shape', row, { text: `[${shape.join(', ')}]` });
        const strip = el('td', 'strip', row), few = el('td', 'few', row);
        el('small', '', row.firstChild, { text: fill(words[group ? 'row_kv' : 'row'], { head: data.head, group: data.group }) });
        if (!this.ink) return;
        const all = data.vectors[of], [n, width] = all.shape;
        let from, to;
        if (of === 'q') [from, to] = [this.at, this.at + 1];
        else if (cross) [from, to] = [0, n];
        else [from, to] = [Math.max(0, step.total - (name === 'K' || name === 'V' ? held : fresh) - data.folded), step.total - data.folded];
        few.textContent = all.few[to - 1].map(number).join('  ') + (width > all.few[0].length ? '  \u2026' : '');
        this.paintInk(el('canvas', '', strip, { 'aria-hidden': 'true' }), this.ink[of], width, from, to);
      };
      line('q', 'q', [data.heads, step.new, dim], false);
      if (fresh) { line(`k${tail}`, 'k', [data.groups, fresh, dim], true); line(`v${tail}`, 'v', [data.groups, fresh, valueDim], true); }
      line(`K${tail}`, 'k', [data.groups, held, dim], true); line(`V${tail}`, 'v', [data.groups, held, valueDim], true);
    }

    paintInk(canvas, ink, width, from, to) {                    // a row a position; below, at, above zero
      const rgb = text => [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16)), [below, zero, above] = ['below', 'zero', 'above'].map(name => rgb(this.colour[name]));
      const n = Math.max(1, to - from);
      canvas.width = width; canvas.height = n; canvas.style.height = `${n === 1 ? 16 : clamp(n * 3, 24, 120)}px`;
      const image = new ImageData(width, n);
      for (let i = 0; i < n * width; i++) {
        const x = ink[from * width + i] / 127, end = x < 0 ? below : above, part = Math.sqrt(Math.abs(x));
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = zero[c] + (end[c] - zero[c]) * part;
        image.data[4 * i + 3] = 255;
      }
      canvas.getContext('2d').putImageData(image, 0, 0);
    }

    /* ---- time ---- */

    go(to) {
      const last = this.data.steps.length - 1;
      this.at = clamp(to, 0, last); this.follow = this.at === last;
      this.paint(); this.reveal();
    }
    reveal() {                                                  // the newest column stays in sight where columns scroll
      const { wide } = this.own, { scroll } = this, end = (this.column(this.step.total - 1) + 2) * wide, room = scroll.clientWidth; // the next token's too
      if (!this.at) scroll.scrollLeft = end - room;             // of the prompt, all or its last part
      else if (end - 2 * wide < scroll.scrollLeft || end > scroll.scrollLeft + room) scroll.scrollLeft = end - wide - room / 2;
    }
    turn(by) { this.go(this.at + by); }
    begin() {
      if (this.at === this.data.steps.length - 1) this.go(0);
      this.follow = false;
    }
    get ended() { return this.at === this.data.steps.length - 1 && this.data.done; }
    goOn() {
      this.player.pause(); this.follow = true;
      this.api.ask({ steps: this.data.choices.find(n => n > this.data.wanted) });
    }

    /* ---- pointing ---- */

    over(canvas, event) { const area = canvas.getBoundingClientRect(); return [event.clientX - area.left, event.clientY - area.top]; }

    row({ lanes, tops, heads, tall }, y) {                      // (layer, key/value head) under the pointer; the line between two layers counts with the upper one
      const { y: from, height } = lanes.find(({ name }) => name === 'cache' || name === 'cross');
      if (y < from || y >= from + height) return null;
      const i = tops.findLastIndex(top => top <= y);
      return [i, clamp(Math.floor((y - tops[i]) / tall), 0, heads[i] - 1)];
    }

    choose({ which }, layer, group) {
      const { data } = this, own = which === 'own', queries = (own ? data.q_heads : data.cross_q_heads)[layer], groups = (own ? data.kv_heads : data.cross_heads)[layer];
      this.api.select({ kind: own ? data.own : 'cross', layer, head: Math.floor(group * queries / groups) });
    }

    point(block, event) {
      const { canvas, wide, n, lanes, which } = block, [x, y] = this.over(canvas, event), c = clamp(Math.floor(x / wide), 0, n - 1), own = which === 'own';
      const p = own ? this.position(c) : c, text = own ? this.label(p) : this.data.memory[c], at = this.row(block, y), { words } = this;
      const lane = lanes.find(one => y >= one.y && y < one.y + one.height);
      const told = [];
      if (lane && (!own || p < this.step.total)) {
        told.push(`${words.position} ${p}${text ? ` \u201c${text}\u201d` : ''}`);
        if (at) told.push(`${words.layer} ${at[0]}, ${words.kv} ${at[1]}`, words[own ? this.state(p, at[0]) : this.at ? 'read' : 'new']);
        else if (lane.name === 'attention') { const weight = this.weight(c, own); told.push(weight >= 0 ? weight.toPrecision(3) : words.evicted); }
        else if (lane.name === 'without') told.push(words[this.state(p, 0) === 'new' ? 'new' : 'again.cell']);
        else if (lane.name === 'with') told.push(words[p >= this.step.total - this.step.new ? 'new' : 'read']);
      }
      this.tip.hidden = !told.length;
      if (!told.length) return;
      this.tip.textContent = told.join(' \u00b7 ');
      const own_ = this.box.getBoundingClientRect();
      this.tip.style.left = `${clamp(event.clientX - own_.left + 12, 0, Math.max(0, own_.width - this.tip.offsetWidth))}px`;
      this.tip.style.top = `${event.clientY - own_.top - this.tip.offsetHeight - 10}px`;
    }
  }

  (window.tfviz.views ??= {}).cache = (box, data, api) => (box.tvCache ??= new Cache(box)).show(data, api);
})();
