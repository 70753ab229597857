/* A beam search as a tree that grows to the right: a column a step, most probable on top; below the line what was cut.
 *
 * window.tfviz.views.beams(box, data, api). data, from tfviz/ui/tabs/generate/beams.py, one entry a node (0: the prompt):
 *   parents, columns (steps), labels, states (0 kept, 1 dropped, 2 ended), ends, ranks from 1, probs and totals: ln p
 *   n_beams, steps: room for so many, step: made so far, stopped;  found: the nodes that texts end at, best first;  words
 * A node is a button: its numbers are read by pointer or focus, and the arrow keys walk from node to node. */
(() => {
  const states = new WeakMap();
  const TALL = 36, LOW = 25, GAP = 26, NODE = 30, SMALL = 21, NARROW = 78, WIDE = 112, SPACE = 20;
  const DROPPED = 1, NAMES = ['kept', 'dropped', 'ended'], KINDS = ['dropped', 'lost', 'found', 'best'];

  const { el } = window.tfviz;

  function svg(tag, className, parent, attributes = {}) {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    if (className) node.setAttribute('class', className);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (parent) parent.append(node);
    return node;
  }

  function percent(log) {                 // three digits, however small
    const value = 100 * Math.exp(log);
    if (log >= 0) return '100 %';
    if (value >= 99.95) return '>99.9 %';
    if (value >= 1e-3) return `${Number(value.toPrecision(3))} %`;
    const tens = Math.floor(log / Math.LN10 + 2);
    return `${(10 ** (log / Math.LN10 + 2 - tens)).toFixed(2)}e\u2212${-tens} %`;
  }
  const rough = log => { const value = 100 * Math.exp(log); return value < 1 ? '<1 %' : `${Math.round(value)} %`; };
  const signed = x => String(Number(x.toPrecision(4))).replace(/-/g, '\u2212');

  function build(box) {
    const state = { box, at: 0, width: 0, left: 0 };
    const root = el('div', 'tv-beams', box);
    state.said = el('div', 'tv-beams-said', root);
    state.scroll = el('div', 'tv-beams-scroll', root);
    state.canvas = el('div', 'tv-beams-tree', state.scroll, { role: 'group' });
    state.legend = el('div', 'tv-beams-legend', root);
    const over = event => { const i = indexOf(event.target); if (i !== null && i !== state.pointed) { read(state, i); state.pointed = i; } };
    state.canvas.addEventListener('pointermove', over); // not pointerover: a tree that grows under a resting pointer is not pointed at
    state.canvas.addEventListener('focusin', event => { over(event); state.at = indexOf(event.target) ?? state.at; rove(state); });
    state.canvas.addEventListener('focusout', () => read(state, state.at, true));
    state.canvas.addEventListener('pointerleave', () => read(state, state.at, !state.canvas.contains(document.activeElement)));
    state.canvas.addEventListener('click', event => { const i = indexOf(event.target); if (i !== null) state.nodes[i].focus(); });
    state.canvas.addEventListener('keydown', event => walk(state, event));
    const sizes = new ResizeObserver(() => {
      if (!box.isConnected) return sizes.disconnect();
      if (state.data && state.scroll.clientWidth !== state.width) draw(state);
    });
    sizes.observe(state.scroll);
    return state;
  }

  const indexOf = node => { const button = node.closest?.('[data-node]'); return button ? Number(button.dataset.node) : null; };

  /* ---- where everything stands ---- */

  function place(state) {
    const { data } = state, columns = Array.from({ length: data.step + 1 }, () => ({ above: [], below: [] }));
    const final = new Set(data.found), lost = i => data.stopped && data.columns[i] === data.step && !final.has(i);
    state.below = data.states.map((kind, i) => kind === DROPPED || (i > 0 && lost(i))); // the last ranking cuts as well
    data.columns.forEach((step, i) => columns[step][state.below[i] ? 'below' : 'above'].push(i));
    state.columns = columns;
    const tall = Math.max(data.n_beams, ...columns.map(({ above }) => above.length)), low = Math.max(0, ...columns.map(({ below }) => below.length));
    state.width = state.scroll.clientWidth;
    state.step = Math.max(NARROW, Math.min(WIDE, Math.floor((state.width - 4) / (data.steps + 1))));
    state.cut = tall * TALL + GAP / 2;
    state.tall = tall * TALL + (low ? GAP + low * LOW : 0);
    const spots = [];
    columns.forEach(({ above, below }, step) => {
      const x = step * state.step, first = step === 0 ? (Math.min(tall, data.n_beams) - 1) * TALL / 2 : 0;
      above.forEach((i, k) => { spots[i] = { x, y: first + k * TALL + TALL / 2, tall: NODE }; });
      below.forEach((i, k) => { spots[i] = { x, y: tall * TALL + GAP + k * LOW + LOW / 2, tall: SMALL }; });
    });
    state.spots = spots;
  }

  function way(data, node) {              // from a node back to the root, itself included
    const nodes = [];
    for (let i = node; i > 0; i = data.parents[i]) nodes.push(i);
    return nodes;
  }

  /* ---- the drawing ---- */

  function draw(state) {
    const { data, canvas } = state, { words } = data, inside = canvas.contains(document.activeElement);
    place(state);
    const best = new Set(data.found.length ? way(data, data.found[0]) : []), found = new Set(data.found.flatMap(node => way(data, node)));
    const wide = state.step - SPACE, whole = data.step * state.step + wide + 2;
    canvas.replaceChildren();
    Object.assign(canvas.style, { width: `${whole}px`, height: `${state.tall}px` });
    canvas.setAttribute('aria-label', words.tree);
    const lines = svg('svg', '', canvas, { width: whole, height: state.tall, 'aria-hidden': 'true' });
    if (state.columns.some(({ below }) => below.length)) {
      svg('line', 'tv-beams-line', lines, { x1: state.step, x2: whole, y1: state.cut, y2: state.cut });
      el('span', 'tv-beams-cut', canvas, { text: words.cut, style: `top:${state.cut - 9}px; width:${state.step - SPACE}px` });
    }
    const order = i => data.states[i] === DROPPED ? 0 : best.has(i) ? 3 : found.has(i) ? 2 : 1;
    state.edges = [];
    for (const i of data.parents.map((_, i) => i).slice(1).sort((a, b) => order(a) - order(b))) {
      const from = state.spots[data.parents[i]], to = state.spots[i], x1 = from.x + wide, x2 = to.x, bend = Math.max(8, (x2 - x1) * .6);
      const kind = KINDS[order(i)];
      const edge = { d: `M${x1} ${from.y}C${x1 + bend} ${from.y} ${x2 - bend} ${to.y} ${x2} ${to.y}`, 'stroke-width': (1 + 6 * Math.exp(data.probs[i])).toFixed(2) };
      state.edges[i] = svg('path', kind, lines, edge);
    }
    state.nodes = data.labels.map((label, i) => node(state, i, label, wide, KINDS[order(i)]));
    state.at = Math.min(state.at, data.labels.length - 1);
    if (!data.labels[state.at] || state.follow) state.at = data.found[0] ?? 0;
    rove(state);
    read(state, state.at, true);
    if (inside) state.nodes[state.at].focus({ preventScroll: true });
    legend(state);
  }

  function node(state, i, label, wide, kind) {
    const { data } = state, { words } = data, { x, y, tall } = state.spots[i], kept = NAMES[data.states[i]];
    const more = i === 0 ? words.start : `${words.step} ${data.columns[i]}, ${percent(data.probs[i])}, ${words[kept]}`;
    const button = el('button', `${kind} ${kept}`, state.canvas, { type: 'button', 'data-node': i, tabindex: -1 });
    Object.assign(button.style, { left: `${x}px`, top: `${y - tall / 2}px`, width: `${wide}px`, height: `${tall}px` });
    el('bdi', '', button, { text: i === 0 ? `\u2026 ${label}` : label, dir: 'auto' });
    if (i > 0 && !state.below[i]) el('small', '', button, { text: data.ends[i] ? `\u25a0 ${rough(data.probs[i])}` : rough(data.probs[i]) });
    el('span', 'tv-hidden', button, { text: ` (${more})` });
    if (i === 0) button.className = 'root';
    return button;
  }

  function legend(state) {
    const { words } = state.data;
    state.legend.replaceChildren();
    for (const [kind, text] of [['best', words.best], ['found', words.found], ['lost', words.other], ['dropped', words.dropped], ['ended', words.ended]]) {
      const item = el('span', '', state.legend);
      el('i', kind, item, { 'aria-hidden': 'true', text: kind === 'ended' ? '\u25a0' : '' });
      item.append(text);
    }
  }

  /* ---- reading and walking ---- */

  function read(state, i, quiet = false) { // quiet: nobody points at it
    const { data, said } = state, { words } = data, path = new Set(way(data, i));
    state.edges.forEach((edge, k) => edge.classList.toggle('path', !quiet && path.has(k)));
    state.nodes.forEach((one, k) => one.classList.toggle('path', !quiet && path.has(k)));
    state.pointed = null;
    said.replaceChildren();
    const text = el('p', 'tv-beams-text', said);
    el('span', '', text, { text: words.path });
    el('bdi', '', text, { text: `\u2026 ${[...path].reverse().map(k => data.labels[k]).join(' \u00b7 ')}`, dir: 'auto' });
    const facts = el('p', '', said), fact = (name, value) => { el('span', '', facts, { text: name }); el('b', '', facts, { text: value }); };
    if (i === 0) { el('span', '', facts, { text: words.start }); return; }
    fact(words.step, data.columns[i]);
    fact(words.prob, percent(data.probs[i]));
    fact(words.total, `${signed(data.totals[i])} (${percent(data.totals[i])})`);
    fact(words.place, data.ranks[i]);
    el('em', NAMES[data.states[i]], facts, { text: words[NAMES[data.states[i]]] });
  }

  function rove(state) { state.nodes.forEach((one, i) => { one.tabIndex = i === state.at ? 0 : -1; }); }

  function walk(state, event) {
    const { data } = state, i = indexOf(event.target);
    if (i === null) return;
    const column = [...state.columns[data.columns[i]].above, ...state.columns[data.columns[i]].below], k = column.indexOf(i);
    const child = data.parents.findIndex((parent, one) => one > 0 && parent === i && state.nodes[one].matches('.best, .found'));
    const any = data.parents.findIndex((parent, one) => one > 0 && parent === i);
    const to = { ArrowUp: column[k - 1], ArrowDown: column[k + 1], ArrowLeft: i > 0 ? data.parents[i] : undefined, ArrowRight: child > 0 ? child : any > 0 ? any : undefined, Home: 0, End: data.found[0] }[event.key];
    if (!['ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(event.key)) return;
    event.preventDefault();
    if (to !== undefined) state.nodes[to].focus();
  }

  (window.tfviz.views ??= {}).beams = (box, data, api) => {
    const state = states.get(box) ?? build(box);
    states.set(box, state);
    const grows = state.data && state.data.labels.length <= data.labels.length && state.data.labels.every((label, i) => label === data.labels[i]);
    state.follow = !state.canvas.contains(document.activeElement);
    const still = !grows || (state.follow && Math.abs(state.scroll.scrollLeft - state.left) < 2); // nobody has scrolled it
    Object.assign(state, { data, api });
    draw(state);
    if (still) state.scroll.scrollLeft = data.stopped ? 0 : state.scroll.scrollWidth; // its newest tokens; complete: from its root on
    if (still) state.left = state.scroll.scrollLeft;
  };
})();
