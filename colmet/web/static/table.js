// Tables that keep the nodes of their rows: no flicker, and the focus stays.

import { bar, el, fill, keep, mark, say } from "./dom.js";

/**
 * A column of text.
 * @param {string} key of the rows, for sorting
 * @param {string} title above it
 * @param {function} text of a row
 * @param {Object} [more] `rank`: 1 is hidden on a phone, 2 on a small screen, too, 3 on most; `left`: left-aligned; `long`: the
 *   tooltip of the title; `sorts`: whether it can be sorted by; `optional`: hidden while no row has a value
 */
export function column(key, title, text, more = {}) {
  return { key, title, rank: 0, left: false, sorts: true, make: () => {}, show: (cell, row) => {
    say(cell, text(row));
    if (more.left) mark(cell, "title", text(row)); // the text may be cut
  }, ...more };
}

/** A column of links. */
export function linked(key, title, text, href, more = {}) {
  return column(key, title, text, {
    left: true,
    make: (cell) => cell.append(el("a")),
    show: (cell, row) => {
      say(cell.firstElementChild, text(row));
      mark(cell.firstElementChild, "href", href(row));
    },
    ...more,
  });
}

/** A column of shares, each with a bar. */
export function shared(key, title, text, shareOf, more = {}) {
  return column(key, title, text, {
    make: (cell) => cell.append(bar(), el("span", { class: "share" })),
    show: (cell, row) => {
      fill(cell.firstElementChild, shareOf(row));
      say(cell.lastElementChild, text(row));
    },
    ...more,
  });
}

/** A column of shares, each with a bar in the colour of its grade, and the grade as a word. */
export function graded(key, title, text, shareOf, gradeOf, more = {}) {
  return shared(key, title, text, shareOf, {
    make: (cell) => cell.append(bar(), el("span", { class: "share" }), el("span", { class: "grade" })),
    show: (cell, row) => {
      const [line, value, word] = cell.children;
      fill(line, shareOf(row));
      say(value, text(row));
      say(word, gradeOf(row));
      mark(cell, "data-grade", gradeOf(row) || null);
    },
    ...more,
  });
}

/** Whether a column is sorted with its smallest value first. */
const rises = (column) => column.left || column.rises === true;

export class Table {
  /**
   * @param {string} caption
   * @param {Array} columns the first one names the row
   * @param {function} keyOf returns a unique text for a row
   * @param {Object} order {sort, reverse}
   * @param {function} sorted called with the new {sort, reverse}
   */
  constructor(caption, columns, keyOf, order, sorted) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.order = order;
    this.caption = el("caption", { class: "unseen", text: caption });
    this.heads = columns.map((one) => this.#head(one, sorted));
    this.body = el("tbody");
    const table = el("table", {}, this.caption, el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    this.element = el("div", { class: "wide" }, table);
    this.#mark();
  }

  #head(one, sorted) {
    const name = one.sorts
      ? el("button", {
          type: "button",
          title: one.long,
          onclick: () => {
            const again = this.order.sort === one.key;
            this.order = { sort: one.key, reverse: again && !this.order.reverse };
            this.#mark();
            sorted(this.order);
          },
        }, one.title, el("span", { "aria-hidden": "true" }))
      : el("span", { title: one.long, text: one.title });
    return el("th", { scope: "col", class: this.#kind(one) }, name);
  }

  #kind(one) {
    return `${one.left ? "left " : ""}rank${one.rank} of-${one.key}`;
  }

  #mark() {
    this.columns.forEach((one, n) => {
      const here = one.sorts && one.key === this.order.sort;
      const up = rises(one) !== this.order.reverse;
      mark(this.heads[n], "aria-sort", here ? (up ? "ascending" : "descending") : null);
      if (one.sorts) say(this.heads[n].firstElementChild.lastElementChild, here ? (up ? " ▲" : " ▼") : "");
    });
  }

  /** Whether the smallest value comes first. */
  get rises() {
    const { sort, reverse } = this.order;
    return rises(this.columns.find((column) => column.key === sort)) !== reverse;
  }

  /** Set the order of the rows. */
  arrange(order) {
    this.order = order;
    this.#mark();
  }

  /** Show rows in this order. */
  show(rows) {
    const empty = this.columns.map((one) => Boolean(one.optional) && rows.length > 0 && rows.every((row) => row[one.key] == null));
    this.columns.forEach((one, n) => { this.heads[n].hidden = empty[n]; });
    keep(this.body, rows, this.keyOf, (row) => this.#row(row), (node, row) => {
      this.columns.forEach((one, n) => {
        one.show(node.children[n], row);
        if (one.optional) node.children[n].hidden = empty[n];
      });
    });
  }

  #row() {
    const row = el("tr");
    this.columns.forEach((one, n) => {
      const cell = n ? el("td", { class: this.#kind(one) }) : el("th", { scope: "row", class: this.#kind(one) });
      one.make(cell);
      row.append(cell);
    });
    return row;
  }

  /** Return the rows sorted in the table's order. */
  arranged(rows) {
    const { sort, reverse } = this.order;
    const one = this.columns.find((column) => column.key === sort);
    const sign = rises(one) !== reverse ? 1 : -1;
    return [...rows].sort((a, b) => {
      const [x, y] = [a[sort], b[sort]];
      if (x == null || y == null) return (x == null) - (y == null); // unknown values are last
      return sign * (typeof x === "string" ? natural(x, y) : x - y);
    });
  }
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compare names, with numbers by value: node-2 before node-10. */
export function natural(x, y) {
  return collator.compare(x, y);
}
