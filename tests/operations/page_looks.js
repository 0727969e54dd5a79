// What of a page cannot be read: texts with too little contrast or in letters that are too small,
// and a page that is wider than its screen. A function of nothing, called in the browser.
() => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  // The canvas understands every way in which a browser writes a colour, and lays one over another.
  const mixed = (colours) => {
    const name = colours.join("|");
    if (!known.has(name)) {
      for (const one of ["#fff", ...colours]) { pen.fillStyle = one; pen.fillRect(0, 0, 1, 1); }
      known.set(name, [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3));
    }
    return known.get(name);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((one) => one / 255).map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) found.push(`${wide} pixels wider than the screen`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const said = texts.currentNode.data.trim();
    const node = texts.currentNode.parentElement;
    if (!said || node.closest("script, style, noscript, option, title, :disabled, .skip, .unseen")) continue;
    if (!node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    const style = getComputedStyle(node);
    const grounds = [];
    for (let one = node; one; one = one.parentElement) grounds.unshift(getComputedStyle(one).backgroundColor);
    const isDrawn = node instanceof SVGElement;
    const size = parseFloat(style.fontSize) * (isDrawn ? node.getScreenCTM().a : 1);
    const least = size >= 24 || (size >= 18.5 && style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = contrast(mixed(grounds), mixed([...grounds, isDrawn ? style.fill : style.color]));
    if (ratio < least) found.push(`contrast ${ratio.toFixed(2)}: ${said.slice(0, 40)} (${node.className.baseVal ?? node.className})`);
    if (size < 10) found.push(`${size.toFixed(1)} pixels: ${said.slice(0, 40)}`);
  }
  return [...new Set(found)];
}
