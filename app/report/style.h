// The style sheet of the page: light, dark, narrow and printed.
#pragma once

namespace fsdp::report {

inline constexpr const char* kStyle = R"css(
:root {
  color-scheme: light dark;
  --back: #f6f7f9; --card: #ffffff; --text: #1b2430; --soft: #5c6877; --line: #e3e7ec; --grid: #e9edf1;
  --c1: #2563eb; --c2: #e8871e; --c3: #0d9488; --c4: #8b5cf6; --c5: #d6457a; --c6: #64748b; --c7: #65a30d; --c8: #b45309;
  --good: #15803d; --busy: #2563eb; --warn: #b45309; --alarm: #c81e1e;
}
@media (prefers-color-scheme: dark) { :root {
  --back: #0e1319; --card: #161d26; --text: #e4e9ef; --soft: #94a1b2; --line: #263140; --grid: #222c39;
  --c1: #6ea0ff; --c2: #f5a94a; --c3: #3cc9b6; --c4: #b59bff; --c5: #f27aa5; --c6: #8fa0b5; --c7: #a3d14b; --c8: #d99a5b;
  --good: #4ade80; --busy: #6ea0ff; --warn: #fbbf24; --alarm: #f87171;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 14px; }
h3 { font-size: .92rem; margin: 0; font-weight: 600; }
small { font-size: .8em; font-weight: 400; color: var(--soft); }
code, pre { font: .87em/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.title { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
.status { border-radius: 99px; padding: 2px 12px; font-size: .85rem; font-weight: 600; border: 1px solid; }
.done { color: var(--good); } .running { color: var(--busy); } .lost { color: var(--warn); } .stopped { color: var(--alarm); }
.sub, .detail { color: var(--soft); margin: 6px 0 0; }
.none { color: var(--soft); margin: 8px 0 0; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 16px; font-size: .88rem; }
nav a { color: var(--soft); text-decoration: none; } nav a:hover { color: var(--text); text-decoration: underline; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 1px; margin: 20px 0 0;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
.tiles div { box-shadow: 0 0 0 1px var(--line); padding: 12px 16px; }
.tiles dt { color: var(--soft); font-size: .8rem; }
.tiles dd { margin: 2px 0 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-size: .75rem; min-height: 1.2em; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px; margin-top: 18px; }
section p { margin: 0 0 10px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 26px 32px; margin-top: 26px; }
figure { margin: 0; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 16px; align-items: baseline; margin-bottom: 8px; }
.key { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0; padding: 0; list-style: none; font-size: .82rem; color: var(--soft); }
.key li { display: flex; align-items: center; gap: 6px; }
i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; background: var(--c); }
td i { margin-right: 8px; }
.c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); } .c8 { --c: var(--c8); }
.plot { display: grid; grid-template: 168px 26px / 58px 1fr; }
.wide .plot { grid-template-rows: 290px 26px; }
.area { position: relative; border-bottom: 1px solid var(--soft); min-width: 0; }
.area svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.y, .x { position: relative; font-size: .74rem; color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap; }
.y span { position: absolute; right: 8px; transform: translateY(-50%); }
.x { grid-column: 2; } .x span { position: absolute; top: 5px; transform: translateX(-50%); }
.x em { position: absolute; right: calc(100% + 8px); top: 5px; font-style: normal; }
.grid { stroke: var(--grid); fill: none; stroke-width: 1; vector-effect: non-scaling-stroke; }
.line { stroke: var(--c); fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; vector-effect: non-scaling-stroke; }
.faint { stroke-width: 1; opacity: .38; }
.dots { stroke: var(--c); fill: none; stroke-width: 6; stroke-linecap: round; vector-effect: non-scaling-stroke; }
.fill { fill: var(--c); }
.area b { position: absolute; }
.area b.resume { top: 0; bottom: 0; width: 7px; margin-left: -3px; background: linear-gradient(90deg, transparent 3px, var(--soft) 3px 4px, transparent 4px); opacity: .75; }
.area b.bad { top: -6px; width: 13px; height: 13px; margin-left: -6px; }
.area b.skipped { bottom: -4px; width: 13px; height: 9px; margin-left: -6px; }
b.bad, u.bad { background: var(--alarm); clip-path: polygon(0 18%, 18% 0, 50% 32%, 82% 0, 100% 18%, 68% 50%, 100% 82%, 82% 100%, 50% 68%, 18% 100%, 0 82%, 32% 50%); }
b.skipped, u.skipped { background: var(--warn); clip-path: polygon(50% 0, 100% 100%, 0 100%); }
u { display: inline-block; width: 10px; height: 10px; } u.resume { width: 1px; height: 12px; background: var(--soft); }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); pointer-events: none; }
.tip { position: absolute; top: 6px; z-index: 2; pointer-events: none; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 6px 10px; font-size: .8rem; line-height: 1.45; box-shadow: 0 4px 16px rgb(0 0 0 / .16); white-space: nowrap; }
.tip div { display: grid; grid-template-columns: 10px 1fr auto; gap: 8px; align-items: center; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 18px; border-radius: 5px; overflow: hidden; background: var(--grid); min-width: 0; }
.bar span { background: var(--c); }
#times > .bar { margin: 18px 0 12px; }
.rows { display: grid; gap: 8px; margin: 14px 0 18px; }
.row { display: grid; grid-template-columns: 84px 1fr 84px; gap: 12px; align-items: center; font-size: .87rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { text-align: left; font-weight: 500; color: var(--soft); white-space: nowrap; } th.n { text-align: right; }
th, td { padding: 6px 18px 6px 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child td { border-bottom: 0; }
.events { list-style: none; margin: 0; padding: 0; font-size: .9rem; }
.events li { display: grid; grid-template-columns: 190px 100px 1fr; gap: 0 14px; padding: 5px 0; border-bottom: 1px solid var(--line); }
.events li:last-child { border-bottom: 0; }
.events time, .events span:nth-child(2) { color: var(--soft); font-variant-numeric: tabular-nums; }
.events li > span { overflow-wrap: anywhere; }
.alarm span:last-child { color: var(--alarm); } .old { opacity: .6; }
.notes { color: var(--warn); font-size: .88rem; padding-left: 18px; overflow-wrap: anywhere; }
summary { cursor: pointer; margin-top: 12px; font-size: .9rem; }
pre { margin: 10px 0 0; padding: 14px; border-radius: 8px; background: var(--back); overflow-x: auto; overflow-wrap: normal; }
footer { color: var(--soft); font-size: .82rem; margin-top: 20px; }
@media (max-width: 640px) {
  main { padding: 18px 12px 32px; } section { padding: 14px; } .tiles div { padding: 10px 12px; }
  .plot { grid-template-columns: 50px 1fr; } .wide .plot { grid-template-rows: 220px 26px; }
  .events li { grid-template-columns: 1fr auto; } .events li > span:last-child { grid-column: 1 / -1; }
  .row { grid-template-columns: 66px 1fr 72px; gap: 8px; }
}
@media print {
  :root { --back: #fff; --card: #fff; --text: #111; --soft: #555; --line: #ccc; --grid: #e5e5e5;
    --c1: #2563eb; --c2: #e8871e; --c3: #0d9488; --c4: #8b5cf6; --c5: #d6457a; --c6: #64748b; --c7: #65a30d; --c8: #b45309;
    --good: #15803d; --busy: #2563eb; --warn: #b45309; --alarm: #c81e1e; color-scheme: light; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; } nav { display: none; } body { font-size: 11px; }
  section { border: 0; padding: 0; } figure, .tiles, tr, .row { break-inside: avoid; } h2 { break-after: avoid; }
  .pair { grid-template-columns: 1fr 1fr; } .wide .plot { grid-template-rows: 220px 26px; }
}
)css";

}  // namespace fsdp::report
