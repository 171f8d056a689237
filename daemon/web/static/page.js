// Refreshes the page without a reload. Unchanged parts stay, and with them focus, selection, scrolling and opened
// details. No script of a response runs: it is parsed as an inert document.
"use strict";

(() => {
  const every = Number(document.body.dataset.every) * 1000;
  const timeout = 3 * every + 2000; // milliseconds without a response until a banner says so
  const silence = document.getElementById("silence");
  let paused = false;
  let lastResponse = performance.now();
  let waitingSince = lastResponse; // not while the page is hidden or paused, when nothing is asked for
  let problem = "";

  const same = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");

  function patchAttributes(current, next) {
    const own = current.nodeName === "DETAILS" ? "open" : ""; // the reader opens and closes details
    for (const { name } of [...current.attributes]) {
      if (name !== own && !next.hasAttribute(name)) current.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (name !== own && current.getAttribute(name) !== value) current.setAttribute(name, value);
    }
  }

  function patch(current, next) {
    if (current.isEqualNode(next)) return;
    if (current.nodeType !== Node.ELEMENT_NODE) {
      current.nodeValue = next.nodeValue;
      return;
    }
    patchAttributes(current, next);
    const byId = new Map([...current.children].filter((node) => node.id).map((node) => [node.id, node]));
    let place = current.firstChild;
    for (const item of [...next.childNodes]) {
      const child = item.id ? byId.get(item.id) : place;
      if (child && same(child, item)) {
        if (child === place) place = place.nextSibling;
        else current.insertBefore(child, place);
        patch(child, item);
      } else {
        current.insertBefore(document.importNode(item, true), place);
      }
    }
    while (place) {
      const following = place.nextSibling;
      place.remove();
      place = following;
    }
  }

  function updateAge() {
    const at = document.getElementById("at");
    const age = document.getElementById("age");
    const passed = performance.now() - lastResponse;
    const seconds = Math.round(Number(at.dataset.age) + passed / 1000);
    const text = at.dataset.age ? `, ${seconds.toLocaleString("en")} s ago` : "";
    if (age.textContent !== text) age.textContent = text;
    const silent = !paused && !document.hidden && performance.now() - waitingSince > timeout;
    const sentence = silent ? `The controller does not answer${problem}. All figures are of the time shown.` : "";
    if (silence.textContent !== sentence) silence.textContent = sentence;
    silence.hidden = !silent;
  }

  async function refresh() {
    if (!paused && !document.hidden) {
      try {
        const signal = AbortSignal.timeout(Math.max(5000, 2 * every));
        const response = await fetch("fragment", { cache: "no-store", signal });
        if (!response.ok) throw new Error(`status ${response.status}`);
        const next = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("all");
        if (!next) throw new Error("the response is not this page");
        const age = document.getElementById("age").textContent;
        next.querySelector("#age").textContent = age; // only this script writes it
        patch(document.getElementById("all"), next);
        lastResponse = waitingSince = performance.now();
        problem = "";
      } catch (error) {
        problem = error instanceof TypeError ? "" : ` (${error.message})`;
      }
      updateAge();
    }
    setTimeout(refresh, every);
  }

  const button = document.createElement("button");
  button.type = "button";
  const label = () => {
    button.textContent = paused ? "Resume refresh" : "Pause refresh";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    waitingSince = performance.now();
    label();
  });
  label();
  document.getElementById("refresh").append(`Refreshed every ${every / 1000} s. `, button);

  document.addEventListener("visibilitychange", () => {
    waitingSince = performance.now();
  });
  setInterval(updateAge, 1000);
  setTimeout(refresh, every);
  updateAge();
})();
