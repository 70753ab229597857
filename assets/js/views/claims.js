/* The table of claims. The markup is made and escaped by Python; here a row's button measures that row, the chips of the
 * summary show one verdict only, and what is open or focused stays so while rows fill in.
 *
 * window.tfviz.views.claims(box, data, api). data, from tfviz/ui/tabs/speed/claims_page.py:
 *   html: all of it;  a button [data-claim] measures that claim, a button [data-verdict] chooses what is shown. */
(() => {
  const states = new WeakMap();           // box -> {api, only, html}

  function clicked(box, state, target) {
    const measure = target.closest('[data-claim]'), chip = target.closest('[data-verdict]');
    // a number of its own: the section's button asks with the last wish too, and that one is done
    if (measure) state.api.measure({ claim: measure.dataset.claim, click: crypto.getRandomValues(new Uint32Array(2)).join('-') });
    if (chip) { state.only = state.only === chip.dataset.verdict ? '' : chip.dataset.verdict; choose(box, state); }
  }

  function choose(box, state) {
    box.dataset.only = state.only;
    box.querySelectorAll('[data-verdict]').forEach(chip => chip.setAttribute('aria-pressed', String(chip.dataset.verdict === state.only)));
    for (const group of box.querySelectorAll('tbody')) // without rows to show, no heading
      group.hidden = Boolean(state.only) && !group.querySelector(`.of-${state.only}`);
  }

  (window.tfviz.views ??= {}).claims = (box, data, api) => {
    let state = states.get(box);
    if (!state) {
      state = { only: '', html: '' };
      states.set(box, state);
      box.classList.add('tv-claims');
      box.addEventListener('click', event => clicked(box, state, event.target));
    }
    state.api = api;
    if (state.html === data.html) return;
    state.html = data.html;
    const open = [...box.querySelectorAll('details[open]')].map(one => one.id);
    const focused = box.contains(document.activeElement) ? document.activeElement.id : '';
    box.innerHTML = data.html;
    for (const id of open) box.querySelector(`#${CSS.escape(id)}`)?.setAttribute('open', '');
    if (focused) box.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
    choose(box, state);
  };
})();
