/* A section's picture: what it depends on, when it is drawn, and the drawing itself.
 *
 * Every section's component calls window.tfviz.picture(element, props, want, watch) when it is on the page; no build step.
 *   props.value       as JSON text: {key, panels, badges, notes, part, code, error, gone, done}: pieces of the answer to the wish of that key.
 *   props.selects     parts of the shared selection that the picture depends on and offers;  props.needs_trace;  props.button;  props.own: its id;  props.labels.
 *   want({key, trace, place, measure, ask, code})   it is visible, and what it shows is not what the page says.
 *   ask: what a drawing of its own asked for (api.ask, or api.measure: as with the section's button pressed), as long as the page looks at the same sentence.
 * On window: hears tfviz:selected (attention_view.js) and tfviz:changed {id} (a control of this section); sends tfviz:select.
 * window.tfviz.scene is what the page looks at: {trace, kinds, token_lists, sel}.
 * Panels in the window are drawn first, the others after the browser has painted those.
 * The root carries data-seen="<key>" once all of that wish in the window is drawn, and data-drawn="<key>" once the picture is complete. */
window.tfviz.picture = (element, props, want, watch) => {
  const root = element.querySelector('.tv-picture');
  const PATIENCE_MS = 1500, SLOW_MS = 250;
  let visible = false, changes = 0, measure = false, measuring = false, asked = '', waiting = 0, slow = 0, drawn = null, hasCode = false, barFor = '', ask = null;

  const { el } = window.tfviz;

  const t = key => props.labels[`picture.${key}`] || key;
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const scene = () => window.tfviz.scene;

  const ui = { bar: el('div', 'tv-bar', root), notes: el('div', '', root, { 'aria-live': 'polite' }), error: el('p', 'tv-note tv-error', root, { role: 'alert' }) };
  ui.doing = el('div', 'tv-doing', root, { role: 'status' });
  ui.panels = el('div', 'tv-panels tv-empty-picture', root);
  ui.badges = el('ul', 'tv-badges', root, { 'aria-label': t('checks') });
  ui.code = el('div', '', root);
  ui.error.hidden = ui.doing.hidden = ui.badges.hidden = true;
  if (props.button) el('button', 'tv-measure', ui.bar, { type: 'button', text: props.button }).addEventListener('click', () => { measure = true; changes++; check(); });

  /* ---- what is wanted ---- */

  const traced = at => (props.origin && at?.origin) || at?.trace || ''; // of a sentence that was gone on with, its beginning

  function wish() {                       // everything the picture depends on, as one text
    const at = scene();
    return JSON.stringify([props.needs_trace ? traced(at) : '', props.selects.length ? [at?.sel.kind, ...props.selects.map(name => at?.sel[name])] : '', changes]);
  }

  function check() {
    if (!visible || !element.isConnected || (props.needs_trace && !scene())) return;
    drawBar();
    if (ask && ask.trace !== traced(scene())) ask = null;
    const key = wish();
    if (key === asked || (waiting && performance.now() - waiting < PATIENCE_MS)) return;
    asked = key; waiting = performance.now();
    clearTimeout(slow); slow = setTimeout(() => root.setAttribute('data-busy', ''), SLOW_MS);
    setTimeout(check, PATIENCE_MS);       // in case nothing comes back
    want({ key, trace: traced(scene()), place: scene()?.sel ?? null, measure, ask: ask?.value ?? null, code: !hasCode });
    measuring = measure; measure = false;
  }

  async function show() {
    const value = props.value ? JSON.parse(props.value) : null;
    if (!value || value.key !== asked) return;
    if (value.gone) window.dispatchEvent(new CustomEvent('tfviz:gone')); // the sentence is traced anew, and then this is wanted again
    if (value.error !== undefined) { ui.error.textContent = value.error; ui.error.hidden = false; }
    if (value.code) { hasCode = true; ui.code.innerHTML = value.code; }
    if (value.panels) await draw(value);
    if (value.key !== asked) return;
    if (value.waiting) drawWaiting(value.waiting);
    if (value.done || value.waiting || value.part !== null) waiting = 0;
    if (value.done) { root.dataset.drawn = value.key; ui.doing.hidden = true; clearTimeout(slow); root.removeAttribute('data-busy'); }
    check();                              // somebody may have moved on meanwhile
  }

  /* ---- the drawing ---- */

  async function draw(value) {
    const figures = value.panels.some(panel => panel.figure), plotly = figures ? await window.tfviz.plotly() : null;
    if (value.key !== asked) return;
    drawn = value;
    window.tfviz.grey(value.lacks);
    ui.error.hidden = true;
    ui.notes.replaceChildren(...value.notes.map(text => el('p', 'tv-note', null, { text })));
    drawProgress(value.part);
    ui.panels.classList.remove('tv-empty-picture');
    while (ui.panels.children.length > value.panels.length) { const last = ui.panels.lastChild; forget(last); last.remove(); }
    while (ui.panels.children.length < value.panels.length) newPanel();
    value.panels.forEach((panel, i) => ui.panels.children[i].classList.toggle('tv-wide', panel.wide)); // figures measure their room
    const boxes = [...ui.panels.children], shown = boxes.map(inWindow);
    const drawThose = seen => value.panels.forEach((panel, i) => { if (shown[i] === seen) drawPanel(panel, boxes[i], plotly); });
    drawThose(true);
    ui.badges.replaceChildren(...value.badges.map(badge));
    ui.badges.hidden = !value.badges.length;
    if (value.done) root.dataset.seen = value.key;
    if (shown.every(Boolean)) return;
    await painted();
    if (value === drawn) drawThose(false); // also where another is wanted already: that may end in a sentence
  }

  const inWindow = box => { const { top, bottom } = box.getBoundingClientRect(); return bottom >= 0 && top <= window.innerHeight; };
  const painted = () => new Promise(done => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
    setTimeout(done, 100);                // a page in the background has no frames
  });

  function drawProgress(part) {
    ui.doing.hidden = part === null;
    if (part === null) return ui.doing.replaceChildren();
    const bar = ui.doing.querySelector('progress') || doing(t('measuring'), () => el('progress', '', ui.doing, { max: 1, 'aria-label': t('measuring') }));
    bar.value = part;
  }

  function drawWaiting(text) {            // for other people's measurements
    ui.doing.hidden = false;
    if (ui.doing.dataset.waiting !== text) doing(text, () => { ui.doing.dataset.waiting = text; });
  }

  function doing(text, more) {            // what goes on, and the button that ends it; what the picture needs goes on
    delete ui.doing.dataset.waiting;
    ui.doing.replaceChildren(`${text} `);
    const made = more();
    if (measuring) el('button', 'tv-stop', ui.doing, { type: 'button', text: t('stop') }).addEventListener('click', () => { changes++; check(); });
    return made;
  }

  function newPanel() {
    const box = el('section', 'tv-panel', ui.panels);
    el('h3', '', box); el('div', 'tv-drawing', box); el('p', 'tv-caption', box);
    return box;
  }

  function saveMenu(panel, figure, box, after) {
    const { kind, layer, head, query } = scene()?.sel ?? {}, all = { kind, layer, head, query };
    const about = Object.fromEntries(Object.entries(all).filter(([name]) => name === 'kind' ? props.selects.length : props.selects.includes(name)));
    const menu = el('details', 'tv-save', after);
    el('summary', '', menu, { text: t('save') });
    for (const format of ['png', 'svg', 'html', 'csv']) {
      el('button', '', menu, { type: 'button', text: format.toUpperCase() }).addEventListener('click', () =>
        window.tfviz.save(format, figure, { title: panel.title, name: `tfviz-${props.own}`, width: box.clientWidth, height: box.clientHeight, about }));
    }
  }

  function forget(box) { const chart = box.querySelector('.js-plotly-plot'); if (chart) window.Plotly.purge(chart); }

  function drawPanel(panel, box, plotly) {
    const [title, place, note] = box.children, kind = panel.figure ? 'figure' : panel.view || 'html';
    title.textContent = panel.title; title.hidden = !panel.title;
    note.textContent = panel.note; note.hidden = !panel.note;
    if (place.dataset.kind !== kind) { forget(box); place.replaceChildren(el('div')); place.dataset.kind = kind; }
    if (panel.figure) return chart(place.firstChild, panel, plotly);
    if (panel.view) return window.tfviz.views[panel.view](place.firstChild, panel.data, api());
    if (place.firstChild.innerHTML !== panel.html) place.firstChild.innerHTML = panel.html; // made and escaped by Python
  }

  const api = () => ({ select, ask: wanted, measure: value => wanted(value, true), place: scene()?.sel ?? {}, dark: document.body.classList.contains('dark') });
  function wanted(value, measures = false) { ask = { trace: traced(scene()), value }; measure = measures; changes++; check(); }

  function chart(box, panel, plotly) {
    if (box.tvFigure === panel.figure && box.isConnected) return; // the same as before: nothing to draw
    box.tvFigure = panel.figure;
    const { data, layout } = colour(JSON.parse(panel.figure));
    const open = box.parentElement.querySelector('.tv-save')?.open;
    box.parentElement.querySelector('.tv-save')?.remove();
    saveMenu(panel, { data, layout }, box, box.parentElement);
    box.parentElement.querySelector('.tv-save').open = Boolean(open);
    if (panel.title) box.setAttribute('aria-label', panel.title);
    box.setAttribute('role', 'figure');
    box.style.height = layout.height ? `${layout.height}px` : ''; // Plotly takes all of it when the window changes
    plotly.react(box, data, { ...layout, autosize: true }, { displayModeBar: false, responsive: true, doubleClick: 'reset+autosize' });
    box.removeAllListeners?.('plotly_click');
    if (!Object.keys(panel.select).length) return;
    box.on('plotly_click', ({ points: [point] }) => {
      const to = Object.entries(panel.select).map(([axis, name]) => [name, Math.round(Number(point[axis]))]).filter(([, i]) => Number.isFinite(i));
      select(Object.fromEntries(to));
    });
  }

  function colour(figure) {               // the page's own colours: a figure sits on a light or a dark ground
    const scales = { weights: ['low', 'mid', 'high'].map(name => css(`--tv-scale-${name}`)), diverging: ['below', 'zero', 'above'].map(name => css(`--tv-${name}`)) };
    for (const trace of figure.data) {
      const stops = scales[trace.meta];
      if (stops) trace.colorscale = stops.map((stop, i) => [i / 2, stop]);
      if (trace.type === 'heatmap' && trace.colorbar === undefined && trace.showscale !== false) trace.colorbar = { thickness: 10, outlinewidth: 0 };
    }
    const [soft, line, panel, ink] = ['soft', 'line', 'panel', 'ink'].map(name => css(`--tv-${name}`));
    const layout = figure.layout;
    layout.font = { ...layout.font, color: soft };
    layout.hoverlabel = { bgcolor: panel, bordercolor: line, font: { color: ink }, ...layout.hoverlabel };
    for (const name of Object.keys(layout)) if (/^[xy]axis\d*$/.test(name)) Object.assign(layout[name], { automargin: true, linecolor: line, gridcolor: line, zerolinecolor: line });
    if (root.clientWidth < 480) layout.margin = { ...layout.margin, l: Math.min(48, layout.margin?.l ?? 48) };
    return figure;
  }

  function badge({ ok, text, title }) {
    const item = el('li', ok === null ? 'note' : ok ? 'ok' : 'warn', null, title ? { title } : {});
    if (ok !== null) { el('b', '', item, { text: ok ? '\u2713' : '!', 'aria-hidden': 'true' }); el('span', 'tv-hidden', item, { text: t(ok ? 'holds' : 'fails') }); }
    item.append(text);
    return item;
  }

  function redraw(panel, box, plotly) {    // in other colours
    const old = box.children[1].firstChild;
    if (old) old.tvFigure = '';
    drawPanel(panel, box, plotly);
  }

  /* ---- the shared selection ---- */

  function select(change) { window.tfviz.select(change); }

  function drawBar() {                    // built again for another sentence, else only its state changes
    const at = scene();
    if (!at || !props.selects.length) return;
    const kind = at.kinds.find(one => one.key === at.sel.kind), name = `${at.trace}/${kind.key}`;
    if (name !== barFor) { barFor = name; buildBar(at, kind); }
    ui.bar.querySelectorAll('input[data-of]').forEach(input => { if (document.activeElement !== input) input.value = at.sel[input.dataset.of]; });
    ui.bar.querySelectorAll('[data-kind]').forEach(button => button.setAttribute('aria-pressed', String(button.dataset.kind === kind.key)));
    ui.bar.querySelectorAll('.tv-tokens').forEach(bar => [...bar.children].forEach((chip, i) => {
      const on = i === at.sel[bar.dataset.of];
      chip.setAttribute('aria-pressed', String(on)); chip.tabIndex = on ? 0 : -1;
    }));
  }

  function buildBar(at, kind) {
    for (const old of ui.bar.querySelectorAll('.tv-of')) old.remove();
    if (at.kinds.length > 1) kinds(at);
    if (props.selects.includes('layer')) stepper('layer', kind.n_layers);
    if (props.selects.includes('head')) stepper('head', kind.n_heads);
    for (const side of ['query', 'key']) if (props.selects.includes(side)) tokens(side, at.token_lists[kind[`${side}_list`]].tokens);
  }

  function kinds(at) {
    const box = el('div', 'tv-of tv-seg', ui.bar, { role: 'group', 'aria-label': t('kind') });
    for (const { key, label } of at.kinds) el('button', '', box, { type: 'button', text: label, 'data-kind': key }).addEventListener('click', () => select({ kind: key }));
  }

  function stepper(name, n) {
    const box = el('label', 'tv-of tv-stepper', ui.bar, { text: t(name) });
    const input = el('input', '', box, { type: 'number', min: 0, max: n - 1, 'data-of': name, title: `0 \u2013 ${n - 1}` });
    input.addEventListener('input', () => { const i = input.valueAsNumber; if (Number.isInteger(i) && i >= 0 && i < n) select({ [name]: i }); });
    const settle = () => { input.value = scene().sel[name]; };
    input.addEventListener('blur', settle);
    input.addEventListener('keydown', ({ key }) => { if (key === 'Enter') settle(); });
  }

  function tokens(side, list) {
    const bar = el('div', 'tv-of tv-tokens', ui.bar, { role: 'toolbar', 'aria-label': t(side), 'data-of': side });
    list.forEach((token, i) => {
      const chip = el('button', token.special ? 'special' : '', bar, { type: 'button', title: token.title, tabindex: -1 });
      el('bdi', '', chip, { text: token.text, dir: 'auto' });
      if (token.piece) el('sub', '', chip, { text: token.piece[0] });
      chip.addEventListener('click', () => select({ [side]: i }));
    });
    bar.addEventListener('keydown', event => {
      const at = [...bar.children].indexOf(event.target), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = event.key === 'Home' ? 0 : event.key === 'End' ? list.length - 1 : step && at >= 0 ? at + step : -1;
      if (!bar.children[to]) return;
      event.preventDefault(); select({ [side]: to }); bar.children[to].focus();
    });
  }

  root.addEventListener('click', event => { // markup of Python's: buttons that select, and that open a tab
    const button = event.target.closest('[data-select], [data-tab]');
    if (!button || !root.contains(button)) return;
    if (button.dataset.select) select(JSON.parse(button.dataset.select));
    if (button.dataset.tab) window.tfviz.open(button.dataset.tab, button.dataset.section);
  });

  /* ---- when ---- */

  const listen = (name, act) => { const heard = event => element.isConnected ? act(event) : window.removeEventListener(name, heard); window.addEventListener(name, heard); };
  listen('tfviz:selected', check);
  listen('tfviz:changed', ({ detail }) => { if (detail.id === props.own) { changes++; check(); } });
  new IntersectionObserver(entries => { visible = entries.at(-1).isIntersecting; if (visible) check(); }, { rootMargin: '300px' }).observe(root);
  const themes = new MutationObserver(() => {
    if (!element.isConnected) return themes.disconnect();
    if (drawn) drawn.panels.forEach((panel, i) => { if (panel.figure || panel.view) redraw(panel, ui.panels.children[i], window.Plotly); });
  });
  themes.observe(document.body, { attributes: true, attributeFilter: ['class'] });
  watch('value', show);
};
