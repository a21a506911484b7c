// Behaviour of every page: live refresh, lost-server banner, dialogs, copy buttons, keyboard shortcuts.
// Listeners are on the document, so that parts which htmx inserts later need no set-up. Nothing here evaluates text as code.
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const text = (key) => document.querySelector("#texts")?.content.querySelector(`[data-text="${key}"]`)?.textContent ?? key;

  function announce(message) {
    const status = document.querySelector("#announcer");
    if (status) status.textContent = message;
  }

  function setCookie(name, value) {
    document.cookie = `${name}=${encodeURIComponent(value)}; path=/; max-age=31536000; samesite=lax`;
  }

  // --- Time zone: the server formats times, so it needs the zone. The first page of a new browser is loaded once more.
  function sendZone() {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const sent = document.cookie.split("; ").includes(`ariane_zone=${encodeURIComponent(zone)}`);
    if (!zone || sent) return;
    setCookie("ariane_zone", zone);
    const isStored = document.cookie.includes("ariane_zone=");
    if (isStored && root.dataset.hasZone === "no" && document.querySelector("time")) location.reload();
  }

  // --- Live refresh. Timers of htmx (`every 5s [condition]`) would evaluate the condition, which the policy of the page forbids.
  const RETRY_MS = 3000;
  const SILENCE_MS = 6000; // without an answer, until the server is probed: a refresh of a healthy one may take this long
  const PROBE_MS = 3000;
  let isLost = false;
  let isSilent = false; // lost because nothing answers, not because an answer is an error
  let isProbing = false;
  let answeredAt = Date.now();

  // Without this, a refresh would take away what the reader works with.
  function isBusy(section) {
    if (section.querySelector("dialog[open], :popover-open, form.changed, input[data-select]:checked")) return true;
    const selection = getSelection();
    return !!selection && !selection.isCollapsed && section.contains(selection.anchorNode);
  }

  function refresh(section) {
    section.dataset.refreshedAt = Date.now();
    const url = location.pathname + location.search;
    // `shownUrl`, `isRefresh`: read again when the answer arrives.
    return htmx.ajax("GET", url, { source: section, target: section, select: `#${CSS.escape(section.id)}`, swap: "outerMorph",
      push: "false", replace: "false", isRefresh: true, shownUrl: location.href });
  }

  function refreshDue() {
    if (document.hidden) return;
    for (const section of all("[data-live][id]")) {
      const interval = 1000 * (Number(section.dataset.live) || 5);
      const age = Date.now() - Number(section.dataset.refreshedAt || loadedAt);
      if (age >= (isLost ? Math.min(interval, RETRY_MS) : interval) && !isBusy(section)) refresh(section);
    }
  }
  const loadedAt = Date.now();

  function refreshAll() {
    for (const section of all("[data-live][id]")) if (!isBusy(section)) refresh(section);
  }

  function setLost(lost, message) {
    const banner = document.querySelector("#lost");
    if (!banner) return;
    const words = banner.querySelector("span");
    words.dataset.lost ??= words.textContent;
    words.textContent = message || words.dataset.lost;
    isLost = lost;
    isSilent = lost && !message;
    banner.hidden = !lost;
    root.classList.toggle("lost", lost);
  }

  // A process that hangs accepts connections and never answers. The answer of a refresh may also be slow, that of a file is not.
  async function probe() {
    if (isProbing) return;
    isProbing = true;
    try {
      await fetch("/static/icon.svg", { cache: "no-store", signal: AbortSignal.timeout(PROBE_MS) });
      answeredAt = Date.now();
      if (isSilent) {
        setLost(false);
        refreshAll();
      }
    } catch {
      setLost(true);
    } finally {
      isProbing = false;
    }
  }

  function probeDue() {
    if (!document.hidden && Date.now() - answeredAt > (isSilent ? RETRY_MS : SILENCE_MS)) probe();
  }

  document.addEventListener("htmx:config:request", ({ detail: { ctx } }) => {
    if (!/GET|HEAD/.test(ctx.request.method)) {
      ctx.request.headers["X-CSRF-Token"] = document.querySelector('meta[name="csrf-token"]')?.content ?? "";
    } else if (ctx.request.body?.delete) {
      // Parameters without a value would only lengthen the address.
      for (const [key, value] of [...ctx.request.body]) if (value === "" && key !== "q") ctx.request.body.delete(key);
    }
  });

  document.addEventListener("htmx:before:response", (event) => {
    const { ctx } = event.detail;
    answeredAt = Date.now();
    setLost(false);
    // A refresh that fails shows one banner, not a notice every few seconds. 401 carries HX-Redirect, which htmx follows.
    if (ctx.isRefresh && ctx.response.status >= 400 && !ctx.hx.redirect) {
      event.preventDefault();
      ctx.response.raw.text().then((html) => {
        const parsed = new DOMParser().parseFromString(html, "text/html");
        setLost(true, `${text("failed")} ${parsed.querySelector(".notice-text")?.textContent.trim() || ctx.response.status}`);
      });
    }
  });

  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx, tasks } = event.detail;
    // The reader searched, sorted or selected something while the refresh was in flight: its answer is stale.
    if (ctx.isRefresh && (ctx.shownUrl !== location.href || isBusy(ctx.sourceElement))) event.preventDefault();
    // A notice below an open dialog would be invisible.
    const dialog = ctx.sourceElement?.closest?.("dialog[open]") ?? document.querySelector("dialog[open]");
    const notices = dialog?.querySelector("[data-dialog-notices]");
    if (notices && ctx.response?.status >= 400) {
      for (const task of tasks) if (task.target?.id === "notices" || task.target === "#notices") task.target = notices;
    }
  });

  document.addEventListener("htmx:error", ({ detail: { error } }) => {
    // fetch() rejects with a TypeError when no server answers.
    if (error instanceof TypeError || error === "timeout" || error?.name === "AbortError") setLost(true);
  });

  // The header HX-Trigger of a change that succeeded.
  document.addEventListener("console-changed", (event) => {
    const form = event.target.closest?.("form");
    form?.closest("dialog")?.close();
    form?.reset();
    form?.classList.remove("changed");
    setTimeout(refreshAll, 50);
  });

  // --- Forms: an edited form is not replaced by a refresh; a confirmation needs the typed name.
  function checkConfirmation(form) {
    if (!form?.matches?.("[data-confirm]")) return;
    const isTyped = form.querySelector("[data-confirm-field]")?.value === form.dataset.confirm;
    for (const button of all(".button-danger", form)) button.disabled = !isTyped;
  }

  document.addEventListener("input", ({ target }) => {
    const form = target.closest("form.form");
    form?.classList.add("changed");
    checkConfirmation(form);
  });
  document.addEventListener("htmx:finally:request", ({ target }) => setTimeout(() => checkConfirmation(target)));

  // --- Clicks
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("[data-open], [data-close], [data-dismiss], [data-copy], [data-copy-next], [data-retry]");
    if (!button) {
      if (target.matches?.("dialog[open]")) closeIfOutside(target);
      return;
    }
    const data = button.dataset;
    if ("open" in data) openDialog(document.getElementById(data.open));
    else if ("close" in data) button.closest("dialog")?.close();
    else if ("dismiss" in data) button.closest(".notice")?.remove();
    else if ("retry" in data) probe();
    else copy(button, data.copy ?? button.parentElement.querySelector("pre, input, textarea")?.textContent ?? "");
  });

  let pressed = null;
  document.addEventListener("pointerdown", (event) => { pressed = event; });
  // A click on the backdrop has the dialog as its target; a drag that began inside does not close it.
  function closeIfOutside(dialog) {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const isInside = !pressed || (pressed.clientX >= left && pressed.clientX <= right && pressed.clientY >= top && pressed.clientY <= bottom);
    if (!isInside && !dialog.querySelector("form.changed")) dialog.close();
  }

  function openDialog(dialog) {
    if (!dialog || dialog.open) return;
    dialog.querySelector("[data-dialog-notices]")?.replaceChildren();
    for (const form of all("form", dialog)) checkConfirmation(form);
    dialog.showModal();
    dialog.querySelector("[autofocus], .field input:not([type=hidden]), .field select, .field textarea")?.focus();
  }

  async function copy(button, value) {
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      // Pages that are not served by HTTPS or from localhost have no clipboard object.
      const area = document.createElement("textarea");
      area.value = value;
      (button.closest("dialog") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("copied");
    announce(text("copied"));
    setTimeout(() => button.classList.remove("copied"), 1500);
  }

  // --- Rows: a click anywhere follows the link that is marked with data-row; the arrow keys go from one such link to the next.
  const CONTROLS = "a, button, input, select, textarea, label, summary, details, dialog, [data-copy]";
  const rowLink = (node) => node.closest?.("tbody tr")?.querySelector("a[data-row]");

  document.addEventListener("click", (event) => {
    const link = rowLink(event.target);
    if (!link || event.target.closest(CONTROLS) || !getSelection().isCollapsed) return;
    if (event.ctrlKey || event.metaKey) open(link.href);
    else link.click();
  });

  document.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches?.("a[data-row]")) return;
    const links = all("a[data-row]", event.target.closest("table"));
    const next = links[links.indexOf(event.target) + step];
    if (next) { event.preventDefault(); next.focus(); }
  });

  // --- The panel: what a row of the list leads to, next to the list. The parameter `open` of the address names it.
  const OPENED = /^\/(messages|dead-letters)\/./;
  const hasRoom = () => matchMedia("(min-width: 1200px)").matches;
  const opened = () => {
    const path = new URLSearchParams(location.search).get("open") ?? "";
    return OPENED.test(path) ? path : "";
  };

  function showPanel() {
    const panel = document.querySelector("#panel"), path = opened();
    if (!panel) return;
    if (path && !hasRoom()) { location.replace(path); return; }
    panel.hidden = !path;
    for (const link of all("a[data-row]")) {
      if (path && link.getAttribute("href") === path) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const content = panel.querySelector("#panel-content");
    if (!path) { content.replaceChildren(); delete panel.dataset.path; }
    if (!path || panel.dataset.path === path) return;
    panel.dataset.path = path;
    panel.querySelector("[data-panel-page]").href = path;
    htmx.ajax("GET", path, { source: panel, target: content, select: "#message", swap: "innerHTML", push: "false", replace: "false" });
  }

  function openInPanel(path) {
    const url = new URL(location.href);
    if (path) url.searchParams.set("open", path);
    else url.searchParams.delete("open");
    history.pushState({ panel: true }, "", url);
    showPanel();
  }

  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button || !hasRoom()) return;
    const panel = document.querySelector("#panel"), link = event.target.closest?.(".with-panel a[href]");
    // In the panel: other formats and encodings of the same message.
    const isOwn = link && panel.contains(link) && !link.matches("[data-panel-page], [download]")
      && new URL(link.href).pathname === panel.dataset.path?.split("?")[0];
    if (event.target.closest?.("[data-panel-close]")) openInPanel("");
    else if (link && (link.matches("[data-row]") || isOwn) && OPENED.test(link.getAttribute("href"))) {
      event.preventDefault();
      openInPanel(link.getAttribute("href").split("#")[0]);
    }
  });
  addEventListener("popstate", showPanel);
  document.addEventListener("htmx:after:history:push", showPanel);

  // --- Tables that are wider than their region: where columns are outside of it, for the shadows and the columns that stay.
  function markClipped(region) {
    const after = region.scrollWidth - region.clientWidth - region.scrollLeft;
    const sides = [region.scrollLeft > 1 && "left", after > 1 && "right"].filter(Boolean).join(" ");
    if (sides) region.dataset.clipped = sides;
    else delete region.dataset.clipped;
  }
  const regions = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.isConnected) markClipped(target.closest(".table-region"));
  });
  function watchRegions() {
    for (const region of all(".table-region")) for (const node of [region, ...region.children]) regions.observe(node);
  }
  document.addEventListener("scroll", ({ target }) => { if (target.matches?.(".table-region")) markClipped(target); }, true);

  // --- Keyboard
  const SHORTCUTS_KEY = "ariane.shortcuts";
  let isGoing = false; // after "g", until the next key

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(SHORTCUTS_KEY) === "off") return;
    if (event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) return;
    if (document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (isGoing) {
      isGoing = false;
      const link = /^[a-z]$/.test(key) && document.querySelector(`#navigation a[data-key="${key}"]`);
      if (link) { event.preventDefault(); location.href = link.href; }
    } else if (key === "g") {
      isGoing = true;
      setTimeout(() => { isGoing = false; }, 1500);
    } else if (key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (key === "?") {
      openDialog(document.querySelector("#shortcuts"));
    } else if (key === "r") {
      refreshAll();
    }
  });

  document.addEventListener("change", ({ target }) => {
    if (target.matches?.("[data-shortcuts]")) localStorage.setItem(SHORTCUTS_KEY, target.checked ? "on" : "off");
  });

  // --- Charts: the library is loaded by the first page that has one.
  let chartScripts = null;
  function load(source) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.addEventListener("load", resolve);
      script.addEventListener("error", reject);
      document.head.append(script);
    });
  }

  function drawCharts() {
    if (!document.querySelector("[data-chart]")) return;
    chartScripts ??= load(root.dataset.echarts).then(() => load(root.dataset.charts));
    chartScripts.then(() => ArianeCharts.draw()).catch(() => { chartScripts = null; });
  }

  document.addEventListener("htmx:after:swap", () => { drawCharts(); watchRegions(); showPanel(); });
  document.addEventListener("visibilitychange", refreshDue);
  document.addEventListener("DOMContentLoaded", () => {
    sendZone();
    drawCharts();
    watchRegions();
    showPanel();
    // On narrow screens the current tab may be outside of the row.
    for (const tab of all(".tabs [aria-current]")) tab.closest("ul").scrollLeft = tab.offsetLeft - 40;
    const toggle = document.querySelector("[data-shortcuts]");
    if (toggle) toggle.checked = localStorage.getItem(SHORTCUTS_KEY) !== "off";
    for (const form of all("form[data-confirm]")) checkConfirmation(form);
    setInterval(() => { refreshDue(); probeDue(); }, 1000);
  });
})();
