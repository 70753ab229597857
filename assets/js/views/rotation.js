/* RoPE as arrows: a few pairs of one query and one key, turned by their positions; two sliders move them, the score is
 * counted again from all pairs.  window.tfviz.views.rotation(box, data, api)
 *   data  {q, k: [[x1, x2], ...], theta, shown: pairs to draw, rest: what is not turned adds, scale, places: [m, n], tokens, words} */
(() => {
  const SVG = 'http://www.w3.org/2000/svg', R = 62, FRAME_MS = 60, LAST = 512, NEAR = 64;

  const { el } = window.tfviz;
  function svg(tag, parent, attributes) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, text] of Object.entries(attributes)) node.setAttribute(name, text);
    parent.append(node);
    return node;
  }

  const turned = ([x1, x2], angle) => { const c = Math.cos(angle), s = Math.sin(angle); return [x1 * c - x2 * s, x1 * s + x2 * c]; };
  const number = x => (Math.abs(x) >= 1000 ? x.toFixed(0) : x.toPrecision(4)).replace('-', '\u2212');
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);

  function score({ q, k, theta, rest, scale }, m, n) {     // scale (Σ R(m θ) q . R(n θ) k + rest)
    let sum = rest;
    theta.forEach((angle, i) => { const a = turned(q[i], m * angle), b = turned(k[i], n * angle); sum += a[0] * b[0] + a[1] * b[1]; });
    return sum * scale;
  }

  function build(box) {
    box.replaceChildren();
    const ui = { shift: 0, move: 0, circles: [] };
    ui.read = el('p', 'tv-positions-read', box);
    ui.row = el('div', 'tv-positions-circles', box);
    const tools = el('div', 'tv-positions-tools', box);
    ui.play = el('button', 'tv-positions-play', tools, { type: 'button' });
    ui.sliders = ['shift', 'move'].map(name => {
      const label = el('label', '', tools), said = el('span', '', label);
      const input = el('input', '', label, { type: 'range', min: name === 'move' ? -NEAR : 0, max: name === 'move' ? NEAR : LAST, value: 0 });
      input.addEventListener('input', () => { ui[name] = input.valueAsNumber; stop(box); });
      return { name, said, input };
    });
    ui.play.addEventListener('click', () => ui.timer ? stop(box) : play(box));
    return ui;
  }

  function play(box) {
    const ui = box.tvRotation;
    ui.timer = setInterval(() => {
      if (!box.isConnected || !box.getClientRects().length) return stop(box);
      ui.shift = (ui.shift + 1) % (LAST + 1);
      draw(box);
    }, FRAME_MS);
    draw(box);
  }
  function stop(box) { const ui = box.tvRotation; clearInterval(ui.timer); ui.timer = 0; draw(box); }

  function circle(row) {
    const figure = el('figure', '', row), picture = svg('svg', figure, { viewBox: '-75 -75 150 150', role: 'img' });
    svg('circle', picture, { class: 'ring', r: R });
    svg('line', picture, { class: 'axis', x1: -R, x2: R, y1: 0, y2: 0 });
    svg('line', picture, { class: 'axis', y1: -R, y2: R, x1: 0, x2: 0 });
    const parts = { picture, caption: el('figcaption', '', figure) };
    for (const name of ['key', 'query']) {
      parts[`${name}Start`] = svg('line', picture, { class: `start ${name}`, x1: 0, y1: 0 });
      parts[name] = svg('line', picture, { class: name, x1: 0, y1: 0 });
      parts[`${name}Tip`] = svg('path', picture, { class: `tip ${name}`, d: 'M 0 0 L -9 4.5 L -9 -4.5 Z' });
    }
    return parts;
  }

  function arrow(line, tip, [x, y], largest) {              // up is positive: SVG counts down
    const at = [x / largest * R, -y / largest * R];
    line.setAttribute('x2', at[0]); line.setAttribute('y2', at[1]);
    if (tip) tip.setAttribute('transform', `translate(${at}) rotate(${Math.atan2(at[1], at[0]) * 180 / Math.PI})`);
  }

  function draw(box) {
    const ui = box.tvRotation, { data } = ui, { words, theta } = data;
    const m = data.places[0] + ui.shift + ui.move, n = data.places[1] + ui.shift;
    ui.read.setAttribute('aria-live', ui.timer ? 'off' : 'polite');  // not sixteen times a second
    ui.read.replaceChildren();
    el('span', 'score', ui.read, { text: `${words.score} = ${number(score(data, m, n))}` });
    el('span', '', ui.read, { text: `${words.distance} m \u2212 n = ${String(m - n).replace('-', '\u2212')}` });
    for (const [i, name] of ['query', 'key'].entries()) {
      const part = el('span', name, ui.read, { text: `${words[name]} ` });
      el('bdi', '', part, { text: data.tokens[i] });
      part.append(` ${fill(words.at, { p: i ? n : m })}`);
    }
    ui.sliders.forEach(({ name, said, input }) => { input.value = ui[name]; said.textContent = fill(words[name], { n: ui[name] }); });
    ui.play.textContent = ui.timer ? words.stop : words.play;
    data.shown.forEach((pair, at) => {
      const parts = ui.circles[at], q = data.q[pair], k = data.k[pair], largest = Math.max(Math.hypot(...q), Math.hypot(...k)) || 1;
      arrow(parts.queryStart, null, q, largest); arrow(parts.keyStart, null, k, largest);
      arrow(parts.query, parts.queryTip, turned(q, m * theta[pair]), largest);
      arrow(parts.key, parts.keyTip, turned(k, n * theta[pair]), largest);
      const said = `${fill(words.pair, { i: pair })} \u00b7 ${fill(words.turn, { angle: number(theta[pair] * 180 / Math.PI) })}`;
      parts.caption.textContent = said;
      parts.picture.setAttribute('aria-label', `${fill(words['arrows.of'], { i: pair })}: q ${turned(q, m * theta[pair]).map(number)}, k ${turned(k, n * theta[pair]).map(number)}`);
    });
  }

  (window.tfviz.views ??= {}).rotation = (box, data) => {
    const ui = box.tvRotation && box.contains(box.tvRotation.row) ? box.tvRotation : (box.tvRotation = build(box));
    const same = ui.data && String(ui.data.places) === String(data.places);
    ui.data = data;
    if (!same) ui.move = 0;
    while (ui.circles.length > data.shown.length) { ui.circles.pop(); ui.row.lastChild.remove(); }
    while (ui.circles.length < data.shown.length) ui.circles.push(circle(ui.row));
    const lowest = -(data.places[0]);                       // no position before the first
    ui.sliders[1].input.min = Math.max(lowest, -NEAR);
    ui.move = Math.max(ui.move, Number(ui.sliders[1].input.min));
    draw(box);
  };
})();
