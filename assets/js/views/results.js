/* What was measured, as files to take along, and the place where another machine's file is laid beside it.
 *
 * window.tfviz.views.results(box, data, api). data, from tfviz/ui/tabs/speed/results.py:
 *   files     {json, csv, markdown}: the texts; none where nothing was measured;  count: how many figures, in words
 *   compared  another file is being compared;  error: why one could not be read;  most: bytes of a file;  words
 * Asks (api.ask): {file: text, last: the text compared before} for the comparison, {} for the newest figures alone. The
 * files themselves stay in this page. */
(() => {
  const { el } = window.tfviz;
  const KINDS = { json: ['JSON', 'application/json', 'json'], csv: ['CSV', 'text/csv', 'csv'], markdown: ['Markdown', 'text/markdown', 'md'] };
  const STALE_MS = 2000;                  // looked at again after so long, it shows what was measured meanwhile
  const states = new WeakMap();           // box -> what it holds

  function download(text, type, extension) {
    const link = el('a', '', null, { href: URL.createObjectURL(new Blob([text], { type })), download: `tfviz-results-${new Date().toISOString().slice(0, 10)}.${extension}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const ask = state => state.api.ask(state.good.file ? { file: state.good.file } : {});

  function compare(state, file, name) {
    state.pasted.value = '';
    if (!file.trim()) return tell(state, state.data.words.nothing);
    if (new Blob([file]).size > state.data.most) return tell(state, state.data.words.large);
    state.next = { file, name };
    tell(state, '');
    state.api.ask(state.good.file ? { file, last: state.good.file } : { file });
  }

  async function take(state, file) {
    if (file.size > state.data.most) return tell(state, state.data.words.large);
    try { compare(state, await file.text(), file.name); } catch { tell(state, state.data.words.unread); }
  }

  function tell(state, text) { state.error.textContent = text; state.error.hidden = !text; }

  function build(box) {
    const state = { box, good: { file: '', name: '' }, next: null }, root = el('div', 'tv-results-files', box);
    const row = el('div', 'tv-results-row', root);
    state.count = el('b', '', row);
    state.save = el('span', 'tv-results-save', row, { role: 'group' });
    state.refresh = el('button', '', row, { type: 'button' });
    state.refresh.addEventListener('click', () => ask(state));
    const drop = el('div', 'tv-results-drop', root);
    state.title = el('b', '', drop);
    state.pasted = el('textarea', '', drop, { rows: 1, spellcheck: 'false' });
    state.choose = el('label', 'tv-results-choose', drop);
    state.chooseText = el('span', '', state.choose);
    state.input = el('input', '', state.choose, { type: 'file', accept: '.json,.csv,application/json,text/csv' });
    state.now = el('p', 'tv-results-now', root);
    state.error = el('p', 'tv-note tv-error', root, { role: 'alert' });
    state.error.hidden = true;
    state.input.addEventListener('change', () => { const [file] = state.input.files; state.input.value = ''; if (file) take(state, file); });
    state.pasted.addEventListener('paste', event => {
      const [file] = event.clipboardData.files, text = event.clipboardData.getData('text');
      event.preventDefault();
      if (file) take(state, file); else compare(state, text, '');
    });
    state.pasted.addEventListener('keydown', event => { if (event.key === 'Enter' && state.pasted.value.trim()) { event.preventDefault(); compare(state, state.pasted.value, ''); } });
    for (const [name, over] of [['dragenter', true], ['dragover', true], ['dragleave', false], ['drop', false]]) {
      drop.addEventListener(name, event => { event.preventDefault(); drop.classList.toggle('over', over); });
    }
    drop.addEventListener('drop', event => { const [file] = event.dataTransfer.files, text = event.dataTransfer.getData('text'); if (file) take(state, file); else compare(state, text, ''); });
    watch(state);
    return state;
  }

  function watch(state) {                 // opened again: others may have measured since
    let seen = true;
    const eyes = new IntersectionObserver(entries => {
      if (!state.box.isConnected) return eyes.disconnect();
      const visible = entries.at(-1).isIntersecting;
      if (visible && !seen && performance.now() - state.shown > STALE_MS) ask(state);
      seen = visible;
    });
    eyes.observe(state.box);
  }

  function buttons(state) {
    const { files } = state.data;
    state.save.replaceChildren(...Object.entries(KINDS).filter(([kind]) => files[kind]).map(([kind, [label, type, extension]]) => {
      const button = el('button', '', null, { type: 'button', text: label });
      button.addEventListener('click', () => download(state.data.files[kind], type, extension));
      return button;
    }));
    if (state.save.children.length) state.save.prepend(`${state.data.words.export} `);
  }

  (window.tfviz.views ??= {}).results = (box, data, api) => {
    const state = states.get(box) ?? build(box), { words } = data;
    states.set(box, state);
    const same = state.data && JSON.stringify(state.data.files) === JSON.stringify(data.files);
    if (data !== state.data) {            // not the same again in other colours
      if (state.next && data.compared && !data.error) state.good = state.next;
      state.next = null;
      tell(state, data.error);
    }
    Object.assign(state, { api, data, shown: performance.now() });
    state.count.textContent = data.count;
    state.refresh.textContent = words.refresh;
    state.title.textContent = words.compare;
    state.pasted.placeholder = words.drop;
    state.pasted.setAttribute('aria-label', words.drop);
    state.chooseText.textContent = words.choose;
    state.save.setAttribute('aria-label', words.export);
    if (!same) buttons(state);
    state.now.hidden = !data.compared;
    if (data.compared) {
      const button = el('button', '', null, { type: 'button', text: words.remove });
      button.addEventListener('click', () => { state.good = { file: '', name: '' }; ask(state); state.pasted.focus(); });
      state.now.replaceChildren(el('span', '', null, { text: state.good.name }), button);
    }
  };
})();
