// Charts of a page: each element with data-chart has a URL whose JSON holds columns, requested again every two
// seconds while the page is visible.
(function () {
  "use strict";
  const EVERY_MS = 2000;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const palette = ["--accent", "--good", "--warn", "--bad"].map(colour);
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    for (const [unit, by] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (size >= by) return (value / by).toFixed(1).replace(/\.0$/, "") + unit;
    }
    return Number.isInteger(value) ? String(value) : value.toFixed(1);
  };

  function build(element, columns, names, labels) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: element.clientWidth,
      height: 150,
      cursor: { drag: { x: false, y: false } },
      hooks: { draw: [(plot) => { element.dataset.begins = String(plot.scales.x.min); }] },
      scales: {
        // The axis ends at the last sample, or now before the first one.
        x: { range: (plot, low, high) => {
          const end = high === null ? Date.now() / 1000 : high;
          return [low === null ? end - 30 : Math.min(low, end - 30), end];
        } },
        y: { range: (plot, low, high) => [0, Math.max(high, 1) * 1.1] },
      },
      axes: [axis, Object.assign({ size: 50, values: (plot, ticks) => ticks.map(short) }, axis)],
      series: [{}].concat(names.map((name, index) => ({
        label: labels[index],
        stroke: palette[index % palette.length],
        width: 2,
        value: (plot, value) => short(value),
      }))),
    };
    return new uPlot(options, columns, element);
  }

  function follow(element) {
    const names = element.dataset.columns.split(",");
    const labels = element.dataset.labels.split(",");
    let plot = null;
    const draw = async () => {
      if (document.hidden) return;
      try {
        const answer = await fetch(element.dataset.chart, { headers: { Accept: "application/json" } });
        if (!answer.ok) return;
        const found = await answer.json();
        const columns = [found.t].concat(names.map((name) => found[name] || found.t.map(() => null)));
        if (plot) plot.setData(columns);
        else plot = build(element, columns, names, labels);
        element.dataset.points = String(found.t.length);
      } catch (error) {
        // The gateway does not answer: the chart stays as it is until the next request.
        element.dataset.stale = "true";
      }
    };
    new ResizeObserver(() => { if (plot) plot.setSize({ width: element.clientWidth, height: 150 }); }).observe(element);
    draw();
    setInterval(draw, EVERY_MS);
  }

  document.querySelectorAll("[data-chart]").forEach(follow);
})();
