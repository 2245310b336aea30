"""The look of the report: calm, legible, light or dark as the reader's browser is."""

CSS = """
:root {
  --font: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --paper: #fbfbfa; --panel: #ffffff; --ink: #1c2126; --soft: #5c656f; --line: #e2e4e6; --accent: #1f6fb2;
  --alarm: #b8431f;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --panel: #1a1e22; --ink: #dfe3e7; --soft: #98a1ab; --line: #2c3238; --accent: #6cb2ee;
    --alarm: #ef8a66; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--font); }
main { max-width: 1040px; margin: 0 auto; padding: 48px 24px 72px; }
h1 { font-size: 2rem; line-height: 1.2; font-weight: 650; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; font-weight: 620; margin: 0 0 14px; }
h3 { font-size: .95rem; font-weight: 600; margin: 0 0 6px; }
section { margin-top: 52px; }
header + section { margin-top: 28px; }
.kicker { margin: 0 0 4px; color: var(--accent); font-size: .85rem; font-weight: 600; letter-spacing: .04em; }
.lead, .verdict, figcaption { color: var(--soft); }
.lead { margin: 6px 0 0; font-size: 1.05rem; }
.verdict { margin: 14px 0 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 1px;
  background: var(--line); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
@media (min-width: 760px) { .cards { grid-template-columns: repeat(var(--across), 1fr); } }
.card { background: var(--panel); padding: 16px 18px; display: flex; flex-direction: column; }
.card .name { font-size: .9rem; font-weight: 600; }
.card .number { font-size: 1.9rem; line-height: 1.35; font-variant-numeric: tabular-nums; color: var(--accent); }
.card .number small { font-size: .95rem; color: var(--soft); }
.card .note { font-size: .82rem; line-height: 1.4; color: var(--soft); }
figure { margin: 0; }
sub { line-height: 0; }
figcaption { margin-top: 10px; font-size: .9rem; max-width: 84ch; }
figure svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 0 0 6px; overflow: visible; }
svg image { image-rendering: pixelated; }
.smooth svg image { image-rendering: auto; }
video { display: block; width: 100%; max-width: 900px; height: auto; border-radius: 8px; background: #1a1a1a; }
.halves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 24px; }
.unseen { color: var(--alarm); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: 9px 10px; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
thead th { font-size: .82rem; font-weight: 600; color: var(--soft); vertical-align: bottom; line-height: 1.3; }
th small { display: block; font-weight: 400; color: var(--soft); }
tbody th { text-align: left; font-weight: 600; min-width: 250px; }
tbody th small { font-size: .82rem; line-height: 1.4; }
tr.main th, tr.main td { background: var(--panel); border-bottom: 2px solid var(--accent); }
tr.main td { font-weight: 650; }
ul { margin: 0; padding-left: 20px; max-width: 88ch; }
li { margin: 6px 0; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 0 28px; margin: 0; }
dl div { border-top: 1px solid var(--line); padding: 7px 0; }
dt { color: var(--soft); font-size: .82rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@media (max-width: 600px) {
  main { padding: 28px 14px 48px; }
  tbody th { min-width: 150px; }
}
@media print { body { background: none; } section { break-inside: avoid; } }
"""
