// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/report.h"

namespace bulkhead::campaign {

const char* const kReportStyle = R"css(
:root { color-scheme: light dark; --page: #f4f6f8; --card: #ffffff; --ink: #17212b; --soft: #5b6875;
  --line: #dde3e9; --good: #1a7f4b; --bad: #c2362b; --warn: #a86500; --accent: #1f6fb2;
  --survivor: #c2362b; --own: #1f6fb2; --area: #1f6fb222; }
@media (prefers-color-scheme: dark) { :root { --page: #11161b; --card: #1a2129; --ink: #e4e9ee;
  --soft: #97a4b1; --line: #2c3641; --good: #4cc38a; --bad: #ef6f63; --warn: #e0a33e;
  --accent: #5aa9e6; --survivor: #ef6f63; --own: #5aa9e6; --area: #5aa9e633; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 14px/1.5 system-ui, "Segoe UI", Inter, "Noto Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
header { display: flex; align-items: baseline; gap: 16px; flex-wrap: wrap; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 16px; margin: 0 0 12px; }
p { margin: 4px 0 0; color: var(--soft); max-width: 75ch; }
.badge { font-weight: 600; border: 1px solid currentColor; border-radius: 999px; padding: 1px 12px; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px;
  margin: 24px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px; font-weight: 600; }
.tile span { color: var(--soft); }
section { padding: 16px 20px; margin-top: 16px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } td:last-child, th:last-child { padding-right: 0; }
.n { text-align: right; white-space: nowrap; } .s { white-space: nowrap; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .step { fill: var(--area); stroke: var(--accent); stroke-width: 1.5; }
.mark { stroke: var(--bad); stroke-width: 1.5; } .held { stroke: var(--soft); stroke-dasharray: 2 2; }
.bar { display: flex; height: 10px; border-radius: 3px; overflow: hidden; background: var(--line); }
.bar i { display: block; min-width: 1px; } .bar .survivor { background: var(--survivor); }
.bar .own { background: var(--own); } .bar .own:nth-child(even) { opacity: .7; }
.key { margin: 8px 0 0; } .key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin: 0 4px 0 12px; } .key i:first-child { margin-left: 0; }
.key .survivor { background: var(--survivor); } .key .own { background: var(--own); }
footer { margin-top: 24px; color: var(--soft); }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
)css";

}  // namespace bulkhead::campaign
