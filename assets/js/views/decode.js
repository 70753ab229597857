/* A text that goes on token by token: what was likely at each step, what the settings made of it, what was read for it.
 *
 * window.tfviz.views.decode(box, data, api). data, made by tfviz/ui/tabs/generate/steps.py, cumulative while a run grows:
 *   id, trace, plan, made   which run; of which sentence; how to ask for it again, with the controls that it was asked with
 *   source, prompt          [{text, raw, id, special, joined}] of the encoder, and what the decoder read before the first step
 *   steps                   columns, one entry a step: tokens, p, drawn, surprise, entropy (nats), ms, bytes, taken (by hand)
 *   stages                  [{key, name, set, on, title}] in the order of the rows of `details[i].probs`
 *   details                 step -> {ids, labels, ends: [bytes, character] | 0, cuts: the stage that cut it, probs: base64 float32 [stage, candidate], rest, kept}: of the newest step while it grows, then of all
 *   chat                    the model has a chat template
 *   read                    {kind, layer, head, cross, bits, skipped, lengths, codes}: a row for each token that the decoder read; unread: why there is none
 *   going, of, more, said   it grows; how long it will be; how many more can be asked for; how far it is, or why it ends
 * Every run of a sentence is kept here, so that looking back, playing and going to another branch ask the server nothing.
 * Asks (api.ask): {plan, made} for another path, {plan, made, halt: true} to stop. Tells the page, by window.tfviz.written and
 * the event tfviz:written, which finished run is on show: the Attention view takes its tokens in. */
(() => {
  const { el } = window.tfviz;
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const bytes = base64 => Uint8Array.from(atob(base64), c => c.charCodeAt(0)).buffer;
  const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const BYTES = /^(\u27e8[0-9A-F]{2}\u27e9)+$/, hexadecimal = label => label.slice(1, -1).replaceAll('\u27e9\u27e8', ' ');
  const shown = text => {                 // on an axis: of several pictures joined to one, the first
    const [first, ...others] = [...text.replace(/\ufe0f/g, '')];
    return others.includes('\u200d') ? `${first}\u2026${text.match(/[\u2080-\u2089]+$/)?.[0] ?? ''}` : text;
  };
  const stands = text => /[\u2e80-\uffff]|^U\+/.test(text); // one character below the other
  const STEP_MS = 700, SPEEDS = [0.5, 1, 2, 4, 8], ROOM = 8, LONGEST = 256, SURPRISED = 8, KEPT = 24, LABEL_PX = 11;

  /* ---- numbers ---- */

  function digits(x, n = 3) {
    if (x === 0) return '0';
    if (Math.abs(x) < 0.001) return x.toExponential(n - 1).replace('-', '\u2212');
    if (Math.abs(x) >= 1000) return Math.round(x).toLocaleString('en');
    return String(x.toPrecision(n)).replace('-', '\u2212');
  }
  function percent(p) {
    if (p >= 1) return '100 %';
    if (p >= 0.9995) return '>99.9 %';
    return p > 0 ? `${digits(100 * p)} %` : '<1e\u221243 %'; // below what FP32 holds
  }
  function size(n) {
    for (const unit of ['B', 'KiB', 'MiB']) { if (n < 1000) return `${digits(n)} ${unit}`; n /= 1024; }
    return `${digits(n)} GiB`;
  }

  /* ---- one run ---- */

  class Run {
    constructor(data) { this.id = data.id; this.details = new Map(); this.take(data); }

    take(data) {                          // what came last says everything but the details of earlier steps
      Object.assign(this, { plan: data.plan, source: data.source, prompt: data.prompt, steps: data.steps, stages: data.stages, unread: data.unread,
        going: data.going, of: data.of, more: data.more, said: data.said, n: data.steps.p.length });
      for (const [i, packed] of Object.entries(data.details)) this.details.set(Number(i), { ...packed, probs: new Float32Array(bytes(packed.probs)) });
      this.ids = data.steps.tokens.map(token => token.id);
      this.total = -data.steps.surprise.reduce((sum, x) => sum + x, 0);
      this.read = data.read && this.unpack(data.read);
    }

    unpack(read) {
      const codes = read.bits === 16 ? new Uint16Array(bytes(read.codes)) : new Uint8Array(bytes(read.codes)), starts = [0];
      for (const length of read.lengths) starts.push(starts.at(-1) + length);
      return { ...read, most: 2 ** read.bits - 2, row: i => i < read.skipped ? null : codes.subarray(starts[i - read.skipped], starts[i - read.skipped + 1]) };
    }

    weight(code) { return code ? ((code - 1) / this.read.most) ** 2 : NaN; }
    position(step) { return this.prompt.length - 1 + step; }       // of the token that is read in a step: the query
    rowOf(step) { return this.read?.row(this.position(step)) ?? null; }
    own(i) { return i < this.prompt.length ? this.prompt[i] : this.steps.tokens[i - this.prompt.length]; }
    get columns() { return this.read?.cross ? this.source : null; } // tokens that are read; null: the decoder's own
    key(i) { return this.columns ? this.columns[i] : this.own(i); }
    get shownStages() {                   // with greedy decoding one token is left before anything is cut
      return this.stages.map((stage, i) => ({ ...stage, i })).filter(({ key, on }) => on && !(this.plan.temperature === 0 && /^(top|min)_/.test(key)));
    }
    begins(other) { return this.n <= other.n && this.ids.every((id, i) => id === other.ids[i]) && this.prompt.length === other.prompt.length; }
  }

  /* ---- the view ---- */

  class Decode {
    constructor(box) {
      this.box = box; this.runs = new Map(); this.now = null; this.at = 0; this.follow = true; this.pace = STEP_MS; this.width = 0;
      box.classList.add('tv-decode');
      const sizes = new ResizeObserver(() => box.isConnected ? this.resized() : sizes.disconnect());
      sizes.observe(box);
      box.addEventListener('keydown', event => this.key(event));
    }

    show(data, api) {
      this.api = api; this.made = data.made; this.words = data.words; this.hasChat = data.chat;
      if (data.trace !== this.trace) { this.trace = data.trace; this.runs.clear(); this.now = null; this.player?.pause(); }
      const known = this.runs.get(data.id);
      if (known && !known.going && data.going) { this.growing = data; return this.paintState(); } // the server had forgotten it, and computes it again
      const run = known ?? new Run(data);
      run.take(data);
      this.growing = run.going ? run : null;
      if (!this.player) this.build();
      const before = this.now;
      if (before && before !== run && run.going && run.begins(before)) return this.paintState(); // it says again what is on show: wait until it goes on
      this.keep(run);
      if (before !== run) {
        this.now = run;
        this.follow = true;
        if (before && !before.begins(run)) this.player.pause();
      }
      if (this.follow || this.at >= run.n) this.at = run.n - 1;
      if (!run.going) this.follow = false;
      this.paint();
      if (!run.going) this.tell();
    }

    keep(run) {                           // what a longer run says again is no branch of its own
      const same = other => JSON.stringify({ ...other.plan, path: 0, new_tokens: 0 }) === JSON.stringify({ ...run.plan, path: 0, new_tokens: 0 });
      for (const [id, other] of this.runs) if (other !== run && !run.going && other.begins(run) && same(other)) this.runs.delete(id);
      this.runs.set(run.id, run);
      for (const id of this.runs.keys()) if (this.runs.size > KEPT && id !== run.id) this.runs.delete(id);
    }

    tell() {
      window.tfviz.written = { trace: this.trace, run: this.now.id, n: this.now.n };
      window.dispatchEvent(new CustomEvent('tfviz:written'));
    }

    resized() {
      if (!this.now || this.box.clientWidth === this.width) return;
      this.paint();
    }

    /* ---- furniture, once ---- */

    build() {
      const { box, words } = this;
      this.player = new window.tfviz.Player(this, words, { speeds: SPEEDS, ends: true, slider: true, place: 'output' });
      this.stopButton = this.player.wish('stop', () => this.stop());
      this.moreButton = this.player.wish('more', () => this.goOn());
      this.againButton = this.player.wish('again', () => this.again());
      box.replaceChildren(this.player.bar);
      this.state = el('p', 'tv-decode-state', box, { role: 'status' });
      this.sourceLine = el('div', 'tv-decode-line', box);
      el('span', 'tv-decode-of', this.sourceLine, { text: words.source });
      this.sourceText = el('div', 'tv-decode-text', this.sourceLine);
      this.targetLine = el('div', 'tv-decode-line', box);
      this.targetOf = el('span', 'tv-decode-of', this.targetLine, { text: words.target });
      this.text = el('div', 'tv-decode-text', this.targetLine, { role: 'toolbar', 'aria-label': words.text });
      this.text.addEventListener('click', event => { const chip = event.target.closest('button'); if (chip) this.jump(Number(chip.dataset.step)); });
      this.buildLegend();
      const middle = el('div', 'tv-decode-middle', box), left = el('section', 'tv-decode-next', middle), right = el('section', 'tv-decode-side', middle);
      this.title = el('h3', '', left, { text: words.title });
      this.scroll = el('div', 'tv-decode-scroll', left, { tabindex: 0, role: 'group', 'aria-label': words.title });
      this.table = el('table', 'tv-decode-table', this.scroll);
      this.head = el('tr', '', el('thead', '', this.table)); this.body = el('tbody', '', this.table);
      this.hint = el('p', 'tv-decode-hint', left);
      this.bytesNote = el('p', 'tv-decode-hint', left, { text: words.bytes });
      this.facts = el('dl', 'tv-decode-facts', right);
      this.chartBox = el('figure', 'tv-decode-chart', right);
      this.buildMatrix(el('section', 'tv-decode-read', right));
      this.branchBox = el('section', 'tv-decode-branches', left);
      el('h3', '', this.branchBox, { text: words.branches });
      this.branches = el('ul', '', this.branchBox);
      el('p', 'tv-decode-hint', this.branchBox, { text: words.branches_note });
    }

    buildLegend() {
      const { words } = this, line = el('p', 'tv-decode-legend', this.box);
      el('span', '', line, { text: words.legend_surprise });
      const scale = el('span', 'tv-decode-scale', line);
      for (const s of [0, 2, 4, 6, 8]) el('span', '', scale, { text: s === SURPRISED ? `${s}+` : s }).style.setProperty('--s', s / SURPRISED);
      this.readLegend = el('span', 'tv-decode-reads', line);
      el('i', '', this.readLegend); this.readSaid = el('span', '', this.readLegend);
      this.chipSaid = el('span', 'tv-decode-chip-said', line);
      const point = event => { const chip = event.target.closest('[data-w]'); setText(this.chipSaid, chip?.dataset.w ? fill(this.words.reads, { query: this.now.own(this.now.position(this.at)).text, weight: chip.dataset.w }) : ''); };
      for (const text of [this.text, this.sourceText]) { text.addEventListener('pointerover', point); text.addEventListener('pointerleave', () => setText(this.chipSaid, '')); }
    }

    buildMatrix(box) {
      this.matrixBox = box;
      this.matrixTitle = el('h3', '', box);
      this.plot = el('div', 'tv-decode-plot', box);
      this.rowLabels = el('div', 'tv-decode-rows', this.plot, { 'aria-hidden': 'true' });
      this.field = el('div', 'tv-decode-field', this.plot, { role: 'img' });
      this.canvas = el('canvas', '', this.field, { 'aria-hidden': 'true' });
      this.rowBand = el('div', 'tv-decode-band', this.field); this.columnBand = el('div', 'tv-decode-band', this.field);
      this.rowFrame = el('div', 'tv-decode-frame', this.field);
      this.columnLabels = el('div', 'tv-decode-columns', this.plot, { 'aria-hidden': 'true' });
      this.cellSaid = el('p', 'tv-decode-hint', box);
      this.field.addEventListener('pointermove', event => this.point(this.cellAt(event)));
      this.field.addEventListener('pointerleave', () => this.point(null));
      this.field.addEventListener('click', event => { const { row } = this.cellAt(event), step = row - this.now.prompt.length + 1; if (step >= 0) this.jump(step); });
    }

    /* ---- moving ---- */

    key(event) {
      const { target } = event;
      if (event.defaultPrevented || target.tagName === 'SELECT' || event.ctrlKey || event.metaKey || event.altKey || this.branchBox.contains(target)) return;
      if (event.key === ' ' && target.tagName !== 'BUTTON') { event.preventDefault(); return this.player.toggle(); }
      if (!this.now || !this.player.move(event)) return;
      if (this.text.contains(target)) this.chips[this.now.prompt.length + this.at]?.focus({ preventScroll: true });
    }

    jump(to) { this.player.pause(); this.go(to); }

    go(to) {
      const { now } = this;
      if (!now) return;
      this.at = clamp(to, 0, now.n - 1);
      this.follow = now.going && this.at === now.n - 1;
      this.paintStep();
    }

    turn(by) { this.go(this.at + by); }
    begin() { if (this.ended) this.go(0); }
    get ended() { return !this.now || (this.at >= this.now.n - 1 && !this.now.going); }

    /* ---- wishes ---- */

    ask(plan, more = {}) { this.api.ask({ plan: { ...this.now.plan, ...plan }, made: this.made, ...more }); }
    stop() { this.api.ask({ plan: this.growing.plan, made: this.made, halt: true }); }
    goOn() { this.ask({ path: this.now.ids, new_tokens: this.now.n + this.now.more }); }
    branch(id) {
      const path = [...this.now.ids.slice(0, this.at), id];
      this.ask({ path, new_tokens: Math.min(LONGEST, Math.max(this.now.plan.new_tokens, path.length + ROOM)) });
    }
    again() {                             // by the control, so that it says what is on show
      const box = document.querySelector('#generate-seed input'), seed = this.now.plan.seed + 1;
      if (!box) return this.ask({ seed, path: [] });
      box.value = seed; box.dispatchEvent(new Event('input', { bubbles: true })); box.dispatchEvent(new Event('change', { bubbles: true }));
    }
    back(run) {                           // kept here: shown at once, and the server hears which one it is
      if (run === this.now) return;
      this.now = run; this.at = Math.min(this.at, run.n - 1); this.follow = false; this.player.pause();
      this.paint(); this.tell();
      this.ask({});
    }

    /* ---- ink ---- */

    paint() {
      this.width = this.box.clientWidth;
      this.paintText(); this.paintStep(true); this.paintBranches();
    }

    paintStep(all = false) {
      this.paintState(); this.markText(); this.paintTable(); this.paintFacts();
      if (all) { this.paintChart(); this.paintMatrix(); }
      this.markChart(); this.markMatrix();
    }

    paintState() {
      const { now, words, growing } = this;
      if (!now) return;
      const place = fill(words.step, { i: this.at + 1, n: now.n });
      this.player.paint(this.at, now.n, place, place);
      this.stopButton.hidden = !growing;
      this.moreButton.hidden = Boolean(growing) || !now.more;
      this.againButton.hidden = Boolean(growing) || now.plan.temperature === 0;
      setText(this.moreButton, fill(words.more, { n: now.more }));
      this.state.setAttribute('aria-busy', String(Boolean(growing))); // its end is read aloud
      setText(this.state, (growing ?? now).said);
      this.box.dataset.steps = now.n; this.box.dataset.at = this.at;
      this.box.toggleAttribute('data-going', Boolean(growing));
      const chat = document.querySelector('#generate-chat input');
      if (chat) chat.disabled = !this.hasChat && !chat.checked;
    }

    paintText() {
      const { now } = this, two = now.source.length > 0;
      this.sourceLine.hidden = !two; this.targetOf.hidden = !two;
      this.sourceChips = this.chipsOf(this.sourceText, now.source, now.source.length);
      this.chips = this.chipsOf(this.text, [...now.prompt, ...now.steps.tokens], now.prompt.length);
      now.steps.surprise.forEach((s, i) => {
        const chip = this.chips[now.prompt.length + i];
        chip.dataset.step = i;
        chip.style.setProperty('--s', clamp(s / SURPRISED, 0, 1).toFixed(3));
        chip.classList.toggle('taken', Boolean(now.steps.taken[i]));
        chip.title = `${this.words.prob} ${percent(now.steps.p[i])}${now.steps.taken[i] ? ` \u00b7 ${this.words.by_hand}` : ''}`;
      });
    }

    chipsOf(parent, tokens, given) {      // the first `given` were there before; the others can be chosen
      while (parent.children.length > tokens.length) parent.lastChild.remove();
      tokens.forEach((token, i) => {
        const tag = i < given ? 'SPAN' : 'BUTTON';
        let chip = parent.children[i];
        if (!chip || chip.tagName !== tag) {
          const made = el(tag, '', null, tag === 'BUTTON' ? { type: 'button', tabindex: -1 } : {});
          el('bdi', '', made, { dir: 'auto' }); el('i', '', made, { 'aria-hidden': 'true' });
          if (chip) chip.replaceWith(made); else parent.append(made);
          chip = made;
        }
        setText(chip.firstChild, token.text);
        chip.className = [i < given ? 'given' : 'new', token.special ? 'special' : '', token.joined ? 'joined' : ''].join(' ');
        if (i < given) chip.title = `${token.raw} \u00b7 ${token.id}`;
      });
      return [...parent.children];
    }

    markText() {                          // the step's token is framed; below each token how much of it is read
      const { now, at } = this, row = now.rowOf(at), first = now.prompt.length;
      this.chips.forEach((chip, i) => {
        const on = i === first + at;
        if (i >= first) { chip.setAttribute('aria-pressed', String(on)); chip.tabIndex = on ? 0 : -1; }
        chip.classList.toggle('query', i === now.position(at)); chip.classList.toggle('later', i > first + at);
      });
      this.see(this.chips[first + at]); setText(this.chipSaid, '');
      const cross = Boolean(now.read?.cross);
      this.strip(this.chips, cross ? null : row); this.strip(this.sourceChips, cross ? row : null);
      this.readLegend.hidden = !now.read;
      if (now.read) setText(this.readSaid, fill(this.words.legend_reads, now.read));
    }

    see(chip) {                           // inside its own box: the page must not move
      const top = chip.offsetTop - this.text.offsetTop, box = this.text;
      if (top < box.scrollTop) box.scrollTop = top - 4;
      else if (top + chip.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + chip.offsetHeight - box.clientHeight + 4;
    }

    strip(chips, row) {
      chips.forEach((chip, i) => {
        const w = row && i < row.length ? this.now.weight(row[i]) : NaN;
        chip.lastChild.style.opacity = w > 0 ? Math.sqrt(w).toFixed(3) : 0;
        if (w === w) chip.dataset.w = digits(w); else delete chip.dataset.w;
      });
    }

    /* ---- what may come next ---- */

    paintTable() {
      const { now, at, words } = this, details = now.details.get(at), stages = now.shownStages, n = stages.length;
      const query = now.own(now.position(at));
      this.title.replaceChildren(`${words.title} `, el('span', '', null, { text: `${words.after} ` }), el('bdi', '', null, { text: query.text }));
      this.scroll.hidden = !details;
      const off = now.stages.filter(stage => !stages.some(one => one.key === stage.key)).map(({ name }) => name).join(', ');
      setText(this.hint, details ? `${words.pick}${off ? ` (${fill(words.off, { names: off })}.)` : ''}` : words.waiting);
      this.bytesNote.hidden = !details?.labels.some(label => BYTES.test(label));
      if (!details) return;
      const { ids, labels, ends, cuts, probs, rest, kept } = details, count = ids.length, vocabulary = kept[0];
      const heading = (name, left, title = '') => { const head = el('th', '', null, { scope: 'col', title }); el('b', '', head, { text: name }); el('span', '', head, { text: left }); return head; };
      this.head.replaceChildren(heading(words.token, words.left), ...stages.map(({ name, set, title, i }) => heading(set ? `${name} ${set}` : name, kept[i].toLocaleString('en'), title)));
      const most = Math.max(...stages.flatMap(({ i }) => [...probs.subarray(i * count, (i + 1) * count)]), 1e-9);
      while (this.body.children.length > count + 1) this.body.lastChild.remove();
      while (this.body.children.length < count + 1) this.body.append(this.newRow());
      const last = stages.at(-1).i, order = Array.from({ length: count }, (_, j) => j);
      order.forEach(j => {
        const row = this.body.children[j], button = row.firstChild.firstChild, taken = ids[j] === now.ids[at];
        row.className = `${taken ? 'taken' : ''} ${cuts[j] > last ? '' : 'out'}`; row.hidden = false;
        button.disabled = taken; button.dataset.id = ids[j];
        button.setAttribute('aria-label', taken ? labels[j] : fill(words.instead, { token: labels[j] }));
        setText(button.firstChild, labels[j]); setText(button.lastChild, ends[j] ? ` \u2192 ${ends[j][1]}` : '');
        button.title = ends[j] ? fill(words.ends_with, { bytes: ends[j][0], whole: ends[j][1] }) : BYTES.test(labels[j]) ? fill(words.byte, { bytes: hexadecimal(labels[j]) }) : '';
        this.cells(row, stages, ({ i }) => cuts[j] > i ? probs[i * count + j] : null, most);
      });
      const row = this.body.children[count], button = row.firstChild.firstChild;
      const left = i => kept[i] > cuts.filter(stage => stage > i).length; // more than those listed
      row.className = `rest ${left(last) ? '' : 'out'}`; row.hidden = vocabulary <= count; button.disabled = true; button.removeAttribute('aria-label');
      setText(button.firstChild, fill(words.others, { n: Math.max(0, vocabulary - count).toLocaleString('en') }));
      this.cells(row, stages, ({ i }) => left(i) ? rest[i] : null, most);
      this.table.style.setProperty('--n', n);
    }

    newRow() {
      const row = el('tr'), button = el('button', '', el('th', '', row, { scope: 'row' }), { type: 'button' });
      el('bdi', '', button, { dir: 'auto' }); el('small', '', button);
      row.addEventListener('click', () => { if (!button.disabled) this.branch(Number(button.dataset.id)); });
      return row;
    }

    cells(row, stages, p, most) {         // null: cut
      while (row.children.length > stages.length + 1) row.lastChild.remove();
      while (row.children.length < stages.length + 1) { const cell = el('td', '', row); el('i', '', cell, { 'aria-hidden': 'true' }); el('span', '', cell); }
      stages.forEach((stage, k) => {
        const cell = row.children[k + 1], x = p(stage), cut = x === null;
        cell.className = cut ? 'cut' : k === stages.length - 1 ? 'drawn' : '';
        cell.firstChild.style.setProperty('--part', cut ? 0 : Math.min(1, x / most).toFixed(4));
        setText(cell.lastChild, cut ? this.words.cut : percent(x));
      });
    }

    paintFacts() {
      const { now, at, words } = this, { p, drawn, surprise, entropy, ms, bytes: held, taken } = now.steps;
      const path = now.plan.path.length > 1 ? Math.min(now.n, now.plan.path.length) : 0; // steps that one pass read together
      const two = x => `${fill(words.nats, { n: digits(x) })} \u00b7 ${fill(words.bits, { n: digits(x / Math.LN2) })}`;
      const facts = [[words.prob, percent(p[at])], [words.drawn_prob, taken[at] ? words.by_hand : percent(drawn[at])], [words.surprise, two(surprise[at])],
        [words.entropy, `${two(entropy[at])}`, fill(words.perplexity, { n: digits(Math.exp(entropy[at])) })],
        at < path ? [words.took, `${digits(ms.slice(0, path).reduce((sum, x) => sum + x, 0))} ms`, fill(words.path, { n: path })] : [words.took, `${digits(ms[at])} ms`]];
      if (held[at]) facts.push([words.cache, size(held[at])]);
      this.facts.replaceChildren(...facts.flatMap(([name, value, more]) => { const dd = el('dd', '', null, { text: value }); if (more) el('small', '', dd, { text: more }); return [el('dt', '', null, { text: name }), dd]; }));
    }

    /* ---- entropy and surprise ---- */

    paintChart() {
      const { now, words } = this, { entropy, surprise } = now.steps, n = Math.max(now.n, now.going ? now.of : 1), W = Math.max(220, this.chartBox.clientWidth), H = 150, L = 34, B = 34, T = 20;
      const top = Math.max(1, Math.ceil(Math.max(...entropy, ...surprise.map(s => Math.min(s, 30))))), x = i => L + (i + 0.5) * (W - L - 4) / n, y = v => T + (H - T - B) * (1 - Math.min(v, top) / top);
      const svg = (tag, attributes, parent, text) => { const node = document.createElementNS('http://www.w3.org/2000/svg', tag); for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v); if (text !== undefined) node.textContent = text; parent?.append(node); return node; };
      const root = svg('svg', { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: 'img', 'aria-label': words.chart });
      for (const v of new Set([0, Math.round(top / 2), top])) { svg('line', { x1: L, x2: W - 4, y1: y(v), y2: y(v), class: 'grid' }, root); svg('text', { x: L - 5, y: y(v) + 4, 'text-anchor': 'end' }, root, v); }
      const every = [1, 2, 4, 5, 10, 20, 50].find(step => n / step <= W / 36) ?? 100;
      for (let i = 0; i < n; i++) if (i === 0 || (i + 1) % every === 0) svg('text', { x: x(i), y: H - B + 15, 'text-anchor': 'middle' }, root, i + 1);
      svg('text', { x: (L + W) / 2, y: H - 4, 'text-anchor': 'middle' }, root, words.chart_x);
      svg('text', { x: 2, y: 11 }, root, words.chart_y);
      const wide = clamp((W - L) / n - 2, 1.5, 10);
      surprise.forEach((s, i) => svg('rect', { x: x(i) - wide / 2, y: y(s), width: wide, height: Math.max(1, y(0) - y(s)), class: 'surprise', rx: 1 }, root));
      svg('polyline', { points: entropy.map((h, i) => `${x(i).toFixed(1)},${y(h).toFixed(1)}`).join(' '), class: 'entropy' }, root);
      const key = svg('g', {}, root), right = W - 4;
      const name = svg('text', { x: right, y: 11, 'text-anchor': 'end' }, key, words.surprise); this.chartBox.replaceChildren(root);
      const w1 = name.getComputedTextLength?.() || 50;
      svg('rect', { x: right - w1 - 14, y: 3, width: 8, height: 8, class: 'surprise', rx: 1 }, key);
      const other = svg('text', { x: right - w1 - 26, y: 11, 'text-anchor': 'end' }, key, words.entropy), w2 = other.getComputedTextLength?.() || 40;
      svg('line', { x1: right - w1 - w2 - 46, x2: right - w1 - w2 - 30, y1: 7, y2: 7, class: 'entropy' }, key);
      this.cursor = svg('line', { y1: T, y2: H - B, class: 'cursor' }, root); this.dot = svg('circle', { r: 3.5, class: 'dot' }, root);
      this.chart = { x, y };
      root.addEventListener('click', event => { const box = root.getBoundingClientRect(); this.jump(Math.floor((event.clientX - box.left - L) / ((box.width - L - 4) / n))); });
    }

    markChart() {
      if (!this.chart) return;
      const { x, y } = this.chart, at = x(this.at);
      this.cursor.setAttribute('x1', at); this.cursor.setAttribute('x2', at);
      this.dot.setAttribute('cx', at); this.dot.setAttribute('cy', y(this.now.steps.entropy[this.at]));
    }

    /* ---- the growing matrix ---- */

    paintMatrix() {
      const { now, words } = this, { read } = now;
      this.plot.hidden = !read;
      setText(this.matrixTitle, read ? fill(words.matrix, read) : '');
      setText(this.cellSaid, read ? words.matrix_rows : now.unread);
      this.field.setAttribute('aria-label', this.matrixTitle.textContent);
      if (!read) return;
      const r0 = read.skipped, rows = r0 + read.lengths.length, longest = Math.max(...read.lengths), first = now.prompt.length;
      const end = now.going ? first + now.of - 1 : rows, tall = end - r0, wide = read.cross ? longest : end, columns = read.cross ? longest : rows;
      const long = text => [...text].reduce((sum, c) => sum + (c > '\u2e80' || text.startsWith('U+') ? 12 : 7), 0);
      const longestName = Math.max(...Array.from({ length: columns }, (_, i) => long(shown(now.key(i)?.text ?? ''))));
      const gutter = 84, drop = 10 + Math.min(60, longestName), room = Math.max(120, this.matrixBox.clientWidth - gutter - 8), cell = Math.min(20, room / wide, 420 / tall);
      const w = cell * wide, h = cell * tall, marked = (rows - Math.max(first, r0)) * cell;
      Object.assign(this.plot.style, { gridTemplateColumns: `${gutter}px ${w}px`, gridTemplateRows: `${h}px ${drop}px` });
      this.canvas.style.imageRendering = cell < 1 ? 'auto' : '';
      this.paintCells(r0, rows, wide, tall);
      this.labels(this.rowLabels, r0, rows, cell, 'top', i => now.own(i), i => i >= first);
      this.labels(this.columnLabels, 0, columns, cell, 'left', i => now.key(i), i => !read.cross && i >= first);
      const band = (node, x, y, width, height) => Object.assign(node.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
      band(this.rowBand, -4, Math.max(0, first - r0) * cell, 3, Math.max(0, marked));
      band(this.columnBand, first * cell, h + 1, read.cross ? 0 : Math.max(0, (rows - first) * cell), 3);
      this.cell = { cell, w, r0, rows, longest };
    }

    paintCells(r0, rows, wide, tall) {    // one pixel a cell, the Attention tab's colours; blocked cells let the hatching through
      const { now, canvas } = this, { read } = now, ink = window.tfviz.ink;
      if (!ink) return;
      canvas.width = wide; canvas.height = tall;
      const image = new ImageData(wide, tall), pixels = new Uint32Array(image.data.buffer);
      for (let r = r0; r < rows; r++) {
        const row = read.row(r), from = (r - r0) * wide;
        for (let c = 0; c < row.length; c++) if (row[c]) pixels[from + c] = ink.palette[1 + Math.round(254 * (row[c] - 1) / read.most)];
      }
      canvas.getContext('2d').putImageData(image, 0, 0);
      this.field.style.background = ink.hatching;
    }

    labels(box, from, to, cell, side, token, written) {
      const step = Math.max(1, Math.ceil(LABEL_PX / cell)), made = document.createDocumentFragment();
      for (let i = from; i < to; i += step) {
        const label = el('span', written(i) ? 'written' : '', made);
        const text = side === 'left' ? shown(token(i).text) : token(i).text;
        el('bdi', '', label, { dir: 'auto', text });
        if (side === 'left') label.classList.toggle('stands', stands(text));
        label.style[side] = `${(i - from + 0.5) * cell}px`;
      }
      box.replaceChildren(made);
    }

    markMatrix() {
      if (!this.now.read || !this.cell) return;
      const { cell, w, r0 } = this.cell, tall = Math.max(cell, 5);
      Object.assign(this.rowFrame.style, { top: `${(this.now.position(this.at) - r0 + 0.5) * cell - tall / 2 - 1}px`, height: `${tall + 2}px`, width: `${w + 2}px` });
    }

    cellAt(event) {
      const box = this.field.getBoundingClientRect(), { cell, r0 } = this.cell;
      return { row: r0 + Math.floor((event.clientY - box.top) / cell), column: Math.floor((event.clientX - box.left) / cell) };
    }

    point(at) {
      const { now, words } = this, row = at && at.row < this.cell.rows ? now.read.row(at.row) : null;
      if (!row || at.row < 0 || at.column < 0 || at.column >= this.cell.longest) return setText(this.cellSaid, words.matrix_rows);
      const w = at.column < row.length ? now.weight(row[at.column]) : NaN, names = { query: now.own(at.row).text, key: now.key(at.column)?.text ?? '' };
      setText(this.cellSaid, w === w ? fill(words.cell, { ...names, weight: digits(w) }) : fill(words.blocked, names));
    }

    /* ---- branches ---- */

    paintBranches() {
      const { now, words } = this, runs = [...this.runs.values()];
      this.branchBox.hidden = runs.length < 2;
      if (runs.length < 2) return this.branches.replaceChildren();
      const focus = this.branches.contains(document.activeElement) ? document.activeElement.dataset.run : '';
      this.branches.replaceChildren(...runs.map(run => {
        const item = el('li'), button = el('button', '', item, { type: 'button', 'aria-pressed': String(run === now), 'data-run': run.id }), text = el('bdi', '', button, { dir: 'auto' });
        let same = 0;
        while (run !== now && same < run.n && run.ids[same] === now.ids[same]) same++;
        const raw = (from, to) => run.steps.tokens.slice(from, to).map(token => token.special ? token.text : token.raw.replace(/\u2423/g, ' ').replace(/\u23ce/g, ' \u23ce ')).join('');
        if (run === now) text.append(raw(0, run.n));
        else { if (same) el('span', '', text, { text: raw(0, same) }); el('b', '', text, { text: raw(same, run.n) }); }
        const settings = run.stages.filter(stage => stage.on && stage.set).map(({ name, set }) => `${name} ${set}`);
        if (run.plan.temperature > 0) settings.push(fill(words.seed, { n: run.plan.seed }));
        el('small', '', button, { text: [fill(words.total, { n: digits(run.total) }), ...settings].join(' \u00b7 ') });
        button.addEventListener('click', () => this.back(run));
        return item;
      }));
      if (focus) this.branches.querySelector(`[data-run="${focus}"]`)?.focus({ preventScroll: true });
    }
  }

  const views = new WeakMap();
  ((window.tfviz ??= {}).views ??= {}).decode = (box, data, api) => {
    if (!views.has(box)) views.set(box, new Decode(box));
    views.get(box).show(data, api);
  };
})();
