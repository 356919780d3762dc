// Keeps the live part of the wheel page up to date. Without it the page loads itself anew every few seconds.
// It waits while somebody reads with the keyboard or has selected text in it, and while it is paused; and says so.
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
    tell();
  }

  // To a screen reader, and only when it is something else than before.
  function tell() {
    const now = [...live.querySelectorAll("[data-news]")].map((one) => one.dataset.news).join(" ");
    if (news.textContent !== now) news.textContent = now;
  }

  function waitsFor() {
    if (pause.getAttribute("aria-pressed") === "true") return "paused";
    if (live.querySelector(":focus-visible")) return "waits while the keyboard is in it";
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) return "waits while text is selected";
    return document.hidden ? "waits until it is looked at" : null;
  }

  function say() {
    state.textContent = waitsFor() ?? (misses ? "not up to date" : "up to date");
  }

  async function refresh() {
    const reason = waitsFor();
    try {
      if (!reason) {
        const answer = await fetch(live.dataset.url, { signal: AbortSignal.timeout(giveUpMs), redirect: "error" });
        if (!answer.ok) throw new Error(answer.status);
        const html = await answer.text();
        if (!waitsFor()) show(html);
      }
      misses = 0;
    } catch {
      misses += 1;
    }
    say();
    lost.hidden = misses < 2;
    setTimeout(refresh, everyMs * Math.min(1 + misses, 10));
  }

  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true"));
    say();
  });
  pace.hidden = false;
  tell();
  setTimeout(refresh, everyMs);
})();
