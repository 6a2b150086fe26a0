"use strict";
(() => {
  const said = document.getElementById("said");
  const copy = async (id) => {
    const from = document.getElementById(id);
    const text = from.value ?? from.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    said.textContent = "copied";
  };
  const openAround = (element) => {
    for (let at = element; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  const openTarget = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    openAround(target);
    target.querySelector("details")?.setAttribute("open", "");
    target.scrollIntoView();
  };
  const lanes = document.getElementById("lanes");
  const axis = document.getElementById("axis");
  let zoom = 1;
  const RELOAD_MS = 10000;
  let reload = "goesOn" in document.body.dataset ? setTimeout(() => location.reload(), RELOAD_MS) : null;
  const stay = () => {
    if (reload === null) return;
    clearTimeout(reload);
    reload = null;
    said.textContent = "no longer reloads itself: you are reading; reload for news";
  };
  const show = (factor, share) => {
    const middle = share ?? (axis.scrollLeft + axis.clientWidth / 2) / axis.scrollWidth;
    zoom = Math.min(4096, Math.max(1, factor));
    lanes.setAttribute("width", `${zoom * 100}%`);
    axis.scrollLeft = middle * axis.scrollWidth - axis.clientWidth / 2;
  };
  const zoomTo = (how) => {
    if (how === "in") show(zoom * 2);
    if (how === "out") show(zoom / 2);
    if (how === "fit") show(1);
    if (how === "stall") {
      const begun = Number(lanes.dataset.stall) / 100;
      show(0.7 / Math.max(1 - begun, 0.0002), (begun + 1) / 2);
    }
  };
  for (const used of ["pointerdown", "keydown"]) document.addEventListener(used, stay);
  document.addEventListener("click", (event) => {
    const { copy: id, zoom: how, fold } = event.target.dataset ?? {};
    if (id) copy(id);
    if (how) zoomTo(how);
    if (fold !== undefined) for (const one of document.querySelectorAll("details")) one.open = fold === "open";
  });
  axis?.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "-") zoomTo(event.key === "+" ? "in" : "out");
  });
  axis?.addEventListener("pointerover", (event) => {
    const title = event.target.querySelector?.(":scope > title");
    if (title) document.getElementById("hovered").textContent = title.textContent;
  });
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
  openTarget();
})();
