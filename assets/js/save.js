/* Saving a figure: PNG and SVG pictures, a page of its own that needs no network, and the plotted numbers as CSV.
   window.tfviz.save(format, {data, layout}, {title, name, width, height, about})   about: what the page looked at, column -> value */
(() => {
  const TYPES = { f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array };

  function plain(values) {              // a typed array as Plotly sends it, as numbers; a table as rows
    if (!values?.bdata) return values?.shape || !ArrayBuffer.isView(values) ? values ?? [] : [...values];
    const bytes = Uint8Array.from(atob(values.bdata), c => c.charCodeAt(0)), flat = [...new TYPES[values.dtype](bytes.buffer)];
    if (!values.shape) return flat;
    const [, columns] = String(values.shape).split(',').map(Number);
    return columns ? Array.from({ length: flat.length / columns }, (_, i) => flat.slice(i * columns, (i + 1) * columns)) : flat;
  }

  const bare = text => new DOMParser().parseFromString(String(text), 'text/html').body.textContent;  // Plotly's little HTML as text

  function labels(axis) {               // position -> what stands at that tick
    const at = plain(axis?.tickvals), text = plain(axis?.ticktext);
    return new Map(at.map((value, i) => [Number(value), bare(text[i] ?? '')]));
  }

  function rows({ data, layout }, about) {
    const head = [...Object.keys(about), 'series', 'x', 'x label', 'y', 'y label', 'value'], lines = [head];
    for (const trace of data) {
      const axisOf = letter => layout[`${letter}axis${(trace[`${letter}axis`] || '').slice(1)}`];
      const [xs, ys] = ['x', 'y'].map(letter => labels(axisOf(letter))), z = plain(trace.z), x = plain(trace.x), y = plain(trace.y);
      const line = (a, b, value) => lines.push([...Object.values(about), bare(trace.name ?? ''), a, xs.get(Number(a)) ?? '', b, ys.get(Number(b)) ?? '', value]);
      if (z.length) z.forEach((row, i) => [...row].forEach((value, j) => line(x[j] ?? j, y[i] ?? i, value)));
      else y.forEach((value, i) => line(x[i] ?? i, value, ''));
    }
    return lines;
  }

  function csv(figure, about) {
    const cell = value => /[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
    const safe = value => typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;  // a spreadsheet must not compute a token
    return `\ufeff${rows(figure, about).map(row => row.map(value => cell(safe(value ?? ''))).join(',')).join('\r\n')}\r\n`;
  }

  async function page(figure, { title }) {
    const source = await (await fetch(window.tfviz.plotlyAddress())).text();
    const inline = value => JSON.stringify(value).replaceAll('<', '\\u003c');
    return `<!doctype html><meta charset="utf-8"><title>${title.replace(/[<&]/g, c => `&#${c.charCodeAt(0)};`)}</title><div id="figure"></div>` +
      `<script>${source.replaceAll('</script', '<\\/script')}</script><script>Plotly.newPlot("figure", ${inline(figure.data)}, ${inline(figure.layout)}, { responsive: true })</script>`;
  }

  function download(content, type, name) {
    const link = document.createElement('a');
    link.href = typeof content === 'string' && content.startsWith('data:') ? content : URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    if (link.href.startsWith('blob:')) setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  window.tfviz.save = async (format, figure, options) => {
    const ground = getComputedStyle(document.body).getPropertyValue('--tv-bg').trim(), { name, title, about } = options;
    const top = { ...figure.layout.margin, t: Math.max(56, figure.layout.margin?.t ?? 0) };
    const layout = { ...figure.layout, paper_bgcolor: ground, plot_bgcolor: ground, title: { text: title.replace(/[<&]/g, c => `&#${c.charCodeAt(0)};`), x: 0.02, font: { size: 15 } }, margin: top };
    const whole = { data: figure.data, layout };
    if (format === 'csv') return download(csv(figure, about), 'text/csv', `${name}.csv`);
    if (format === 'html') return download(await page(whole, options), 'text/html', `${name}.html`);
    const image = await window.Plotly.toImage(whole, { format, width: options.width, height: options.height + 40, scale: format === 'png' ? 2 : 1 });
    download(image, '', `${name}.${format}`);
  };
})();
