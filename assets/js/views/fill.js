/* A sentence as a row of tokens, some of them hidden from the model: a click hides one or shows it again.
 *
 * window.tfviz.views.fill(box, data, api). data, made by tfviz/ui/tabs/generate/fill_row.py:
 *   tokens   [{text, state, read, guess, right, joined}]; state: plain | special | typed | mask | random | kept
 *            read: what the model reads there, if it is something else; guess: what it says stands there; right: whether it does
 *   hidden   positions hidden by hand;  places: those that may be;  open: whether a click does anything
 *   words    {row, hide, show, clear}
 * Asks with api.ask({masked: [...]}). */
(() => {
  const { el } = window.tfviz;
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

  class Row {
    constructor(box) {
      this.box = box;
      box.classList.add('tv-fill');
      this.bar = el('div', 'tv-fill-row', box, { role: 'toolbar' });
      this.clear = el('button', 'tv-fill-clear', box, { type: 'button' });
      this.bar.addEventListener('click', event => { const chip = event.target.closest('button'); if (chip) this.toggle(Number(chip.dataset.i)); });
      this.bar.addEventListener('keydown', event => this.walk(event));
      this.clear.addEventListener('click', () => { this.hidden.clear(); this.ask(); });
    }

    show(data, api) {
      const had = this.bar.contains(document.activeElement) ? document.activeElement.dataset.i : null;
      this.data = data; this.api = api; this.hidden = new Set(data.hidden);
      this.bar.setAttribute('aria-label', data.words.row);
      this.bar.replaceChildren(...data.tokens.map((token, i) => this.chip(token, i)));
      const first = this.bar.querySelector(`button[data-i="${had ?? data.hidden[0] ?? data.places[0]}"]`) || this.bar.querySelector('button');
      if (first) { first.tabIndex = 0; if (had !== null) first.focus({ preventScroll: true }); }
      this.clear.textContent = data.words.clear;
      this.clear.hidden = !data.open || !this.hidden.size;
    }

    chip(token, i) {
      const can = this.data.open && this.data.places.includes(i), on = this.hidden.has(i);
      const chip = el(can ? 'button' : 'span', `tv-fill-token ${token.state}${token.joined ? ' joined' : ''}`, null, { 'data-i': i });
      const text = el('bdi', 'tv-fill-text', chip, { text: token.text, dir: 'auto' });
      if (token.read) { text.classList.add('away'); el('bdi', 'tv-fill-read', chip, { text: token.read, dir: 'auto' }); }
      if (token.guess) el('bdi', `tv-fill-guess ${token.right === null ? '' : token.right ? 'right' : 'wrong'}`, chip, { text: token.guess, dir: 'auto' });
      if (!can) return chip;
      const what = fill(this.data.words[on ? 'show' : 'hide'], { token: token.text });
      for (const [name, value] of Object.entries({ type: 'button', tabindex: -1, title: what, 'aria-pressed': on })) chip.setAttribute(name, value);
      return chip;
    }

    toggle(i) {
      this.hidden.has(i) ? this.hidden.delete(i) : this.hidden.add(i);
      const chip = this.bar.querySelector(`[data-i="${i}"]`);
      chip.setAttribute('aria-pressed', this.hidden.has(i));  // at once; the model's answer follows
      chip.classList.toggle('mask', this.hidden.has(i));
      this.ask();
    }

    ask() { this.api.ask({ masked: [...this.hidden].sort((a, b) => a - b) }); }

    walk(event) {
      const chips = [...this.bar.querySelectorAll('button')], at = chips.indexOf(event.target), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = event.key === 'Home' ? 0 : event.key === 'End' ? chips.length - 1 : step ? at + step : -1;
      if (at < 0 || !chips[to]) return;
      event.preventDefault();
      chips[at].tabIndex = -1; chips[to].tabIndex = 0; chips[to].focus();
    }
  }

  (window.tfviz.views ??= {}).fill = (box, data, api) => { (box.tvRow ??= new Row(box)).show(data, api); };
})();
