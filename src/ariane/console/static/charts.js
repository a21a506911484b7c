// Draws the charts of a page from the JSON beside them: colours of the theme, units, tooltips and a table as their alternative.
// Tooltips are built as elements, never as HTML text: names of topics and keys come from clients.
"use strict";
const ArianeCharts = (() => {
  const SERIES_COLOURS = 8;
  const root = document.documentElement;
  const drawn = new Map(); // id → {element, chart, json, options}
  const text = (key) => document.querySelector("#texts").content.querySelector(`[data-text="${key}"]`)?.textContent ?? key;
  const isUtc = () => root.dataset.zone === "UTC";

  // Custom properties keep light-dark(…) unresolved; the colour of an element does not.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  function element(tag, className, content) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (content !== undefined) node.textContent = content;
    return node;
  }

  // --- Values
  const UNITS = {
    number: (value) => plain(value, 0),
    rate: (value) => `${plain(value, value < 100 ? 1 : 0)}/s`,
    bytes: (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
    ms: (value) => value < 10000 ? `${plain(value, value < 10 ? 1 : 0)} ms` : value < 600000 ? `${plain(value / 1000, 1)} s`
      : value < 7200000 ? `${plain(value / 60000, 1)} min` : `${plain(value / 3600000, 1)} h`,
    percent: (value) => `${plain(100 * value, 1)} %`,
  };

  function plain(value, digits) {
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  }

  function scaled(value, step, units) {
    let unit = 0;
    while (Math.abs(value) >= step && unit < units.length - 1) { value /= step; unit += 1; }
    return `${plain(value, unit ? 1 : 0)} ${units[unit]}`;
  }

  function shown(value, unit) {
    return value === null || value === undefined || Number.isNaN(value) ? `? (${text("unknown")})` : (UNITS[unit] ?? UNITS.number)(value);
  }

  function axisValue(value, unit) {
    if (unit && unit !== "number" && unit !== "rate") return shown(value, unit);
    return (Math.abs(value) >= 10000 ? scaled(value, 1000, ["", "k", "M", "G", "T"]) : plain(value, 2)) + (unit === "rate" && value ? "/s" : "");
  }

  function timeText(ms) {
    return new Date(ms).toLocaleString("sv", { timeZone: isUtc() ? "UTC" : undefined });
  }

  // The first points of a history would fill an axis of two days.
  const SHORTEST_MS = 60000;
  function start(ours) {
    const times = ours.series.flatMap((series) => series.points.map((point) => point[0]));
    const last = Math.max(...times);
    return times.length && last - Math.min(...times) < SHORTEST_MS ? last - SHORTEST_MS : undefined;
  }

  // Upper end and step of an axis from 0 with three or four labels, at round numbers.
  function scale(ours) {
    const sums = new Map(); // time and stack → sum
    for (const series of ours.series) for (const [ms, value] of series.points) {
      const key = `${ms} ${series.stack ?? series.name}`;
      sums.set(key, (sums.get(key) ?? 0) + (value ?? 0));
    }
    const most = Math.max(0, ...sums.values());
    if (Math.min(0, ...sums.values()) < 0) return {};
    if (!most) return { interval: 1, max: 2 };
    const base = ours.unit === "bytes" ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
    const size = 10 ** Math.floor(Math.log10(most / base) - 1);
    const steps = [1, 2, 2.5, 5, 10, 20, 25, 50, 100].map((step) => step * size * base);
    const step = steps.find((step) => most / step <= 3 && (ours.unit !== "number" || Number.isInteger(step))) ?? 1;
    return { interval: step, max: step * Math.max(2, Math.ceil(most / step)) };
  }

  // --- Options of ECharts from ours
  function convert(ours) {
    const muted = colour("muted"), line = colour("line");
    const axis = { axisLine: { lineStyle: { color: line } }, axisTick: { show: false }, splitLine: { show: false },
      axisLabel: { color: muted, fontSize: 11.5, hideOverlap: true } };
    const many = ours.series.length > 1;
    return {
      useUTC: isUtc(),
      animation: false,
      color: Array.from({ length: SERIES_COLOURS }, (_, index) => colour(`series-${index + 1}`)),
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      // ECharts 6 would put the legend over the time axis.
      legend: many ? { type: "scroll", top: 0, left: 0, itemWidth: 14, itemHeight: 8, icon: "roundRect", textStyle: { color: colour("text"), fontSize: 12,
        overflow: "truncate", width: 220 }, pageTextStyle: { color: muted }, pageIconColor: muted } : { show: false },
      grid: { left: 4, right: 14, top: many ? 34 : 14, bottom: 6, containLabel: true, outerBoundsMode: "same" },
      tooltip: { trigger: "axis", appendTo: "body", confine: true, transitionDuration: 0, backgroundColor: colour("raised"), borderColor: line,
        textStyle: { color: colour("text") }, axisPointer: { lineStyle: { color: muted }, shadowStyle: { color: line, opacity: 0.4 } },
        formatter: (points) => tooltip(points, ours) },
      title: { show: ours.series.every((series) => series.points.every(([, value]) => value === null)), text: text("novalues"), left: "center", top: "middle",
        textStyle: { color: muted, fontSize: 13, fontWeight: "normal" } },
      xAxis: { type: "time", ...axis, min: ours.from ?? start(ours), max: ours.to, splitNumber: 4 },
      yAxis: { type: "value", ...axis, axisLine: { show: false }, splitLine: { lineStyle: { color: line } }, min: ours.min ?? (ours.unit === "percent" ? 0 : undefined),
        splitNumber: 3, minInterval: ours.unit === "number" ? 1 : undefined, ...scale(ours),
        axisLabel: { color: muted, fontSize: 11.5, formatter: (value) => axisValue(value, ours.unit) } },
      dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: "shift" }],
      series: ours.series.map((series) => ({
        name: series.name, type: series.type ?? "line", data: series.points, stack: series.stack, showSymbol: series.points.length < 3, symbolSize: 5,
        connectNulls: false, lineStyle: { width: 1.8 }, areaStyle: series.area ? { opacity: 0.16 } : undefined, barMaxWidth: 22, emphasis: { disabled: true },
      })),
    };
  }

  function tooltip(points, ours) {
    const box = element("div", "chart-tip");
    box.append(element("strong", "", timeText(points[0].axisValue)));
    for (const point of points) {
      const row = element("div");
      row.append(element("span", `swatch series-${point.seriesIndex % SERIES_COLOURS + 1}`, "■"), element("span", "", point.seriesName),
        element("strong", "", shown(point.value[1], ours.unit)));
      box.append(row);
    }
    return box;
  }

  // --- The table below a chart: all values, for readers who do not see the canvas. Filled when it is opened.
  function fillTable(id) {
    const { options, figure } = drawn.get(id);
    const rows = new Map();
    options.series.forEach((series, column) => series.points.forEach(([time, value]) => {
      if (!rows.has(time)) rows.set(time, Array(options.series.length).fill(undefined));
      rows.get(time)[column] = value;
    }));
    const head = element("tr");
    head.append(...[text("time"), ...options.series.map(({ name }) => name)].map((name, index) => {
      const cell = element("th", index ? "num" : "", name);
      cell.scope = "col";
      return cell;
    }));
    const table = element("table", "dense"), thead = element("thead"), tbody = element("tbody");
    thead.append(head);
    for (const time of [...rows.keys()].sort((a, b) => b - a)) {
      const row = element("tr");
      row.append(element("td", "", timeText(time)),
        ...rows.get(time).map((value) => element("td", "num", value === undefined ? "" : shown(value, options.unit))));
      tbody.append(row);
    }
    table.append(thead, tbody);
    figure.querySelector(".chart-data .table-region").replaceChildren(table);
  }

  function describe(figure, options) {
    const parts = options.series.map((series) => {
      const last = series.points.at(-1);
      return `${series.name}: ${last === undefined ? text("unknown") : shown(last[1], options.unit)}`;
    });
    figure.querySelector(".chart-canvas").setAttribute("aria-description", parts.slice(0, SERIES_COLOURS).join(", "));
  }

  // Draw what is new, update what changed, remove what is gone.
  function draw(isThemeChanged = false) {
    for (const [id, { element: canvas, chart }] of drawn) {
      if (!canvas.isConnected) { chart.dispose(); drawn.delete(id); }
    }
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const id = figure.dataset.chart, canvas = figure.querySelector(".chart-canvas");
      const json = figure.querySelector("[data-chart-options]").textContent;
      let entry = drawn.get(id);
      if (entry && entry.element !== canvas) { entry.chart.dispose(); entry = undefined; }
      if (entry && entry.json === json && !isThemeChanged) continue;
      const options = JSON.parse(json);
      const chart = entry?.chart ?? echarts.init(canvas);
      // Zoom is the reader's place in the chart: merged, not replaced, unless the number of series changed.
      chart.setOption(convert(options), { notMerge: !entry || entry.options.series.length !== options.series.length || isThemeChanged });
      drawn.set(id, { element: canvas, chart, json, options, figure });
      describe(figure, options);
      if (!entry) sizes.observe(canvas);
      if (figure.querySelector(".chart-data").open) fillTable(id);
    }
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) echarts.getInstanceByDom(target)?.resize();
  });
  document.addEventListener("toggle", ({ target }) => {
    if (target.matches?.(".chart-data[open]")) fillTable(target.closest("[data-chart]").dataset.chart);
  }, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  return { draw };
})();
