"""The layout of the page of a report, and the policy that allows this layout alone."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --page: #ffffff; --card: #f6f8fa; --line: #d1d9e0;
  --cyan: #0072b2; --green: #009e73; --red: #d55e00; --magenta: #a84f8c; --yellow: #b07d00; --blue: #2f81c1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b1; --page: #0f1318; --card: #181d23;
  --line: #353c45; --magenta: #cc79a7; --yellow: #e69f00; --blue: #56b4e9; --cyan: #4aa8e0; --green: #1fbf92;
  --red: #f07a2e; } .chart [stroke="#0072b2"], .names [stroke="#0072b2"] { stroke: #4aa8e0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 84rem; color: var(--ink); background: var(--page);
  font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .2rem; font-size: 1.5rem; line-height: 1.2; }
h2 { margin: 1.6rem 0 .6rem; font-size: 1.1rem; }
h3 { margin: 0 0 .3rem; font-size: .95rem; }
p { margin: .15rem 0; }
small, .soft { color: var(--soft); font-size: .87rem; }
.grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); }
.card { padding: .8rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); min-width: 0;
  margin: 0; break-inside: avoid; }
.share { display: grid; grid-template-columns: 4.4rem 1fr; gap: 0 .6rem; align-items: center; margin: .2rem 0; }
.share b { font-variant-numeric: tabular-nums; }
.share span { grid-column: 1 / -1; }
.bar { width: 100%; height: .7rem; display: block; }
.bar .rest { fill: var(--line); }
.cyan { fill: var(--cyan); } .green { fill: var(--green); } .red { fill: var(--red); } .blue { fill: var(--blue); }
.magenta { fill: var(--magenta); } .yellow { fill: var(--yellow); }
.alarm { color: var(--red); font-weight: 600; }
.good { color: var(--green); } .low { color: var(--yellow); } .poor, .exceeded { color: var(--red); }
.verdict b { margin-right: 1rem; }
.foot { width: 6rem; height: 1.3rem; margin: 0 .2rem; }
.chart svg { width: 100%; height: auto; display: block; }
.names { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0 0 .6rem; padding: 0; list-style: none; }
.names svg { width: 1.6rem; height: .6rem; }
.advice { margin: 0; padding-left: 1.2rem; }
.advice li { margin: .4rem 0; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
tr > :first-child { text-align: left; padding-left: 0; }
summary { cursor: pointer; }
footer { margin-top: 1.6rem; }
@media (max-width: 40rem) {
  body { padding: .8rem; }
  thead { position: absolute; clip-path: inset(50%); }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  th, td { padding: 0; border: 0; }
  tbody th { grid-column: 1 / -1; }
  td { display: flex; justify-content: space-between; }
  td::before { content: attr(data-of); color: var(--soft); }
}
@media print { body { max-width: none; padding: 0; } .card { background: none; } }
"""
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
)
NO_ICON = '<link rel="icon" href="data:,">'  # else Firefox reports that the policy forbids the default one
