// The script of the page: shows the values under the pointer. The page is complete without it.
#pragma once

namespace fsdp::report {

inline constexpr const char* kScript = R"js(
'use strict';
const element = (name, style, text) => {
  const made = document.createElement(name);
  made.className = style;
  if (text !== undefined) made.textContent = text;
  return made;
};
const nearest = (points, x) => {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][1] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - points[low - 1][1] < points[low][1] - x ? points[low - 1] : points[low];
};
for (const figure of document.querySelectorAll('.chart')) {
  const area = figure.querySelector('.area');
  const series = JSON.parse(figure.querySelector('script').textContent).filter(one => one.points.length > 0);
  const cursor = element('div', 'cursor'), tip = element('div', 'tip');
  const hide = () => { cursor.remove(); tip.remove(); };
  area.addEventListener('pointermove', event => {
    const box = area.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    if (series.length === 0 || x < -0.02 || x > 1.02) return hide();
    const found = series.map(one => nearest(one.points, x));
    const first = found.reduce((a, b) => Math.abs(b[1] - x) < Math.abs(a[1] - x) ? b : a);
    tip.replaceChildren(element('small', '', 'step ' + first[0].toLocaleString('en-US')));
    found.forEach((point, i) => {
      const row = element('div', '');
      const late = point[0] === first[0] ? '' : ' (step ' + point[0].toLocaleString('en-US') + ')';
      row.append(element('i', series[i].color), element('span', '', series[i].name + late), element('span', '', point[3]));
      tip.append(row);
    });
    cursor.style.left = 100 * first[1] + '%';
    area.append(cursor, tip);
    const left = first[1] * box.width, width = tip.offsetWidth;
    tip.style.left = (left + 14 + width < box.width ? left + 14 : Math.max(0, left - 14 - width)) + 'px';
  });
  area.addEventListener('pointerleave', hide);
}
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(one => one.open = true));
)js";

}  // namespace fsdp::report
