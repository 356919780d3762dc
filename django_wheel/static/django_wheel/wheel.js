// Refreshes the live part of the wheel page every second. Without this script the page reloads itself every few seconds.
// Refreshing pauses while the live part has the keyboard focus or selected text, while the page is hidden, and on request;
// the page says so. Every text comes from the template, which has the translations.
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
  let misses = 0;

  function show(html) {
    const open = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
    const active = live.contains(document.activeElement) ? document.activeElement : null;
    const href = active?.getAttribute("href");
    const within = active?.localName === "summary" && active.parentElement.id;
    live.innerHTML = html;
    for (const one of live.querySelectorAll("details")) one.open = open.has(one.id);
    if (href) [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === href)?.focus();
    if (within) document.getElementById(within)?.querySelector("summary").focus();
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
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) return "selection";
    return document.hidden ? "hidden" : null;
  }

  function showState() {
    state.textContent = state.dataset[pauseReason() ?? (misses ? "stale" : "current")];
  }

  async function refresh() {
    const reason = pauseReason();
    try {
      if (!reason) {
        const answer = await fetch(live.dataset.url, { signal: AbortSignal.timeout(giveUpMs), redirect: "error" });
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
})();
