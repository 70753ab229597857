/* The architecture map. Python makes the markup (tfviz/ui/tabs/layers/drawing.py); here it is put in place without losing
 * the keyboard's focus, and the opened layer is tied to its stack by a wedge, whose corners are known only on screen.
 *
 * window.tfviz.views.architecture(box, data, api). data: html */
(() => {
  const shown = new WeakMap();            // box -> the markup in it
  const id = button => button && JSON.stringify([button.dataset.tab, button.dataset.section, button.dataset.select, button.textContent]);

  function put(box, html) {
    const focused = box.contains(document.activeElement) ? id(document.activeElement.closest('button')) : null;
    box.innerHTML = html;                 // made and escaped by Python
    if (focused) [...box.querySelectorAll('button')].find(button => id(button) === focused)?.focus({ preventScroll: true });
  }

  function wedge(box) {
    const map = box.querySelector('.tv-map'), zoom = box.querySelector('.tv-map-zoom');
    const stack = box.querySelector(`[data-side="${map?.dataset.open}"] .tv-map-stack`);
    if (!zoom || !stack) return;
    const from = stack.getBoundingClientRect(), to = zoom.getBoundingClientRect();
    map.dataset.wedge = from.right <= to.left ? 'left' : to.right <= from.left ? 'right' : 'none';
    const places = { from: from.top - to.top, to: from.bottom - to.top, gap: Math.max(to.left - from.right, from.left - to.right) };
    for (const [name, place] of Object.entries(places)) zoom.style.setProperty(`--tv-map-${name}`, `${place}px`);
  }

  (window.tfviz.views ??= {}).architecture = (box, data) => {
    if (!shown.has(box)) new ResizeObserver(() => wedge(box)).observe(box);
    if (shown.get(box) !== data.html) put(box, data.html);
    shown.set(box, data.html);
    wedge(box);
  };
})();
