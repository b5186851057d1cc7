// Files and texts for the user: downloads, pictures of charts, the clipboard.

import { el } from "./dom.js";
import { ink } from "./layers.js";

const MARGIN = 12;
const LINE = 18;
const FONT = "system-ui, \"DejaVu Sans\", sans-serif";

/** Have the browser save a file. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Return a name of a file from words, with characters that any file system accepts. */
export function fileName(words, ending) {
  return `${words.join("-").replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^[-.]+|-+$/g, "").slice(0, 100) || "chart"}.${ending}`;
}

/**
 * Return a picture of a chart with its title and its legend.
 * @param {HTMLCanvasElement} canvas of uPlot
 * @param {string} title
 * @param {Array} legend [{text, colour, dash, shape}]
 * @returns {Promise<Blob>} a PNG
 */
export function picture(canvas, title, legend) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.width / ratio;
  const made = document.createElement("canvas");
  const paint = made.getContext("2d");
  paint.font = `13px ${FONT}`;
  const rows = [[]];
  let at = MARGIN;
  for (const one of legend) {
    const needs = 34 + paint.measureText(one.text).width + 16;
    if (at + needs > width && rows.at(-1).length) {
      rows.push([]);
      at = MARGIN;
    }
    rows.at(-1).push([at, one]);
    at += needs;
  }
  made.width = canvas.width;
  made.height = canvas.height + ratio * (LINE * (rows.length + 1) + 3 * MARGIN);
  paint.scale(ratio, ratio);
  paint.fillStyle = ink("--card");
  paint.fillRect(0, 0, made.width, made.height);
  paint.fillStyle = ink("--ink");
  paint.textBaseline = "middle";
  paint.font = `600 15px ${FONT}`;
  paint.fillText(title, MARGIN, MARGIN + LINE / 2, width - 2 * MARGIN);
  paint.drawImage(canvas, 0, 2 * MARGIN + LINE - 4, width, canvas.height / ratio);
  paint.font = `13px ${FONT}`;
  rows.forEach((row, n) => {
    const y = canvas.height / ratio + 2 * MARGIN + LINE * (n + 1.5);
    for (const [x, { text, colour, dash, shape }] of row) {
      paint.strokeStyle = paint.fillStyle = ink(`--${colour}`);
      paint.lineWidth = shape === "area" ? 10 : 3;
      paint.setLineDash(dash);
      paint.beginPath();
      paint.moveTo(x, y);
      paint.lineTo(x + 26, y);
      paint.stroke();
      paint.fillStyle = ink("--ink");
      paint.fillText(text, x + 34, y);
    }
  });
  return new Promise((resolve) => made.toBlob(resolve, "image/png"));
}

/** Copy a text; return whether the browser did. Without HTTPS there is only the former way. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = el("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
