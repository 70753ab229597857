/* The player of a view that goes step by step: its buttons, the slider and the place, the speed, and the clock that plays.
 *
 * new window.tfviz.Player(view, words, {speeds, ends, slider, place, walk})
 *   view    go(to), from 0 to Infinity; turn(by), on or back; begin(), before it plays; ended: nothing follows; pace: ms a step;
 *           walk(by), up and down, where `walk` names what it walks in
 *   words   labels: player, back, play, pause, next, speed; first and last where there are `ends`; slider where there is one
 *   place   the element that says where the slider stands: an `output` is read aloud
 * bar is kept while its view is built anew; playing, pause(), and paint(at, n) are the view's to use. */
(() => {
  const { el } = window.tfviz;
  const ICONS = {
    first: 'M3 2.5h2v11H3zM13 2.5v11L6 8z', back: 'M11.5 2.5v11L4 8z', play: 'M4 2.5v11l9-5.5z', pause: 'M4 2.5h3v11H4zM9.5 2.5h3v11h-3z',
    next: 'M4.5 2.5v11L12 8z', last: 'M11 2.5h2v11h-2zM3 2.5v11L10 8z', up: 'M8 4l5 7H3z', down: 'M8 12L3 5h10z',
  };

  window.tfviz.Player = class {
    constructor(view, words, { speeds, ends = false, slider = false, place = 'span', walk = '' }) {
      this.view = view; this.words = words; this.playing = false; this.speed = 1; this.timer = 0;
      this.bar = el('div', 'tv-player', null, { role: 'group', 'aria-label': words.player });
      const moves = act => () => { this.pause(); act(); };
      if (ends) this.button('first', moves(() => view.go(0)));
      this.button('back', moves(() => view.turn(-1)));
      this.playButton = this.button('play', () => this.toggle());
      this.button('next', moves(() => view.turn(1)));
      if (ends) this.button('last', moves(() => view.go(Infinity)));
      if (slider) this.addSlider(place);
      this.walks = Boolean(walk);
      if (walk) this.addWalk(walk);
      this.addSpeeds(speeds);
      this.bar.addEventListener('keydown', event => this.move(event));
    }

    button(name, act, parent = this.bar) {
      const node = el('button', `tv-player-${name}`, parent, { type: 'button', 'aria-label': this.words[name], title: this.words[name], 'data-name': name });
      node.innerHTML = `<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path fill="currentColor" d="${ICONS[name]}"/></svg>`;
      node.addEventListener('click', act);
      return node;
    }

    wish(name, act) {                     // a wide button at the end: what the view asks of the server
      const node = el('button', `tv-player-wish of-${name}`, this.bar, { type: 'button', text: this.words[name], 'data-name': name });
      node.addEventListener('click', act);
      return node;
    }

    addSlider(place) {
      this.slider = el('input', 'tv-player-slider', this.bar, { type: 'range', min: 1, max: 1, step: 1, 'aria-label': this.words.slider, 'data-name': 'slider' });
      this.slider.addEventListener('input', () => { this.pause(); this.view.go(this.slider.valueAsNumber - 1); });
      this.place = el(place, 'tv-player-place', this.bar);
    }

    addWalk(text) {
      const box = el('span', 'tv-player-walk', this.bar);
      el('span', '', box, { text });
      this.button('up', () => this.view.walk(-1), box); this.button('down', () => this.view.walk(1), box);
    }

    addSpeeds(speeds) {
      this.speeds = el('select', 'tv-player-speed', this.bar, { 'aria-label': this.words.speed, title: this.words.speed, 'data-name': 'speed' });
      for (const one of speeds) el('option', '', this.speeds, { value: one, text: `${one}\u00d7` }).selected = one === this.speed;
      this.speeds.addEventListener('change', () => { this.speed = Number(this.speeds.value); if (this.playing) this.schedule(); });
    }

    paint(at, n, said = `${at + 1} / ${n}`, place = `${at + 1} / ${n}`) { // step `at` of `n`; what the slider says of it, what stands beside it
      this.slider.max = Math.max(1, n); this.slider.value = at + 1;
      this.slider.setAttribute('aria-valuetext', said);
      if (this.place.textContent !== place) this.place.textContent = place;
    }

    move(event) {                         // whether this key moves; it is done then
      const { view, walks } = this, { target, key } = event;
      if (event.ctrlKey || event.metaKey || event.altKey || target === this.slider || target === this.speeds) return false;
      const act = {
        ArrowLeft: () => view.turn(-1), ArrowRight: () => view.turn(1), Home: () => view.go(0), End: () => view.go(Infinity),
        ...(walks && { ArrowUp: () => view.walk(-1), ArrowDown: () => view.walk(1) }),
      }[key];
      if (!act) return false;
      event.preventDefault(); this.pause(); act();
      return true;
    }

    toggle() {
      if (this.playing) return this.pause();
      this.view.begin();
      this.set(true); this.schedule();
    }
    pause() { clearTimeout(this.timer); this.set(false); }
    set(playing) {
      const name = playing ? 'pause' : 'play';
      this.playing = playing;
      this.playButton.setAttribute('aria-label', this.words[name]); this.playButton.title = this.words[name];
      this.playButton.querySelector('path').setAttribute('d', ICONS[name]);
    }
    schedule() { clearTimeout(this.timer); this.timer = setTimeout(() => this.tick(), this.view.pace / this.speed); }
    tick() {
      if (!this.bar.isConnected) return;
      if (!this.bar.offsetParent || this.view.ended) return this.pause(); // no parent: another tab is open
      this.view.turn(1); this.schedule();
    }
  };
})();
