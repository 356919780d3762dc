// Shows the fields of the chosen kind, and the next instants and errors of the form while the user types. Without this
// script the form has all fields, and a button for the preview.
"use strict";
(() => {
  const form = document.getElementById("wheel-schedule");
  if (!form) return;
  const preview = document.getElementById("wheel-preview");
  const news = document.getElementById("wheel-preview-news");
  const lost = document.getElementById("wheel-preview-lost");
  const waitMs = 300;
  const giveUpMs = 10000;
  let timer = 0;
  let running = null;

  function showKind() {
    const kind = form.elements.kind.value;
    for (const group of form.querySelectorAll("[data-kind]")) group.hidden = group.dataset.kind !== kind;
  }

  function showErrors(errors) {
    for (const place of form.querySelectorAll("[data-errors-of]")) {
      const name = place.dataset.errorsOf;
      if (["name", "task", "reason"].includes(name)) continue;
      const texts = errors[name] ?? [];
      const list = document.createElement("ul");
      list.className = "errorlist";
      list.id = `id_${name}_error`;
      for (const text of texts) list.appendChild(document.createElement("li")).textContent = text;
      place.replaceChildren(...(texts.length ? [list] : []));
      const row = place.closest(".form-row");
      row?.classList.toggle("errors", texts.length > 0);
      for (const input of row?.querySelectorAll("input, select, textarea") ?? []) {
        if (texts.length) {
          input.setAttribute("aria-invalid", "true");
          input.setAttribute("aria-errormessage", list.id);
        } else {
          input.removeAttribute("aria-invalid");
          input.removeAttribute("aria-errormessage");
        }
      }
    }
  }

  async function refresh() {
    running?.abort();
    const own = (running = new AbortController());
    const late = setTimeout(() => own.abort("late"), giveUpMs);
    try {
      const answer = await fetch(form.dataset.preview, {
        method: "POST", body: new FormData(form), signal: own.signal, redirect: "error",
      });
      if (!answer.ok) throw new Error(answer.status);
      const found = await answer.json();
      if (own !== running) return;
      preview.innerHTML = found.html;
      showErrors(found.errors);
      lost.hidden = true;
      news.textContent = news.dataset[Object.keys(found.errors).length ? "wrong" : "current"];
    } catch {
      if (own === running) lost.hidden = false;
    } finally {
      clearTimeout(late);
    }
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(refresh, waitMs);
  }

  form.addEventListener("input", (event) => {
    if (event.target.name === "kind") showKind();
    later();
  });
  document.getElementById("wheel-preview-button").hidden = true;
  showKind();
})();
