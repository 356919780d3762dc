// Refreshes the parts of the wheel page every second. Without this script the page reloads itself every few seconds.
// The server sends the parts that differ from those that the page has. Refreshing pauses while a person reads a part
// (keyboard focus, pointer on a link, selected text), while the page is hidden, and on request; the page says so.
// Between two refreshes the slow rings of the wheel turn. Every text comes from the template, which has the translations.
"use strict";
(() => {
  const live = document.getElementById("wheel-live");
  const lost = document.getElementById("wheel-lost");
  const news = document.getElementById("wheel-news");
  const pace = document.getElementById("wheel-pace");
  if (!live) return;
  const pause = pace.querySelector("button");
  const state = pace.querySelector("span");
  const everyMs = 1000;
  const giveUpMs = 10000;
  const slowMs = 20000;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let misses = 0;
  let drawn = performance.now();

  function show(html) {
    const found = document.createElement("template");
    found.innerHTML = html;
    for (const part of [...found.content.children]) {
      const old = document.getElementById(part.id);
      for (const one of part.querySelectorAll("details")) one.open = old.querySelector(`#${one.id}`)?.open ?? false;
      if (part.querySelector("[data-interval]")) drawn = performance.now();
      old.replaceWith(part);
    }
    announce();
  }

  // Announce news to a screen reader, once.
  function announce() {
    const now = [...live.querySelectorAll("[data-news]")].map((one) => one.dataset.news).join(" ");
    if (news.textContent !== now) news.textContent = now;
  }

  function pauseReason() {
    if (pause.getAttribute("aria-pressed") === "true") return "paused";
    if (live.querySelector(":focus-visible")) return "keyboard";
    if (live.querySelector("a:hover, button:hover")) return "pointer";
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) return "selection";
    return document.hidden ? "hidden" : null;
  }

  function showState() {
    state.textContent = state.dataset[pauseReason() ?? (misses ? "stale" : "current")];
  }

  function turn() {
    if (!still.matches && !misses && !pauseReason()) {
      for (const ring of live.querySelectorAll("[data-interval]")) {
        const turns = (performance.now() - drawn) / ring.dataset.interval;
        if (ring.dataset.interval > slowMs) ring.setAttribute("transform", `rotate(${-360 * turns},200,200)`);
      }
    }
    requestAnimationFrame(turn);
  }

  async function refresh() {
    try {
      if (!pauseReason()) {
        const have = [...live.querySelectorAll("[data-version]")].map((one) => one.dataset.version).join(".");
        const url = `${live.dataset.url}&have=${have}`;
        const answer = await fetch(url, { signal: AbortSignal.timeout(giveUpMs), redirect: "error" });
        if (!answer.ok) throw new Error(answer.status);
        const html = await answer.text();
        if (!pauseReason()) show(html);
      }
      misses = 0;
    } catch {
      misses += 1;
    }
    showState();
    lost.hidden = misses < 2;
    setTimeout(refresh, everyMs * Math.min(1 + misses, 10));
  }

  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true"));
    showState();
  });
  pace.hidden = false;
  announce();
  setTimeout(refresh, everyMs);
  turn();
})();
