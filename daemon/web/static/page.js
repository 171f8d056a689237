// Renews the figures without a reload. What did not change is left alone, so that focus, selection, scrolling and opened
// parts stay as they are. Nothing that arrives is run: it is parsed as a document without scripts.
"use strict";

(() => {
  const every = Number(document.body.dataset.every) * 1000;
  const patience = 3 * every + 2000; // milliseconds without an answer after which the reader is told
  const silence = document.getElementById("silence");
  let paused = false;
  let heard = performance.now();
  let trouble = "";

  const same = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");

  function attributes(now, wanted) {
    const own = now.nodeName === "DETAILS" ? "open" : ""; // whether a part is open is the reader's to say
    for (const { name } of [...now.attributes]) {
      if (name !== own && !wanted.hasAttribute(name)) now.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
      if (name !== own && now.getAttribute(name) !== value) now.setAttribute(name, value);
    }
  }

  function patch(now, wanted) {
    if (now.isEqualNode(wanted)) return;
    if (now.nodeType !== Node.ELEMENT_NODE) {
      now.nodeValue = wanted.nodeValue;
      return;
    }
    attributes(now, wanted);
    const known = new Map([...now.children].filter((child) => child.id).map((child) => [child.id, child]));
    let place = now.firstChild;
    for (const item of [...wanted.childNodes]) {
      const kept = item.id ? known.get(item.id) : place;
      if (kept && same(kept, item)) {
        if (kept === place) place = place.nextSibling;
        else now.insertBefore(kept, place);
        patch(kept, item);
      } else {
        now.insertBefore(document.importNode(item, true), place);
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function ages() {
    const at = document.getElementById("at");
    const age = document.getElementById("age");
    const passed = performance.now() - heard;
    const seconds = Math.round(Number(at.dataset.age) + passed / 1000);
    const words = at.dataset.age ? `, ${seconds.toLocaleString("en")} s ago` : "";
    if (age.textContent !== words) age.textContent = words;
    const silent = !paused && passed > patience;
    const sentence = silent ? `The controller does not answer${trouble}. What stands here is as old as it says.` : "";
    if (silence.textContent !== sentence) silence.textContent = sentence;
    silence.hidden = !silent;
  }

  async function renew() {
    if (!paused && !document.hidden) {
      try {
        const limit = AbortSignal.timeout(Math.max(5000, 2 * every));
        const answer = await fetch("fragment", { cache: "no-store", signal: limit });
        if (!answer.ok) throw new Error(`answer ${answer.status}`);
        const wanted = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("all");
        if (!wanted) throw new Error("an answer that is not this page");
        const age = document.getElementById("age").textContent;
        wanted.querySelector("#age").textContent = age; // written by this script alone
        patch(document.getElementById("all"), wanted);
        heard = performance.now();
        trouble = "";
      } catch (error) {
        trouble = error instanceof TypeError ? "" : ` (${error.message})`;
      }
      ages();
    }
    setTimeout(renew, every);
  }

  const button = document.createElement("button");
  button.type = "button";
  const name = () => {
    button.textContent = paused ? "Renew again" : "Stop renewing";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    name();
  });
  name();
  const renewal = document.getElementById("renewal");
  renewal.append(`Renewed every ${every / 1000} s. `, button);

  setInterval(ages, 1000);
  setTimeout(renew, every);
  ages();
})();
