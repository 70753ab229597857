/* Attention without the matrix: a block of queries meets the keys block by block, and only the tile where they meet exists.
 *
 * window.tfviz.views.tiling(box, data, api). data, made by tfviz/ui/tabs/speed/tiling.py:
 *   id                what is shown: trace/kind/layer/head
 *   queries, keys     labels;  row: the chosen query
 *   blocks            [queries, keys] in a block;  dims: [of q and k, of v]
 *   numbers           name -> base64 float32: scores [query, key], maximum total correction [query, key block],
 *                     accumulator [query, key block, few], output naive [query, few]
 *   ink               accumulator [query, key block, features], output [query, features]: base64 int8, colours only
 *   skipped           base64 uint8 [query block, key block];  features, few, words
 * A step is one tile that is computed, or the end of a block of queries. Everything is here: no step asks the server. */
(() => {
  const { el } = window.tfviz;
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const unpack = text => Uint8Array.from(atob(text), one => one.charCodeAt(0)).buffer;
  const sign = text => text.replace(/-/g, '\u2212');
  const digits = x => x === -Infinity ? '\u2212\u221e' : x === 0 ? '0' : sign(Math.abs(x) >= 1000 || Math.abs(x) < 1e-3 ? x.toExponential(1) : x.toPrecision(3));
  const short = x => x === -Infinity ? '\u2212\u221e' : sign(Math.abs(x) < 9.95 ? x.toFixed(1) : x.toFixed(0));
  const count = n => n.toLocaleString('en-US');
  const bytes = n => n < 1e5 ? `${count(n)} B` : n < 1e6 ? `${(n / 1024).toPrecision(3)} KiB` : `${(n / 1024 ** 2).toPrecision(3)} MiB`;
  const long = text => [...text].reduce((sum, one) => sum + (one > '\u2e80' ? 12.5 : 7.4), 0);
  const rgb = text => [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
  const mix = (a, b, part) => a.map((from, c) => Math.round(from + (b[c] - from) * part));
  const STEP_MS = 1300, WHOLE_MS = 60000, SPEEDS = [0.5, 1, 2, 4, 16], ELEMENT = 4, LISTED = 8;
  const COLOURS = ['query', 'query-soft', 'key', 'key-soft', 'accent', 'below', 'zero', 'above', 'line', 'line-strong', 'hatch-bg', 'soft', 'scale-low', 'scale-mid', 'scale-high'];

  class Tiling {
    constructor(box) {
      this.box = box; this.at = 0; this.row = 0; this.width = 0; this.fresh = true;
      box.classList.add('tv-tiling');
      const sizes = new ResizeObserver(() => {
        if (!box.isConnected) return sizes.disconnect();
        if (this.data && box.clientWidth && box.clientWidth !== this.width) { this.build(); this.paint(); }
      });
      sizes.observe(box);
      const heard = ({ detail }) => box.isConnected ? this.selected(detail) : window.removeEventListener('tfviz:selected', heard);
      window.addEventListener('tfviz:selected', heard);
    }

    show(data, api) {
      const shape = one => one && [one.id.split('/')[0], one.queries.length, one.keys.length, ...one.blocks].join();
      const same = shape(this.data) === shape(data);
      if (!same) this.player?.pause();
      this.data = data; this.api = api; this.words = data.words;
      this.numbers = Object.fromEntries(Object.entries(data.numbers).map(([name, text]) => [name, new Float32Array(unpack(text))]));
      this.ink = Object.fromEntries(Object.entries(data.ink).map(([name, text]) => [name, new Int8Array(unpack(text))]));
      this.plan(new Uint8Array(unpack(data.skipped)));
      if (!same) { this.at = this.opening(); this.fresh = true; }
      this.at = Math.min(this.at, this.steps.length - 1);
      this.row = Math.min(api.place.query ?? data.row, data.queries.length - 1);
      const style = getComputedStyle(this.box);
      this.colour = Object.fromEntries(COLOURS.map(name => [name, style.getPropertyValue(`--tv-${name}`).trim()]));
      this.build(); this.paint();
    }

    plan(skipped) {                                             // the steps, and what has gone through slow memory after each
      const [tall, wide] = this.data.blocks, [dim, valueDim] = this.data.dims, n = this.data.queries.length, m = this.data.keys.length;
      this.down = Math.ceil(n / tall); this.across = Math.ceil(m / wide); this.steps = [];
      this.skips = (i, j) => skipped[i * this.across + j] === 1;
      let moved = 0;
      for (let i = 0; i < this.down; i++) {
        const [top, end] = this.span(i, tall, n);
        moved += (end - top) * dim * ELEMENT;
        let before = -1, left = 0;
        for (let j = 0; j < this.across; j++) {
          if (this.skips(i, j)) { left++; continue; }
          const [from, to] = this.span(j, wide, m);
          moved += (to - from) * (dim + valueDim) * ELEMENT;
          this.steps.push({ i, j, before, moved }); before = j;
        }
        moved += (end - top) * valueDim * ELEMENT;
        this.steps.push({ i, j: -1, before, left, moved });
      }
      this.naive = (n * (dim + valueDim) + m * (dim + valueDim) + 4 * n * m) * ELEMENT;
    }

    opening() {                                                 // a step that tells most: where most rows are corrected, the latest of those
      const told = this.steps.map(step => step.j < 0 ? -1 : step.before < 0 ? 0 : this.grown(step));
      return Math.max(0, told.lastIndexOf(Math.max(...told)));
    }

    grown({ i, j, before }) {                                   // how many rows of the block have a larger maximum than before
      const [top, end] = this.rowsOf(i);
      let n = 0;
      for (let row = top; row < end; row++) if (this.number('maximum', row, j) > this.number('maximum', row, before)) n++;
      return n;
    }

    span(i, size, n) { return [i * size, Math.min((i + 1) * size, n)]; }
    rowsOf(i) { return this.span(i, this.data.blocks[0], this.data.queries.length); }
    keysOf(j) { return this.span(j, this.data.blocks[1], this.data.keys.length); }
    get step() { return this.steps[this.at]; }
    get shown() {                                               // the row whose numbers are written out: always one of this block
      const [top, end] = this.rowsOf(this.step.i);
      return this.row >= top && this.row < end ? this.row : top + this.row % (end - top);
    }
    score(row, key) { return this.numbers.scores[row * this.data.keys.length + key]; }
    number(name, row, j) { return this.numbers[name][row * this.across + j]; }
    few(name, row, j) { const { few } = this.data, at = (j === undefined ? row : row * this.across + j) * few; return [...this.numbers[name].subarray(at, at + few)]; }
    last(row) {                                                 // the block of keys up to which this row has gone; -1: none yet
      const { i, j, before } = this.step, own = Math.floor(row / this.data.blocks[0]);
      return own > i ? -1 : own < i ? this.across - 1 : j < 0 ? before : j;
    }
    done(row) { const own = Math.floor(row / this.data.blocks[0]); return own < this.step.i || (own === this.step.i && this.step.j < 0); }

    selected({ trace, kind, layer, head, query }) {
      if (!this.data || this.data.id !== [trace, kind, layer, head].join('/') || query >= this.data.queries.length || query === this.row) return;
      this.row = query; this.paint();
    }

    /* ---- furniture ---- */

    build() {
      this.width = this.box.clientWidth;
      const focus = this.box.contains(document.activeElement) ? document.activeElement.dataset.name : '';
      this.buildPlayer(); this.matrix(); this.legend(); this.formula(); this.cards();
      this.tip = el('div', 'tv-tiling-tip', this.box, { 'aria-hidden': 'true' }); this.tip.hidden = true;
      if (focus) this.box.querySelector(`[data-name="${focus}"]`)?.focus({ preventScroll: true });
    }

    buildPlayer() {
      this.player ??= new window.tfviz.Player(this, this.words, { speeds: SPEEDS, slider: true, walk: this.words.row });
      this.box.replaceChildren(this.player.bar);
      const said = el('p', 'tv-tiling-said', this.box, { role: 'status' });
      this.saidWhich = el('b', '', said); this.said = el('span', '', said);
    }

    matrix() {                                                  // labels, the grid, the running numbers, the rows of the output
      const { queries, keys } = this.data, { words } = this, narrow = this.width < 620, n = queries.length, m = keys.length;
      const name = clamp(14 + Math.max(...queries.map(long)), 44, narrow ? 74 : 118), column = narrow ? 42 : 56, columns = narrow ? 2 : 3, gap = narrow ? 6 : 12;
      const fixed = name + columns * column + 2 * gap + (narrow ? 0 : 2 * (96 + gap));
      const wide = clamp((this.width - fixed) / m, 2, narrow ? 26 : 38), tall = clamp(Math.round(wide), narrow ? 17 : 15, 34);
      const upright = Math.max(...keys.map(long)) + 6 <= wide, above = upright ? 26 : clamp(14 + Math.max(...keys.map(long)), 36, 92);
      const strip = narrow ? 0 : clamp(Math.floor((this.width - fixed + 2 * 96 - m * wide) / 2), 64, 230);
      this.size = { wide, tall, n, m, narrow };
      const root = el('div', 'tv-tiling-matrix', this.box, { role: 'group', 'aria-label': words.grid });
      root.style.setProperty('--tall', `${tall}px`); root.style.setProperty('--above', `${above}px`); root.style.columnGap = `${gap}px`;
      const left = this.column(root, name, '', 'tv-tiling-names');
      this.names = queries.map((text, row) => this.name(left, text, () => this.choose(row)));
      const middle = el('div', 'tv-tiling-middle', root), heads = el('div', `tv-tiling-keys${upright ? ' upright' : ''}`, middle);
      const each = Math.max(1, Math.ceil(13 / wide));
      this.keyNames = keys.map((text, c) => { const cell = el('span', '', heads, { title: text }); cell.style.width = `${wide}px`; if (c % each === 0) el('bdi', long(text) < 15 && text > '\u2e80' ? 'level' : '', cell, { text, dir: 'auto' }); return cell; });
      const stage = el('div', 'tv-tiling-stage', middle);
      this.canvas = this.sheet(stage, m * wide, n * tall);
      this.frame = el('div', 'tv-tiling-frame', stage, { 'aria-hidden': 'true' });
      this.canvas.addEventListener('pointermove', event => this.point(event));
      this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
      this.canvas.addEventListener('click', event => { const [row, key] = this.over(event); this.jump(row, key); });
      const numbers = el('div', 'tv-tiling-numbers', root);
      this.columns = ['m', ...(narrow ? [] : ['\u03b1']), '\u2113'].map(letter => {
        const one = this.column(numbers, column, letter, `of-${{ m: 'm', '\u03b1': 'a', '\u2113': 'l' }[letter]}`);
        return { letter, cells: queries.map(() => el('span', '', one)) };
      });
      const strips = narrow ? el('div', 'tv-tiling-matrix tv-tiling-below', this.box) : root;
      if (narrow) {
        strips.style.setProperty('--tall', `${tall}px`); strips.style.columnGap = `${gap}px`;
        const own = this.column(strips, name, '', 'tv-tiling-names');
        this.below = Array.from({ length: Math.min(n, this.data.blocks[0]) }, () => this.name(own, '', () => {}));
      } else this.below = null;
      const room = narrow ? (this.width - name - 2 * gap) / 2 : strip, high = (narrow ? this.below.length : n) * tall;
      this.strips = ['acc', 'out'].map(which => {
        const own = this.column(strips, room, words[which], `of-${which}`);
        return this.sheet(own, room, high);
      });
    }

    column(parent, wide, head, name) {
      const own = el('div', `tv-tiling-column ${name}`, parent); own.style.width = `${wide}px`;
      el('div', 'tv-tiling-head', own, { text: head });
      return own;
    }

    name(parent, text, act) {
      const one = el('button', '', parent, { type: 'button', tabindex: -1, title: text });
      el('bdi', '', one, { text, dir: 'auto' });
      one.addEventListener('click', act);
      return one;
    }

    sheet(parent, wide, high) {
      const canvas = el('canvas', '', parent, { 'aria-hidden': 'true' }), ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(wide * ratio); canvas.height = Math.round(high * ratio);
      canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`; canvas.ratio = ratio;
      return canvas;
    }

    legend() {
      const line = el('p', 'tv-tiling-legend', this.box, { 'aria-hidden': 'true' }), { words, numbers } = this;
      const skips = this.steps.some(step => step.left), blocked = numbers.scores.includes(-Infinity);
      for (const name of ['now', 'done', 'later', ...(skips ? ['skipped'] : []), ...(blocked ? ['blocked'] : [])]) { const one = el('span', '', line); el('i', name, one); one.append(words[name]); }
    }

    formula() {
      this.sums = el('section', 'tv-tiling-sums', this.box, { 'aria-label': this.words.row });
    }

    cards() {
      const root = el('div', 'tv-tiling-cards', this.box), { words } = this;
      this.card = Object.fromEntries(['exist', 'holds', 'moved'].map(name => {
        const own = el('section', `of-${name}`, root);
        el('h3', '', own, { text: words[name] });
        const big = el('p', 'tv-tiling-big', own), body = el('div', '', own), ways = {};
        for (const way of { exist: ['tiled'], holds: [], moved: ['tiled', 'naive'] }[name]) {
          const line = el('div', `tv-tiling-way of-${way}`, body);
          if (name === 'moved') el('span', '', line, { text: words[way] });
          ways[way] = { bar: el('i', '', el('div', 'tv-tiling-track', line)), value: name === 'moved' ? el('b', '', line) : null };
        }
        return [name, { big, ways, more: el('p', 'tv-tiling-more', own) }];
      }));
    }

    /* ---- one step ---- */

    paint() {
      const { step } = this, write = step.j < 0, [top, end] = this.rowsOf(step.i), [from, to] = write ? [0, 0] : this.keysOf(step.j);
      this.player.paint(this.at, this.steps.length);
      this.say(step, write, top, end, from, to);
      this.names.forEach((name, row) => this.mark(name, row, top, end));
      this.keyNames.forEach((name, key) => { name.className = key >= from && key < to ? 'now' : ''; });
      for (const { letter, cells } of this.columns) cells.forEach((cell, row) => this.paintNumber(cell, letter, row, top, end));
      if (this.below) this.below.forEach((name, k) => {
        const row = top + k;
        name.hidden = row >= end;
        if (!name.hidden) { name.firstChild.textContent = this.data.queries[row]; this.mark(name, row, top, end); }
      });
      this.paintGrid(); this.paintStrips(); this.paintSums(); this.paintCards();
      this.tip.hidden = true;
    }

    mark(name, row, top, end) { name.className = `${row >= top && row < end ? 'now' : ''}${row === this.shown ? ' chosen' : ''}`; }

    say({ i, j, before, left }, write, top, end, from, to) {
      const { words } = this, grew = write || before < 0 ? 0 : this.grown(this.step);
      const fields = { i: i + 1, n: this.down, rows: this.range(top, end), columns: this.range(from, to), cells: count((end - top) * (to - from)), k: write ? left : grew, r: end - top };
      this.saidWhich.textContent = `${words.query} ${i + 1}/${this.down}${write ? '' : ` \u00b7 ${words.key} ${j + 1}/${this.across}`}`;
      const first = write ? 'write' : before < 0 ? 'first' : 'tile', more = write ? left && 'skipped_too' : before >= 0 && (grew ? 'grew' : 'same');
      this.said.textContent = fill(words[first], fields) + (more ? ` ${fill(words[more], fields)}` : '');
    }

    range(from, to) { return to - from === 1 ? String(from) : `${from}\u2013${to - 1}`; }

    paintNumber(cell, letter, row, top, end) {
      const j = this.last(row), now = row >= top && row < end, { step } = this, name = { m: 'maximum', '\u03b1': 'correction', '\u2113': 'total' }[letter];
      const active = now && step.j >= 0, first = step.before < 0;
      let text = '', kind = this.done(row) && !(now && step.j < 0) ? 'done' : now ? 'now' : '';
      if (letter === '\u03b1') {
        if (active && !first) { const a = this.number(name, row, j); text = a === 1 ? '1' : digits(a); if (a < 1) kind += ' changed'; }
      } else if (j >= 0) text = digits(this.number(name, row, j));
      else if (!now) text = '\u00b7';
      if (letter === 'm' && active && !first && this.number('correction', row, j) < 1) kind += ' changed';
      cell.textContent = text; cell.className = `${kind}${row === this.shown ? ' chosen' : ''}`;
    }

    paintGrid() {
      const { canvas, colour, data, step } = this, { wide, tall, n, m } = this.size, pen = canvas.getContext('2d'), [rows, columns] = data.blocks;
      const W = m * wide, H = n * tall, [top, end] = this.rowsOf(step.i), write = step.j < 0;
      pen.setTransform(canvas.ratio, 0, 0, canvas.ratio, 0, 0); pen.clearRect(0, 0, W, H);
      pen.fillStyle = colour['query-soft']; pen.fillRect(0, top * tall, W, (end - top) * tall);
      if (!write) { const [from, to] = this.keysOf(step.j); pen.fillStyle = colour['key-soft']; pen.fillRect(from * wide, 0, (to - from) * wide, top * tall); }
      const each = act => { for (let i = 0; i < this.down; i++) for (let j = 0; j < this.across; j++) { const [y, y2] = this.rowsOf(i).map(one => one * tall), [x, x2] = this.keysOf(j).map(one => one * wide); act(i, j, x, y, x2 - x, y2 - y); } };
      const was = (i, j) => !this.skips(i, j) && (i < step.i || (i === step.i && (write || j < step.j)));
      each((i, j, ...area) => {
        if (this.skips(i, j)) this.hatch(pen, ...area);
        else if (was(i, j)) { pen.globalAlpha = .6; pen.fillStyle = colour.line; pen.fillRect(...area); pen.globalAlpha = 1; }
      });
      pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.beginPath();
      if (wide >= 6) for (let c = 0; c <= m; c++) this.rule(pen, c * wide, 0, c * wide, H);
      if (tall >= 6) for (let r = 0; r <= n; r++) this.rule(pen, 0, r * tall, W, r * tall);
      pen.stroke();
      pen.strokeStyle = colour['line-strong']; pen.beginPath();
      for (let j = 0; j <= this.across; j++) { const x = Math.min(j * columns, m) * wide; this.rule(pen, x, 0, x, H); }
      for (let i = 0; i <= this.down; i++) { const y = Math.min(i * rows, n) * tall; this.rule(pen, 0, y, W, y); }
      pen.stroke();
      each((i, j, ...area) => { if (was(i, j)) this.tick(pen, ...area); });
      this.frame.hidden = write;
      if (write) return;
      const [from, to] = this.keysOf(step.j), place = { left: from * wide, top: top * tall, width: (to - from) * wide, height: (end - top) * tall };
      this.paintTile(pen, top, end, from, to);
      for (const [side, at] of Object.entries(place)) this.frame.style[side] = `${at}px`;
    }

    rule(pen, x, y, x2, y2) { const at = one => Math.round(one) + .5; pen.moveTo(Math.min(at(x), this.size.m * this.size.wide - .5), Math.min(at(y), this.size.n * this.size.tall - .5)); pen.lineTo(Math.min(at(x2), this.size.m * this.size.wide - .5), Math.min(at(y2), this.size.n * this.size.tall - .5)); }

    hatch(pen, x, y, w, h) {
      const { colour } = this;
      pen.save(); pen.beginPath(); pen.rect(x, y, w, h); pen.clip();
      pen.fillStyle = colour['hatch-bg']; pen.fillRect(x, y, w, h);
      pen.strokeStyle = colour['line-strong']; pen.lineWidth = 1; pen.beginPath();
      for (let d = Math.floor((x - y - h) / 6) * 6; d < x + w - y; d += 6) { pen.moveTo(y + d, y); pen.lineTo(y + h + d, y + h); }
      pen.stroke(); pen.restore();
    }

    tick(pen, x, y, w, h) {                                     // computed, used and thrown away: no numbers
      const s = clamp(Math.min(w, h) / 4, 2, 9), cx = x + w / 2, cy = y + h / 2;
      if (Math.min(w, h) < 8) return;
      pen.strokeStyle = this.colour.soft; pen.lineWidth = 1.5; pen.beginPath();
      pen.moveTo(cx - s, cy); pen.lineTo(cx - s / 4, cy + s * .7); pen.lineTo(cx + s, cy - s * .7); pen.stroke();
    }

    paintTile(pen, top, end, from, to) {
      const { colour, step } = this, { wide, tall } = this.size, [low, mid, high] = ['low', 'mid', 'high'].map(name => rgb(colour[`scale-${name}`]));
      pen.font = `${Math.min(12, Math.round(wide / 2.9))}px ${getComputedStyle(this.box).getPropertyValue('--tv-mono')}`; pen.textAlign = 'center'; pen.textBaseline = 'middle';
      for (let r = top; r < end; r++) {
        const m = this.number('maximum', r, step.j);
        for (let c = from; c < to; c++) {
          const s = this.score(r, c), x = c * wide, y = r * tall, p = s === -Infinity ? 0 : Math.exp(s - m);
          if (s === -Infinity) { this.hatch(pen, x, y, wide, tall); continue; }
          const fillColour = p < .5 ? mix(low, mid, 2 * p) : mix(mid, high, 2 * p - 1);
          pen.fillStyle = `rgb(${fillColour})`; pen.fillRect(x, y, wide + .5, tall + .5);
          if (wide < 27) continue;
          const luminance = fillColour.reduce((sum, one, k) => sum + one * [.299, .587, .114][k], 0);
          pen.fillStyle = luminance > 140 ? '#1b2333' : '#ffffff'; pen.fillText(short(s), x + wide / 2, y + tall / 2 + .5);
        }
      }
    }

    paintStrips() {                                             // a row's numbers as colours: below, at, above zero
      const { colour, data, ink, step } = this, { tall, n } = this.size, [top, end] = this.rowsOf(step.i), { features } = data;
      const first = this.below ? top : 0, until = this.below ? end : n, [below, zero, above] = ['below', 'zero', 'above'].map(name => rgb(colour[name]));
      this.strips.forEach((canvas, which) => {
        const pen = canvas.getContext('2d'), W = canvas.clientWidth || parseFloat(canvas.style.width);
        pen.setTransform(canvas.ratio, 0, 0, canvas.ratio, 0, 0); pen.clearRect(0, 0, W, n * tall);
        for (let row = first; row < until; row++) {
          const y = (row - first) * tall, j = this.last(row), done = this.done(row), has = which ? done : j >= 0 && !(done && row < top);
          pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.strokeRect(.5, y + 1.5, W - 1, tall - 3);
          if (!has) continue;
          const at = which ? row * features : (row * this.across + j) * features, from = which ? ink.output : ink.accumulator;
          for (let f = 0; f < features; f++) {
            const x = from[at + f] / 127, part = Math.sqrt(Math.abs(x));
            pen.fillStyle = `rgb(${mix(zero, x < 0 ? below : above, part)})`;
            pen.fillRect(f * W / features, y + 1, W / features + .6, tall - 2);
          }
          if (row >= top && row < end && (which === 0) === (step.j >= 0)) { pen.strokeStyle = colour[which ? 'accent' : 'query']; pen.lineWidth = 1.5; pen.strokeRect(.75, y + 1.25, W - 1.5, tall - 2.5); }
        }
      });
    }

    paintSums() {                                               // the formula with this row's numbers
      const { step, words, data } = this, row = this.shown, { j, before } = step, few = data.few < data.dims[1] ? ', \u2026' : '';
      const list = numbers => `[${numbers.map(digits).join(', ')}${few}]`;
      this.sums.replaceChildren();
      const head = el('h3', '', this.sums);
      head.append(`${words.row} ${row} `); el('bdi', 'query', head, { text: data.queries[row], dir: 'auto' });
      const grid = el('dl', '', this.sums);
      const line = (letters, text, result, kind = '') => { const group = el('div', kind, grid); el('dt', '', group, { text: letters }); const value = el('dd', '', group); el('span', '', value, { text }); if (result !== undefined) el('b', '', value, { text: ` = ${result}` }); };
      if (j < 0) {
        if (before < 0) return line('O / \u2113', words.nothing);
        const m = this.number('maximum', row, before), l = this.number('total', row, before);
        if (l === 0) return line('O / \u2113', words.nothing);
        line('O / \u2113', `${list(this.few('accumulator', row, before))} / ${digits(l)}`, list(this.few('output', row)), 'of-out');
        line(words['line.naive'], 'softmax(s) V', list(this.few('naive', row)));
        return line('L = m + ln \u2113', `${digits(m)} + ln ${digits(l)}`, digits(m + Math.log(l)));
      }
      const [from, to] = this.keysOf(j), m = this.number('maximum', row, j), l = this.number('total', row, j), a = this.number('correction', row, j);
      const all = Array.from({ length: to - from }, (_, k) => this.score(row, from + k)), some = all.slice(0, LISTED), more = all.length > LISTED ? '\u2026' : '';
      const known = before >= 0, oldM = known ? this.number('maximum', row, before) : -Infinity, oldL = known ? this.number('total', row, before) : 0;
      const top = Math.max(...all), parts = all.map(s => s === -Infinity ? 0 : Math.exp(s - m));
      const scores = el('div', 'of-s', grid); el('dt', '', scores, { text: 's' });
      const told = el('dd', '', scores);
      some.forEach((s, k) => { const one = el('span', 'tv-tiling-score', told); el('bdi', '', one, { text: data.keys[from + k], dir: 'auto' }); one.append(` ${digits(s)}`); });
      if (more) told.append(more);
      line('m = max(m, s)', `max(${digits(oldM)}, ${digits(top)})`, digits(m), 'of-m');
      if (m === -Infinity) return line('', words.nothing);
      line('\u03b1 = exp(m\u2080 \u2212 m)', known && oldM > -Infinity ? `exp(${digits(oldM)} \u2212 ${oldM < 0 || m < 0 ? `(${digits(m)})` : digits(m)})` : words['line.first'], known && oldM > -Infinity ? digits(a) : undefined, 'of-a');
      const sum = `${parts.slice(0, LISTED).map(digits).join(' + ')}${more && ` + ${more}`}`, old = known && oldL > 0;
      line('\u2113 = \u03b1\u2113 + \u03a3 exp(s \u2212 m)', old ? `${digits(a)} \u00d7 ${digits(oldL)} + (${sum})` : sum, digits(l), 'of-l');
      line('O = \u03b1O + \u03a3 exp(s \u2212 m) v', old ? `${digits(a)} \u00d7 ${list(this.few('accumulator', row, before))} + \u2026` : '\u03a3 exp(s \u2212 m) v', list(this.few('accumulator', row, j)), 'of-o');
    }

    paintCards() {
      const { step, words, data, card } = this, [top, end] = this.rowsOf(step.i), [dim, valueDim] = data.dims, rows = end - top, write = step.j < 0;
      const [from, to] = write ? [0, 0] : this.keysOf(step.j), wide = to - from, cells = rows * wide, all = data.queries.length * data.keys.length;
      card.exist.big.textContent = fill(words['exist.of'], { cells: count(cells), all: count(all) });
      card.exist.ways.tiled.bar.style.width = `${100 * cells / all}%`;
      card.exist.more.textContent = words.over;
      const numbers = rows * (dim + valueDim + 2) + wide * (dim + valueDim) + cells;
      card.holds.big.textContent = bytes(numbers * ELEMENT);
      card.holds.more.textContent = write ? fill(words.whole, { rows, n: valueDim }) : `Q ${rows}\u00d7${dim} + K ${wide}\u00d7${dim} + V ${wide}\u00d7${valueDim} + S ${rows}\u00d7${wide} + O ${rows}\u00d7${valueDim} + m, \u2113 2\u00d7${rows}`;
      const end_ = this.steps.at(-1).moved, most = Math.max(end_, this.naive);
      card.moved.big.textContent = bytes(step.moved);
      card.moved.ways.tiled.bar.style.width = `${100 * step.moved / most}%`; card.moved.ways.tiled.value.textContent = bytes(step.moved);
      card.moved.ways.naive.bar.style.width = `${100 * this.naive / most}%`; card.moved.ways.naive.value.textContent = bytes(this.naive);
      card.moved.more.textContent = fill(words.so_far, { bytes: bytes(end_) });
    }

    /* ---- time ---- */

    go(to) { this.at = clamp(to, 0, this.steps.length - 1); this.fresh = false; this.paint(); }
    walk(by) {                                                  // another row; beyond the block's edge the next block is gone to
      const row = clamp(this.shown + by, 0, this.data.queries.length - 1);
      this.choose(row);
    }
    choose(row) {
      const own = Math.floor(row / this.data.blocks[0]);
      this.row = row;
      if (own !== this.step.i) { this.player.pause(); this.at = this.near(own, this.step.j); this.fresh = false; }
      this.paint();
      this.api.select({ query: row });
    }
    near(i, j) {                                                // the step of this block of queries that is closest to key block j
      let best = -1;
      this.steps.forEach((step, at) => { if (step.i === i && (j < 0 ? step.j < 0 : step.j >= 0 && step.j <= j)) best = at; });
      return best < 0 ? this.steps.findIndex(step => step.i === i) : best;
    }
    jump(row, key) {
      this.player.pause(); this.fresh = false;
      const i = Math.floor(row / this.data.blocks[0]), j = Math.floor(key / this.data.blocks[1]), at = this.steps.findIndex(step => step.i === i && step.j === j);
      this.at = at < 0 ? this.near(i, j) : at;
      this.row = row; this.paint(); this.api.select({ query: row });
    }
    turn(by) { this.go(this.at + by); }
    begin() { if (this.fresh || this.ended) this.go(0); }
    get ended() { return this.at === this.steps.length - 1; }
    get pace() { return Math.min(STEP_MS, WHOLE_MS / this.steps.length); }

    /* ---- pointing ---- */

    over(event) {
      const area = this.canvas.getBoundingClientRect(), { wide, tall, n, m } = this.size;
      return [clamp(Math.floor((event.clientY - area.top) / tall), 0, n - 1), clamp(Math.floor((event.clientX - area.left) / wide), 0, m - 1)];
    }
    point(event) {
      const [row, key] = this.over(event), { data, words, step } = this, i = Math.floor(row / data.blocks[0]), j = Math.floor(key / data.blocks[1]);
      const told = [`${data.queries[row]} \u2192 ${data.keys[key]}`], now = i === step.i && j === step.j;
      if (this.skips(i, j)) told.push(words.skipped);
      else if (now && this.score(row, key) === -Infinity) told.push(words.blocked);
      else if (now) told.push(`s ${digits(this.score(row, key))}`, `exp(s \u2212 m) ${digits(Math.exp(this.score(row, key) - this.number('maximum', row, j)))}`);
      else told.push(words[i < step.i || (i === step.i && (step.j < 0 || j < step.j)) ? 'done' : 'later']);
      this.tip.textContent = told.join(' \u00b7 '); this.tip.hidden = false;
      const own = this.box.getBoundingClientRect();
      this.tip.style.left = `${clamp(event.clientX - own.left + 12, 0, Math.max(0, own.width - this.tip.offsetWidth))}px`;
      this.tip.style.top = `${event.clientY - own.top - this.tip.offsetHeight - 10}px`;
    }
  }

  (window.tfviz.views ??= {}).tiling = (box, data, api) => (box.tvTiling ??= new Tiling(box)).show(data, api);
})();
