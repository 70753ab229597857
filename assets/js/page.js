/* The page's own script: language and colour mode, the address that restores a state, busy marks, the phone's fold.
   Runs once, before Gradio mounts; everything is found by id when it is needed. */
(() => {
  const byId = id => document.getElementById(id);
  const language = location.pathname.replace(/\/+$/, '').endsWith('/zh') ? 'zh' : 'en';
  const NAMES = ['text', 'second', 'model', 'kernel', 'precision'];
  const whenReady = act => document.readyState === 'loading' ? addEventListener('DOMContentLoaded', act) : act();
  const LONGEST_ADDRESS = 16000;
  let running = 0;

  document.documentElement.lang = language === 'zh' ? 'zh-Hans' : 'en';

  const saved = () => { try { return localStorage.getItem('tfviz-mode') } catch { return null } };
  const wantsDark = () => (saved() ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  const paint = dark => document.body.classList.toggle('dark', dark);
  whenReady(() => {  // Gradio inserts this script when the document is already there
    if (new URLSearchParams(location.search).has('__theme')) return;
    paint(wantsDark());
    new MutationObserver(() => { if (document.body.classList.contains('dark') !== wantsDark()) paint(wantsDark()); })
      .observe(document.body, { attributes: true, attributeFilter: ['class'] });  // Gradio sets the system's scheme while mounting
  });
  addEventListener('keydown', event => {  // the open list scrolls, so Chromium would stop at it, and it is gone a moment later
    if (event.key === 'Tab') byId('tv-model')?.querySelectorAll('ul').forEach(list => { list.tabIndex = -1; });
  }, true);

  document.addEventListener('click', event => {
    const copy = event.target.closest?.('.tv-copy');
    if (copy) navigator.clipboard?.writeText(copy.parentElement.querySelector('code').textContent).then(() => {
      copy.textContent = copy.dataset.copied;
      setTimeout(() => { copy.textContent = copy.dataset.copy; }, 1500);
    }, () => { /* a page without https may not */ });
    if (event.target.closest?.('.tv-mode')) {
      const dark = !document.body.classList.contains('dark');
      try { localStorage.setItem('tfviz-mode', dark ? 'dark' : 'light'); } catch { /* a private window forgets */ }
      paint(dark);
    }
  });
  for (const kind of ['pointerdown', 'click']) document.addEventListener(kind, event => {  // before a menu copies it, too
    const link = event.target.closest?.('.tv-header a[hreflang]');
    if (!link) return;
    link.search = location.search;          // the other language opens with the same sentence and switches
    if (kind === 'click' && !event.ctrlKey && !event.metaKey && !event.shiftKey) keep('tfviz-moves', 'yes');
  });

  /* What is on screen, in the address: reloading, the other language and a copied link give the same page.
     Spaces are written as %20, since other programs take the usual + for a plus; the text does not stand at the end,
     where they cut a point off. A text that is too long for an address waits in the tab itself. */
  function remember(values) {
    const query = new URLSearchParams(), others = new URLSearchParams(location.search);
    NAMES.forEach((name, i) => { others.delete(name); if (values[i] != null) query.set(name, values[i]); });
    for (const [name, value] of others) query.append(name, value);
    if (addressOf(query).length > LONGEST_ADDRESS) query.delete('text');
    show(query);
    keep('tfviz-typed', JSON.stringify(values.slice(0, 2)));
  }
  const addressOf = query => String(query).replaceAll('+', '%20');  // a plus of the text is %2B already
  const show = query => history.replaceState(history.state, '', `${location.pathname}?${addressOf(query)}`);

  function keep(name, text) { try { sessionStorage.setItem(name, text); } catch { /* a private window forgets, and so does a full one */ } }

  /* What the boxes held when this tab last showed the page: [sentence, second], if it comes back to it, by reloading (as it
     does by itself once the server is there again) or in the other language; a link that is opened says itself what it wants. */
  function typedBefore() {
    try {
      const moves = sessionStorage.getItem('tfviz-moves') !== null, [visit] = performance.getEntriesByType('navigation');
      sessionStorage.removeItem('tfviz-moves');
      return moves || visit?.type !== 'navigate' ? JSON.parse(sessionStorage.getItem('tfviz-typed')) ?? [] : [];
    } catch { return []; }
  }

  function type(text, where = 'tv-first') {
    const box = byId(where)?.querySelector('textarea');
    if (!box) return;
    box.value = text;
    box.dispatchEvent(new Event('input', { bubbles: true }));
  }

  /* A candidate that was clicked stands in the target box; with another sentence it means nothing and goes again. */
  let candidate = '';
  addEventListener('tfviz:target', ({ detail }) => { candidate = detail.text; type(candidate, 'tv-second'); });
  document.addEventListener('input', event => {
    const box = byId('tv-second')?.querySelector('textarea');
    if (!candidate || !box || !event.target.closest?.('#tv-first')) return;
    if (box.value === candidate) type('', 'tv-second');
    candidate = '';
  });

  /* What is typed before the link's state has come, or was before the page was left. */
  let [early = null, earlySecond = null] = typedBefore();  // early is undefined once the state has come
  document.addEventListener('input', ({ target }) => {
    const [first, second] = ['tv-first', 'tv-second'].map(id => byId(id)?.querySelector('textarea'));
    if (target !== first && target !== second) return;
    if (target === first) { earlySecond = null; if (early !== undefined) early = first.value; }
    keep('tfviz-typed', JSON.stringify([first.value, second?.value ?? '']));
  }, true);

  /* A number beyond its box's ends counts as the end: then the box says so too, after Enter or once it is left. */
  function settle(box) {
    if (!box.matches?.('#tv-tabs .tv-split input[type="number"]') || box.dataset.of || box.value === '') return;
    const low = box.min === '' ? -Infinity : Number(box.min), high = box.max === '' ? Infinity : Number(box.max);
    const within = Math.min(high, Math.max(low, box.valueAsNumber));
    if (!(within !== box.valueAsNumber)) return;
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(box, String(within));
    for (const name of ['input', 'change']) box.dispatchEvent(new Event(name, { bubbles: true }));
  }
  document.addEventListener('focusout', ({ target }) => settle(target));
  document.addEventListener('keydown', ({ key, target }) => { if (key === 'Enter') settle(target); });

  /* Which tab and section are open, in the address too. */
  document.addEventListener('click', event => {
    const button = event.target.closest?.('#tv-tabs button[role="tab"][data-tab-id]');
    if (!button) return;
    const query = new URLSearchParams(location.search), inner = button.closest('.tv-pills');
    query.set(inner ? 'section' : 'tab', button.dataset.tabId);
    if (!inner) centre(button);
    if (!inner) query.delete('section');
    show(query);
  });
  function centre(button) {               // in its own row, which scrolls on a phone; the page must not move
    const row = button.closest('.tab-container'), at = button.getBoundingClientRect(), around = row.getBoundingClientRect();
    row.scrollLeft += at.left + at.width / 2 - around.left - around.width / 2;
  }
  function openWhatTheAddressNames() {
    const query = new URLSearchParams(location.search), names = ['tab', 'section'].map(name => query.get(name)).filter(Boolean);
    const waiting = setInterval(() => {
      const button = names.length ? tabButton(names[0]) : null;
      if (button?.ariaSelected === 'true') { names.shift(); centre(button); } else button?.click();
      if (!names.length) clearInterval(waiting);
    }, 50);
    setTimeout(() => clearInterval(waiting), 30000);
  }
  const tabButton = id => document.querySelector(`#tv-tabs button[role="tab"][data-tab-id="${CSS.escape(id)}"]`);
  whenReady(openWhatTheAddressNames);

  const mark = () => byId('attention-view')?.querySelector('.tv-attention')?.setAttribute('data-busy', String(running > 0));

  /* Figures are drawn by Plotly, which the server sends once somebody opens a tab that has one. */
  const plotlyAddress = () => `${(window.gradio_config?.root || '').replace(/\/(zh\/?)?$/, '')}/plotly.js`;
  let plotly = null;
  function loadPlotly() {
    plotly ??= new Promise((done, failed) => {
      const script = document.createElement('script');
      script.src = plotlyAddress();
      script.onload = () => done(window.Plotly);
      script.onerror = () => { plotly = null; failed(new Error('plotly.js did not come')); };
      document.head.append(script);
    });
    return plotly;
  }

  function el(tag, className, parent, attributes = {}) { // a new element, inside `parent`; the attribute "text" is what it says
    const node = document.createElement(tag);
    if (className) node.className = className;
    for (const [name, text] of Object.entries(attributes)) name === 'text' ? node.textContent = text : node.setAttribute(name, text);
    if (parent) parent.append(node);
    return node;
  }

  /* Options that this device or this model lacks: greyed, with the reason to hear and to hover. They can still be
     pressed, which says it in a sentence. lacks: {id of a control: {option: why}}; "" is the option of a checkbox. */
  function grey(lacks) {
    for (const [id, reasons] of Object.entries(lacks)) for (const input of byId(id)?.querySelectorAll('label input') ?? []) {
      const why = reasons[input.type === 'checkbox' ? '' : input.value] ?? '', label = input.closest('label');
      for (const [node, name, text] of [[label, 'data-lacks', why && 'true'], [label, 'title', why], [input, 'aria-description', why]])
        text ? node.setAttribute(name, text) : node.removeAttribute(name);
    }
  }

  window.tfviz = {
    el, grey,
    scene: null,                          // what the page looks at; attention_view.js keeps it
    views: {},                            // drawings of their own: name -> (box, data, api); assets/js/views
    plotly: loadPlotly, plotlyAddress,
    select(change) { window.dispatchEvent(new CustomEvent('tfviz:select', { detail: { trace: window.tfviz.scene?.trace, kind: window.tfviz.scene?.sel.kind, ...change } })); },
    changed(id) { window.dispatchEvent(new CustomEvent('tfviz:changed', { detail: { id } })); },
    tried({ place, sentence }) {
      if (sentence) window.tfviz.typed(sentence);
      if (Object.keys(place).length) window.tfviz.select(place);
    },
    open(tab, section) {
      tabButton(tab)?.click();
      if (section) setTimeout(() => tabButton(section)?.click(), 50); // once the tab is there
    },
    opened() {                            // the link's text is there, over what somebody has typed before
      const text = early, second = earlySecond;
      early = undefined;
      if (text === null || text === byId('tv-first').querySelector('textarea').value) return;
      type(text);
      earlySecond = second;               // typing it by hand would have let go of it
    },
    traceStarts(inputs) {
      for (const group of ['tv-kernel', 'tv-precision'])  // one name a group, so that arrow keys move in it
        byId(group).querySelectorAll('input').forEach(one => { one.name = group; });
      byId('tv-fold').setAttribute('aria-expanded', String(byId('tv-side').classList.contains('tv-open')));
      running = 1; mark(); remember(inputs);
    },
    chip(event) { window.tfviz.typed(event.target.closest('button').textContent.trim()); },
    typed(text) {                         // an example types its sentence, which no earlier target or pair belongs to
      const second = byId('tv-second')?.querySelector('textarea');
      if (second?.value) type('', 'tv-second');
      type(text);
    },
    traceEnds() {
      running = 0; mark();
      const second = byId('tv-second')?.querySelector('textarea');  // it comes with the first answer of a model that has one
      if (second && earlySecond !== null && second.value !== earlySecond) type(earlySecond, 'tv-second');
      if (second) earlySecond = null;     // an answer that brought no box yet, as that of a run overtaken, lets it wait
      grey(JSON.parse(byId('tv-speed')?.querySelector('[data-lacks]')?.dataset.lacks || '{"tv-kernel": {}, "tv-precision": {}}'));
    },
    fold() { const open = byId('tv-side').classList.toggle('tv-open'); byId('tv-fold').setAttribute('aria-expanded', String(open)); },
  };
})();
